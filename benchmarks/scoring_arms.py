"""The arms of `scoring.py`: ways of scoring passages, each arithmetic on the similarities of a set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from qontext.data.runs import Run
from qontext.evaluation.measures import find, ndcg

CANDIDATES = 100
DENSE, TOKENS = 0.3, 0.5
Array = np.ndarray[Any, Any]


class Features:
    """The similarities of a set."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.__dict__.update(arrays)
        self.qrels = json.loads(bytes(arrays["qrels"]).decode())
        self.starts = arrays["query_starts"]
        n = len(arrays["ids"])
        self.idf = np.log(1 + (n - self.df + 0.5) / (self.df + 0.5))[self.query_ids].astype(np.float32)
        order = np.argsort(self.ids)
        self.sorted_ids, self.place = self.ids[order].astype(object), np.argsort(order)

    words: Array
    dense: Array
    df: Array
    ids: Array
    docs: Array
    query_ids: Array
    rarity: Array
    near: Array

    def maxsim(self, name: str, weights: Array | None = None) -> Array:
        """[Q, P] the weighted mean over the question's tokens of their best product."""
        weights = np.ones(len(self.query_ids), np.float32) if weights is None else weights
        best = getattr(self, f"max_{name}").astype(np.float32) * weights[:, None]
        total = np.add.reduceat(weights, self.starts[:-1])
        similarity: Array = np.add.reduceat(best, self.starts[:-1], 0) / np.maximum(total, 1e-9)[:, None]
        return similarity

    def score(self, scores: Array) -> Array:
        """[Q] nDCG@10 of scores that are -inf at what is not found."""
        rows, columns = np.nonzero(np.isfinite(scores))
        run = Run.from_codes(
            rows, list(self.qrels), self.place[columns], self.sorted_ids, scores[rows, columns].astype(float)
        )
        return ndcg(find(run.top(CANDIDATES), self.qrels), 10, 1)


def found(scores: Array, k: int = CANDIDATES) -> Array:
    """The best k of each row; the others, and those without any word, are -inf."""
    least = -np.partition(-scores, min(k, scores.shape[1]) - 1, 1)[:, min(k, scores.shape[1]) - 1 : k]
    return np.where((scores >= least) & (scores != 0), scores, -np.inf)


def standardized(scores: Array) -> Array:
    """(s - min) / std over what is found, 0 elsewhere."""
    is_found = np.isfinite(scores)
    values = np.where(is_found, scores, np.nan)
    with np.errstate(all="ignore"):
        scaled = (values - np.nanmin(values, 1, keepdims=True)) / np.nanstd(values, 1, keepdims=True)
    return np.where(is_found, np.nan_to_num(scaled), 0)


def fused(parts: list[Array], weights: list[Any]) -> Array:
    """The weighted sum of the standardized scores of all that any part found."""
    total = sum(w * standardized(part) for part, w in zip(parts, weights))
    is_found = np.logical_or.reduce([np.isfinite(part) for part in parts])
    return np.where(is_found, total, -np.inf)


def both(own: Features, dense: Array | None = None, weight: Any = DENSE) -> Array:
    """BM25 and vectors."""
    dense = own.dense if dense is None else dense
    return fused([found(own.words), found(dense)], [1 - weight, weight])


def reranked(first: Array, tokens: Array, weight: Any = TOKENS, k: int = CANDIDATES) -> Array:
    """The best of a first stage, and their MaxSim."""
    first = found(first, k)
    return fused([first, np.where(np.isfinite(first), tokens, -np.inf)], [1 - weight, weight])


def arms(own: Features) -> Iterator[tuple[str, Array]]:
    """The scores of every arm, by name; the part before a colon is the name of what it is compared with."""
    bits = own.maxsim("bits")
    hybrid = both(own)
    full = reranked(hybrid, bits)
    yield "BM25", found(own.words)
    yield "vectors", found(own.dense)
    yield "both", hybrid
    yield "all", full
    yield from weighted(own, hybrid, bits)
    yield from wider(own, hybrid, bits)
    yield from third(own, hybrid, bits)
    yield from turned(own, bits)
    yield from neighborhoods(own, full)


def one_pass(own: Any) -> Iterator[tuple[str, Array]]:
    """Windows and bits from the same forward pass: of the whole passage, or of each window."""
    bits = own.maxsim("bits")
    yield "vectors", found(own.dense)
    yield "both", both(own)
    yield "all", reranked(both(own), bits)
    for name in ("late", "late_all", "whole"):
        yield f"vectors:{name}", found(getattr(own, name))
        yield f"both:{name}", both(own, getattr(own, name))
        yield f"all:{name}", reranked(both(own, getattr(own, name)), bits)
    yield "all:bits of the windows' passes", reranked(both(own), own.maxsim("windows"))
    yield "all:centered bits", reranked(both(own), own.maxsim("centered"))


def weighted(own: Features, hybrid: Array, bits: Array) -> Iterator[tuple[str, Array]]:
    for name, weights in {"idf": own.idf, "sqrt(idf)": np.sqrt(own.idf), "1 + idf": 1 + own.idf}.items():
        yield f"all:MaxSim by {name}", reranked(hybrid, own.maxsim("bits", weights))
    for weight in (0.1, 0.2, 0.4, 0.5, 0.6):
        yield f"both:weight of vectors {weight}", both(own, weight=weight)
        yield f"all:weight of vectors {weight}", reranked(both(own, weight=weight), bits)
    for weight in (0.4, 0.5):
        for share in (0.6, 0.7):
            name = f"all:weight of vectors {weight}, of tokens {share}"
            yield name, reranked(both(own, weight=weight), bits, share)
    for weight in (0.3, 0.4, 0.6, 0.7):
        yield f"all:weight of tokens {weight}", reranked(hybrid, bits, weight)
    for which, name in enumerate(("mean", "greatest")):
        z = own.rarity[:, which]
        z = ((z - z.mean()) / max(float(z.std()), 1e-9))[:, None]
        for step in (-0.1, 0.1):
            weight = np.clip(DENSE + step * z, 0, 1)
            yield f"both:weight of vectors {step:+} per std of the {name} idf", both(own, weight=weight)
            yield (
                f"all:weight of vectors {step:+} per std of the {name} idf",
                reranked(both(own, weight=weight), bits),
            )


def wider(own: Features, hybrid: Array, bits: Array) -> Iterator[tuple[str, Array]]:
    """More candidates: of each list, of tokens, of neighbors; and every candidate with all its scores."""
    for k in (200, 500):
        first = fused([found(own.words, k), found(own.dense, k)], [1 - DENSE, DENSE])
        yield f"all:{k} candidates", reranked(first, bits, k=k)
    candidates = np.isfinite(found(own.words)) | np.isfinite(found(own.dense))
    complete = [np.where(candidates, own.words, -np.inf), np.where(candidates, own.dense, -np.inf)]
    first = fused(complete, [1 - DENSE, DENSE])
    yield "both:all scores of every candidate", first
    yield "all:all scores of every candidate", reranked(first, bits)
    three = [found(own.words), found(own.dense), found(bits)]
    shares = [(1 - DENSE) * (1 - TOKENS), DENSE * (1 - TOKENS), TOKENS]
    yield "all:tokens search all passages", fused(three, shares)
    best = np.argsort(-hybrid, 1)[:, :10]
    more = np.zeros(hybrid.shape, bool)
    for q, passages in enumerate(own.near[best][:, :, :8]):
        more[q, passages.ravel()] = True
    more |= np.isfinite(found(hybrid))
    scores = [np.where(more, part, -np.inf) for part in (own.words, own.dense, bits)]
    yield "all:neighbors of the best ten (corpus graph)", fused(scores, shares)


def third(own: Any, hybrid: Array, bits: Array) -> Iterator[tuple[str, Array]]:
    """Another list beside BM25 and vectors."""
    lists = {
        "input embeddings": own.static_embeddings,
        "random word vectors": own.static_random,
        "keyphrases": getattr(own, "keyphrases", None),
        "mean over windows": own.dense_mean,
    }
    for name, scores in lists.items():
        for weight in (0.1, 0.2) if scores is not None else ():
            lists_three = [found(own.words), found(own.dense), found(scores)]
            first = fused(lists_three, [0.7 * (1 - weight), 0.3 * (1 - weight), weight])
            yield f"both:{name} as a third list, {weight}", first
            yield f"all:{name} as a third list, {weight}", reranked(first, bits)
    if not hasattr(own, "keyphrases"):
        return
    best = np.maximum(own.dense, own.keyphrases)
    yield "vectors:or those of keyphrases", found(best)
    yield "both:or those of keyphrases", both(own, best)
    yield "all:or those of keyphrases", reranked(both(own, best), bits)


def turned(own: Any, bits: Array) -> Iterator[tuple[str, Array]]:
    for name in ("centered", "half_white", "white"):
        yield f"vectors:{name}", found(getattr(own, name))
        yield f"both:{name}", both(own, getattr(own, name))
        yield f"all:{name}", reranked(both(own, getattr(own, name)), bits)


def neighborhoods(own: Features, full: Array) -> Iterator[tuple[str, Array]]:
    """The scores of the passages before and after, and of the best passage of the document, added."""
    scores = np.where(np.isfinite(full), full, 0)
    same = own.docs[1:] == own.docs[:-1]
    beside = np.zeros_like(scores)
    beside[:, 1:] = np.where(same, scores[:, :-1], 0)
    beside[:, :-1] = np.maximum(beside[:, :-1], np.where(same, scores[:, 1:], 0))
    document = np.zeros((len(scores), int(own.docs.max()) + 1))
    np.maximum.at(document.T, own.docs, scores.T)
    for weight in (0.1, 0.2):
        yield f"all:+ {weight} of the better neighbor", full + weight * beside
    for weight in (0.1, 0.3):
        yield f"all:+ {weight} of the document's best", full + weight * document[:, own.docs]
