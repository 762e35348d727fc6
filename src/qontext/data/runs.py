"""Runs: search results by query, and the TREC run file format.

In memory a run is a few flat arrays, so that seven million results load in seconds and need little memory;
its interface is a mapping from query id to a list of hits. Results are sorted by descending score, ties by
ascending passage id, regardless of their order or rank in the input.
"""

from __future__ import annotations

import io
import lzma
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from qontext.data.ids import ascending, by_occurrence, escape_all, unescape, unescape_all
from qontext.data.lines import first_line, open_bytes, read_lines
from qontext.data.records import Hit
from qontext.frame import log
from qontext.frame.artifacts import is_artifact, open_artifact
from qontext.frame.config import existing
from qontext.frame.errors import QontextError
from qontext.frame.errors import first_line as first_sentence

_Array = np.ndarray[Any, Any]
_COLUMNS = ("query", "q0", "passage", "rank", "score", "tag")


@dataclass(frozen=True, eq=False)
class Run(Mapping[str, list[Hit]]):
    """Results of several queries: a mapping from query id to hits, best first. R rows, Q queries, P different passages.

    >>> run = Run.of([Hit("q1", "p1", 0.5), Hit("q1", "p2", 0.9)])
    >>> [hit.passage for hit in run["q1"]]
    ['p2', 'p1']
    >>> run.write("saved.trec")
    >>> Run.read("saved.trec")
    Run of 1 queries and 2 hits

    The rows of query number `q` are ``starts[q]:starts[q+1]``; row `r` is the passage ``ids[codes[r]]`` with
    ``scores[r]``. `ids` is sorted, so that codes compare like ids.
    """

    queries: list[str]
    starts: _Array  # [Q + 1] int64
    ids: _Array  # [P] object (str), ascending
    codes: _Array  # [R] int32
    scores: _Array  # [R] float64

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Run:
        """Read a TREC run file, plain or compressed, or the run in the output directory of a search."""
        return read_run(Path(path))

    def write(self, path: str | os.PathLike[str], *, tag: str = "qontext") -> None:
        """Write a TREC run file; `tag` is its last column."""
        target = Path(path)
        partial = target.with_name(f".{target.name}.partial")
        write_run(self, partial, tag=tag)
        partial.replace(target)

    @classmethod
    def of(cls, hits: Iterable[Hit]) -> Run:
        """Build a run from hits in any order."""
        queries, passages, scores = [list(column) for column in zip(*hits)] or [[], [], []]
        return cls.from_columns(queries, passages, scores)

    @classmethod
    def from_columns(
        cls, queries: Sequence[str], passages: Sequence[str], scores: Any, *, place: str | Path = "run"
    ) -> Run:
        """Build a run from one row per hit, in any order; queries keep the order of their first row."""
        query_codes, names = by_occurrence(queries)
        codes, ids = ascending(passages)
        return cls.from_codes(query_codes, names, codes, _objects(ids), scores, place=place)

    @classmethod
    def from_codes(
        cls,
        query_codes: _Array,
        queries: Sequence[str],
        codes: _Array,
        ids: _Array,
        scores: Any,
        *,
        place: str | Path = "run",
    ) -> Run:
        """Build a run from rows with the numbers of queries and passages; sorts and checks them."""
        ids, codes = _in_order(np.asarray(ids, dtype=object), np.asarray(codes, dtype=np.int32))
        scores = np.asarray(scores, dtype=np.float64)
        if not np.isfinite(scores).all():
            row = int(np.flatnonzero(~np.isfinite(scores))[0])
            query, passage = queries[int(query_codes[row])], ids[codes[row]]
            raise QontextError(
                f"the score of query {query!r} and passage {passage!r} is {scores[row]}", place=place
            )
        order = _ranking(query_codes, codes, scores)
        if order is not None:
            query_codes, codes, scores = query_codes[order], codes[order], scores[order]
        _refuse_duplicates(query_codes, codes, queries, ids, place)
        counts = np.bincount(query_codes, minlength=len(queries))
        numbers = np.flatnonzero(counts)
        starts = np.concatenate([[0], np.cumsum(counts[numbers])])
        return cls([queries[i] for i in numbers.tolist()], starts, ids, codes, scores)

    def __getitem__(self, query: str) -> list[Hit]:
        passages, scores = self.results(query)
        return [Hit(query, passage, score) for passage, score in zip(passages, scores.tolist())]

    def __iter__(self) -> Iterator[str]:
        return iter(self.queries)

    def __len__(self) -> int:
        return len(self.queries)

    def __repr__(self) -> str:
        return f"Run of {len(self):,} queries and {self.size:,} hits"

    @property
    def size(self) -> int:
        """The number of rows of all queries."""
        return len(self.codes)

    def rows(self, q: int) -> tuple[list[str], _Array]:
        """Passage ids and scores of query number `q`, best first."""
        span = slice(self.starts[q], self.starts[q + 1])
        return self.ids[self.codes[span]].tolist(), self.scores[span]

    def results(self, query: str) -> tuple[list[str], _Array]:
        """Passage ids and scores of a query by its id, best first."""
        return self.rows(self._number[query])

    def row_queries(self) -> _Array:
        """[R] the number of each row's query."""
        return np.repeat(np.arange(len(self.queries)), np.diff(self.starts))

    def row_ranks(self) -> _Array:
        """[R] the rank of each row within its query, from 0."""
        ranks: _Array = np.arange(self.size) - np.repeat(self.starts[:-1], np.diff(self.starts))
        return ranks

    def top(self, k: int) -> Run:
        """The best `k` hits of each query."""
        check_depth(k)
        is_top = self.row_ranks() < k
        starts = np.concatenate([[0], np.cumsum(np.minimum(np.diff(self.starts), k))])
        return Run(self.queries, starts, self.ids, self.codes[is_top], self.scores[is_top])

    @property
    def _number(self) -> dict[str, int]:
        if "_numbers" not in self.__dict__:
            self.__dict__["_numbers"] = {query: q for q, query in enumerate(self.queries)}
        numbers: dict[str, int] = self.__dict__["_numbers"]
        return numbers


def check_depth(k: int) -> None:
    """Refuse a number of passages that is not a whole number from 1."""
    if not isinstance(k, int | np.integer) or k < 1:
        raise QontextError(f"k = {k!r}: the number of passages must be a whole number, at least 1")


def read_run(path: Path | str) -> Run:
    """Read a TREC run file (``query Q0 passage rank score tag``, plain or compressed) or a directory with one.

    Results are ordered by score, as in trec_eval; the ranks are only checked against the scores. MS MARCO's top1000 files
    (query id, passage id, query, passage) have neither: all scores are 0.
    """
    file = existing(path, "a run")
    if file.is_dir():
        file = _run_in(file)
        if is_artifact(file.parent) and not file.stat().st_size:
            open_artifact(file.parent).part(file.name)  # as it was written: a search that found nothing
            return Run.of([])
    if is_unranked(file):
        pairs = list(_unranked(file))
        queries, passages = (list(column) for column in zip(*pairs))
        return Run.from_columns(queries, passages, [0.0] * len(pairs), place=file)
    table = _table(file)
    query_codes, queries = by_occurrence(table.column("query"))
    codes, ids = ascending(table.column("passage"))
    number, queries = by_occurrence(list(map(unescape, queries)))
    query_codes = number[query_codes]
    if (names := unescape_all(ids)) is not ids:
        place, ids = ascending(names)
        codes = place[codes]
    scores, ranks = (table.column(name).to_numpy() for name in ("score", "rank"))
    del table  # frees millions of strings before others are created
    run = Run.from_codes(query_codes, queries, codes, _objects(ids), scores, place=file)
    _check_ranks(query_codes, queries, ranks, scores, file)
    return run


def is_unranked(path: Path) -> bool:
    """True if the first line is one of MS MARCO's top1000 files, the only ones with texts."""
    first = first_line(path).split("\t")
    return len(first) == 4 and " " in first[3].strip()


def _unranked(path: Path) -> Iterator[tuple[str, str]]:
    for place, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) != 4 or not fields[0].strip() or not fields[1].strip():
            raise QontextError(
                "expected query id, passage id, query and passage, as in MS MARCO's top1000 files",
                place=place,
            )
        yield unescape(fields[0]), unescape(fields[1])


def _run_in(folder: Path) -> Path:
    """The run of a directory of `search`."""
    if (folder / "run.trec").exists():
        return folder / "run.trec"
    remedy = "Pass a TREC file or the output of 'qontext retrieve'."
    raise QontextError("is a folder without a run (run.trec)", place=folder, remedy=remedy)


def write_run(run: Run, path: Path, *, tag: str = "qontext") -> None:
    """Write the TREC format; scores and ids are read back exactly."""
    if len(tag.split()) != 1:
        raise QontextError(f"the tag of a run is one word, not {tag!r}")
    queries, passages = pa.array(run.queries, pa.string()), pa.array(run.ids, pa.string())
    is_used = np.zeros(len(run.ids), dtype=bool)
    is_used[run.codes] = True
    ids = passages.filter(pa.array(is_used))
    for names in (queries, ids):
        if pc.min(pc.binary_length(names)).as_py() == 0:
            raise QontextError("an id is empty, which a TREC run file cannot represent", place=path)
    queries, escaped = escape_all(queries), escape_all(ids)
    if escaped is not ids:
        passages = pc.replace_with_mask(passages, pa.array(is_used), escaped)
    with path.open("wb") as file:
        query_codes, ranks = run.row_queries(), run.row_ranks() + 1
        for start in range(0, run.size, 1_000_000):
            rows = slice(start, start + 1_000_000)
            lines = pc.binary_join_element_wise(
                queries.take(pa.array(query_codes[rows])),
                "Q0",
                passages.take(pa.array(run.codes[rows])),
                pa.array(ranks[rows]).cast(pa.string()),
                pa.array(run.scores[rows]).cast(pa.string()),
                f"{tag}\n",
                " ",
            )
            # The strings of an array are contiguous: its data buffer is the text of the file.
            text = lines.cast(pa.large_string())
            file.write(memoryview(text.buffers()[2])[: pc.sum(pc.binary_length(text)).as_py()])


def _table(path: Path) -> pa.Table:
    """The columns of a run. White space between them may be of any kind, which costs a second reading."""
    try:
        return _parsed(open_bytes(path), "\t" if "\t" in first_line(path) else " ")
    except (pa.ArrowInvalid, OSError, ValueError, EOFError, lzma.LZMAError):
        text = "".join(" ".join(line.split()) + "\n" for _, line in read_lines(path))
    if not text:
        raise QontextError("the run is empty", place=path)
    try:
        return _parsed(io.BytesIO(text.encode()), " ")
    except (pa.ArrowInvalid, ValueError) as error:
        raise QontextError(
            f"is not a TREC run, of lines with query Q0 passage rank score tag: {first_sentence(error)}",
            place=path,
        ) from None


def _parsed(file: Any, delimiter: str) -> pa.Table:
    # There are few queries, and nearly as many passages as rows.
    types = {
        "query": pa.dictionary(pa.int32(), pa.string()),
        "passage": pa.string(),
        "rank": pa.float64(),
        "score": pa.float64(),
    }
    table = csv.read_csv(
        file,
        read_options=csv.ReadOptions(column_names=_COLUMNS, block_size=16 << 20),
        parse_options=csv.ParseOptions(delimiter=delimiter, quote_char=False, double_quote=False),
        convert_options=csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[],
            strings_can_be_null=False,
        ),
    )
    names = [chunk.dictionary for chunk in table.column("query").chunks] + table.column("passage").chunks
    for texts in filter(len, names):
        letters = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)
        if (letters <= 32).any() or not pc.min(pc.binary_length(texts)).as_py():
            raise ValueError("an id is empty")
    return table


def _objects(names: pa.StringArray) -> _Array:
    objects: _Array = names.to_numpy(zero_copy_only=False)
    return objects


def _in_order(ids: _Array, codes: _Array) -> tuple[_Array, _Array]:
    """The same rows with `ids` ascending."""
    if (ids[1:] > ids[:-1]).all():
        return ids, codes
    place, names = ascending(ids)
    return _objects(names), place[codes]


def _ranking(query_codes: Any, codes: Any, scores: Any) -> _Array | None:
    """The order by query, descending score, id; None if the rows are already sorted, as in most files."""
    same = query_codes[1:] == query_codes[:-1]
    falls = (scores[1:] < scores[:-1]) | ((scores[1:] == scores[:-1]) & (codes[1:] > codes[:-1]))
    if ((query_codes[1:] > query_codes[:-1]) | (same & falls)).all():
        return None
    order: _Array = np.lexsort((codes, -scores, query_codes))
    return order


def _refuse_duplicates(
    query_codes: _Array, codes: _Array, queries: Sequence[str], ids: _Array, place: str | Path
) -> None:
    pairs = np.sort(query_codes.astype(np.int64) * max(len(ids), 1) + codes)
    again = np.flatnonzero(pairs[1:] == pairs[:-1])
    if len(again):
        query, code = divmod(int(pairs[again[0]]), len(ids))
        raise QontextError(
            f"passage {ids[code]!r} occurs twice among the results of query {queries[query]!r}", place=place
        )


def _check_ranks(query_codes: _Array, queries: list[str], ranks: _Array, scores: _Array, place: Path) -> None:
    """Refuse ranks that occur twice or contradict all scores; warn if they contradict some. Results are ordered by score, so
    ranks have no effect; but two runs in one file, or distances instead of similarities, show only here.

    All arrays [R], rows as in the file. Equal ranks of equal scores are ties. The same rank for all rows of a
    query is a placeholder that some tools write.
    """
    same = query_codes[1:] == query_codes[:-1]
    if (~same | ((ranks[1:] > ranks[:-1]) & (scores[1:] <= scores[:-1]))).all() and (
        np.count_nonzero(~same) == len(queries) - 1
    ):
        return  # each query's rows together, best first, as in nearly every file
    _refuse_swapped(query_codes, ranks, scores, place)
    low, high = np.full(len(queries), np.inf), np.full(len(queries), -np.inf)
    np.minimum.at(low, query_codes, ranks)
    np.maximum.at(high, query_codes, ranks)
    rows = np.flatnonzero((low < high)[query_codes])
    rows = rows[np.lexsort((-scores[rows], ranks[rows], query_codes[rows]))]
    before, after = rows[:-1], rows[1:]
    same = query_codes[before] == query_codes[after]
    twice = np.flatnonzero(same & (ranks[before] == ranks[after]) & (scores[before] != scores[after]))
    if len(twice):
        first, second = sorted((int(before[twice[0]]), int(after[twice[0]])))
        raise QontextError(
            f"rank {ranks[first]:g} occurs twice for query {queries[query_codes[first]]!r}, with scores "
            f"{scores[first]:g} and {scores[second]:g}: the file may contain two runs",
            place=place,
            remedy="Separate the runs. If the ranks have no meaning, write the same rank on every line.",
        )
    rises = same & (scores[after] > scores[before])
    if not rises.any():
        return
    falls = same & (scores[after] < scores[before])
    example = int(before[np.flatnonzero(rises)[0]])
    query = queries[query_codes[example]]
    if not falls.any() and np.count_nonzero(rises) > 1:
        raise QontextError(
            f"the better the rank, the lower the score (as for query {query!r}): "
            "the scores are distances, or the ranks are reversed",
            place=place,
            remedy="Higher scores must be better: negate distances.",
        )
    count = len(np.unique(query_codes[before[rises]]))
    log.warn(
        f"{place}: ranks contradict scores for {count:,} of {len(queries):,} queries, such as {query!r}. "
        "Results are ordered by score; the ranks are ignored."
    )


def _refuse_swapped(query_codes: _Array, ranks: _Array, scores: _Array, place: Path) -> None:
    """Detect swapped columns: scores that count the lines of each query, and descending ranks that are not
    positions."""
    same = query_codes[1:] == query_codes[:-1]
    counts_up, steps = (np.diff(scores) == 1)[same], np.diff(ranks)[same]
    most = np.bincount(query_codes)[query_codes]
    are_places = (ranks >= 0) & (ranks <= most) & (ranks == np.rint(ranks))
    if counts_up.all() and (steps <= 0).all() and (steps < 0).any() and not are_places.all():
        raise QontextError(
            "the rank and score columns are swapped",
            place=place,
            remedy="Expected the columns: query Q0 passage rank score tag.",
        )
