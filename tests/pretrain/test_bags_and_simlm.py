"""The losses of SimLM and of the bag of words equal a reference that is written from the equation, one text at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
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
from tests.tiny import with_keys
from torch import Tensor

from qontext.pretrain.texts import Text


def test_simlm(
    build: Callable[..., Both], encoder: Any, generator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective, batch, micro = build(method="simlm", generator=generator)
    real, drawn = objective.read, []

    def recorded(text: Text) -> Tensor:
        drawn.append(real(text))
        return drawn[-1]

    monkeypatch.setattr(objective, "read", recorded)
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
        expected["contrastive"] = contrastive * contrastive_loss(
            batch, vectors, lambda a, b: (a @ b).item() / 20
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
    from qontext.pretrain.masking import Vocabulary
    from qontext.pretrain.texts import Bags, FlatTexts

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
