"""The losses of objectives with a decoder equal a reference that is written from the equation, one text at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.pretrain.reference import (
    Both,
    close,
    contrastive_loss,
    cross_entropies,
    decoder_input,
    losses_of,
    mean,
    originals,
    rows,
)
from torch import Tensor

from qontext.training.dropout import drawn_for


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


@pytest.mark.parametrize("decoder", ["mlm", "autoregressive"])
def test_cot_mae_with_a_contrastive_loss(build: Callable[..., Both], encoder: Any, decoder: str) -> None:
    """Both members are encoded and each is reconstructed from the other, although the contexts are queries."""
    settings = {"context": "query", "queries": "queries", "decoder": decoder, "temperature": 20.0}
    objective, batch, micro = build(method="cot-mae", contrastive_weight=0.5, **settings)
    vectors = [encoder(ids, None)[0][0, 0] for one in micro for ids, _ in rows(one.encoder)]
    contrast = contrastive_loss(batch, vectors, lambda a, b: (a @ b).item() / 20)
    both, _, _ = build(method="cot-mae", directions="both", **{**settings, "temperature": 1.0})
    without = losses_of(both, batch)
    assert without.keys() == {"encoder_mlm", "context_mlm"}
    close(losses_of(objective, batch), {**without, "contrastive": 0.5 * contrast})


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
