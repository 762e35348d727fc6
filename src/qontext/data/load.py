"""Load passages, queries, judgments and runs as plain Python objects, from every format that the commands read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from qontext.data.collection import (
    Passage,
    Qrels,
    load_collection,
    read_passages,
    read_qrels,
    read_queries,
)
from qontext.data.records import Hit
from qontext.data.runs import Run
from qontext.frame.errors import QontextError
from qontext.frame.files import StrPath

AnyRun: TypeAlias = "Run | Mapping[str, Mapping[str, float]] | StrPath"
"""A run; or in memory as query → passage → score; or a TREC run file or output directory of a search."""
_RUNS = "Pass a Run, a path, or query → passage → score."
_QRELS = "Pass a path, or query → passage → grade, an integer."


def load_passages(source: StrPath) -> list[Passage]:
    """Load passages: JSON Lines (``_id``, ``title``, ``text``), TSV, Parquet, a BEIR folder, or what `split` wrote.

    Every record is one passage. To cut long documents into passages, run `qontext split` first.

    >>> passages = load_passages("docs.jsonl")
    >>> passages[0].id, passages[0].title
    ('d0', 'Chapter 0')
    """
    return list(read_passages(Path(source)))


def load_queries(source: StrPath) -> dict[str, str]:
    """Load queries as id → text: JSON Lines, TSV, Parquet, a BEIR folder, or what `generate` wrote.

    >>> load_queries("data")["q0"]
    'chapter 0 river'
    """
    return read_queries(Path(source))


def load_qrels(source: StrPath, *, split: str = "test") -> Qrels:
    """Load judgments as query → passage → grade: a qrels file (BEIR or TREC), or the `split` of a BEIR folder.

    >>> load_qrels("data", split="test")["q25"]
    {'p25': 1}
    """
    path = Path(source)
    return load_collection(path).qrels(split) if path.is_dir() else read_qrels(path)


def as_run(one: AnyRun) -> Run:
    """A run as it is; one of a file or directory; or one of query → passage → score."""
    if isinstance(one, Run):
        return one
    if isinstance(one, str | os.PathLike):
        return Run.read(one)
    if not isinstance(one, Mapping):
        raise QontextError(f"expected a run, not a {type(one).__name__}", remedy=_RUNS)
    rows = []
    for query, scores in one.items():
        if not isinstance(scores, Mapping):
            raise QontextError(
                f"the results of query {query!r} are a {type(scores).__name__}, not passage → score",
                remedy=_RUNS,
            )
        rows += [(query, passage, score) for passage, score in scores.items()]
    try:
        return Run.of([Hit(str(query), str(passage), float(score)) for query, passage, score in rows])
    except (TypeError, ValueError) as error:
        raise QontextError(f"a score of the run is not a number: {error}", remedy=_RUNS) from None


def as_qrels(judged: Mapping[str, Mapping[str, int]]) -> Qrels:
    """Judgments in memory, as query → passage → grade, with ids as text."""
    if not isinstance(judged, Mapping):
        raise QontextError(f"expected judgments, not a {type(judged).__name__}", remedy=_QRELS)
    for query, grades in judged.items():
        if not isinstance(grades, Mapping):
            kind = type(grades).__name__
            raise QontextError(f"the judgments of query {query!r} are a {kind}", remedy=_QRELS)
        if wrong := [grade for grade in grades.values() if not _is_whole(grade)]:
            raise QontextError(f"the grade {wrong[0]!r} of query {query!r} is no integer", remedy=_QRELS)
    return {str(q): {str(p): int(grade) for p, grade in grades.items()} for q, grades in judged.items()}


def _is_whole(grade: object) -> bool:
    return isinstance(grade, int | float | np.number | np.bool_) and float(grade).is_integer()


def as_texts(items: Sequence[Any], what: str) -> Sequence[Any]:
    """The items, if they are a sequence: a single text would be taken for its characters."""
    if isinstance(items, str | Mapping):
        kind = "a single text" if isinstance(items, str) else f"a {type(items).__name__}"
        raise QontextError(f"expected a list of {what}, not {kind}", remedy="Write [text].")
    return items


def as_passages(items: Iterable[Passage | str], ids: Sequence[str] | None = None) -> Iterator[Passage]:
    """Passages unchanged; plain texts become passages with the given `ids`, or numbered from 0."""
    if isinstance(items, str):
        raise QontextError(
            f"expected passages, not the string {items!r}", remedy="Read a file with load_passages."
        )
    number = -1
    for number, item in enumerate(items):
        if isinstance(item, Passage):
            yield item
            continue
        if not isinstance(item, str):
            raise QontextError(
                f"expected passages or texts, not {type(item).__name__}",
                remedy="Write Passage(id, title, text, document), or read a file with load_passages.",
            )
        if ids is not None and number >= len(ids):
            raise QontextError(f"got more texts than ids ({len(ids)})")
        id = str(number) if ids is None else ids[number]
        yield Passage(id, "", item, id)
    if ids is not None and number + 1 != len(ids):
        raise QontextError(f"got {len(ids)} ids for {number + 1} texts")
