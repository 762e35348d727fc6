"""Results of outside systems → passages.

    names       the id of a passage; else the id or path of a document, in which the closest passage is taken
    text        the passage with which it shares most of its runs of five words, wherever texts were cut

Of a document or a long text, the passage that shares most words with the question stands for all, as for labels that name
documents. A result that is no passage of the collection has no rank: other systems cannot find it, either.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qontext.data.collection import Passage, read_passages
from qontext.data.labels import closest
from qontext.data.records import Hit
from qontext.data.runs import Run
from qontext.data.words import apart
from qontext.frame.errors import QontextError, shorten
from qontext.retrieve.outside import Outside
from qontext.retrieve.results import Result

RUN = 5
"""Words of a run."""
SHARED = 0.5
"""Share of the runs of the shorter text that are those of the other."""


class Asked:
    """An outside system whose results are passages of a collection."""

    tag = "outside"

    def __init__(self, system: Outside, passages: str, k: int) -> None:
        self.system, self.matcher, self.k = system, Matcher(read_passages(passages)), k
        self.unmatched = 0
        self._example: Result | None = None

    def run(self, queries: Mapping[str, str], advance: Callable[[float], None]) -> Run:
        """The best passages, in the order of the results; `advance` is called with the share of the work that is done."""
        hits = []
        for query, text in queries.items():
            results = self.system.ask(text, self.k)
            ids, unmatched = self.matcher.match(text, results, self.k)
            self.unmatched += unmatched
            self._example = self._example or next(iter(results), None)
            hits += [Hit(query, id, float(self.k - rank)) for rank, id in enumerate(ids)]
            advance(1 / len(queries))
        return Run.of(hits)

    def take_unmatched(self) -> int:
        """The number of results since the last call that are no passages."""
        count, self.unmatched = self.unmatched, 0
        return count

    def refuse_unmatched(self) -> None:
        """Raise the error for a system that has results, of which none is a passage."""
        if self._example is None:
            return
        shown = shorten(" ".join((self._example.text or ", ".join(self._example.names)).split()), 160)
        raise QontextError(
            f"none of its results is a passage of these documents; the first one is {shown!r}", place=self.system.spec,
            remedy="Results are ids of passages or documents, paths of files, or texts: one on a line, or in JSON.",
        )  # fmt: skip


class Matcher:
    """The passages of a collection, by their ids, documents and words."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        self.passages = list(passages)
        self._numbers = {passage.id: number for number, passage in enumerate(self.passages)}
        self._documents: dict[str, list[int]] = {}
        for number, passage in enumerate(self.passages):
            self._documents.setdefault(passage.doc, []).append(number)
        ends = Counter(_end(document) for document in self._documents)
        self._files = {_end(document): document for document in self._documents if ends[_end(document)] == 1}
        runs = [_runs(passage.content) for passage in self.passages]
        self._sizes = np.array([len(own) for own in runs], dtype=np.int64)
        hashes = np.concatenate(runs) if runs else np.zeros(0, np.uint64)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._owners = hashes[order], np.repeat(np.arange(len(runs)), self._sizes)[order]

    def match(self, question: str, results: Sequence[Result], k: int) -> tuple[list[str], int]:
        """The ids of the passages, best first, each once; and the number of results that are none of these passages."""
        numbers = [self._number(question, result) for result in results]
        found = dict.fromkeys(number for number in numbers if number is not None)
        return [self.passages[number].id for number in found][:k], numbers.count(None)

    def _number(self, question: str, result: Result) -> int | None:
        for name in result.names:
            if name in self._numbers:
                return self._numbers[name]
        document = next((own for name in result.names if (own := self._document(name))), None)
        near = self._near(result.text)
        if document is not None:
            return self._closest(question, [number for number in near if number in document] or document)
        return self._closest(question, near) if near else None

    def _document(self, name: str) -> list[int] | None:
        """The passages of the document with this id, or with a path that ends like it, or like which it ends."""
        parts = name.replace("\\", "/").removeprefix("file://").split("/")
        ends = ("/".join(parts[start:]) for start in range(len(parts)))
        document = next((end for end in (name, *ends) if end in self._documents), None)
        # The name of a file alone, as vector stores have it.
        document = document or (self._files.get(name) if "." in name else None)
        return None if document is None else self._documents[document]

    def _near(self, text: str) -> list[int]:
        """The passages that share enough runs of words with the text."""
        runs = np.unique(_runs(text))
        if not len(runs) or not len(self._hashes):
            return []
        first, last = (np.searchsorted(self._hashes, runs, side) for side in ("left", "right"))
        owners = [np.unique(self._owners[a:b]) for a, b in zip(first, last) if b > a]
        if not owners:
            return []
        numbers, shared = np.unique(np.concatenate(owners), return_counts=True)
        share = shared / np.minimum(len(runs), np.maximum(self._sizes[numbers], 1))
        return [int(number) for number in numbers[share >= SHARED]]

    def _closest(self, question: str, numbers: Sequence[int]) -> int:
        best = closest(question, [self.passages[number] for number in numbers])
        return self._numbers[best.id]


def _end(document: str) -> str:
    return document.replace("\\", "/").rpartition("/")[2]


def _runs(text: str) -> np.ndarray[Any, Any]:
    """[R] the hashes of the runs of `RUN` words of a text; of a shorter text, that of the whole."""
    words = apart(text)
    if not words:
        return np.zeros(0, np.uint64)
    codes = np.array([zlib.crc32(word.encode()) for word in words], dtype=np.uint64)
    size = min(RUN, len(codes))
    value = np.zeros(len(codes) - size + 1, dtype=np.uint64)
    for offset in range(size):  # a polynomial, modulo 2⁶⁴
        value = value * np.uint64(1_099_511_628_211) + codes[offset : offset + len(value)]
    return value
