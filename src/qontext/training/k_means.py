"""k-means: vectors in k clusters, each around its mean.

    c(v) = argmin_c |v - μ_c|²,    μ_c = mean of the v of cluster c,    repeated from random vectors as means

Sums are taken on the CPU, in the order of the vectors, so that the same vectors and seed have the same means; distances, on
the `device`.

Shapes: N vectors, D dimensions, C clusters.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from qontext.training.randomness import permuted

ROUNDS = 20
_BLOCK, _PRODUCTS = 16_384, 1 << 28


def k_means(
    vectors_ND: Tensor, clusters: int, seed: int, device: torch.device | None = None, rounds: int = ROUNDS
) -> tuple[Tensor, Tensor]:
    """([N] the cluster of each vector, [C, D] the means), on the CPU. An empty cluster keeps its mean."""
    vectors_ND = vectors_ND.cpu()
    start = permuted(np.arange(clusters), len(vectors_ND), seed, 0)
    means_CD = vectors_ND[torch.from_numpy(start)]
    cluster_N = torch.full((len(vectors_ND),), -1)
    for _ in range(rounds):
        before, cluster_N = cluster_N, nearest(vectors_ND, means_CD, device)
        if cluster_N.equal(before):
            break
        sums_CD = torch.zeros_like(means_CD).index_add_(0, cluster_N, vectors_ND)
        counts_C1 = cluster_N.bincount(minlength=clusters)[:, None]
        means_CD = torch.where(counts_C1 > 0, sums_CD / counts_C1.clamp(min=1), means_CD)
    return cluster_N, means_CD


def nearest(vectors_ND: Tensor, means_CD: Tensor, device: torch.device | None = None) -> Tensor:
    """[N] the mean with the smallest distance to each vector, on the CPU."""
    means_CD = means_CD.to(device)
    squares_C = means_CD.square().sum(1) / 2
    rows = min(_BLOCK, max(1, _PRODUCTS // len(means_CD)))
    parts = (part.to(device) @ means_CD.T - squares_C for part in vectors_ND.split(rows))
    return torch.cat([part.argmax(1).cpu() for part in parts])
