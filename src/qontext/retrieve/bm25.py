"""BM25: the lexical baseline, the first source of hard negatives, the filter for generated queries.

    score(q, p) = Σ_{t in q}  idf(t) · tf(t, p) / (tf(t, p) + k1 · (1 - b + b · |p| / mean |p|))
    idf(t) = ln(1 + (N - n_t + 0.5) / (n_t + 0.5))

(Robertson and Zaragoza, 2009, in Lucene's form.) Scores of all (term, passage) pairs are computed once, when
the index is built, and stored in flat arrays that are memory-mapped on loading; a search sums a few of their
columns. Scores are computed by bm25s.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qontext.data.collection import Passage
from qontext.data.load import as_passages
from qontext.data.runs import Run
from qontext.frame import launch
from qontext.frame.damage import damaged, opening
from qontext.frame.disk import require_regular
from qontext.frame.errors import QontextError, choose
from qontext.retrieve.analysis import Analyzer, analyzers
from qontext.retrieve.postings import Postings
from qontext.retrieve.vectors import read_ids, write_ids

_ANALYZER = "analyzer.json"
_FEW = 16
"""Maximum number of queries to answer without bm25s, which takes a second to import."""
_NUMBA_PAYS_FROM = 50_000_000
"""Queries times passages above which numba's compilation (about ten seconds, once per machine) pays off."""


class Bm25:
    """A lexical index. `ids[n]` is the id of passage number n.

    >>> index = Bm25.build(["the mill grinds flour", "a boat on the river"])
    >>> run = index.search({"q1": "flour mill"}, k=10)
    >>> [hit.passage for hit in run["q1"]]
    ['0']
    >>> index.save("saved-bm25")
    >>> Bm25.load("saved-bm25").search({"q1": "flour mill"}, k=10) == run
    True
    """

    def __init__(
        self, postings: Postings, ids: np.ndarray[Any, Any], analyzer: str, index: Any = None
    ) -> None:
        self._postings, self.ids, self.analyzer = postings, ids, analyzer
        self._index = index
        """The index as a bm25s object, which searches many queries fast; created on first use."""

    @classmethod
    def build(
        cls,
        passages: Iterable[Passage | str],
        ids: Sequence[str] | None = None,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        analyzer: str = "english",
    ) -> Bm25:
        """Index passages (title and text, joined) or plain texts, whose ids are `ids` or else their numbers
        from 0. Args: k1: Saturation of term frequency. b: Length normalization. analyzer: Text analyzer:
        english, lucene, plain, or another language, such as german.
        """
        import bm25s
        from bm25s.tokenization import Tokenized

        vocabulary: dict[str, int] = {}
        terms = Analyzer(analyzer, vocabulary, grow=True)
        names: list[str] = []
        rows: list[list[int]] = []
        for passage in as_passages(passages, ids):
            names.append(passage.id)
            rows.append(terms(passage.content))
        if len(set(names)) != len(names):
            again, _ = Counter(names).most_common(1)[0]
            raise QontextError(f"the passage id {again!r} occurs twice")
        if not vocabulary:
            raise QontextError("no passage contains a word to index")
        index = bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float32", backend="numpy")
        index.index(Tokenized(ids=rows, vocab=vocabulary), show_progress=False)
        return cls(Postings.of(index), np.array(names, dtype=object), analyzer, index)

    def save(self, folder: Path | str) -> None:
        """Write the index: `.npy` arrays, JSON, ids as Parquet."""
        folder = Path(folder)
        self._searched().save(folder, show_progress=False)
        write_ids(folder / "ids.parquet", self.ids)
        (folder / _ANALYZER).write_text(json.dumps(self.analyzer), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path | str) -> Bm25:
        """Open a saved index; its arrays are memory-mapped."""
        folder = Path(folder)
        postings = Postings.load(folder)
        with opening(require_regular(folder / _ANALYZER), "the name of an analyzer"):
            analyzer = choose(json.loads((folder / _ANALYZER).read_text("utf-8")), analyzers(), "analyzer")
        ids = read_ids(folder)
        if len(ids) != postings.passages:
            raise damaged(folder, f"it has {postings.passages} passages and {len(ids)} ids")
        return cls(postings, ids, analyzer)

    def _searched(self) -> Any:
        import bm25s

        if self._index is None:
            p = self._postings
            self._index = bm25s.BM25(method="lucene", dtype="float32", backend="numpy")
            self._index.scores = {
                "data": p.data,
                "indices": p.rows,
                "indptr": p.starts,
                "num_docs": p.passages,
            }
            self._index.vocab_dict = p.vocabulary
            self._index.unique_token_ids_set = set(p.vocabulary.values())
            self._index.nonoccurrence_array = None  # for other BM25 variants than Lucene's
        return self._index

    def search(self, queries: Mapping[str, str], k: int, rows: Any = None) -> Run:
        """The best `k` passages of each query (id → text). Passages without any of its words are not hits.
        With `rows`, [P] bool, only these passages are searched.
        """
        numbers, scores = self.top(list(queries.values()), k, rows)
        hit = scores > 0
        query_codes = np.broadcast_to(np.arange(len(queries))[:, None], hit.shape)[hit]
        return Run.from_codes(query_codes, list(queries), numbers[hit], self.ids, scores[hit])

    def top(
        self, texts: Sequence[str], k: int, among: Any = None
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """[N, k] passage numbers and scores of N queries, best first, ties by id; 0 and 0 where hits end.

        With `among`, [P] bool, only these passages are searched.
        """
        weights = None if among is None else np.asarray(among, np.float32)
        terms = Analyzer(self.analyzer, self._postings.vocabulary, grow=False)
        # A term's weight is its frequency in the query.
        rows = [terms(text) for text in texts]
        k = min(k, len(self.ids))
        numbers, scores = np.zeros((len(rows), k), np.int32), np.zeros((len(rows), k), np.float32)
        filled = [n for n, row in enumerate(rows) if len(row)]
        if filled:
            numbers[filled], scores[filled] = self._best([rows[n] for n in filled], k, weights)
        return numbers, scores

    def _best(self, rows: list[list[int]], k: int, weights: Any) -> tuple[Any, Any]:
        if len(rows) <= _FEW:
            best = [self._exact(row, k, weights) for row in rows]
            return np.stack([numbers for numbers, _ in best]), np.stack([scores for _, scores in best])
        # One more than requested: if it ties with the last requested one, the ids decide.
        wider = min(k + 1, len(self.ids))
        numbers, scores = self._retrieve(rows, wider, weights)
        order = np.lexsort((self._id_places[numbers], -scores), axis=1)
        numbers, scores = np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)
        if wider > k:
            tied = (scores[:, k - 1] == scores[:, k]) & (scores[:, k] > 0)
            for row in np.flatnonzero(tied):
                numbers[row, :k], scores[row, :k] = self._exact(rows[row], k, weights)
        return numbers[:, :k], scores[:, :k]

    def _exact(self, terms: list[int], k: int, weights: Any) -> tuple[Any, Any]:
        """The best k passages of a query, ties by id."""
        scores = self._postings.scores(terms, weights)
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        above = np.flatnonzero(scores > 0 if least <= 0 else scores >= least)
        best = above[np.lexsort((self._id_places[above], -scores[above]))[:k]]
        missing = k - len(best)
        return np.pad(best.astype(np.int32), (0, missing)), np.pad(scores[best], (0, missing))

    def _retrieve(self, rows: list[list[int]], k: int, weights: Any) -> tuple[Any, Any]:
        """bm25s's top k, in threads: its inner loops release the GIL."""
        index = self._searched()
        if len(rows) * len(self.ids) > _NUMBA_PAYS_FROM and _numba_is_ready():
            index.backend = "numba"
        threads = launch.threads() or os.cpu_count() or 1
        size = -(-len(rows) // threads)
        chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
        with ThreadPoolExecutor(threads) as pool:
            settings = {"k": k, "show_progress": False, "weight_mask": weights}
            results = list(pool.map(lambda chunk: index.retrieve(chunk, **settings), chunks))
        numbers = np.concatenate([part.documents for part in results]).astype(np.int32)
        return numbers, np.concatenate([part.scores for part in results]).astype(np.float32)

    @cached_property
    def _id_places(self) -> np.ndarray[Any, Any]:
        """[P] the position of each passage's id in the sorted ids."""
        places = np.empty(len(self.ids), np.int32)
        places[np.argsort(self.ids, kind="stable")] = np.arange(len(self.ids), dtype=np.int32)
        return places


def _numba_is_ready() -> bool:
    """Whether numba is installed; enables its on-disk cache of bm25s's compiled search."""
    try:
        from bm25s.numba import retrieve_utils
    except ImportError:
        return False
    # Without a cache it is compiled in every process.
    with contextlib.suppress(AttributeError, RuntimeError):
        retrieve_utils._retrieve_internal_jitted_serial.enable_caching()
    return True
