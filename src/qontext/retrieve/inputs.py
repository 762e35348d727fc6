"""What a verb of retrieval is asked about: a labelled folder and a split, or passages and queries by name."""

from __future__ import annotations

from pathlib import Path

from qontext.collection import load_collection, read_queries
from qontext.errors import QontextError


def asked_queries(data: str | None, split: str | None, queries: str | None) -> dict[str, str]:
    """The queries of ``--data FOLDER [--split NAME]`` or of ``--queries FILE``."""
    if split and not data:
        raise QontextError("--split needs --data, the folder whose split it is")
    if queries and data:
        raise QontextError("both --data and --queries name the queries", remedy="Give one of them.")
    if queries:
        return read_queries(queries)
    if not data:
        raise QontextError("there are no queries", remedy="Give --data FOLDER, or --queries FILE.")
    return load_collection(data).queries(split)


def asked_passages(data: str | None, passages: str | None) -> str:
    """Where the passages of ``--passages SOURCE`` or ``--data FOLDER`` are; the first wins."""
    source = passages or data
    if source is None:
        raise QontextError("there are no passages", remedy="Give --passages SOURCE or --data FOLDER.")
    return str(Path(source).expanduser())
