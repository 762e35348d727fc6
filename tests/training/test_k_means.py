"""k-means by hand, and on clusters that are known."""

from __future__ import annotations

import torch

from qontext.training.k_means import k_means, nearest


def test_k_means_finds_what_lies_together() -> None:
    generator = torch.Generator().manual_seed(0)
    centers = torch.eye(4) * 10
    truth = torch.arange(200) % 4
    vectors = centers[truth] + torch.randn(200, 4, generator=generator)
    for seed in range(5):
        clusters, means = k_means(vectors, 4, seed)
        pairs = {(int(a), int(b)) for a, b in zip(truth, clusters)}
        if len(pairs) == 4:  # two means may start in one cluster
            break
    assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs) == 4
    assert nearest(centers, means).unique().tolist() == [0, 1, 2, 3]


def test_means_are_those_of_their_clusters_and_the_same_twice() -> None:
    vectors = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0], [6.0, 0.0]])
    clusters, means = k_means(vectors, 2, 3)
    left, right = int(clusters[0]), int(clusters[1])
    assert clusters.tolist() == [left, right, left, right] and left != right
    assert means[left].tolist() == [0.0, 1.0] and means[right].tolist() == [5.0, 0.0]
    for first, second in zip(k_means(vectors, 2, 3), (clusters, means)):
        assert first.equal(second)
