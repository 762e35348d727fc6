"""Filtering generated queries: score all of them, and drop the worst.

A round trip tests what matters for retrieval: does a search with the query return the passage? Every signal
is a column; `score`, between 0 and 1, can be a sampling weight in pre-training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from pydantic import Field
from typing_extensions import TypedDict

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input
from qontext.frame.errors import QontextError
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig
from qontext.frame.stages import Stage
from qontext.queries.judges import JUDGES, JudgedPart, JudgedTexts

if TYPE_CHECKING:
    import pyarrow as pa

    from qontext.data.collection import Passage
    from qontext.queries.words import Array

FOOTER = b"qontext"


class Counts(TypedDict):
    """The counts in the footer of a part."""

    queries: int
    passed: int
    score: float
    lost: list[str]
    failed: int
    passages: int


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
        collection = JudgedTexts(self.config.queries, self.config.passages, self.passages.count)
        self.judge = JUDGES.load(self.config.by).open(self.config.options("by"), collection, self.work)

    def make(self, part: Part, content: None) -> dict[str, int]:
        from qontext.data import records

        file = self.files[part.number]
        table = records.read_whole(file, records.QUERIES)
        ids, rows = look_up(table, self.passages, str(file), part.first, self.judge.between)
        scores = self.judge(rows)
        with self.work.write(part.name) as path:
            records.write_table(path, _kept(table, scores, rows.owner, ids, self.config.keep_at_least))
        self.advance(table.num_rows)
        return {}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        from qontext.queries.searches import remove_vectors

        remove_vectors(self.work)
        return _summarize(self.config, self.work, [part.name for part in outcome.parts])


class NumberedPassage(NamedTuple):
    """A passage and its number in the collection."""

    number: int
    passage: Passage


class Lookup:
    """The passages of a collection by their ids, in a stream: generated queries are in passage order, so that only the
    passages of one part are kept in memory. Queries in another order need another pass over the passages for each part."""

    def __init__(self, source: str) -> None:
        from qontext.data.load import refuse_repeated_ids

        self.source, self.count = source, refuse_repeated_ids(source, "passage id")
        if not self.count:
            raise QontextError("contains no passages", place=source)
        self._stream: Iterator[tuple[int, Passage]] = iter(())
        self._last: dict[str, NumberedPassage] = {}

    def find(self, ids: Iterable[str]) -> dict[str, NumberedPassage]:
        """The passages with these ids, searching from where the last lookup ended."""
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
                entries[following[1].id] = NumberedPassage(*following)
        self._last = entries
        return entries


def look_up(
    table: pa.Table, passages: Lookup, place: str, first: int, between: str | None
) -> tuple[list[str], JudgedPart]:
    """The passage ids of a part's queries, and the part as input of judges."""
    import numpy as np

    names = table["passage"].to_pylist()
    entries = passages.find(names)
    if unknown := next((id for id in names if id not in entries), None):
        raise QontextError(
            f"contains queries of the passage {unknown!r}, which is not in the passages",
            place=place,
            remedy="Check that queries and passages belong together.",
        )
    ids = [*dict.fromkeys(names)]
    place_of = {id: n for n, id in enumerate(ids)}
    return ids, JudgedPart(
        queries=table["query"].to_pylist(),
        owner=np.array([place_of[id] for id in names], np.int64),
        contents=[entries[id].passage.joined(between) for id in ids],
        numbers=np.array([entries[id].number for id in ids], np.int64),
        first=first,
    )


def _kept(table: pa.Table, scores: dict[str, Array], owner: Array, ids: list[str], least: int) -> pa.Table:
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
    counts = {
        "queries": len(owner),
        "passed": int(passed.sum()),
        "score": float(score.sum(dtype=np.float64)),
        "lost": [ids[n] for n in sorted(set(owner.tolist()) - set(owner[keep].tolist()))],
        "failed": len(set(owner.tolist()) - set(owner[passed].tolist())),
        "passages": len(set(owner.tolist())),
    }
    return table.filter(pa.array(keep)).replace_schema_metadata({FOOTER: json.dumps(counts)})


def _summarize(config: FilterConfig, work: Workdir, names: list[str]) -> dict[str, Any]:
    from qontext.data import records

    counts = [records.read_footer(work.path / name, FOOTER, Counts) for name in names]

    def total(name: str) -> float:
        return float(sum(count[name] for count in counts))

    lost = [id for count in counts for id in count["lost"]]
    if lost:
        work.write_json("lost.json", lost)
        log.warn(f"{len(lost):,} passages lost all their queries; lost.json names them.")
    queries = int(total("queries"))
    return {
        "by": config.by,
        "queries": queries,
        "passed": int(total("passed")),
        "passed_share": round(total("passed") / max(queries, 1), 4),
        "kept": sum(records.open_parquet(work.path / name).metadata.num_rows for name in names),
        "mean_score": round(total("score") / max(queries, 1), 4),
        "passages": int(total("passages")),
        "passages_where_none_passed": int(total("failed")),
        "passages_that_lost_all": len(lost),
    }


STAGE = Stage(
    "filter",
    FilterConfig,
    Filter,
    format=3,
    examples="""
        qontext filter queries --passages passages --out filtered
        qontext filter queries --passages passages --by mutual --retriever retriever --out filtered
        qontext filter queries --passages passages --by overlap --at-least 0.5 --at-most 0.9 --out filtered
        qontext filter queries --passages passages --by reranker --reranker reranker --out filtered
    """,
)
