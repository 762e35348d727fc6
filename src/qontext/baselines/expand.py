"""Document expansion: passages with their queries appended, so that BM25 finds them by words that they do not contain.

Nogueira and Lin, "From doc2query to docTTTTTquery". The result has the columns of passages, with their places and metadata,
and can be used in their place. Appended are

    all     tf(t, d) + Σ_q tf(t, q)                 docT5query: the passage is found by new words, and its own are weighted
    seen    tf(t, d) + Σ_q tf(t, q) · [t ∈ d]       its own words are weighted alone
    new     tf(t, d) + Σ_q tf(t, q) · [t ∉ d]       it is found by new words alone; uniCOIL learns the weights of all
    alone   Σ_q tf(t, q)                            queries in the place of title and text, such as DeepCT's weighted words

for the terms t of a passage d and its queries q. DeepCT (Dai and Callan 2019) estimates with a trained model the share of a
passage's queries that contain a term, and drops terms with none (`generate --generator terms`, then `alone`); `seen` counts
generated queries, which are too few to drop terms by.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from qontext.data.passage import RowKind
from qontext.frame import locks
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input
from qontext.frame.errors import QontextError
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig, slices
from qontext.frame.stages import Stage
from qontext.retrieve.analyzer import term_of, words_of

if TYPE_CHECKING:
    import pyarrow as pa

    from qontext.data.load import PassageRows, TableRows
    from qontext.data.passage import Passage

PART = 65_536
QUERIES = ".queries"
"""The queries of each block of passages in a file; hidden, since they are no part of the result."""
_BLOCK = PART
"""Passages of a block: whoever makes the parts, they are read from the same files."""
_TOGETHER = 1 << 21
"""Queries whose passages are looked up together."""


Words = Literal["all", "seen", "new", "alone"]


_POSITION = "position"
_WHOLE = ("all", "alone")
"""Of these, whole queries are appended."""


class Appended:
    """The words of queries that are appended. Words are compared as BM25 compares them, by an analyzer's terms."""

    def __init__(self, words: Words, analyzer: str) -> None:
        self.words, self._term, self._split = words, cache(term_of(analyzer)), words_of(analyzer)

    def __call__(self, passage: str, queries: list[str]) -> list[str]:
        """The chosen words of each query; queries without one are left out."""
        if self.words in _WHOLE:
            return queries
        seen, wanted = self._terms(passage), self.words == "seen"
        kept = []
        for query in queries:
            terms = ((word, self._term(word.lower())) for word in self._split(query))
            kept.append(" ".join(word for word, term in terms if term and (term in seen) == wanted))
        return [query for query in kept if query]

    def _terms(self, text: str) -> set[str]:
        return {self._term(word) for word in self._split(text.lower())}


class _Rows(NamedTuple):
    """Passages, the queries of each, their positions, and the values of their place columns; none if their files have no
    such columns."""

    passages: list[Passage]
    queries: Mapping[str, list[str]]
    positions: Sequence[int]
    places: Mapping[str, list[Any]]


class ExpandConfig(PartsConfig):
    queries: Annotated[str, Input(positional=True)]
    """Output of generate or filter."""
    passages: Annotated[str, Input()]
    """The passages, or queries, from which the queries were generated."""
    of: RowKind = "passages"
    """The texts to append to: passages, or, after 'generate --of queries', queries, for search with both (GAR)."""
    at_most: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of a passage's queries that are read. Default: all."""
    words: Words = "all"
    """Words of the queries that are appended: all; those that the passage has (seen); those that it lacks (new); or all, in
    the place of the passage (alone)."""
    analyzer: str = "english"
    """With --words seen or new: how words are compared, as in 'qontext index --backend bm25'."""


class Expand(Parts[ExpandConfig]):
    unit = "passages"

    def __init__(self, config: ExpandConfig, work: Workdir) -> None:
        from qontext.data.load import PassageRows, check_generated

        super().__init__(config, work)
        check_generated(config.queries, config.of)
        self.passages = PassageRows(config.passages, config.of)
        self.places = _places(self.passages)

    def plan(self) -> list[Part]:
        return slices(self.passages.count(), PART, lambda number: f"part-{number:05d}.parquet")

    def open(self) -> None:
        self.appended = Appended(self.config.words, self.config.analyzer)
        with locks.lock(self.work.path, QUERIES, wait=True):
            if not self.work.has(QUERIES):
                with self.work.write_folder(QUERIES) as folder:
                    _distribute(self.config.queries, self.passages, folder)

    def read(self, part: Part) -> _Rows:
        passages = self.passages.read(part.first, part.last)
        queries = _read_queries(self.work.path / QUERIES, part)
        if self.places is None:
            return _Rows(passages, queries, _counted(passages), {})
        batches = self.places.read(part.first, part.last)
        names = self.places.schema.names
        places = {name: [v for b in batches for v in b[name].to_pylist()] for name in names}
        return _Rows(passages, queries, places.pop(_POSITION, []) or _counted(passages), places)

    def make(self, part: Part, content: _Rows) -> dict[str, int]:
        import pyarrow as pa

        from qontext.data import records

        rows = list(self._rows(content))
        table = records.table_of(rows, records.PASSAGES)
        for name, values in content.places.items():
            field = records.PLACES.field(name)
            table = table.append_column(field, pa.array(values, field.type))
        with self.work.write(part.name) as path:
            records.write_table(path, table)
        self.advance(len(rows))
        return {}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        from qontext.data import records

        sentences = pa.schema([records.PASSAGES.field("sentences")])
        self.work.remove(QUERIES)
        expanded = appended = 0
        for part in outcome.parts:
            table = records.read_part(self.work.path / part.name, sentences)
            queries = pc.subtract(pc.list_value_length(table["sentences"]), 1)
            expanded += pc.sum(pc.greater(queries, 0)).as_py()
            appended += pc.sum(queries).as_py()
        if not expanded:
            for name in self.work.names():  # a corrected command starts afresh
                self.work.remove(name)
            raise QontextError("no passage was expanded", place=self.config.queries, remedy=_REMEDY)
        return {"passages": outcome.parts[-1].last, "expanded": expanded, "queries_appended": appended}

    def _rows(self, content: _Rows) -> Iterator[dict[str, Any]]:
        """Rows with the passage as the first sentence and each query as one more."""
        for passage, position in zip(content.passages, content.positions):
            is_alone = self.config.words == "alone"
            text, title, starts = ("", "", [0]) if is_alone else (passage.text, passage.title, [0])
            queries = content.queries.get(passage.id, [])[: self.config.at_most]
            for query in self.appended(f"{passage.title} {passage.text}", queries):
                starts.append(len(text) + 1)
                text = f"{text}\n{query}"
            yield {
                "id": passage.id, "doc": passage.doc, "position": position, "title": title,
                # These are for search, not for training: their tokens are not counted.
                "text": text, "sentences": starts, "tokens": 0, "overlong": False,
            }  # fmt: skip


def _distribute(queries: str, passages: PassageRows, folder: Path) -> None:
    """Write the queries of each block of passages into a file of its own, in order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = passages.ids()
    with contextlib.ExitStack() as stack:
        writers: dict[int, Any] = {}
        for table in _tables(queries):
            rows = pc.index_in(table["passage"], value_set=ids).combine_chunks()
            known = np.flatnonzero(rows.is_valid().to_numpy(zero_copy_only=False))
            blocks = rows.drop_null().to_numpy() // _BLOCK
            order = np.argsort(blocks, kind="stable")
            numbers, starts = np.unique(blocks[order], return_index=True)
            for number, some in zip(numbers.tolist(), np.split(known[order], starts[1:])):
                if number not in writers:
                    file = pa.ipc.new_file(folder / str(number), table.schema)
                    writers[number] = stack.enter_context(file)
                writers[number].write_table(table.take(pa.array(some)))


def _tables(queries: str) -> Iterator[pa.Table]:
    """Many queries at a time: each lookup costs a pass over the passages' ids."""
    import pyarrow as pa

    from qontext.data import records

    batches = records.read_table(queries, records.QUERIES, columns=["passage", "query"])
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        if sum(map(len, pending)) >= _TOGETHER:
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)


def _read_queries(folder: Path, part: Part) -> dict[str, list[str]]:
    """The queries of each passage of a part, and of others in its blocks; no file stands for no queries."""
    import pyarrow as pa

    of: dict[str, list[str]] = {}
    files = (folder / str(block) for block in range(part.first // _BLOCK, (part.last - 1) // _BLOCK + 1))
    for file in filter(Path.exists, files):
        with pa.ipc.open_file(file) as table:
            for number in range(table.num_record_batches):
                batch = table.get_batch(number)
                for passage, query in zip(*(batch[name].to_pylist() for name in ("passage", "query"))):
                    of.setdefault(passage, []).append(query)
    return of


_REMEDY = "Check that queries and passages belong together, and --words."


def _counted(passages: list[Passage]) -> list[int]:
    """The position of each passage in its document, where it is not recorded."""
    seen: Counter[str] = Counter()
    seen_before = []
    for passage in passages:
        seen_before.append(seen[passage.doc])
        seen[passage.doc] += 1
    return seen_before


def _places(passages: PassageRows) -> TableRows | None:
    """The positions and the place columns that all files of the passages have."""
    import pyarrow as pa

    from qontext.data import records
    from qontext.data.load import TableRows

    if passages.table is None:
        return None
    there = [records.open_parquet(file).schema_arrow for file in passages.table.files]
    position = pa.field(_POSITION, pa.int32())
    schema = pa.schema([position, *records.PLACES])
    names = [name for name in schema.names if all(name in columns.names for columns in there)]
    return TableRows(passages.source, schema, names) if names else None


STAGE = Stage(
    "expand",
    ExpandConfig,
    Expand,
    examples="""
        qontext expand queries --passages passages --out expanded
        qontext expand filtered --passages passages --at-most 20 --out expanded
        qontext expand queries --passages passages --words seen --out weighted
        qontext expand titles --passages data --of queries --out longer-queries
    """,
    format=2,
)
