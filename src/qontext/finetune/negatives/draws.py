"""Random negatives, from all passages or from the documents of a query's positives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qontext.data.rows import ids_and_documents


class Corpus:
    """The passages' ids and documents, to check against and to draw from, in compact arrays: no Python object for each.

    Ids are looked up many at a time, which costs a pass over all ids.
    """

    def __init__(self, passages: str, seed: int) -> None:
        self.seed = seed
        columns = list(ids_and_documents(passages))
        self.ids = _whole([ids for ids, _ in columns])
        documents = _whole([documents for _, documents in columns]).dictionary_encode()
        self._documents: np.ndarray[Any, Any] = documents.indices.to_numpy()
        self._names = documents.dictionary

    def rows(self, ids: Sequence[str]) -> np.ndarray[Any, Any]:
        """The number of each passage, -1 if there is none with this id."""
        found = pc.index_in(pa.array(ids, pa.large_string()), value_set=self.ids)
        rows: np.ndarray[Any, Any] = found.fill_null(-1).to_numpy()
        return rows

    def near(self, query: str, positives: Mapping[str, int], count: int) -> list[str]:
        """At most `count` other passages of the documents of the positives (id → row)."""
        if not count:
            return []
        codes = {int(self._documents[row]) for row in positives.values()}
        documents = sorted(codes, key=lambda code: str(self._names[code]))
        rows = [row for code in documents for row in self._members(code) if row not in positives.values()]
        order = generator(self.seed, "document", query).permutation(len(rows))
        return [self.ids[rows[i]].as_py() for i in order[:count]]

    def anywhere(self, query: str, positives: Iterable[str], count: int) -> list[str]:
        """`count` passages that are not positives, or all of these."""
        if not count:
            return []
        excluded = {*positives}
        size = min(count + len(excluded), len(self.ids))
        rows = generator(self.seed, "random", query).choice(len(self.ids), size, replace=False)
        ids = (self.ids[int(row)].as_py() for row in rows)
        return list(islice((id for id in ids if id not in excluded), count))

    @cached_property
    def _by_document(self) -> np.ndarray[Any, Any]:
        """[P] the rows, ordered by document."""
        return np.argsort(self._documents, kind="stable")

    @cached_property
    def _starts(self) -> np.ndarray[Any, Any]:
        """The start of each document's rows in this order, and their end."""
        return np.concatenate([[0], np.cumsum(np.bincount(self._documents, minlength=len(self._names)))])

    def _members(self, document: int) -> list[int]:
        """The rows of a document's passages, in order."""
        start, end = self._starts[document : document + 2]
        rows: list[int] = self._by_document[start:end].tolist()
        return rows


def _whole(chunks: list[pa.Array]) -> pa.LargeStringArray:
    """One array, in which values are found faster than in many; large, since ids may have more than 2 GB."""
    return pa.chunked_array(chunks, pa.string()).cast(pa.large_string()).combine_chunks()


def sample_names(names: Iterable[str], count: int, seed: int) -> list[str]:
    """At most `count` of the names, independent of their order."""
    ordered = sorted(names)
    if count >= len(ordered):
        return ordered
    numbers = generator(seed, "queries", "").choice(len(ordered), count, replace=False)
    return [ordered[i] for i in sorted(numbers)]


def generator(seed: int, purpose: str, query: str) -> np.random.Generator:
    """A generator that only depends on the seed, the purpose and the query's id."""
    digest = hashlib.blake2b(f"{seed}\0{purpose}\0{query}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest)))
