"""The encoder's own losses equal a reference that is written from the equation, one text at a time, unpadded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.pretrain.reference import (
    Both,
    close,
    condenser_rows,
    contrastive_reference,
    cross_entropies,
    false_negatives,
    losses_of,
    mean,
    rows,
)
from torch import Tensor


def test_mlm(build: Callable[..., Both], encoder: Any) -> None:
    objective, batch, micro = build(method="mlm")
    expected = [
        loss
        for one in micro
        for ids, targets in rows(one.encoder)
        for loss in cross_entropies(encoder, encoder(ids, None)[0], targets)
    ]
    close(losses_of(objective, batch), {"mlm": mean(expected)})


def test_condenser(build: Callable[..., Both], encoder: Any) -> None:
    objective, batch, micro = build(method="condenser")
    losses_of_rows = list(condenser_rows(objective, encoder, micro, 1))
    expected = {
        "head_mlm": mean([loss for head, _, _ in losses_of_rows for loss in head]),
        "late_mlm": mean([loss for _, late, _ in losses_of_rows for loss in late]),
    }
    close(losses_of(objective, batch), expected)


@pytest.mark.parametrize("context", ["rand", "query"])
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 30.0},
        {"similarity": "cosine", "temperature": 0.5},
    ],
)
def test_cocondenser(
    build: Callable[..., Both], encoder: Any, context: str, settings: dict[str, Any]
) -> None:
    objective, batch, micro = build(
        method="cocondenser", context=context, queries="queries", batch_size=12, **settings
    )
    losses_of_rows = list(condenser_rows(objective, encoder, micro, 1))
    pair, skip = batch.keys.pair.tolist(), false_negatives(batch.keys)

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


@pytest.mark.parametrize("text", [[7, 7, 8, 20, 21, 22], [7, 8, 9, 20, 20, 22], [7, 7, 8, 20, 20, 7]])
def test_equal_texts_are_no_negatives_of_each_other(text: list[int]) -> None:
    """Passages 0, 1, 2, then their queries: equal passages, equal queries, or both and a passage that is its own query. The
    partner of an equal text is a positive, too, so neither it nor the equal text is a negative, from either side."""
    from qontext.pretrain.batches import Keys
    from qontext.pretrain.objectives.contrast import Contrast, contrast

    vectors, said = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor(text)
    keys = Keys(torch.arange(6) % 3, said, said.roll(3))
    options, skip = Contrast(contrastive_weight=1.0), false_negatives(keys)
    for i in range(6):
        scores, own = vectors[i] @ vectors.T, (i + 3) % 6
        others = [k for k in range(6) if k == own or (k != i and not skip(i, k))]
        loss = contrast(options, vectors, keys, slice(i, i + 1), is_cosine=False)["contrastive"] * 6
        expected = torch.logsumexp(scores[others], 0) - scores[own]
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


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


@pytest.mark.parametrize("spans", [1, 3])
def test_costa(build: Callable[..., Both], encoder: Any, spans: int) -> None:
    """Each text against its own spans and all others, one span at a time."""
    objective, batch, micro = build(method="costa", spans=spans, contrastive_weight=0.7, batch_size=8)
    texts, groups, predicted = [], [], []
    for one in micro:
        first, end = objective.spans(one.encoder.mask.sum(1), one.row_keys)
        for n, (ids, targets) in enumerate(rows(one.encoder)):
            last = encoder(ids, None)[0]
            predicted += cross_entropies(encoder, last, targets)
            texts.append(torch.tanh(objective.head.weight @ last[0, 0] + objective.head.bias))
            groups.append([last[0, a:b].mean(0) for a, b in zip(first[n].tolist(), end[n].tolist())])
    said, losses = batch.keys.text.tolist(), []
    for i, own in enumerate(texts):
        others = [j for j in range(len(texts)) if j == i or said[j] != said[i]]
        compared = [texts[j] for j in others if j != i] + [span for j in others for span in groups[j]]
        total = torch.stack([(F.cosine_similarity(own, one, dim=0) / 0.1).exp() for one in compared]).sum()
        losses += [-((F.cosine_similarity(own, span, dim=0) / 0.1).exp() / total).log() for span in groups[i]]
    assert len(groups[0]) == 4 * spans
    close(losses_of(objective, batch), {"mlm": mean(predicted), "contrastive": 0.7 * mean(losses)})


def test_costas_spans_lie_in_the_text_and_have_the_four_lengths(build: Callable[..., Both]) -> None:
    objective, _, _ = build(method="costa", spans=100)
    tokens = torch.tensor([514, 130, 5, 3, 2])  # with [CLS] and [SEP]
    first, end = objective.spans(tokens, np.arange(5, dtype=np.uint64))
    lengths = end - first
    assert (first >= 1).all() and (lengths >= 1).all()
    assert (end[:4] <= tokens[:4, None] - 1).all() and lengths[3].eq(1).all()
    for number, (shortest, longest) in enumerate(((1, 4), (4, 16), (16, 64), (64, 128))):
        own = lengths[0, number::4].double()
        assert shortest <= own.min() and own.max() <= longest
        assert own.mean().item() == pytest.approx(shortest + (longest - shortest) * 4 / 6, rel=0.06)
    assert len(first[0].unique()) > 100, "spans begin anywhere"
    again, _ = objective.spans(tokens[:2], np.array([0, 7], dtype=np.uint64))
    assert torch.equal(again[0], first[0]) and not torch.equal(again[1], first[1])


def test_costas_projection_is_drawn_by_the_seed_and_its_spans_leave_out_the_prompt(
    build: Callable[..., Both], encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    one, _, _ = build(method="costa")
    torch.manual_seed(2)
    same, _, _ = build(method="costa")
    other, _, _ = build(method="costa", seed=43)
    assert torch.equal(one.head.weight, same.head.weight)
    assert not torch.equal(one.head.weight, other.head.weight)
    monkeypatch.setitem(encoder.prompts, "passage", "passage about machines:")
    prompted, _, _ = build(method="costa")
    first, _ = prompted.spans(torch.tensor([40, 40]), np.arange(2, dtype=np.uint64))
    ids = encoder.tokenizer("passage about machines:")["input_ids"]
    assert first.min().item() == prompted.around[0] == len(ids) - 1 > 3
