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
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from qontext.data.collection import Passage
from qontext.data.load import as_passages
from qontext.data.runs import Run, check_depth
from qontext.frame import process
from qontext.frame.errors import QontextError, choose
from qontext.frame.files import damaged, opening, read_json, require_regular
from qontext.retrieve.analyzer import Analyzer, analyzers
from qontext.retrieve.index.postings import DATA, ROWS, STARTS, VOCABULARY, Inverter, Postings
from qontext.retrieve.stored import as_objects, numbers_of, read_ids, write_ids

_ANALYZER, _PARAMETERS = "analyzer.json", "params.index.json"
_FEW = 16
"""Maximum number of queries to answer without bm25s, which takes a second to import."""
_PASSAGES = 16_384
"""Passages whose ids are collected together."""
_NUMBA_PAYS_FROM = 50_000_000
"""Queries times passages above which numba's compilation (about ten seconds, once per machine) pays off."""


class _Parameters(TypedDict):
    """The fields read from the parameters of a saved index."""

    num_docs: NonNegativeInt
    k1: float
    b: float


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
        self, postings: Postings, ids: np.ndarray[Any, Any], analyzer: str, *, k1: float, b: float
    ) -> None:
        self._postings, self.ids, self.analyzer = postings, ids, analyzer
        self.k1, self.b = k1, b
        self._index: Any = None
        """The index as a bm25s object, which searches many queries fast; created on first use."""

    def __repr__(self) -> str:
        return f"Bm25({len(self.ids):,} passages)"

    @classmethod
    def build(
        cls,
        passages: Iterable[Passage | str],
        ids: Sequence[str] | None = None,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        analyzer: str = "english",
        title: str = "prepend",
    ) -> Bm25:
        """Index passages (title and text, joined) or plain texts, whose ids are `ids` or else their numbers
        from 0. Args: k1: Saturation of term frequency. b: Length normalization. analyzer: Text analyzer:
        english, lucene, code, plain, or another language, such as german. title: prepend, or leave: without titles.
        """
        vocabulary, inverter, names = _inverted(as_passages(passages, ids), analyzer, title)
        blocks = list(_scored(inverter, k1, b))
        data, rows = (np.concatenate([block[n] for block in blocks]) for n in (0, 1))
        postings = Postings(data, rows, _starts(inverter), len(names), vocabulary)
        return cls(postings, as_objects(names), analyzer, k1=k1, b=b)

    @classmethod
    def write(
        cls,
        folder: Path,
        passages: Iterable[Passage],
        *,
        k1: float = 0.9,
        b: float = 0.4,
        analyzer: str,
        title: str = "prepend",
    ) -> None:
        """Index passages into a folder, block by block: `build` and `save` in memory that does not grow with the
        postings."""
        vocabulary, inverter, names = _inverted(passages, analyzer, title)
        starts, paths = _starts(inverter), (folder / DATA, folder / ROWS)
        with paths[0].open("wb") as data, paths[1].open("wb") as rows:
            for file, kind in ((data, "<f4"), (rows, "<i4")):
                header = {"descr": kind, "fortran_order": False, "shape": (int(starts[-1]),)}
                np.lib.format.write_array_header_1_0(file, header)
            for scores, texts in _scored(inverter, k1, b):
                scores.tofile(data)
                texts.tofile(rows)
        np.save(folder / STARTS, starts, allow_pickle=False)
        _write_rest(folder, vocabulary, len(names), names, analyzer, k1, b)

    def save(self, folder: Path | str) -> None:
        """Write the index: `.npy` arrays, JSON, ids as Parquet. bm25s opens it, too."""
        folder, p = Path(folder), self._postings
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in ((DATA, p.data), (ROWS, p.rows), (STARTS, p.starts)):
            np.save(folder / name, values, allow_pickle=False)
        names = pa.array(self.ids, pa.string())
        _write_rest(folder, p.vocabulary, len(self.ids), names, self.analyzer, self.k1, self.b)

    @classmethod
    def load(cls, folder: Path | str) -> Bm25:
        """Open a saved index; its arrays are memory-mapped."""
        folder = Path(folder)
        parameters = read_json(folder / _PARAMETERS, _Parameters)
        postings = Postings.load(folder, parameters["num_docs"])
        with opening(require_regular(folder / _ANALYZER), "the name of an analyzer"):
            analyzer = choose(json.loads((folder / _ANALYZER).read_text("utf-8")), analyzers(), "analyzer")
        ids = read_ids(folder)
        if len(ids) != postings.passages:
            raise damaged(folder, f"it has {postings.passages} passages and {len(ids)} ids")
        return cls(postings, ids, analyzer, k1=parameters["k1"], b=parameters["b"])

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

    def rarity(self, term: str) -> float:
        """The inverse document frequency of a term."""
        number = self._postings.vocabulary.get(term)
        starts = self._postings.starts
        n = 0 if number is None else int(starts[number + 1]) - int(starts[number])
        return math.log(1 + (len(self.ids) - n + 0.5) / (n + 0.5))

    def number(self, id: str) -> int | None:
        """The number of the passage with this id, if there is one."""
        return self._numbers.get(id)

    def weight(self, term: str, number: int | None) -> float:
        """The part of a passage's score that a term has in it; 0 if the passage does not contain it."""
        column = self._postings.vocabulary.get(term)
        if number is None or column is None:
            return 0.0
        places = slice(int(self._postings.starts[column]), int(self._postings.starts[column + 1]))
        is_there = self._postings.rows[places] == number
        return float(self._postings.data[places][is_there].sum())

    def search(self, queries: Mapping[str, str], k: int, rows: Any = None) -> Run:
        """The best `k` passages of each query (id → text). Passages without any of its words are not hits.
        With `rows`, [P] bool, only these passages are searched.
        """
        check_depth(k)
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
        threads = process.threads() or os.cpu_count() or 1
        size = -(-len(rows) // threads)
        chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
        with ThreadPoolExecutor(threads) as pool:
            settings = {"k": k, "show_progress": False, "weight_mask": weights}
            results = list(pool.map(lambda chunk: index.retrieve(chunk, **settings), chunks))
        numbers = np.concatenate([part.documents for part in results]).astype(np.int32)
        return numbers, np.concatenate([part.scores for part in results]).astype(np.float32)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {id: number for number, id in enumerate(self.ids)}

    @cached_property
    def _id_places(self) -> np.ndarray[Any, Any]:
        """[P] the position of each passage's id in the sorted ids."""
        places = np.empty(len(self.ids), np.int32)
        places[np.argsort(self.ids, kind="stable")] = np.arange(len(self.ids), dtype=np.int32)
        return places


def _inverted(
    passages: Iterable[Passage], analyzer: str, title: str
) -> tuple[dict[str, int], Inverter, pa.ChunkedArray]:
    """The vocabulary, the inverted passages and their ids."""
    vocabulary: dict[str, int] = {}
    terms, inverter = Analyzer(analyzer, vocabulary, grow=True), Inverter()
    chunks: list[pa.Array] = []
    stream, between = iter(passages), None if title == "leave" else " "
    while block := list(islice(stream, _PASSAGES)):
        chunks.append(pa.array([passage.id for passage in block], pa.string()))
        for passage in block:
            inverter.add(terms(passage.joined(between)))
    if chunks and (again := numbers_of(chunks)[1]) is not None:
        raise QontextError(f"the passage id {again!r} occurs twice")
    if not vocabulary:
        raise QontextError("no passage contains a word to index")
    vocabulary[""] = len(vocabulary)
    return vocabulary, inverter, pa.chunked_array(chunks)


def _scored(
    inverter: Inverter, k1: float, b: float
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """The scores and passages of all postings, in blocks of whole terms."""
    lengths = inverter.lengths.astype(np.int64)
    # Saturation of a passage: k1 · (1 - b + b · |p| / mean |p|).
    saturation = k1 * ((1 - b) + b * lengths / lengths.mean())
    frequent, place = np.unique(inverter.texts_with(), return_inverse=True)
    idf = [math.log(1 + (len(lengths) - n + 0.5) / (n + 0.5)) for n in frequent.tolist()]
    weights = np.array(idf, np.float32)[place]
    for terms, rows, frequencies in inverter.counts():
        scores = weights[terms] * (frequencies / (saturation[rows] + frequencies))
        yield scores.astype(np.float32), rows


def _starts(inverter: Inverter) -> np.ndarray[Any, Any]:
    return np.concatenate([[0], np.cumsum(inverter.texts_with())])


def _write_rest(
    folder: Path, vocabulary: dict[str, int], passages: int, ids: Any, analyzer: str, k1: float, b: float
) -> None:
    """The small files of an index: terms, parameters as bm25s reads them, ids and the analyzer."""
    (folder / VOCABULARY).write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    parameters = {
        "k1": k1, "b": b, "delta": 0.5, "method": "lucene", "idf_method": "lucene", "dtype": "float32",
        "int_dtype": "int32", "num_docs": passages, "backend": "numpy",
    }  # fmt: skip
    (folder / _PARAMETERS).write_text(json.dumps(parameters, indent=4), encoding="utf-8")
    write_ids(folder / "ids.parquet", ids)
    (folder / _ANALYZER).write_text(json.dumps(analyzer), encoding="utf-8")


def _numba_is_ready() -> bool:
    """True if numba is installed; enables its on-disk cache of bm25s's compiled search."""
    try:
        from bm25s.numba import retrieve_utils
    except ImportError:
        return False
    # Without a cache it is compiled in every process.
    with contextlib.suppress(AttributeError, RuntimeError):
        retrieve_utils._retrieve_internal_jitted_serial.enable_caching()
    return True
