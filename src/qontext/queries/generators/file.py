"""Queries that exist already, such as the published docTTTTTquery predictions, keyed by passage id.

- JSON lines: an id (``id``, ``_id``, ``passage``, ``passage_id``, ``doc_id``) and its queries (``queries``,
  ``predicted_queries``, ``query`` or ``text``: a list or one text per line)
- Parquet: the same names as columns
- TSV: ``id<tab>query``, several lines per id allowed

Plain, ``.gz`` or ``.zst``. The queries of the requested passages are kept in memory, at most `per_passage` of
each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import model_validator

from qontext.data import records
from qontext.data.collection import Passage, read_passages
from qontext.data.ids import id_of, unescape
from qontext.data.lines import plain_name, read_jsonl, read_lines
from qontext.frame import log
from qontext.frame.config import Input, Options, existing
from qontext.frame.errors import QontextError
from qontext.queries.generators import Generator, Task

_IDS = ("passage", "passage_id", "id", "_id", "doc_id", "docid")
_QUERIES = ("query", "queries", "predicted_queries", "text")


class FileOptions(Options):
    """Read by the generator `file`."""

    queries: Annotated[str | None, Input()] = None
    """Existing queries by passage id (.jsonl, .tsv, .parquet, plain or compressed)."""

    @model_validator(mode="after")
    def _names_queries(self) -> Self:
        if self.queries is None:
            raise QontextError(
                "the generator 'file' needs a file of existing queries", remedy="Name it with --queries."
            )
        return self


class FromFile(Generator):
    """Looks up the queries of passages."""

    Options = FileOptions

    def __init__(self, of: dict[str, list[str]]) -> None:
        self.of = of
        self.tally: Counter[str] = Counter()

    @classmethod
    def open(cls, options: FileOptions, task: Task) -> FromFile:
        path = existing(str(options.queries), "the queries")
        of: dict[str, list[str]] = {passage.id: [] for passage in read_passages(task.passages)}
        unknown, unknown_id = 0, ""
        for id, queries in read_queries_by_passage(path):
            own = of.get(id)
            if own is None:
                unknown, unknown_id = unknown + 1, id
            elif len(own) < task.per_passage:
                own.extend(queries[: task.per_passage - len(own)])
        usable = {id: queries for id, queries in of.items() if queries}
        if not usable:
            example = next(iter(of), "")
            raise QontextError(
                f"contains no id of these passages: its ids are like {unknown_id!r}, the passages' like {example!r}",
                place=path,
            )
        if unknown:
            log.warn(f"{path}: {unknown:,} entries have unknown passage ids, such as {unknown_id!r}")
        return cls(usable)

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        for index, passage in enumerate(passages):
            queries = self.of.get(passage.id)
            self.tally["not_in_file"] += queries is None
            yield index, queries or []


def read_queries_by_passage(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(passage id, queries) in file order; an id may occur several times."""
    name = plain_name(path)
    if path.is_dir() or name.endswith(".parquet"):
        for part in records.parquet_parts(path):
            for place, row in records.read_rows(part):
                yield _row(row, place)
    elif name.endswith(".tsv"):
        for place, line in read_lines(path):
            id, tab, query = line.partition("\t")
            if not tab:
                raise QontextError("has no tab: expected id<tab>query", place=place)
            yield unescape(id), [query.replace("\t", " ")]
    else:
        for place, row in read_jsonl(path):
            yield _row(row, place)


def _row(row: dict[str, Any], place: str) -> tuple[str, list[str]]:
    id = next((row[name] for name in _IDS if row.get(name) is not None and row[name] != ""), None)
    if id is None:
        raise QontextError(f"has no passage id (one of: {', '.join(_IDS)})", place=place)
    queries = next((row[name] for name in _QUERIES if row.get(name) is not None), None)
    queries = [queries] if isinstance(queries, str) else queries
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise QontextError(
            f"has no queries: text or a list of texts in one of: {', '.join(_QUERIES)}", place=place
        )
    return id_of(id, place, "passage id"), queries
