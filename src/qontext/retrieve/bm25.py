"""BM25: the lexical baseline, the first source of hard negatives, the filter for generated queries.

    score(q, p) = Σ_{t in q}  idf(t) · tf(t, p) / (tf(t, p) + k1 · (1 - b + b · |p| / mean |p|))
    idf(t) = ln(1 + (N - n_t + 0.5) / (n_t + 0.5))

(Robertson and Zaragoza, 2009, in Lucene's form.) Scores of all (term, passage) pairs are computed once, when
the index is built, and lie in flat arrays that are memory-mapped when the index is loaded; a search adds
up a few of their columns. The arithmetic is bm25s's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from qontext.collection import Passage
from qontext.errors import QontextError
from qontext.retrieve.runs import Run
from qontext.retrieve.vectors import read_ids, write_ids

_WORD = re.compile(r"\w+")
_VOWELS = frozenset("aeiouy")
_NUMBA_PAYS_FROM = 50_000_000
"""Queries times passages from which numba's compilation (about ten seconds, once per machine) pays."""


class Bm25:
    """A lexical index. `ids[n]` is the id of passage number n."""

    def __init__(self, index: Any, vocabulary: dict[str, int], ids: np.ndarray[Any, Any]) -> None:
        self._index, self._vocabulary, self.ids = index, vocabulary, ids

    @classmethod
    def build(cls, texts: Iterable[str], ids: Sequence[str], *, k1: float = 0.9, b: float = 0.4) -> Bm25:
        """Index the texts, whose ids are `ids`; the defaults of k1 and b are those usual for passages."""
        import bm25s
        from bm25s.tokenization import Tokenized

        vocabulary: dict[str, int] = {}
        terms = _Terms(vocabulary, grow=True)
        rows = [terms.of(text) for text in texts]
        if len(rows) != len(ids):
            raise QontextError(f"{len(rows)} texts have {len(ids)} ids")
        if len(set(ids)) != len(ids):
            again, _ = Counter(ids).most_common(1)[0]
            raise QontextError(f"the passage id {again!r} occurs twice")
        if not vocabulary:
            raise QontextError("no passage holds a word to index")
        index = bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float32", backend="numpy")
        index.index(Tokenized(ids=rows, vocab=vocabulary), show_progress=False)
        return cls(index, vocabulary, np.array(ids, dtype=object))

    @classmethod
    def of(cls, passages: Iterable[Passage], *, k1: float = 0.9, b: float = 0.4) -> Bm25:
        """Index passages: title and text, as one."""
        ids: list[str] = []

        def texts() -> Iterable[str]:
            for passage in passages:
                ids.append(passage.id)
                yield passage.content

        return cls.build(texts(), ids, k1=k1, b=b)

    def save(self, folder: Path) -> None:
        """Write the index: `.npy` arrays, JSON, ids as Parquet."""
        self._index.save(folder, show_progress=False)
        write_ids(folder / "ids.parquet", self.ids)

    @classmethod
    def load(cls, folder: Path | str) -> Bm25:
        """Open a saved index; its arrays stay on disk until they are needed."""
        import bm25s

        folder = Path(folder)
        try:
            index = bm25s.BM25.load(folder, mmap=True, allow_pickle=False, backend="numpy")
            ids = read_ids(folder)
        except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
            raise QontextError(f"not a readable BM25 index: {error}", place=folder) from None
        if len(ids) != index.scores["num_docs"]:
            raise QontextError(
                f"holds {index.scores['num_docs']} passages and {len(ids)} ids: its files do not match",
                place=folder,
            )
        return cls(index, index.vocab_dict, ids)

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        """The best `k` passages of each query (id → text). Passages without a word of it are no hits."""
        numbers, scores = self.top(list(queries.values()), k)
        hit = scores > 0
        query_codes = np.broadcast_to(np.arange(len(queries))[:, None], hit.shape)[hit]
        return Run.from_codes(query_codes, list(queries), numbers[hit], self.ids, scores[hit])

    def top(self, texts: Sequence[str], k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """[N, k] passage numbers and scores of N queries, best first, ties by id; 0 and 0 where hits end."""
        terms = _Terms(self._vocabulary, grow=False)
        # A term's weight is the number of times that the query holds it.
        rows = [terms.of(text) for text in texts]
        k = min(k, len(self.ids))
        numbers, scores = np.zeros((len(rows), k), np.int32), np.zeros((len(rows), k), np.float32)
        filled = [n for n, row in enumerate(rows) if len(row)]
        if filled:
            numbers[filled], scores[filled] = self._best([rows[n] for n in filled], k)
        return numbers, scores

    def _best(self, rows: list[list[int]], k: int) -> tuple[Any, Any]:
        # One more than wanted: where it ties with the last wanted one, the ids decide who is in.
        wider = min(k + 1, len(self.ids))
        numbers, scores = self._retrieve(rows, wider)
        place = self._id_places()
        order = np.lexsort((place[numbers], -scores), axis=1)
        numbers, scores = np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)
        if wider > k:
            tied = (scores[:, k - 1] == scores[:, k]) & (scores[:, k] > 0)
            for row in np.flatnonzero(tied):
                all_scores = self._index.get_scores_from_ids(np.array(rows[row], np.int32))
                last = scores[row, k]
                above = np.flatnonzero(all_scores >= last)
                best = above[np.lexsort((place[above], -all_scores[above]))[:k]]
                numbers[row, :k], scores[row, :k] = best, all_scores[best]
        return numbers[:, :k], scores[:, :k]

    def _retrieve(self, rows: list[list[int]], k: int) -> tuple[Any, Any]:
        """bm25s's top k, in threads: its inner loops hold no lock."""
        if len(rows) * len(self.ids) > _NUMBA_PAYS_FROM and _numba_is_ready():
            self._index.backend = "numba"
        threads = os.cpu_count() or 1
        size = -(-len(rows) // threads)
        chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
        with ThreadPoolExecutor(threads) as pool:
            found = list(
                pool.map(lambda chunk: self._index.retrieve(chunk, k=k, show_progress=False), chunks)
            )
        numbers = np.concatenate([part.documents for part in found]).astype(np.int32)
        return numbers, np.concatenate([part.scores for part in found]).astype(np.float32)

    def _id_places(self) -> np.ndarray[Any, Any]:
        """[P] where each passage's id stands among the sorted ids."""
        places = np.empty(len(self.ids), np.int32)
        places[np.argsort(self.ids, kind="stable")] = np.arange(len(self.ids), dtype=np.int32)
        return places


def _numba_is_ready() -> bool:
    """Whether numba is installed; lets it keep bm25s's compiled search on disk for the next process."""
    try:
        from bm25s.numba import retrieve_utils
    except ImportError:
        return False
    # Without a cache it works as well, and compiles in every process.
    with contextlib.suppress(AttributeError, RuntimeError):
        retrieve_utils._retrieve_internal_jitted_serial.enable_caching()
    return True


class _Terms:
    """Texts → numbers of their terms: words in lower case, without English stop words, lightly stemmed."""

    def __init__(self, vocabulary: dict[str, int], *, grow: bool) -> None:
        from bm25s.stopwords import STOPWORDS_EN_PLUS

        self._vocabulary, self._grow = vocabulary, grow
        self._stop = frozenset(STOPWORDS_EN_PLUS)
        self._known: dict[str, int | None] = {}

    def of(self, text: str) -> list[int]:
        numbers = []
        for word in _WORD.findall(text.lower()):
            try:
                number = self._known[word]
            except KeyError:
                number = self._known[word] = self._number(word)
            if number is not None:
                numbers.append(number)
        return numbers

    def _number(self, word: str) -> int | None:
        if word in self._stop:
            return None
        if self._grow:
            return self._vocabulary.setdefault(stem(word), len(self._vocabulary))
        return self._vocabulary.get(stem(word))


def stem(word: str) -> str:
    """A light English stemmer: plural (Harman's S rules), then -ing and -ed, or a final e.

    Weaker than Porter's, so that it rarely merges different words; other languages it mostly leaves alone.
    """
    if len(word) > 3 and word.endswith("s"):
        if word.endswith("ies") and not word.endswith(("eies", "aies")):
            word = word[:-3] + "y"
        elif not word.endswith(("us", "ss", "aes", "ees", "oes")):
            word = word[:-1]
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) > 2 and not _VOWELS.isdisjoint(rest):
            doubled = len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] not in "lsz"
            return rest[:-1] if doubled else rest
    return word[:-1] if len(word) > 3 and word.endswith("e") else word
