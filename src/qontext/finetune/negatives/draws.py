"""Random negatives, from all passages or from the documents of a query's positives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from qontext.data.collection import read_passages


class Corpus:
    """The passages' ids and documents, to check against and to draw from."""

    def __init__(self, passages: str, seed: int) -> None:
        self.seed = seed
        self.document: dict[str, str] = {}
        self.members: dict[str, list[str]] = {}
        for passage in read_passages(passages):
            self.document[passage.id] = passage.doc
            self.members.setdefault(passage.doc, []).append(passage.id)
        self.ids = list(self.document)

    def __contains__(self, id: str) -> bool:
        return id in self.document

    def near(self, query: str, positives: list[str], count: int) -> list[str]:
        """At most `count` other passages of the positives' documents."""
        if not count:
            return []
        documents = sorted({self.document[p] for p in positives})
        others = [id for doc in documents for id in self.members[doc] if id not in positives]
        order = generator(self.seed, "document", query).permutation(len(others))
        return [others[i] for i in order[:count]]

    def anywhere(self, query: str, positives: list[str], count: int) -> list[str]:
        """`count` passages that are not positives, or all of these."""
        if not count:
            return []
        size = min(count + len(positives), len(self.ids))
        numbers = generator(self.seed, "random", query).choice(len(self.ids), size, replace=False)
        return [self.ids[i] for i in numbers if self.ids[i] not in positives][:count]


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
