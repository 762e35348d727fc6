"""Ask what `adapt` made: a question → the best passages, by the system that measured best.

from qontext.adapt.searcher import Searcher
searcher = Searcher("runs/mine")
for answer in searcher.search("how do I reset my password?", k=5):
    print(answer.score, answer.title, answer.text)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from qontext import records
from qontext.errors import QontextError

ADAPTED = "adapted.json"
CANDIDATES = 100


@dataclass(frozen=True)
class Answer:
    """A passage and how it was ranked; scores of different questions cannot be compared."""

    rank: int
    score: float
    passage: str
    document: str
    title: str
    text: str


def is_adapted(path: str | Path) -> bool:
    """Whether `adapt` finished this directory."""
    return (Path(path) / ADAPTED).is_file()


class Searcher:
    """What `adapt` handed over, opened once; asking is then quick."""

    def __init__(self, directory: str | Path, *, device: str = "auto") -> None:
        self.root, self.device = Path(directory), device
        try:
            about = json.loads((self.root / ADAPTED).read_text(encoding="utf-8"))
            self.system, self.weights, self.read_tokens = (
                about["system"],
                about["weights"],
                about["read_tokens"],
            )
        except (OSError, ValueError, KeyError) as error:
            raise QontextError(
                f"is nothing that adapt finished: {error}",
                place=directory,
                remedy="Run 'qontext adapt DOCUMENTS --out DIR' to its end.",
            ) from None

    def search(self, question: str, k: int = 10) -> list[Answer]:
        """The best k passages."""
        if not question.strip():
            raise QontextError("the question is empty")
        runs = []
        if self.system != "start" and self.system != "adapted":
            runs.append(self._bm25.search({"q": question}, max(k, CANDIDATES)))
        if self.system != "bm25":
            runs.append(self._dense(question, max(k, CANDIDATES)))
        found = self._fused(runs, k) if len(runs) > 1 else runs[0]
        hits = found.get("q", [])[:k]
        texts = self._texts({hit.passage for hit in hits})
        return [
            Answer(rank, round(hit.score, 6), hit.passage, *texts[hit.passage])
            for rank, hit in enumerate(hits, start=1)
        ]

    def _dense(self, question: str, k: int) -> Any:
        import numpy as np

        from qontext.retrieve.runs import Run

        vectors = self._retriever.encode([question], "query")
        numbers, scores = self._index.search(vectors, k)
        there = numbers[0] >= 0
        rows = np.zeros(int(there.sum()), np.int64)
        return Run.from_codes(rows, ["q"], numbers[0][there], self._index.ids, scores[0][there])

    def _fused(self, runs: list[Any], k: int) -> Any:
        from qontext.retrieve.fuse import Rows

        return Rows(runs, "zscore", 60).fused(self.weights, k)

    @cached_property
    def _bm25(self) -> Any:
        from qontext.retrieve.bm25 import Bm25

        return Bm25.load(self.root / "index" / "bm25" / "bm25")

    @cached_property
    def _index(self) -> Any:
        from qontext.retrieve.index.exact import ExactIndex
        from qontext.retrieve.vectors import open_vectors

        return ExactIndex(open_vectors(self.root / "index" / "vectors"), device=self.device)

    @cached_property
    def _retriever(self) -> Any:
        from qontext.retrieve.retriever import Retriever

        return Retriever(str(self.root / "model"), device=self.device, max_length=self.read_tokens)

    def _texts(self, ids: set[str]) -> dict[str, tuple[str, str, str]]:
        """(document, title, text) of passages; the ids' column is looked through, the texts of hits alone are read."""
        columns = ["id", "doc", "title", "text"]
        found = {}
        for part in records.parquet_parts(self.root / "index" / "passages"):
            table = pq.read_table(part, columns=columns, filters=[("id", "in", list(ids))])
            for row in table.to_pylist():
                found[row["id"]] = (row["doc"], row["title"], row["text"])
        return found
