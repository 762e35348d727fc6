"""Filtering generated queries: score all of them, and drop the worst.

A round trip tests what matters for retrieval: does a search with the query return the passage? Every signal
is a column; `score`, between 0 and 1, can be a sampling weight in pre-training.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input
from qontext.frame.errors import QontextError
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig
from qontext.frame.stages import Stage
from qontext.queries.judges import JUDGES, VECTORS, JudgedPart

if TYPE_CHECKING:
    import pyarrow as pa

    from qontext.data.collection import Passage
    from qontext.queries.words import Array

FOOTER = b"qontext"


class FilterConfig(PartsConfig):
    kinds: ClassVar = {"by": JUDGES}

    queries: Annotated[str, Input(positional=True)]
    """Output of generate (or filter)."""

    passages: Annotated[str, Input()]
    """The passages from which the queries were generated."""

    by: str = "retrieval"
    """The judge that scores queries."""

    keep_at_least: Annotated[int, Field(ge=0)] = 1
    """Minimum number of queries to keep per passage, even if they fail; the best are kept."""


class Filter(Parts[FilterConfig]):
    unit = "queries"

    def __init__(self, config: FilterConfig, work: Workdir) -> None:
        from qontext.data import records
        from qontext.data.load import check_generated

        super().__init__(config, work)
        check_generated(config.queries, "passages")
        self.files = records.parquet_parts(config.queries)

    def plan(self) -> list[Part]:
        from qontext.data import records

        sizes = [records.open_parquet(file).metadata.num_rows for file in self.files]
        return [
            Part(number, f"part-{number:05d}.parquet", last - size, last, size)
            for number, (last, size) in enumerate(zip(accumulate(sizes), sizes))
        ]

    def open(self) -> None:
        self.passages = Lookup(self.config.passages)
        kind, options = JUDGES.load(self.config.by), self.config.options("by")
        self.judge = kind(options, self.config.passages, self.work)

    def make(self, part: Part, content: None) -> dict[str, int]:
        from qontext.data import records

        file = self.files[part.number]
        table = records.read_whole(file, records.QUERIES)
        rows = self.passages.part_of(table, str(file), self.judge.between)
        scores = self.judge(rows)
        with self.work.write(part.name) as path:
            records.write_table(path, _kept(table, scores, rows.owner, self.config.keep_at_least))
        self.advance(table.num_rows)
        return {}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        from qontext.data import records

        for name in self.work.names():
            if name.startswith(VECTORS):
                self.work.remove(name)
        total: Counter[str] = Counter()
        for part in outcome.parts:
            total.update(records.read_footer(self.work.path / part.name, FOOTER, dict[str, float]))
        queries = max(total["queries"], 1)
        counts = {name: int(count) for name, count in total.items() if name != "score"}
        return {
            "by": self.config.by,
            **counts,
            "passed_share": round(total["passed"] / queries, 4),
            "mean_score": round(total["score"] / queries, 4),
        }


class Lookup:
    """The passages of a collection by their ids, in a stream: generated queries are in passage order, so that only the
    passages of one part are kept in memory. Queries in another order need another pass over the passages for each part."""

    def __init__(self, source: str) -> None:
        from qontext.data.load import refuse_repeated_ids

        self.source, self.count = source, refuse_repeated_ids(source, "passage id")
        self._stream: Iterator[tuple[int, Passage]] = iter(())
        self._last: dict[str, tuple[int, Passage]] = {}

    def find(self, ids: Iterable[str]) -> dict[str, tuple[int, Passage]]:
        """The passages with these ids and their numbers, searching from where the last lookup ended."""
        from qontext.data.collection import read_passages

        requested = set(ids)
        entries = {id: self._last[id] for id in requested & self._last.keys()}
        for _ in range(self.count):
            if len(entries) == len(requested):
                break
            following = next(self._stream, None)
            if following is None:
                self._stream = enumerate(read_passages(self.source))
                following = next(self._stream)
            if following[1].id in requested:
                entries[following[1].id] = following
        self._last = entries
        return entries

    def part_of(self, table: pa.Table, place: str, between: str | None) -> JudgedPart:
        """The queries of a part with their passages."""
        import numpy as np

        names = table["passage"].to_pylist()
        entries = self.find(names)
        if unknown := next((id for id in names if id not in entries), None):
            raise QontextError(
                f"contains queries of the passage {unknown!r}, which is not in the passages",
                place=place,
                remedy="Check that queries and passages belong together.",
            )
        ids = [*dict.fromkeys(names)]
        place_of = {id: n for n, id in enumerate(ids)}
        return JudgedPart(
            queries=table["query"].to_pylist(),
            owner=np.array([place_of[id] for id in names], np.int64),
            contents=[entries[id][1].joined(between) for id in ids],
            numbers=np.array([entries[id][0] for id in ids], np.int64),
        )


def _kept(table: pa.Table, scores: dict[str, Array], owner: Array, least: int) -> pa.Table:
    """The rows of the part that are kept, with their scores; the counts go into the footer."""
    import numpy as np
    import pyarrow as pa

    for name, column in scores.items():
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, pa.array(column))
    passed, score = scores["passed"], scores["score"]
    # Rank of each query within its passage: those that passed first, then by score.
    order = np.lexsort((-score, ~passed, owner))
    place = np.empty(len(owner), np.int64)
    place[order] = np.arange(len(owner)) - np.searchsorted(owner[order], owner[order])
    keep = passed | (place < least)
    passages = len(np.unique(owner))
    counts = {
        "queries": len(owner),
        "passed": int(passed.sum()),
        "kept": int(keep.sum()),
        "score": float(score.sum(dtype=np.float64)),
        "passages": passages,
        "passages_where_none_passed": passages - len(np.unique(owner[passed])),
        "passages_that_lost_all": passages - len(np.unique(owner[keep])),
    }
    return table.filter(pa.array(keep)).replace_schema_metadata({FOOTER: json.dumps(counts)})


STAGE = Stage(
    "filter",
    FilterConfig,
    Filter,
    format=3,
    examples="""
        qontext filter queries --passages passages --out filtered
        qontext filter queries --passages passages --retriever retriever --out filtered
        qontext filter queries --passages passages --by overlap --at-least 0.5 --at-most 0.9 --out filtered
        qontext filter queries --passages passages --by reranker --reranker reranker --out filtered
    """,
)
