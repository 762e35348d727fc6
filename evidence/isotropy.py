"""Controls of what an arm taught: its vectors centered and whitened, and vectors that no model made.

    centered    v - m                                       m: the mean over the passages; for queries, over the queries
    whitened    (v - m) W                                   W Wᵀ = (C + 10⁻⁶ λ I)⁻¹,  C: the passages' covariance,
                                                            λ: its greatest eigenvalue
    words       the mean of e_t over the tokens t of a text e_t ~ N(0, I): random vectors of words, then whitened

A few directions that all vectors share hide what distinguishes them; a contrastive loss removes these first. What is left
of a difference between arms when both are whitened is not merely that. Random vectors of words know nothing: what they
reach is the overlap of words alone.

Shapes: P passages, Q queries, D dimensions, V words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from record import Values, recorded
from study import MEASURES

from qontext.data.collection import load_collection
from qontext.data.runs import Run
from qontext.evaluation.measures import measure, parse
from qontext.frame.artifacts import Artifact
from qontext.models.retriever import Retriever
from qontext.models.tokenizer import load_tokenizer
from qontext.retrieve.stored import open_vectors

Array = np.ndarray[Any, Any]
DIMENSIONS = 384
DEPTH, BLOCK = 100, 512


def centered(passages_PD: Array, queries_QD: Array) -> tuple[Array, Array]:
    return passages_PD - passages_PD.mean(0), queries_QD - queries_QD.mean(0)


def whitened(passages_PD: Array, queries_QD: Array) -> tuple[Array, Array]:
    passages_PD, queries_QD = centered(passages_PD, queries_QD)
    values, vectors = np.linalg.eigh(passages_PD.T @ passages_PD / len(passages_PD))
    scaled = vectors / np.sqrt(values.clip(0) + 1e-6 * values.max())
    return passages_PD @ scaled, queries_QD @ scaled


CONTROLS = {"centered": centered, "whitened": whitened}


def of_arm(vectors: Artifact, data: Path, split: str) -> dict[str, Values]:
    """The scores of a cell's vectors without labels, centered and whitened."""
    stored = open_vectors(vectors.path)
    passages_PD = np.empty((len(stored), stored.dimension), np.float32)
    for numbers, part in stored.blocks():
        passages_PD[numbers] = part
    config = vectors.config
    encoder = Retriever(
        vectors.inputs["encoder"]["path"], pooling=config["pooling"], max_length=config["max_length"]
    )
    queries = load_collection(data).queries(split)
    queries_QD = encoder.encode(list(queries.values()), "query")
    return {
        f"0+{name}": scores(*control(passages_PD, queries_QD), stored.ids, list(queries), data, split)
        for name, control in CONTROLS.items()
    }


def of_words(length: int, seed: int, tokenizer: str, data: Path, split: str) -> dict[str, Values]:
    """The scores of random vectors of words, over the first `length` tokens of a text."""
    collection, tokens = load_collection(data), load_tokenizer(Path(tokenizer))
    passages = list(collection.passages())
    queries = collection.queries(split)
    words_VD = np.random.default_rng(seed).standard_normal((len(tokens), DIMENSIONS)).astype(np.float32)

    def mean(texts: Sequence[str]) -> Array:
        ids = tokens(list(texts), truncation=True, max_length=length)["input_ids"]
        return np.stack([words_VD[row].mean(0) for row in ids])

    vectors = whitened(mean([passage.content for passage in passages]), mean(list(queries.values())))
    ids = np.array([passage.id for passage in passages], dtype=object)
    return {"0": scores(*vectors, ids, list(queries), data, split)}


def scores(
    passages_PD: Array, queries_QD: Array, ids: Array, queries: Sequence[str], data: Path, split: str
) -> Values:
    """The scores of each question by the cosine of the vectors."""
    run = _searched(_unit(passages_PD), _unit(queries_QD), ids, queries)
    return recorded(measure(run, load_collection(data).qrels(split), parse(MEASURES)).values)


def _searched(passages_PD: Array, queries_QD: Array, ids: Array, queries: Sequence[str]) -> Run:
    k = min(DEPTH, len(passages_PD))
    blocks = list(_best(passages_PD, queries_QD, k))
    numbers, found = (np.concatenate([block[n] for block in blocks]) for n in (0, 1))
    codes = np.repeat(np.arange(len(queries)), k)
    return Run.from_codes(codes, queries, numbers.ravel(), ids, found.ravel())


def _best(passages_PD: Array, queries_QD: Array, k: int) -> Iterator[tuple[Array, Array]]:
    for start in range(0, len(queries_QD), BLOCK):
        scores_QP = queries_QD[start : start + BLOCK] @ passages_PD.T
        best = np.argpartition(-scores_QP, k - 1, axis=1)[:, :k]
        yield best, np.take_along_axis(scores_QP, best, 1)


def _unit(vectors: Array) -> Array:
    unit: Array = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)).astype(np.float32)
    return unit
