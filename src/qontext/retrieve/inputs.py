"""The inputs of retrieval verbs: a labeled folder and a split, or passages and queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qontext.frame.errors import QontextError

if TYPE_CHECKING:
    from qontext.data.collection import Qrels


def select_queries(data: str | None, split: str | None, queries: str | None) -> dict[str, str]:
    """The queries of ``--queries FILE`` or of ``--data FOLDER [--split NAME]``."""
    from qontext.data.collection import load_collection, read_queries

    if queries:
        return read_queries(queries)
    if not data:
        raise QontextError("no queries are specified", remedy="Pass --data FOLDER or --queries FILE.")
    return load_collection(data).queries(split)


def select_passages(data: str | None, passages: str | None) -> str:
    """The passages of ``--passages SOURCE`` or ``--data FOLDER``; the first takes precedence."""
    source = passages or data
    if source is None:
        raise QontextError("no passages are specified", remedy="Pass --passages SOURCE or --data FOLDER.")
    return str(Path(source).expanduser())


def judgments(source: str, split: str) -> Qrels:
    """The judgments of a file, of a folder's split, of DPR's training file, or of generated queries.

    The relevant passage of a generated query is the one from which it was generated.
    """
    from qontext.data import dpr, records
    from qontext.data.collection import generated_id, load_collection, read_qrels

    path = Path(source).expanduser()
    if dpr.is_training_file(path):
        return {id: dict.fromkeys(positives, 1) for id, _, positives, _ in dpr.labeled(path)}
    if path.is_dir() and (any(path.glob("corpus.jsonl*")) or not any(path.glob("*.parquet"))):
        return load_collection(path).qrels(split)
    if path.is_file() and path.suffix != ".parquet":
        return read_qrels(path)
    qrels: Qrels = {}
    for batch in records.read_table(path, records.QUERIES, columns=["passage", "number"]):
        for passage, number in zip(*(batch.column(name).to_pylist() for name in ("passage", "number"))):
            qrels[generated_id(passage, number)] = {passage: 1}
    return qrels
