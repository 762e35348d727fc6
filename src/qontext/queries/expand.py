"""Passages with their queries appended: what BM25 needs to find a passage by words that it does not hold.

Nogueira and Lin, "From doc2query to docTTTTTquery". The result has the columns of passages, so whatever
reads passages reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from qontext import log, records
from qontext.artifacts import Workdir
from qontext.collection import Passage, read_passages
from qontext.config import Input, StageConfig
from qontext.errors import QontextError
from qontext.queries.words import batches
from qontext.stages import Stage

PART = 65_536


class ExpandConfig(StageConfig):
    queries: Annotated[str, Input(positional=True)]
    """What generate or filter wrote."""
    passages: Annotated[str, Input()]
    """The passages that the queries were made from."""
    at_most: Annotated[int, Field(ge=1)] | None = None
    """Append at most so many queries to a passage; if not given, all."""


def run(config: ExpandConfig, work: Workdir) -> dict[str, Any]:
    of: dict[str, list[str]] = {}
    for batch in records.read_table(config.queries, records.QUERIES, columns=["passage", "query"]):
        for passage, query in zip(batch["passage"].to_pylist(), batch["query"].to_pylist()):
            of.setdefault(passage, []).append(query)
    total = expanded = appended = 0
    with log.progress("expand", None, "passages") as advance:
        for n, passages in enumerate(batches(read_passages(config.passages), PART)):
            rows = list(_rows(passages, of, config.at_most))
            with work.write(f"part-{n:05d}.parquet") as path:
                records.write_table(path, records.table_of(rows, records.PASSAGES))
            total += len(rows)
            expanded += sum(len(row["sentences"]) > 1 for row in rows)
            appended += sum(len(row["sentences"]) - 1 for row in rows)
            advance(len(rows))
    if not expanded:
        raise QontextError(
            "names none of the passages", place=config.queries, remedy="Check that they belong together."
        )
    return {"passages": total, "expanded": expanded, "queries_appended": appended}


def _rows(passages: list[Passage], of: dict[str, list[str]], most: int | None) -> Iterator[dict[str, Any]]:
    """Rows with the passage as the first sentence and each query as one more."""
    positions: dict[str, int] = {}
    for passage in passages:
        text, starts = passage.text, [0]
        for query in of.get(passage.id, [])[:most]:
            starts.append(len(text) + 1)
            text = f"{text}\n{query}"
        position = positions[passage.doc] = positions.get(passage.doc, -1) + 1
        yield {
            "id": passage.id, "doc": passage.doc, "position": position, "title": passage.title,
            # These are for search, not for training: nobody counted their tokens.
            "text": text, "sentences": starts, "tokens": 0, "overlong": False,
        }  # fmt: skip


STAGE = Stage(
    "expand",
    ExpandConfig,
    run,
    examples="""
        qontext expand queries --passages passages --out expanded
        qontext expand filtered --passages passages --out expanded --at-most 20
    """,
)
