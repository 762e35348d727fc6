"""Token vectors as a centroid and a residual of 1 or 2 bits per dimension, searched by the centroids near a query's tokens.

    c(v)    = argmin_c |v - μ_c|²                       μ: k-means over a sample of the token vectors
    r'_d    = w_b  for  e_b < v_d - μ_c(v)d ≤ e_{b+1}   2^bits buckets with equal shares of the residuals, w_b: their medians
    v'      = μ_c(v) + r'                               divided by its norm, if the encoder's vectors are normalized

    a(q, p) = Σ_i max_c <q_i, μ_c>                      c: those of q_i's `probes` nearest that have a token of p; 0 without
    s(q, p) = Σ_i max_j <q_i, v'_j>                     MaxSim of the `candidates` best passages by a(q, p)

ColBERTv2 (Santhanam et al. 2022, arXiv 2112.01488), which computes a(q, p) from v' instead of μ. Candidates by centroids
alone are PLAID's (Santhanam et al. 2022, arXiv 2205.09707); its threshold on centroids and its later stages are left out.

Shapes: P passages, T tokens of all passages, N some of them, D dimensions, C centroids, B bytes of a residual, L entries of
the lists of all centroids, I tokens of a query, M probes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Len
from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.config import Options, Seed
from qontext.frame.files import damaged, read_array, read_json
from qontext.models.packed import Packed
from qontext.models.precision import resolve_device
from qontext.retrieve.index import Array, Backend, Index
from qontext.retrieve.index.exact import TokenIndex, greatest
from qontext.retrieve.index.flat import first
from qontext.retrieve.stored import Encoded, read_ids, save_array
from qontext.training.k_means import k_means, nearest
from qontext.training.randomness import permuted

CODEC, CENTROIDS = "codec.json", "centroids.npy"
STARTS, TOKENS, RESIDUALS = "starts.npy", "tokens.npy", "residuals.npy"
LIST_STARTS, LISTS = "list-starts.npy", "lists.npy"

_PER_CENTROID = 64
"""Sampled tokens for each centroid."""
_ROUNDS = 4
"""Rounds of k-means, as in ColBERTv2's released code."""
_FOR_BUCKETS = 65_536
"""Sampled tokens for the buckets: drawn again, since tokens of k-means are nearer to their centroids than others."""
_PASSAGES, _LISTED = 256, 65_536
"""Passages that are compressed or scored at once, and whose lists are made at once."""


class ResidualOptions(Options):
    bits: Literal[1, 2] = 2
    """Bits per dimension of a token's residual."""

    centroids: int | None = Field(None, ge=1)
    """Centroids of the token vectors; by default the power of two below 16 times the root of their number."""

    probes: int = Field(4, ge=1)
    """Nearest centroids of each query token whose passages are candidates. Doubled while they are fewer than the results."""

    candidates: int = Field(4_096, ge=1)
    """Passages per query that are scored by their compressed vectors: the best by their centroids alone."""

    seed: Seed = 42
    """Random seed for the sample of token vectors, and for k-means."""


class _Codec(TypedDict):
    """The content of codec.json."""

    edges: Annotated[list[float], Len(1, 3)]
    values: Annotated[list[float], Len(2, 4)]
    normalized: bool


@dataclass(frozen=True)
class Codec:
    """Token vectors ↔ numbers of centroids and packed residuals, whose first dimension is in a byte's highest bits."""

    centroids_CD: Array
    edges: Array
    """[2^bits - 1] the borders of the buckets; a residual at a border is in the lower one."""
    values: Array
    """[2^bits] the value to which a residual in each bucket is restored."""
    normalized: bool
    """True if vectors are restored to norm 1."""

    @classmethod
    def fit(cls, means_CD: Tensor, sample_ND: Array, bits: int, device: torch.device | None = None) -> Codec:
        """The buckets of a sample of token vectors around these centroids."""
        vectors = torch.from_numpy(sample_ND)
        residuals = (vectors - means_CD[nearest(vectors, means_CD, device)]).numpy()
        quantiles = np.quantile(residuals, np.arange(1, 2 << bits) / (2 << bits)).astype(np.float32)
        normalized = bool((np.abs(np.linalg.norm(sample_ND, axis=1) - 1) < 0.01).all())
        return cls(means_CD.numpy(), quantiles[1::2], quantiles[::2], normalized)

    @property
    def bits(self) -> int:
        return len(self.values).bit_length() - 1

    @property
    def width(self) -> int:
        """B."""
        return -(-self.bits * int(self.centroids_CD.shape[1]) // 8)

    @property
    def shifts(self) -> Array:
        """[8 / bits] the places of the dimensions in a byte."""
        return np.arange(8 - self.bits, -1, -self.bits, dtype=np.uint8)

    def encode(self, vectors_ND: Array, device: torch.device | None = None) -> tuple[Array, Array]:
        """([N] centroids, [N, B] residuals)."""
        vectors, centroids = torch.from_numpy(vectors_ND), torch.from_numpy(self.centroids_CD)
        centroid_N = nearest(vectors, centroids, device)
        buckets_ND = torch.bucketize(vectors - centroids[centroid_N], torch.from_numpy(self.edges))
        codes = np.zeros((len(vectors_ND), self.width * len(self.shifts)), np.uint8)
        codes[:, : vectors_ND.shape[1]] = buckets_ND.numpy()
        grouped = codes.reshape(len(codes), self.width, -1) << self.shifts
        return centroid_N.numpy(), np.bitwise_or.reduce(grouped, axis=2)

    def decode(self, centroid_N: Array, residuals_NB: Array) -> Array:
        """[N, D]"""
        codes = np.arange(256, dtype=np.uint8)[:, None] >> self.shifts & (len(self.values) - 1)
        restored = self.values[codes][residuals_NB].reshape(len(residuals_NB), -1)
        vectors_ND: Array = self.centroids_CD[centroid_N] + restored[:, : self.centroids_CD.shape[1]]
        if self.normalized:
            vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True).clip(min=1e-12)
        return vectors_ND

    def write(self, work: Workdir) -> None:
        save_array(work, CENTROIDS, self.centroids_CD)
        numbers = {"edges": self.edges.tolist(), "values": self.values.tolist()}
        work.write_json(CODEC, {**numbers, "normalized": self.normalized})

    @classmethod
    def read(cls, folder: Any) -> Codec:
        about = read_json(folder / CODEC, _Codec)
        edges, values = (np.array(about[name], np.float32) for name in ("edges", "values"))
        if len(values) != len(edges) + 1 or len(values) == 3:
            raise damaged(folder / CODEC, f"it has {len(edges)} borders for {len(values)} buckets")
        centroids_CD = read_array(folder / CENTROIDS, "f", shape=(None, None), mapped=False)
        return cls(centroids_CD, edges, values, about["normalized"])


def default_centroids(tokens: int) -> int:
    """The power of two at or below 16 √T."""
    return int(2 ** math.floor(math.log2(16 * math.sqrt(tokens))))


class ResidualIndex(Index):
    """Compressed token vectors by passage, and the passages [L] of each centroid, ascending."""

    reads = "packed"
    tag = "tokens"
    approximates = TokenIndex

    def __init__(
        self,
        ids: Array,
        codec: Codec,
        tokens: Packed,
        residuals: Packed,
        lists: Packed,
        probes: int,
        candidates: int,
    ) -> None:
        self._ids, self.codec = ids, codec
        self.tokens, self.residuals, self.lists = tokens, residuals, lists
        self.probes, self.candidates = probes, candidates

    @property
    def ids(self) -> Array:
        return self._ids

    @property
    def dimension(self) -> int:
        return int(self.codec.centroids_CD.shape[1])

    def search(self, queries: Packed, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        k = min(k, self.count if rows is None else int(rows.sum()))
        best = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for q, (start, end) in enumerate(pairwise(queries.starts.tolist()) if k else ()):
            query_ID = torch.from_numpy(np.array(queries.values[start:end], np.float32))
            candidates = self._candidates(query_ID, k, rows)
            found = min(k, len(candidates))
            best[q, :found], scores[q, :found] = first(candidates, self._scores(query_ID, candidates), found)
            self.advance(self.count * (q + 1) // len(queries) - self.count * q // len(queries))
        return best, scores

    def _candidates(self, query_ID: Tensor, k: int, rows: Array | None) -> Array:
        """The passages to score, at least k. Of few rows, all."""
        most = max(k, self.candidates)
        if rows is not None and (chosen := np.flatnonzero(rows)).size <= most:
            return chosen
        scores_IC = query_ID @ torch.from_numpy(self.codec.centroids_CD).T
        probes, numbers = min(self.probes, scores_IC.shape[1]), np.empty(0, np.int64)
        while len(numbers) < k and probes < 2 * scores_IC.shape[1]:  # a passage without tokens is in no list
            numbers, scores = self._near(scores_IC, min(probes, scores_IC.shape[1]), rows)
            probes *= 2
        return np.sort(first(numbers, scores, most)[0])

    def _near(self, scores_IC: Tensor, probes: int, rows: Array | None) -> tuple[Array, Array]:
        """The passages in the lists of each token's nearest centroids, ascending, and their a(q, p)."""
        scores_IM, centroids_IM = (array.numpy() for array in scores_IC.topk(probes))
        lists = self.lists.take(centroids_IM.ravel())
        tokens = np.repeat(np.arange(len(scores_IM)), lists.lengths.reshape(scores_IM.shape).sum(1))
        scores = np.repeat(scores_IM.ravel(), lists.lengths)
        if rows is not None:
            allowed = rows[lists.values]
            tokens, scores = tokens[allowed], scores[allowed]
        numbers = (lists.values if rows is None else lists.values[allowed]).astype(np.int64)
        # The first of equal pairs of a token and a passage is that of the nearest centroid.
        _, greatest_first = np.unique(tokens * self.count + numbers, return_index=True)
        numbers, place = np.unique(numbers[greatest_first], return_inverse=True)
        return numbers, np.bincount(place, scores[greatest_first], len(numbers)).astype(np.float32)

    def _scores(self, query_ID: Tensor, numbers: Array) -> Array:
        """[N] the MaxSim of these passages, from their compressed vectors."""
        scores = np.empty(len(numbers), np.float32)
        for start in range(0, len(numbers), _PASSAGES):
            some = slice(start, start + _PASSAGES)
            tokens, residuals = self.tokens.take(numbers[some]), self.residuals.take(numbers[some])
            vectors_ND = torch.from_numpy(self.codec.decode(tokens.values, residuals.values))
            scores[some] = greatest(query_ID, vectors_ND, torch.from_numpy(tokens.lengths)).numpy().sum(0)
        return scores


class Residual(Backend):
    """Centroids and residuals of the tokens' vectors, and the passages of each centroid."""

    Options = ResidualOptions
    reads = "tokens"

    @classmethod
    def build(
        cls, source: Encoded, work: Workdir, options: ResidualOptions, advance: Callable[[int], None]
    ) -> int:
        device = resolve_device()
        if not work.has(CODEC):
            _codec(source, options, device).write(work)
        codec = Codec.read(work.path)
        lengths_P = np.empty(len(source), np.int64)
        for numbers, part in source.blocks():
            lengths_P[numbers] = part.lengths
        starts = np.concatenate([[0], np.cumsum(lengths_P)])
        kind = np.min_scalar_type(len(codec.centroids_CD) - 1)
        with work.write(TOKENS) as path, work.write(RESIDUALS) as residuals_path:
            tokens = np.lib.format.open_memmap(path, "w+", kind, (int(starts[-1]),))
            residuals = np.lib.format.open_memmap(
                residuals_path, "w+", np.uint8, (int(starts[-1]), codec.width)
            )
            for numbers, part in source.blocks():
                for start in range(0, len(part), _PASSAGES):
                    some = part[start : start + _PASSAGES]
                    begins = starts[numbers[start : start + _PASSAGES]]
                    place = np.repeat(begins - some.starts[:-1], some.lengths) + np.arange(len(some.values))
                    codes = codec.encode(np.array(some.values, np.float32), device)
                    tokens[place], residuals[place] = codes
                    advance(len(some))
            tokens.flush()
            residuals.flush()
        save_array(work, STARTS, starts)
        _write_lists(work, Packed(starts, read_array(work.path / TOKENS, "u")), len(codec.centroids_CD))
        return len(source)

    @classmethod
    def load(cls, artifact: Artifact) -> ResidualIndex:
        ids, folder, codec = read_ids(artifact.path), artifact.path, Codec.read(artifact.path)
        centroids, width = len(codec.centroids_CD), codec.width
        starts = read_array(folder / STARTS, "i", shape=(len(ids) + 1,), mapped=False)
        list_starts = read_array(folder / LIST_STARTS, "i", shape=(centroids + 1,), mapped=False)
        tokens = read_array(folder / TOKENS, "u")
        residuals = read_array(folder / RESIDUALS, "u", shape=(len(tokens), width))
        lists = read_array(folder / LISTS, "u")
        for name, begins, values in ((STARTS, starts, tokens), (LIST_STARTS, list_starts, lists)):
            if begins[0] or begins[-1] != len(values) or (np.diff(begins) < 0).any():
                raise damaged(folder / name, f"it does not cover the {len(values):,} entries")
        for name, values, count in ((TOKENS, tokens, centroids), (LISTS, lists, len(ids))):
            if values.max(initial=0) >= count:
                raise damaged(folder / name, f"its numbers are not below {count:,}")
        packed = Packed(starts, tokens), Packed(starts, residuals), Packed(list_starts, lists)
        probes, candidates = (artifact.config.take(name, int) for name in ("probes", "candidates"))
        return ResidualIndex(ids, codec, *packed, probes, candidates)


def _codec(source: Encoded, options: ResidualOptions, device: torch.device) -> Codec:
    """The centroids and buckets of an `encode` artifact."""
    tokens = sum(len(part.values) for part in source.parts)
    count = min(options.centroids or default_centroids(tokens), tokens)
    vectors = torch.from_numpy(sample(source, _PER_CENTROID * count, options.seed, 0))
    means_CD = k_means(vectors, count, options.seed, device, _ROUNDS)[1]
    return Codec.fit(means_CD, sample(source, _FOR_BUCKETS, options.seed, 1), options.bits, device)


def sample(source: Encoded, count: int, seed: int, draw: int) -> Array:
    """[N, D] at most `count` token vectors in random order, in fp32."""
    sizes = [len(part.values) for part in source.parts]
    tokens, ends = sum(sizes), np.cumsum(sizes)
    places = permuted(np.arange(min(tokens, count)), tokens, seed, draw)
    vectors_ND = np.empty((len(places), source.dimension), np.float32)
    order = np.argsort(places)
    bounds = [0, *np.searchsorted(places[order], ends).tolist()]
    for part, end, size, (begin, stop) in zip(source.parts, ends.tolist(), sizes, pairwise(bounds)):
        here = order[begin:stop]
        vectors_ND[here] = part.values[places[here] - (end - size)]
    return vectors_ND


def _write_lists(work: Workdir, tokens: Packed, centroids: int) -> None:
    """The passages that have a token of each centroid, ascending."""
    counts = np.zeros(centroids, np.int64)
    for centroid, _ in _pairs(tokens):
        counts += np.bincount(centroid, minlength=centroids)
    starts = np.concatenate([[0], np.cumsum(counts)])
    with work.write(LISTS) as path:
        kind = np.min_scalar_type(len(tokens) - 1)
        lists = np.lib.format.open_memmap(path, "w+", kind, (int(starts[-1]),))
        free = starts[:-1].copy()
        for centroid, passage in _pairs(tokens):
            lists[free[centroid] + np.arange(len(centroid)) - np.searchsorted(centroid, centroid)] = passage
            free += np.bincount(centroid, minlength=centroids)
        lists.flush()
    save_array(work, LIST_STARTS, starts)


def _pairs(tokens: Packed) -> Iterator[tuple[Array, Array]]:
    """(centroids, passages) of a block of passages: the different pairs, in order."""
    for start in range(0, len(tokens), _LISTED):
        some = tokens[start : start + _LISTED]
        passages = np.repeat(np.arange(start, start + len(some)), some.lengths)
        pairs = np.unique(some.values.astype(np.int64) * len(tokens) + passages)
        yield pairs // len(tokens), pairs % len(tokens)
