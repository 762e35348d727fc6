"""Queries that exist already, such as the published docTTTTTquery predictions, keyed by passage id.

- JSON lines: an id (``id``, ``_id``, ``passage``, ``passage_id``, ``doc_id``) and its queries (``queries``,
  ``predicted_queries``, ``query`` or ``text``: a list or one text per line)
- Parquet: the same names as columns
- TSV: ``id<tab>query``, several lines per id allowed

Plain, ``.gz`` or ``.zst``. The queries of the passages asked for are held in memory, at most
`per_passage` of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from qontext import log, records
from qontext.collection import Passage, read_jsonl, read_lines, read_passages
from qontext.config import Input, StageConfig, existing
from qontext.errors import QontextError

if TYPE_CHECKING:
    from qontext.queries.generate import GenerateConfig

_IDS = ("passage", "passage_id", "id", "_id", "doc_id", "docid")
_QUERIES = ("query", "queries", "predicted_queries", "text")


class FileOptions(StageConfig):
    """Read by the generator `file`."""

    queries: Annotated[str | None, Input()] = None
    """file: existing queries by passage id (.jsonl, .tsv, .parquet, also .gz and .zst)."""


class FromFile:
    """Callable generator: looks the passages up."""

    def __init__(self, of: dict[str, list[str]]) -> None:
        self.of = of
        self.tally: Counter[str] = Counter()

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        for index, passage in enumerate(passages):
            found = self.of.get(passage.id)
            self.tally["not_in_file"] += found is None
            yield index, found or []


def open_generator(settings: GenerateConfig) -> FromFile:
    if settings.queries is None:
        raise QontextError("the generator 'file' reads existing queries", remedy="Name them with --queries.")
    path = existing(settings.queries, "the queries")
    of: dict[str, list[str]] = {passage.id: [] for passage in read_passages(settings.passages)}
    strangers, stranger = 0, ""
    for id, queries in read_queries_by_passage(path):
        known = of.get(id)
        if known is None:
            strangers, stranger = strangers + 1, id
        elif len(known) < settings.per_passage:
            known.extend(queries[: settings.per_passage - len(known)])
    found = {id: queries for id, queries in of.items() if queries}
    if not found:
        example = next(iter(of), "")
        raise QontextError(
            f"names none of the passages: its ids are like {stranger!r}, the passages' like {example!r}",
            place=path,
        )
    if strangers:
        log.warn(f"{path}: {strangers:,} entries name passages that are not here, such as {stranger!r}")
    return FromFile(found)


def read_queries_by_passage(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(passage id, queries) as they stand; an id may come several times."""
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    if path.is_dir() or name.endswith(".parquet"):
        for part in records.parquet_parts(path):
            yield from _from_parquet(part)
    elif name.endswith(".tsv"):
        for number, line in enumerate(read_lines(path), start=1):
            if line.strip():
                id, tab, query = line.partition("\t")
                if not tab:
                    raise QontextError("has no tab: expected id<tab>query", place=f"{path}:{number}")
                yield id, [query.replace("\t", " ")]
    else:
        for place, row in read_jsonl(path):
            yield _row(row, place)


def _from_parquet(part: Path) -> Iterator[tuple[str, list[str]]]:
    import pyarrow.parquet as pq

    try:
        batches = pq.ParquetFile(part).iter_batches()
        for batch in batches:
            for row in batch.to_pylist():
                yield _row(row, str(part))
    except (OSError, ValueError) as error:
        if isinstance(error, QontextError):
            raise
        raise QontextError(f"not a readable Parquet file: {error}", place=part) from None


def _row(row: dict[str, Any], place: str) -> tuple[str, list[str]]:
    id = next((row[name] for name in _IDS if row.get(name) not in (None, "")), None)
    if id is None:
        raise QontextError(f"has no passage id (one of: {', '.join(_IDS)})", place=place)
    queries = next((row[name] for name in _QUERIES if row.get(name) is not None), None)
    queries = [queries] if isinstance(queries, str) else queries
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise QontextError(
            f"has no queries: text or a list of texts in one of: {', '.join(_QUERIES)}", place=place
        )
    return str(id), queries
