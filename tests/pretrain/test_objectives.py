"""Every objective's losses equal a reference that is written from its equation, one text at a time, unpadded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
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


def cross_entropies(encoder: Any, hidden_1TH: Tensor, targets: list[tuple[int, int]]) -> list[Tensor]:
    """-log softmax(φ(h_place))[label], one place at a time."""
    return [
        -torch.log_softmax(encoder.mlm_logits(hidden_1TH[0, place][None])[0], -1)[label]
        for place, label in targets
    ]


def originals(text: Text) -> list[list[int]]:
    """Each row's ids before masking."""
    ids = text.ids.clone().view(-1)
    ids[text.positions] = text.labels
    return [row[mask].tolist() for row, mask in zip(ids.view_as(text.ids), text.mask)]


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
        for ids, targets in rows(one.encoder)
        for loss in cross_entropies(encoder, encoder(ids, None)[0], targets)
    ]
    close(losses_of(objective, batch), {"mlm": mean(expected)})


def condenser_rows(objective: Any, encoder: Any, micro: list[MicroBatch], early: int) -> Iterator[Any]:
    """For each text: the cross entropies after the head, after the last layer, and h_x."""
    for one in micro:
        for ids, targets in rows(one.encoder):
            h_early, h_last = encoder(ids, None, layers=(early, -1))
            head = objective.head(torch.cat([h_last[:, :1], h_early[:, 1:]], dim=1), None)
            yield (
                cross_entropies(encoder, head, targets),
                cross_entropies(encoder, h_last, targets),
                h_last[0, 0],
            )


@pytest.mark.parametrize("early", [1, 2])
def test_condenser(build: Callable[..., Both], encoder: Any, early: int) -> None:
    objective, batch, micro = build(method="condenser", early_layer_number=early)
    losses_of_rows = list(condenser_rows(objective, encoder, micro, early))
    expected = {
        "head_mlm": mean([loss for head, _, _ in losses_of_rows for loss in head]),
        "late_mlm": mean([loss for _, late, _ in losses_of_rows for loss in late]),
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
    losses_of_rows = list(condenser_rows(objective, encoder, micro, 1))
    pair, text, document = (getattr(batch.keys, name).tolist() for name in ("pair", "text", "document"))
    partner = {i: j for i in range(len(pair)) for j in range(len(pair)) if i != j and pair[i] == pair[j]}

    def skip(i: int, k: int) -> bool:
        same_document = settings.get("mask_same_document", False) and document[i] == document[k]
        return text[k] in (text[i], text[partner[i]]) or same_document

    def similarity(a: Tensor, b: Tensor) -> float:
        cosine = settings.get("similarity") == "cosine"
        product = F.cosine_similarity(a, b, dim=0) if cosine else a @ b
        return product.item() / float(settings["temperature"])

    expected = {
        "head_mlm": mean(
            [loss for head, _, _ in losses_of_rows for loss in head]
        ),  # every masked token weighs the same
        "late_mlm": mean([loss for _, late, _ in losses_of_rows for loss in late]),
        "contrastive": contrastive_reference([h for _, _, h in losses_of_rows], pair, skip, similarity),
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
        for (ids, targets), (context_ids, context_wanted) in zip(rows(one.encoder), rows(one.decoder)):
            last, inputs = decoder_input(encoder, ids, context_ids)
            own += cross_entropies(encoder, last, targets)
            other += cross_entropies(encoder, objective.head(inputs, None), context_wanted)
    close(losses_of(objective, batch), {"encoder_mlm": mean(own), "context_mlm": mean(other)})
    assert len(batch.keys.pair.unique()) <= 6
    count = len(batch.keys.pair)
    assert count == (12 if context != "query" else 6), "both directions, but only one for queries"


def test_cot_mae_reads_each_member_from_the_other(
    encoder: Any, configure: Callable[..., Any], plan_of: Callable[..., Any]
) -> None:
    ((one, keys),) = with_keys(plan_of(configure(method="cot-mae", context="rand"))(0))

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
        for (ids, targets), (query_ids, _) in zip(rows(one.encoder), rows(one.decoder)):
            last, inputs = decoder_input(encoder, ids, query_ids)
            own += cross_entropies(encoder, last, targets)
            for place in range(query_ids.shape[1] - 1):
                # only position 0 and the window exist at all: nothing else can leak in
                visible = sorted({0, *range(max(0, place - 2), place + 1)})
                hidden = objective.head(inputs[:, visible], None)[0, -1]
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
        visible = {n for n in range(8) if gradient[0, n].abs().sum() > 0}
        assert visible == {0, *range(max(0, place - 2), place + 1)}
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
    computed = losses_of(objective, batch)
    table = encoder.backbone.embeddings.position_embeddings.weight
    own, every = [], []
    for one, visible in zip(micro, samples, strict=True):
        for n, ((ids, targets), (whole, _)) in enumerate(zip(rows(one.encoder), rows(one.decoder))):
            last = encoder(ids, None)[0]
            own += cross_entropies(encoder, last, targets)
            content = torch.cat([last[:, :1], encoder.embed(whole)[:, 1:]], dim=1)[0]
            for place in range(1, whole.shape[1] - 1):
                stream = last[0, 0] + table[place]
                others = visible[n, place].nonzero()[:, 0].tolist()
                heads = []
                for q, k, v in zip(
                    decoder.query(stream).chunk(decoder.heads),
                    decoder.key(content[others]).chunk(decoder.heads, -1),
                    decoder.value(content[others]).chunk(decoder.heads, -1),
                ):
                    heads.append(torch.softmax(k @ q / math.sqrt(len(q)), 0) @ v)
                x = decoder.after_attention(stream + decoder.out(torch.cat(heads)))
                x = decoder.after_ffn(x + decoder.down(F.gelu(decoder.up(x))))
                every.append(-torch.log_softmax(encoder.mlm_logits(x[None])[0], -1)[whole[0, place]])
    close(computed, {"encoder_mlm": mean(own), "decoder_mlm": mean(every)})


def test_retromae_hides_whole_words_but_never_the_special_tokens(
    encoder: Any, configure: Callable[..., Any], plan_of: Callable[..., Any]
) -> None:
    config = configure(method="retromae", batch_size=12)
    head = config.objective(encoder).head
    (one,) = plan_of(config)(0).micro
    words, mask = one.decoder.words, one.decoder.mask
    keys = np.arange(len(words), dtype=np.uint64)
    with drawn_for(keys):
        visible = head.sample(words, mask)
        draws = [~head.sample(words, mask)[:, -1] & (words > 0) for _ in range(800)]
    assert visible[:, :, 0].all() and not (visible & ~mask[:, None]).any()
    assert not visible[:, range(1, visible.shape[1]), range(1, visible.shape[1])].any()
    for n, row in enumerate(words.tolist()):
        end = row.index(0, 1)  # [SEP]
        assert row[0] == 0 and row[1] == 1 and visible[n, :end, end].all()
        for place in range(1, end):
            for word in set(row[1:end]) - {row[place]}:
                assert len(set(visible[n, place, words[n] == word].tolist())) == 1
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
            value: Tensor = objective(one).losses["decoder_mlm"]
        return value

    assert loss(0).item() == loss(0).item() != loss(1).item()
    (gradient,) = torch.autograd.grad(loss(0), encoder.backbone.embeddings.position_embeddings.weight)
    width = int(one.decoder.mask.sum(1).max())
    assert (gradient[1 : width - 1].abs().sum(1) > 0).all() and not gradient[width:].any()


def test_dupmae(build: Callable[..., Both], encoder: Any) -> None:
    """-1/|S| · Σ log softmax(z)_v with z_v = max_j φ(h_j)_v over the tokens after the first, beside RetroMAE's losses."""
    objective, batch, micro = build(method="dupmae", token_weight=2.0)
    special, bags = set(encoder.tokenizer.all_special_ids), []
    for one in micro:
        for (ids, _), text in zip(rows(one.encoder), originals(one.encoder), strict=True):
            scores = encoder.mlm_logits(encoder(ids, None)[0][0, 1:]).amax(0).log_softmax(0)
            bags.append(-mean([scores[v] for v in set(text) - special]))
    computed = losses_of(objective, batch)
    close({"token_bag": computed.pop("token_bag")}, {"token_bag": 2 * mean(bags)})
    plain, batch, _ = build(method="retromae")
    close(computed, losses_of(plain, batch))


def test_the_tokens_logits_of_dupmae_are_computed_a_few_texts_at_a_time(
    build: Callable[..., Both], encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qontext.pretrain.objectives import dupmae

    objective, _, micro = build(method="dupmae")
    text = max((one.encoder for one in micro), key=lambda text: len(text.ids))
    last = encoder(text.ids, text.mask)[0].detach().requires_grad_()
    results = []
    for most in (1 << 24, 1):
        monkeypatch.setattr(dupmae, "SCORES_PER_BLOCK", most)
        highest = objective.highest(last, text.mask)
        (gradient,) = torch.autograd.grad(highest.square().sum(), last)
        results.append((highest, gradient))
        assert not gradient[:, 0].any(), "the first token predicts nothing here"
        assert not gradient[~text.mask].any()
    assert results[0][0].allclose(results[1][0]) and results[0][1].allclose(results[1][1], atol=1e-5)


def test_seed(build: Callable[..., Both], encoder: Any) -> None:
    """One block, so that a position depends on what it sees alone; the paper's three are the default."""
    objective, batch, micro = build(method="seed", decoder_layers=1)
    own, other = [], []
    for one in micro:
        for (ids, targets), (whole, _) in zip(rows(one.encoder), rows(one.decoder), strict=True):
            last, inputs = decoder_input(encoder, ids, whole)
            own += cross_entropies(encoder, last, targets)
            for place in range(whole.shape[1] - 1):
                visible = sorted({0, *range(max(0, place - 1), place + 1)})
                hidden = objective.head(inputs[:, visible], None)
                other += cross_entropies(encoder, hidden, [(len(visible) - 1, int(whole[0, place + 1]))])
    close(losses_of(objective, batch), {"encoder_mlm": mean(own), "decoder_lm": mean(other)})
    published, _, _ = build(method="seed")
    assert len(published.head.blocks) == 3


def test_simlm(
    build: Callable[..., Both], encoder: Any, generator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective, batch, micro = build(method="simlm", generator=generator)
    real, drawn = objective.replaced, []

    def recorded(text: Text) -> Tensor:
        drawn.append(real(text))
        return drawn[-1]

    monkeypatch.setattr(objective, "replaced", recorded)
    computed = losses_of(objective, batch)
    own, other = [], []
    for one, encoded, decoded in zip(micro, drawn[::2], drawn[1::2], strict=True):
        for text, ids in ((one.encoder, encoded), (one.decoder, decoded)):
            assert (text.ids.flatten()[text.masked] == encoder.tokenizer.mask_token_id).all()
            changed, masked = (
                set((ids != text.ids).flatten().nonzero()[:, 0].tolist()),
                set(text.masked.tolist()),
            )
            assert changed <= masked and len(changed) > 0.9 * len(masked), "it may draw [MASK] itself"
        texts = zip(rows(one.encoder), rows(one.decoder), encoded, decoded, strict=True)
        for (ids, targets), (whole, all_wanted), a, b in texts:
            assert len(targets) == len(all_wanted) == ids.shape[1] - 2
            last, inputs = decoder_input(encoder, a[None, : ids.shape[1]], b[None, : whole.shape[1]])
            own += cross_entropies(encoder, last, targets)
            other += cross_entropies(encoder, objective.head(inputs, None), all_wanted)
    close(computed, {"encoder_rlm": mean(own), "decoder_rlm": mean(other)})
    for copied, layer in zip(objective.head.layers, encoder.backbone.encoder.layer, strict=True):
        assert all(p.equal(q) for p, q in zip(copied.parameters(), layer.parameters(), strict=True))
    assert not any("frozen" in name for name, _ in objective.named_parameters())


def test_the_decoder_of_simlm_masks_what_its_encoder_masks_and_more(
    configure: Callable[..., Any], plan_of: Callable[..., Any], generator: str
) -> None:
    plan = plan_of(configure(method="simlm", generator=generator, batch_size=20))
    (one,) = plan(0).micro
    masked, more = set(one.encoder.masked.tolist()), set(one.decoder.masked.tolist())
    tokens = len(one.encoder.positions)
    assert len(masked) / tokens == pytest.approx(0.3, abs=0.05)
    assert len(more) / tokens == pytest.approx(0.5, abs=0.05)
    assert len(masked & more) > 0.9 * len(masked)


def test_a_generator_draws_by_its_distribution() -> None:
    from qontext.pretrain.objectives.simlm import sample

    logits = torch.tensor([0.2, 0.5, 0.3]).log() + 7
    dice = (torch.arange(1000) + 0.5) / 1000
    assert sample(logits.expand(1000, 3), dice).bincount().tolist() == [200, 500, 300]
    assert sample(logits[None], torch.tensor([1.0])).item() == 2


@pytest.mark.parametrize(
    ("target", "context", "contrastive"),
    [
        ("passage", "rand", 0.0),
        ("passage", "query", 1.0),
        ("context", "query", 0.0),
        ("context", "near+olap+rand", 0.5),
        ("both", "mixed", 0.0),
        ("both", "rand", 1.0),
    ],
)
def test_bag_of_words(
    build: Callable[..., Both],
    configure: Callable[..., Any],
    plan_of: Callable[..., Any],
    encoder: Any,
    target: str,
    context: str,
    contrastive: float,
) -> None:
    """-1/|S| · Σ log softmax(φ(h_x))_v, the mean over bags. A query's vector predicts nothing."""
    shared = {"context": context, "queries": "queries"}
    settings = {"target": target, "contrastive_weight": contrastive, "temperature": 20.0, **shared}
    objective, batch, _ = build(method="bow", **settings)
    pairs = {}
    for one, keys in with_keys(plan_of(configure(method="cot-mae", directions="forward", **shared))(1)):
        members = zip(originals(one.encoder), originals(one.decoder), strict=True)
        pairs |= dict(zip(keys.pair.tolist(), members, strict=True))
    special = set(encoder.tokenizer.all_special_ids)
    own, bags, vectors = [], [], []
    for one, keys in with_keys(batch):
        texts = zip(rows(one.encoder), originals(one.encoder), keys.pair.tolist(), strict=True)
        for (ids, targets), text, pair in texts:
            last = encoder(ids, None)[0]
            own += cross_entropies(encoder, last, targets)
            vectors.append(last[0, 0])
            anchor, other = pairs[pair]
            if text != anchor and context in ("query", "mixed"):
                continue
            other = other if text == anchor else anchor
            for predicted in {"passage": [text], "context": [other], "both": [text, other]}[target]:
                tokens = [(0, token) for token in set(predicted) - special]
                bags.append(mean(cross_entropies(encoder, last, tokens)))
    expected = {"encoder_mlm": mean(own), "bow": mean(bags)}
    rows_that_predict = 6 if context in ("query", "mixed") or (target, contrastive) == ("passage", 0) else 12
    assert len(bags) == rows_that_predict * (2 if target == "both" else 1)
    if contrastive:
        pair, text = batch.keys.pair.tolist(), batch.keys.text.tolist()
        partner = {i: j for i in range(len(pair)) for j in range(len(pair)) if i != j and pair[i] == pair[j]}
        expected["contrastive"] = contrastive * contrastive_reference(
            vectors,
            pair,
            lambda i, k: text[k] in (text[i], text[partner[i]]),
            lambda a, b: (a @ b).item() / 20,
        )
    close(losses_of(objective, batch), expected)


def test_the_ranks_shares_of_the_bag_of_words_add_up(
    configure: Callable[..., Any], plan_of: Callable[..., Any], encoder: Any
) -> None:
    """Passages of other ranks have other numbers of words and masked tokens; the loss is that of one process."""
    config = configure(method="bow", target="both", context="mixed", queries="queries", batch_size=12)
    objective = config.objective(encoder).eval()
    whole = losses_of(objective, plan_of(config)(1))
    batches = [plan_of(config, rank=rank, world=2)(1) for rank in (0, 1)]
    totals = torch.tensor([batch.predictions for batch in batches])
    assert totals.shape == (2, 3) and (totals[0] != totals[1]).any()
    parts = []
    for batch, own in zip(batches, totals, strict=True):
        micro = [rows.scaled(own / totals.sum(0)) for rows in batch.micro]
        parts.append(losses_of(objective, replace(batch, micro=micro, predictions=())))
    close({name: parts[0][name] + parts[1][name] for name in whole}, whole)


def test_the_weight_of_the_bag_of_words_falls_by_half_a_cosine(build: Callable[..., Both]) -> None:
    objective, batch, _ = build(method="bow", bow_weight=2.0, bow_weight_end=0.1)
    (start,) = {losses_of(objective, batch)["bow"].item()}
    for progress, share in ((0.0, 1.0), (1 / 3, 0.1 + 0.9 * 0.75), (0.5, 0.55), (1.0, 0.1)):
        objective.progress = progress
        assert losses_of(objective, batch)["bow"].item() == pytest.approx(share * start, rel=1e-5)
        assert objective.weight() == pytest.approx(2 * share)
    only, batch, _ = build(method="bow", target="both", context="rand", late_mlm_weight=0)
    assert losses_of(only, batch).keys() == {"bow"}


def test_a_text_without_ordinary_tokens_has_no_bag() -> None:
    from qontext.pretrain.bags import Bags
    from qontext.pretrain.masking import Vocabulary
    from qontext.pretrain.texts import FlatTexts

    words = Vocabulary(size=10, mask=4, cls=2, sep=3, pad=0, special=(0, 1, 2, 3, 4))

    def texts(*each: list[int]) -> FlatTexts:
        ids = np.array([token for text in each for token in text], np.int64)
        lengths = np.array([len(text) for text in each])
        return FlatTexts(ids, np.ones(len(ids), bool), lengths, np.zeros(len(each), np.uint64))

    bags = Bags.of([texts([5, 6, 5], [1, 1], [9]), texts([7], [8, 7], [])], rows=4, words=words)
    bag = bags.cut(np.array([3, 1, 0]))
    assert bags.total == 4
    assert bag.texts.tolist() == [1, 2], "row 3 has no bag, so no logits are computed for it"
    predicted = list(zip(bag.texts[bag.rows].tolist(), bag.labels.tolist(), bag.weights.tolist()))
    assert predicted == [(1, 7, 0.125), (1, 8, 0.125), (2, 5, 0.125), (2, 6, 0.125), (2, 7, 0.25)]
    assert Bags.of([texts([1], [])], rows=2, words=words).cut(np.array([0, 1])).weights.tolist() == []


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
