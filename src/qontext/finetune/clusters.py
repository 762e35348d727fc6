"""Batches of similar queries: each from one of k clusters of the queries' vectors (TAS-B; Hofstätter et al. 2021).

The clusters are those of k-means (training/k_means.py) over the vectors of the encoder that is fine-tuned, before the
training. An epoch visits every query once: clusters in a random order, the queries of a cluster in a random order, cut into
batches, the batches in a random order. Only a batch at the border of two clusters has queries of both. (The paper draws a
cluster for each batch, and queries from it.)

Shapes: Q queries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.files import read_array
from qontext.models.batching import Ints
from qontext.training.k_means import k_means
from qontext.training.randomness import hashed, permuted
from qontext.training.sampler import EpochSampler

FILE = "cache/clusters.npy"


@dataclass(frozen=True)
class ClusteredSampler(EpochSampler):
    """The queries of each step for this rank; `clusters` [Q] are the numbers of their clusters."""

    clusters: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    _orders: dict[int, Ints] = field(default_factory=dict)

    def order(self, places: Ints, epoch: int) -> Ints:
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = self._order(epoch)
        return self._orders[epoch][places]

    def _order(self, epoch: int) -> Ints:
        """All queries of an epoch's whole batches."""
        cluster = hashed(self.seed, "cluster", self.clusters, epoch)
        query = hashed(self.seed, "query of cluster", np.arange(self.examples), epoch)
        count = self.examples // self.batch_size
        batches = np.lexsort((query, cluster))[: count * self.batch_size].reshape(count, -1)
        numbers: Ints = batches[permuted(np.arange(count), count, self.seed, epoch)].reshape(-1)
        return numbers


def query_clusters(
    encoder: str,
    queries: list[str],
    clusters: int,
    group: Any,
    work: Workdir,
    *,
    prompt: str | None,
    longest: int,
    seed: int,
) -> Ints:
    """[Q] the cluster of each query, computed by rank 0, read by all. `longest` counts the tokens of the prompt, too, which
    is that of the encoder's folder if None."""
    from qontext.models.retriever import Retriever

    if clusters > len(queries):
        raise QontextError(
            f"clusters = {clusters:,}, but there are only {len(queries):,} queries",
            remedy=f"Set --clusters to at most {len(queries):,}.",
        )
    if group.is_first and not work.has(FILE):
        device = str(group.device)
        retriever = Retriever(encoder, device=device, max_length=longest, prompts={"query": prompt})
        vectors = torch.from_numpy(retriever.encode(queries, "query"))
        own = k_means(vectors, clusters, seed, group.device)[0].numpy()
        log.note(f"{len(np.unique(own)):,} clusters of {len(queries):,} queries.")
        with work.write(FILE) as path, path.open("wb") as file:
            np.save(file, own, allow_pickle=False)
    group.wait()
    return read_array(work.path / FILE, "i", shape=(len(queries),), mapped=False)
