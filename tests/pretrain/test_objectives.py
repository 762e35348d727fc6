"""Every objective's losses equal a reference that is written from its equation, one text at a time, unpadded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.tiny import with_keys
from torch import Tensor

from qontext.models.encoder import load_encoder
from qontext.pretrain.batches import MicroBatch
from qontext.pretrain.texts import Text
from qontext.training.batch import prepare
from qontext.training.dropout import drawn_for


class Alone:
    """A group of one process, on the CPU."""

    world, rank, device = 1, 0, torch.device("cpu")

    @staticmethod
    def gather(tensor: Tensor) -> Tensor:
        return tensor


def rows(text: Text) -> Iterator[tuple[Tensor, list[tuple[int, int]]]]:
    """Each row alone: its ids without padding, and (place, label) of what is to be predicted."""
    width = text.ids.shape[1]
    for n, (ids, mask) in enumerate(zip(text.ids, text.mask)):
        mine = text.positions // width == n
        yield ids[mask][None], list(zip((text.positions[mine] % width).tolist(), text.labels[mine].tolist()))


def cross_entropies(encoder: Any, hidden_1TH: Tensor, wanted: list[tuple[int, int]]) -> list[Tensor]:
    """-log softmax(φ(h_place))[label], one place at a time."""
    return [
        -torch.log_softmax(encoder.mlm_logits(hidden_1TH[0, place][None])[0], -1)[label]
        for place, label in wanted
    ]


def mean(values: list[Any]) -> Tensor:
    return torch.stack(values).mean()


def losses_of(objective: Any, batch: Any) -> dict[str, Tensor]:
    """What the loop would add up: every micro-batch's losses, and the contrastive one."""
    micro, keys = prepare(batch, Alone)
    outputs = []
    for one in micro:
        with drawn_for(one.row_keys):
            outputs.append(objective(one))
    total: dict[str, Any] = {}
    for output in outputs:
        for name, loss in output.losses.items():
            total[name] = total.get(name, 0) + loss
    if objective.contrastive:
        vectors = torch.cat([output.vectors for output in outputs])
        total |= objective.contrast(vectors, keys, slice(0, len(vectors)))
    return total


Both = tuple[Any, Any, list[MicroBatch]]


@pytest.fixture(params=[100_000, 150], ids=["one rectangle", "many rectangles"])
def build(
    request: pytest.FixtureRequest, encoder: Any, configure: Callable[..., Any], plan_of: Callable[..., Any]
) -> Callable[..., Both]:
    """The objective of some settings, and a batch for it: all rows padded together, or in small micro-batches."""

    def make(**settings: Any) -> Both:
        config = configure(**settings)
        plan = plan_of(config, micro_tokens=request.param)
        batch = plan(1)
        lengths = {int(n) for micro in batch.micro for n in micro.encoder.mask.sum(1)}
        assert len(lengths) > 1, "texts of mixed lengths"
        assert (len(batch.micro) > 1) == (request.param == 150)
        return config.objective(encoder).eval(), batch, batch.micro

    return make


def close(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].item() == pytest.approx(value.item(), rel=1e-5), name


def test_mlm(build: Callable[..., Both], encoder: Any) -> None:
    objective, batch, micro = build(method="mlm")
    expected = [
        loss
        for one in micro
        for ids, wanted in rows(one.encoder)
        for loss in cross_entropies(encoder, encoder(ids, None)[0], wanted)
    ]
    close(losses_of(objective, batch), {"mlm": mean(expected)})


def condenser_rows(objective: Any, encoder: Any, micro: list[MicroBatch], early: int) -> Iterator[Any]:
    """For each text: the cross entropies after the head, after the last layer, and h_x."""
    for one in micro:
        for ids, wanted in rows(one.encoder):
            h_early, h_last = encoder(ids, None, layers=(early, -1))
            head = objective.head(torch.cat([h_last[:, :1], h_early[:, 1:]], dim=1), None)
            yield (
                cross_entropies(encoder, head, wanted),
                cross_entropies(encoder, h_last, wanted),
                h_last[0, 0],
            )


@pytest.mark.parametrize("early", [1, 2])
def test_condenser(build: Callable[..., Both], encoder: Any, early: int) -> None:
    objective, batch, micro = build(method="condenser", early_layer_number=early)
    found = list(condenser_rows(objective, encoder, micro, early))
    expected = {
        "head_mlm": mean([loss for head, _, _ in found for loss in head]),
        "late_mlm": mean([loss for _, late, _ in found for loss in late]),
    }
    close(losses_of(objective, batch), expected)


def contrastive_reference(
    vectors: list[Tensor], pair: list[int], skip: Callable[[int, int], bool], s: Any
) -> Tensor:
    """Equation 6, literally: -log exp(s_ij) / Σ_{k ≠ i} exp(s_ik), mean over all rows."""
    losses = []
    for i in range(len(vectors)):
        (j,) = [j for j in range(len(vectors)) if j != i and pair[j] == pair[i]]
        below = sum(
            math.exp(s(vectors[i], vectors[k]))
            for k in range(len(vectors))
            if k == j or (k != i and not skip(i, k))
        )
        losses.append(-math.log(math.exp(s(vectors[i], vectors[j])) / below))
    return torch.tensor(sum(losses) / len(losses))


@pytest.mark.parametrize("context", ["rand", "query"])
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 30.0},
        {"similarity": "cosine", "temperature": 0.5},
        {"mask_same_document": True, "temperature": 20.0},
    ],
)
def test_cocondenser(
    build: Callable[..., Both], encoder: Any, context: str, settings: dict[str, Any]
) -> None:
    objective, batch, micro = build(
        method="cocondenser", context=context, queries="queries", batch_size=12, **settings
    )
    found = list(condenser_rows(objective, encoder, micro, 1))
    pair, text, document = (getattr(batch.keys, name).tolist() for name in ("pair", "text", "document"))
    partner = {i: j for i in range(len(pair)) for j in range(len(pair)) if i != j and pair[i] == pair[j]}

    def skip(i: int, k: int) -> bool:
        same_document = settings.get("mask_same_document", False) and document[i] == document[k]
        return text[k] in (text[i], text[partner[i]]) or same_document

    def similarity(a: Tensor, b: Tensor) -> float:
        cosine = settings.get("similarity") == "cosine"
        found = F.cosine_similarity(a, b, dim=0) if cosine else a @ b
        return found.item() / float(settings["temperature"])

    expected = {
        "head_mlm": mean(
            [loss for head, _, _ in found for loss in head]
        ),  # every masked token weighs the same
        "late_mlm": mean([loss for _, late, _ in found for loss in late]),
        "contrastive": contrastive_reference([h for _, _, h in found], pair, skip, similarity),
    }
    close(losses_of(objective, batch), expected)


def test_equal_texts_are_no_negatives_of_each_other() -> None:
    """Two passages with the same text, each with its query: neither is a negative of the other's query."""
    from qontext.pretrain.objectives.base import Keys
    from qontext.pretrain.objectives.cocondenser import CoCondenser, CoCondenserOptions
    from qontext.pretrain.objectives.options import Common

    class Bare(CoCondenser):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.options, self.common = CoCondenserOptions(), Common()

    vectors = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    # rows: passage 0, 1, 2 and their queries; passages 0 and 1 carry the same text
    keys = Keys(
        torch.tensor([0, 1, 2, 0, 1, 2]),
        torch.tensor([7, 7, 8, 20, 21, 22]),
        torch.zeros(6, dtype=torch.long),
    )
    loss = Bare().contrast(vectors, keys, slice(3, 4))["contrastive"] * 6
    others = [k for k in range(6) if k not in (1, 3)]
    scores = vectors[3] @ vectors.T
    assert loss.item() == pytest.approx((torch.logsumexp(scores[others], 0) - scores[0]).item(), rel=1e-5)


def test_loss_weights_switch_parts_off(build: Callable[..., Both]) -> None:
    weights = {"late_mlm_weight": 0, "head_weight": 0}
    contrastive_only, batch, _ = build(method="cocondenser", context="rand", **weights)
    assert losses_of(contrastive_only, batch).keys() == {"contrastive"}
    mlm_only, batch, _ = build(method="cocondenser", context="rand", contrastive_weight=0)
    assert losses_of(mlm_only, batch).keys() == {"head_mlm", "late_mlm"}
    doubled, batch, _ = build(method="condenser", head_weight=2.0)
    single, _, _ = build(method="condenser")
    assert losses_of(doubled, batch)["head_mlm"].item() == pytest.approx(
        2 * losses_of(single, batch)["head_mlm"].item()
    )


def decoder_input(encoder: Any, ids: Tensor, context_ids: Tensor) -> tuple[Tensor, Tensor]:
    """h^L of the passage, and [h^L_A[CLS] ; E(B)[1..n]]."""
    last = encoder(ids, None)[0]
    return last, torch.cat([last[:, :1], encoder.embed(context_ids)[:, 1:]], dim=1)


@pytest.mark.parametrize("context", ["near+olap+rand", "query"])
def test_cot_mae(build: Callable[..., Both], encoder: Any, context: str) -> None:
    objective, batch, micro = build(method="cot-mae", context=context, queries="queries")
    own, other = [], []
    for one in micro:
        for (ids, wanted), (context_ids, context_wanted) in zip(rows(one.encoder), rows(one.decoder)):
            last, given = decoder_input(encoder, ids, context_ids)
            own += cross_entropies(encoder, last, wanted)
            other += cross_entropies(encoder, objective.head(given, None), context_wanted)
    close(losses_of(objective, batch), {"encoder_mlm": mean(own), "context_mlm": mean(other)})
    assert len(batch.keys.pair.unique()) <= 6
    count = len(batch.keys.pair)
    assert count == (12 if context != "query" else 6), "both directions, but only one for queries"


def test_cot_mae_reads_each_member_from_the_other(
    encoder: Any, configure: Callable[..., Any], plan_of: Callable[..., Any]
) -> None:
    ((one, keys),) = with_keys(plan_of(configure(method="cot-mae", context="rand"))(0))

    def originals(text: Text) -> list[list[int]]:
        ids = text.ids.clone().view(-1)
        ids[text.positions] = text.labels
        return [row[mask].tolist() for row, mask in zip(ids.view_as(text.ids), text.mask)]

    encoded, decoded = originals(one.encoder), originals(one.decoder)
    for n, pair in enumerate(keys.pair.tolist()):
        (m,) = [m for m, other in enumerate(keys.pair.tolist()) if other == pair and m != n]
        assert decoded[n] == encoded[m]


def test_autoregressive_cot_mae(build: Callable[..., Both], encoder: Any) -> None:
    """Next-token loss on all query tokens and the closing [SEP], position by position, only by what it may see."""
    objective, batch, micro = build(
        method="cot-mae", decoder="autoregressive", window=3, context="query", queries="queries"
    )
    own, other = [], []
    for one in micro:
        for (ids, wanted), (query_ids, _) in zip(rows(one.encoder), rows(one.decoder)):
            last, given = decoder_input(encoder, ids, query_ids)
            own += cross_entropies(encoder, last, wanted)
            for place in range(query_ids.shape[1] - 1):
                # only position 0 and the window exist at all: nothing else can leak in
                seen = sorted({0, *range(max(0, place - 2), place + 1)})
                hidden = objective.head(given[:, seen], None)[0, -1]
                other.append(
                    -torch.log_softmax(encoder.mlm_logits(hidden[None])[0], -1)[query_ids[0, place + 1]]
                )
    close(losses_of(objective, batch), {"encoder_mlm": mean(own), "context_mlm": mean(other)})
    assert not any((one.decoder.ids == encoder.tokenizer.mask_token_id).any() for one in micro), (
        "nothing is masked"
    )


def test_autoregressive_positions_see_no_future_and_only_their_window(
    encoder: Any, configure: Callable[..., Any]
) -> None:
    head = configure(method="cot-mae", decoder="autoregressive", window=3).objective(encoder).head.eval()
    hidden = torch.randn(1, 8, encoder.hidden_size, requires_grad=True)
    mask = torch.ones(1, 8, dtype=torch.bool)
    direction = torch.randn(encoder.hidden_size)
    for place in range(8):
        (gradient,) = torch.autograd.grad(head(hidden, mask)[0, place] @ direction, hidden)
        seen = {n for n in range(8) if gradient[0, n].abs().sum() > 0}
        assert seen == {0, *range(max(0, place - 2), place + 1)}
    out = head.blocks[0].out.weight
    assert out.std().item() == pytest.approx(0.02 / math.sqrt(2), rel=0.05)


def test_retromae(build: Callable[..., Both], encoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch, micro = build(method="retromae")
    decoder = objective.head
    samples: list[Tensor] = []

    def recorded(words: Tensor, mask: Tensor) -> Tensor:
        samples.append(type(decoder).sample(decoder, words, mask))
        return samples[-1]

    monkeypatch.setattr(decoder, "sample", recorded)
    found = losses_of(objective, batch)
    table = encoder.backbone.embeddings.position_embeddings.weight
    own, every = [], []
    for one, visible in zip(micro, samples, strict=True):
        for n, ((ids, wanted), (whole, _)) in enumerate(zip(rows(one.encoder), rows(one.decoder))):
            last = encoder(ids, None)[0]
            own += cross_entropies(encoder, last, wanted)
            content = torch.cat([last[:, :1], encoder.embed(whole)[:, 1:]], dim=1)[0]
            for place in range(1, whole.shape[1] - 1):
                asked = last[0, 0] + table[place]
                others = visible[n, place].nonzero()[:, 0].tolist()
                heads = []
                for q, k, v in zip(
                    decoder.query(asked).chunk(decoder.heads),
                    decoder.key(content[others]).chunk(decoder.heads, -1),
                    decoder.value(content[others]).chunk(decoder.heads, -1),
                ):
                    heads.append(torch.softmax(k @ q / math.sqrt(len(q)), 0) @ v)
                x = decoder.after_attention(asked + decoder.out(torch.cat(heads)))
                x = decoder.after_ffn(x + decoder.down(F.gelu(decoder.up(x))))
                every.append(-torch.log_softmax(encoder.mlm_logits(x[None])[0], -1)[whole[0, place]])
    close(found, {"encoder_mlm": mean(own), "decoder_mlm": mean(every)})


def test_retromae_hides_whole_words_but_never_the_special_tokens(
    encoder: Any, configure: Callable[..., Any], plan_of: Callable[..., Any]
) -> None:
    config = configure(method="retromae", batch_size=12)
    head = config.objective(encoder).head
    (one,) = plan_of(config)(0).micro
    words, mask = one.decoder.words, one.decoder.mask
    keys = np.arange(len(words), dtype=np.uint64)
    with drawn_for(keys):
        seen = head.sample(words, mask)
        draws = [~head.sample(words, mask)[:, -1] & (words > 0) for _ in range(800)]
    assert seen[:, :, 0].all() and not (seen & ~mask[:, None]).any()
    assert not seen[:, range(1, seen.shape[1]), range(1, seen.shape[1])].any()
    for n, row in enumerate(words.tolist()):
        end = row.index(0, 1)  # [SEP]
        assert row[0] == 0 and row[1] == 1 and seen[n, :end, end].all()
        for place in range(1, end):
            for word in set(row[1:end]) - {row[place]}:
                assert len(set(seen[n, place, words[n] == word].tolist())) == 1
    assert max(map(max, words.tolist())) < int(mask.sum(1).max()) - 2, "some words have several tokens"
    # No position is [SEP] or padding itself: of its words, half on average, however short the text.
    hidden = sum(draws) / 800
    lengths = (words > 0).sum(1)
    assert (hidden.sum(1) / lengths).tolist() == pytest.approx([0.5] * len(words), abs=0.03)


def test_retromae_takes_over_the_backbones_positions_norms_and_dropout(
    corpus: Path, configure: Callable[..., Any], plan_of: Callable[..., Any]
) -> None:
    encoder = load_encoder("tiny", tokenizer=str(corpus / "tokenizer"), dropout=0.25, seed=1)
    config = configure(method="retromae", late_mlm_weight=0)
    objective = config.objective(encoder)
    head = objective.head
    assert (head.dropout.p, head.attention_dropout.p, head.after_ffn.eps) == (0.25, 0.25, 1e-12)
    assert not any(p.any() for name, p in head.named_parameters() if name.endswith("bias"))
    assert not any("table" in name for name, _ in objective.head_parameters())
    (one,) = plan_of(config)(0).micro
    # The encoder is kept still, so that only the head's dropout can change the loss.
    encoder.eval()
    head.train()

    def loss(seed: int) -> Tensor:
        with drawn_for(np.arange(len(one.row_keys), dtype=np.uint64) + np.uint64(seed)):
            found: Tensor = objective(one).losses["decoder_mlm"]
        return found

    assert loss(0).item() == loss(0).item() != loss(1).item()
    (gradient,) = torch.autograd.grad(loss(0), encoder.backbone.embeddings.position_embeddings.weight)
    width = int(one.decoder.mask.sum(1).max())
    assert (gradient[1 : width - 1].abs().sum(1) > 0).all() and not gradient[width:].any()


def test_attention_with_dropout_is_attention() -> None:
    """Where weights are dropped, the fused kernel is not used; what is not dropped must count the same."""
    from qontext.pretrain.objectives.decoder import attend

    class Keeps(torch.nn.Dropout):
        def forward(self, weights: Tensor) -> Tensor:
            return weights

    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 7, 8).unbind()
    visible = (torch.rand(2, 7, 7) < 0.5) | torch.eye(7, dtype=torch.bool)
    fused = attend(query, key, value, visible, 2, torch.nn.Dropout(0.0))
    assert attend(query, key, value, visible, 2, Keeps(0.5)).allclose(fused, atol=1e-6)
    dropped = attend(query, key, value, visible, 2, torch.nn.Dropout(0.5))
    assert not dropped.allclose(fused, atol=1e-2)


def test_the_autoregressive_decoder_takes_over_the_backbones_activation_and_norms(encoder: Any) -> None:
    from qontext.pretrain.objectives.autoregressive import AutoregressiveDecoder
    from qontext.pretrain.objectives.decoder import Settings

    encoder.config.hidden_act, encoder.config.layer_norm_eps = "relu", 1e-3
    decoder = AutoregressiveDecoder(Settings.of(encoder), 2, window=3, seed=0)
    assert {m.eps for m in decoder.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-3}
    x = torch.linspace(-3, 3, 50)
    for block in decoder.blocks:
        assert block.activation(x).equal(x.relu())
    encoder.config.hidden_act = "gelu"
    block = AutoregressiveDecoder(Settings.of(encoder), 1, window=3, seed=0).blocks[0]
    assert block.activation(x).allclose(x * (1 + torch.erf(x / math.sqrt(2))) / 2, atol=1e-6)


@pytest.mark.parametrize("init", ["0,1", "1,1", "1"])
def test_decoders_start_as_copies_of_the_layers_that_are_named(
    encoder: Any, configure: Callable[..., Any], init: str
) -> None:
    objective = configure(method="cot-mae", decoder_init=init).objective(encoder)
    layers = encoder.backbone.encoder.layer
    assert len(objective.head.layers) == len(init.split(","))
    for number, layer in zip(init.split(","), objective.head.layers):
        for (name, copied), (_, original) in zip(
            layer.named_parameters(), layers[int(number)].named_parameters()
        ):
            assert copied.equal(original), name
            assert copied.data_ptr() != original.data_ptr()
    random = configure(method="cot-mae").objective(encoder)
    assert not any(
        p.equal(q) for p, q in zip(random.head.layers[0].parameters(), layers[0].parameters()) if p.ndim == 2
    )
