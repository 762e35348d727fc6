"""Queries that exist already, such as the published docTTTTTquery predictions, keyed by passage id.

- JSON lines: an id (``id``, ``_id``, ``passage``, ``passage_id``, ``doc_id``) and its queries (``queries``,
  ``predicted_queries``, ``query`` or ``text``: a list or one text per line)
- Parquet: the same names as columns
- TSV: ``id<tab>query``, several lines per id allowed

Plain, ``.gz`` or ``.zst``. The queries of the requested passages are kept in memory, at most `per_passage` of
each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

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

    queries: Annotated[str, Input()]
    """Existing queries by passage id (.jsonl, .tsv, .parquet, plain or compressed)."""


class FromFile(Generator):
    """Looks up the queries of passages."""

    Options = FileOptions

    def __init__(self, options: FileOptions, task: Task) -> None:
        super().__init__(options, task)
        path = existing(options.queries, "the queries")
        self.of: dict[str, list[str]] = {passage.id: [] for passage in read_passages(task.passages)}
        unknown = 0
        for id, queries in read_queries_by_passage(path):
            if id in self.of:
                self.of[id] += queries[: task.per_passage - len(self.of[id])]
            else:
                unknown, example = unknown + 1, id
        if unknown:
            log.warn(f"{path}: {unknown:,} entries have unknown passage ids, such as {example!r}")

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        for index, passage in enumerate(passages):
            self.tally["not_in_file"] += not self.of[passage.id]
            yield index, self.of[passage.id]


def read_queries_by_passage(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(passage id, queries) in file order; an id may occur several times."""
    name = plain_name(path)
    if path.is_dir() or name.endswith(".parquet"):
        for part in records.parquet_parts(path):
            for place, row in records.read_rows(part):
                yield _row(row, place)
    elif name.endswith(".tsv"):
        for _, line in read_lines(path):
            id, _, query = line.partition("\t")
            yield unescape(id), [query.replace("\t", " ")]
    else:
        for place, row in read_jsonl(path):
            yield _row(row, place)


def _row(row: dict[str, Any], place: str) -> tuple[str, list[str]]:
    id = next((row[name] for name in _IDS if row.get(name) not in (None, "")), None)
    queries = next((row[name] for name in _QUERIES if row.get(name) is not None), None)
    queries = [queries] if isinstance(queries, str) else queries
    if id is None or not isinstance(queries, list):
        raise QontextError(
            f"needs a passage id ({', '.join(_IDS)}) and a query, or a list of queries ({', '.join(_QUERIES)})",
            place=place,
        )
    return id_of(id, place, "passage id"), queries
