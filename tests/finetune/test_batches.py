"""Which queries and negatives a batch has, where that is not left to chance alone."""

from __future__ import annotations

import numpy as np

from qontext.baselines.tas_b import ClusteredSampler
from qontext.data.records import Hit
from qontext.data.runs import Run
from qontext.finetune.batches import RetrieverPlan, Tokenized
from qontext.finetune.examples import Examples
from qontext.finetune.negatives.groups import Group
from qontext.training.randomness import EpochSampler
from qontext.training.texts import TokenizedTexts


def test_a_batch_has_queries_of_one_cluster_and_an_epoch_has_all_queries() -> None:
    clusters = np.arange(120) % 5
    sampler = ClusteredSampler(120, 8, seed=1, clusters=clusters)
    orders = []
    for epoch in range(2):
        batches = [sampler(epoch * 15 + step)[0] for step in range(15)]
        orders.append(np.concatenate(batches))
        assert sorted(orders[-1].tolist()) == list(range(120))
        pure = [len(set(clusters[batch].tolist())) == 1 for batch in batches]
        assert sum(pure) == 15, "24 queries of a cluster are three batches"
        order = [int(clusters[batch[0]]) for batch in batches]
        assert order != sorted(order), "batches of a cluster are spread over the epoch"
    assert orders[0].tolist() != orders[1].tolist()
    halves = [ClusteredSampler(120, 8, 1, rank, 2, clusters=clusters)(3)[0] for rank in (0, 1)]
    assert np.concatenate(halves).tolist() == sampler(3)[0].tolist()


def test_negatives_are_drawn_evenly_from_bins_of_the_margin() -> None:
    """97 negatives are easy (margin near 10), 2 hard (near 0), 1 in between: each bin is drawn as often."""
    scores = [*np.linspace(0, 0.5, 97), 9.9, 9.8, 5.0]
    names = [f"n{k}" for k in range(len(scores))]
    hits = [Hit("q", "p", 10.0), *(Hit("q", name, float(score)) for name, score in zip(names, scores))]
    examples = Examples([Group("q", "a question", ["p"], names)], "test", Run.of(hits))
    examples.attach_passage_keys(np.arange(101))

    def margins() -> list[float]:
        return [10 - float(score) for epoch in range(300) for score in examples.visit(0, epoch, 2, 42)[1][1:]]

    assert np.mean(np.array(margins()) > 9) > 0.9
    examples.margin_bins = 10
    drawn = np.array(margins())
    shares = [np.mean(drawn < 1), np.mean((drawn > 4) & (drawn < 6)), np.mean(drawn > 9)]
    assert all(abs(share - 1 / 3) < 0.08 for share in shares), shares
    assert drawn.tolist() == margins()


def test_known_positives_are_as_wide_as_the_widest_query_of_the_batch_on_all_ranks() -> None:
    """Query 0 has 50 positives, the others one each: only its batch is wide, on both ranks."""
    positives = [[f"p{query}-{number}" for number in range(1 if query else 50)] for query in range(8)]
    examples = Examples([Group(f"q{n}", f"question {n}", own, ["x"]) for n, own in enumerate(positives)], "")
    count = len(examples.number)
    examples.attach_passage_keys(np.arange(count))
    one = np.ones(count, np.int64)
    texts = TokenizedTexts(one.astype(np.int32), 0 * one, one, np.arange(count))
    known = []
    for step in range(2):
        plans = [
            RetrieverPlan(examples, Tokenized(texts, texts, 0), EpochSampler(8, 4, 42, *rank), 2, 1_000)
            for rank in ((0, 1), (0, 2), (1, 2))
        ]
        whole, *parts = (plan(step).keys.known for plan in plans)  # type: ignore[union-attr]
        assert [part.shape[1] for part in parts] == [whole.shape[1]] * 2
        queries = [{*row} - {-1} for row in whole.tolist() if row[0] >= 0]
        assert queries == [{*row} - {-1} for part in parts for row in part.tolist() if row[0] >= 0]
        known.append((whole.shape[1], max(map(len, queries))))
    assert sorted(known) == [(1, 1), (50, 50)]
