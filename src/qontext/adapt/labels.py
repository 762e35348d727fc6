"""Labels as users have them → judgements of passages: a folder in BEIR's layout, or lines of query and id."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from qontext import log
from qontext.collection import Passage, Qrels, load_collection, read_jsonl
from qontext.config import existing
from qontext.errors import QontextError

QUERY_KEYS = ("query", "question")
ID_KEYS = ("passage", "document", "passage_id", "doc_id", "positive", "id", "_id")
UNSPLIT = "labels"
FEWEST_LABELS = 3
"""One each to train on, to choose weights with, and to measure with."""


def measured_sizes(queries: int, place: str) -> tuple[int, int]:
    """How many of so many labelled queries are the test, and how many dev, if they come unsplit: a tenth and half
    of that, but 50 test queries if they are no more than two fifths."""
    if queries < FEWEST_LABELS:
        raise QontextError(
            f"{queries} labelled queries are too few to train on and to measure with",
            place=place,
            remedy="Leave the labels out.",
        )
    share = min(0.4, max(0.1, 50 / queries))
    return max(1, int(share * queries)), max(1, int(share / 2 * queries))


@dataclass(frozen=True)
class Labels:
    """Queries and, by the name of the split, what is relevant to them; ids are of passages or of documents."""

    queries: Mapping[str, str]
    splits: Mapping[str, Qrels]

    @property
    def are_split(self) -> bool:
        """Whether it is said already what measures; a single split counts as said if it is the test."""
        return len(self.splits) > 1 or "test" in self.splits

    @property
    def named(self) -> set[str]:
        """Every id that is judged relevant."""
        return {id for qrels in self.splits.values() for judged in qrels.values() for id in judged}


def read_labels(source: str) -> Labels:
    """From a BEIR folder with its splits, or from a file with lines like {"query": "…", "passage": "id"}."""
    path = existing(source, "labels")
    if path.is_dir():
        collection = load_collection(path)
        every = {name: _relevant(collection.qrels(name)) for name in collection.splits}
        splits = {name: qrels for name, qrels in every.items() if qrels}
        if not splits:
            raise QontextError("judges nothing as relevant to any query", place=path / "qrels")
        wanted = {id for qrels in splits.values() for id in qrels}
        queries = {id: text for id, text in collection.queries().items() if id in wanted}
        if missing := next((id for id in wanted if id not in queries), None):
            raise QontextError(f"judges the query {missing!r}, which is not among the queries", place=path)
        return Labels(queries, splits)
    return _pairs(path)


def _pairs(path: Path) -> Labels:
    """One query per different text, however often it comes."""
    ids: dict[str, str] = {}
    qrels: Qrels = {}
    for place, row in read_jsonl(path):
        query = next((row[key] for key in QUERY_KEYS if key in row), None)
        id = next((row[key] for key in ID_KEYS if key in row), None)
        if not isinstance(query, str) or not query.strip() or not isinstance(id, str | int):
            raise QontextError(
                "is no labelled pair", place=place, remedy='A line is {"query": "…", "passage": "an id"}.'
            )
        qrels.setdefault(ids.setdefault(query, f"label-{len(ids)}"), {})[str(id)] = 1
    if not qrels:
        raise QontextError("holds no labelled pairs", place=path)
    return Labels({id: text for text, id in ids.items()}, {UNSPLIT: qrels})


def _relevant(qrels: Qrels) -> Qrels:
    kept = {q: {p: grade for p, grade in judged.items() if grade > 0} for q, judged in qrels.items()}
    return {q: judged for q, judged in kept.items() if judged}


def to_passages(labels: Labels, passages: Iterator[Passage], place: str) -> tuple[Labels, dict[str, str]]:
    """The labels with passages for ids, and each of these passages' document.

    A document that was split stands for the one of its passages that shares most words with the query. Labels of
    texts that are not there are left out and counted; if none is there, that is an error.
    """
    named = labels.named
    document: dict[str, str] = {}
    parts: dict[str, list[Passage]] = {}
    for passage in passages:
        if passage.id in named:
            document[passage.id] = passage.doc
        elif passage.doc in named:
            parts.setdefault(passage.doc, []).append(passage)
    lost = 0
    splits: dict[str, Qrels] = {}
    for name, qrels in labels.splits.items():
        found: Qrels = {}
        for query, judged in qrels.items():
            for id, grade in judged.items():
                if id not in document and id in parts:
                    best = _closest(labels.queries[query], parts[id])
                    document[best.id] = best.doc
                    id = best.id
                if id in document:
                    found.setdefault(query, {})[id] = grade
                else:
                    lost += 1
        if not found and (name != "train" or len(labels.splits) == 1):
            of = "" if name == UNSPLIT else f" of the split {name!r}"
            raise QontextError(
                f"none of the labelled ids{of} is the id of a passage or of a document",
                place=place,
                remedy=f"The labels name ids such as {min(id for judged in qrels.values() for id in judged)!r}.",
            )
        splits[name] = found
    if lost:
        log.warn(f"{lost:,} labels name a text that is not among these documents, and are left out.")
    return Labels(labels.queries, splits), document


def _closest(query: str, passages: list[Passage]) -> Passage:
    words = set(re.findall(r"\w+", query.lower()))
    return max(passages, key=lambda p: len(words & set(re.findall(r"\w+", p.content.lower()))))
