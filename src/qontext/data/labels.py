"""User labels → judgments of passages. Labels are a folder in BEIR's layout, or lines with a query and an id."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from qontext.data.collection import Passage, Qrels, load_collection
from qontext.data.ids import id_of
from qontext.data.lines import read_jsonl
from qontext.data.words import apart
from qontext.frame import log
from qontext.frame.config import existing
from qontext.frame.errors import QontextError

QUERY_KEYS = ("query", "question")
ID_KEYS = ("passage", "document", "passage_id", "doc_id", "positive", "id", "_id")
UNSPLIT = "labels"
FEWEST_LABELS = 3
"""At least one query each for training, for choosing weights and for testing."""


def measured_sizes(queries: int, place: str) -> tuple[int, int]:
    """The numbers of test and development queries for labels without splits: a tenth and half of that, but at
    least 50 test queries if they are at most two fifths."""
    if queries < FEWEST_LABELS:
        raise QontextError(
            f"{queries} labeled queries are too few for training and evaluation",
            place=place,
            remedy="Run without labels.",
        )
    share = min(0.4, max(0.1, 50 / queries))
    return max(1, int(share * queries)), max(1, int(share / 2 * queries))


@dataclass(frozen=True)
class Labels:
    """Queries and, for each split, their relevant ids, which are ids of passages or of documents."""

    queries: Mapping[str, str]
    splits: Mapping[str, Qrels]

    @property
    def are_split(self) -> bool:
        """True if the labels define a test split; a single split counts if it is named test."""
        return len(self.splits) > 1 or "test" in self.splits

    @property
    def named(self) -> set[str]:
        """Every id that is judged relevant."""
        return {id for qrels in self.splits.values() for judged in qrels.values() for id in judged}


def tested(splits: Collection[str]) -> str:
    """The split to test on: test, else dev, else the first one that is not for training."""
    return next((n for n in ("test", "dev") if n in splits), "") or next(n for n in splits if n != "train")


def read_labels(source: str) -> Labels:
    """From a BEIR folder with its splits, or from a file with lines like {"query": "…", "passage": "id"}."""
    path = existing(source, "labels")
    if path.is_dir():
        collection = load_collection(path)
        every = {name: _relevant(collection.qrels(name)) for name in collection.splits}
        splits = {name: qrels for name, qrels in every.items() if qrels}
        if not splits:
            raise QontextError("judges no passage as relevant to any query", place=path / "qrels")
        labeled = {id for qrels in splits.values() for id in qrels}
        queries = {id: text for id, text in collection.queries().items() if id in labeled}
        if missing := next((id for id in labeled if id not in queries), None):
            raise QontextError(f"judges the query {missing!r}, which is not in the queries file", place=path)
        return Labels(queries, splits)
    return _pairs(path)


def _pairs(path: Path) -> Labels:
    """One query per distinct text."""
    ids: dict[str, str] = {}
    qrels: Qrels = {}
    for place, row in read_jsonl(path):
        query = next((row[key] for key in QUERY_KEYS if key in row), None)
        id = next((row[key] for key in ID_KEYS if key in row), None)
        if not isinstance(query, str) or not query.strip() or id is None:
            raise QontextError(
                "is not a labeled pair",
                place=place,
                remedy='Expected lines like {"query": "…", "passage": "an id"}.',
            )
        qrels.setdefault(ids.setdefault(query, f"label-{len(ids)}"), {})[id_of(id, place)] = 1
    if not qrels:
        raise QontextError("contains no labeled pairs", place=path)
    return Labels({id: text for text, id in ids.items()}, {UNSPLIT: qrels})


def _relevant(qrels: Qrels) -> Qrels:
    positive = {q: {p: grade for p, grade in judged.items() if grade > 0} for q, judged in qrels.items()}
    return {q: judged for q, judged in positive.items() if judged}


def to_passages(labels: Labels, passages: Iterator[Passage], place: str) -> tuple[Labels, dict[str, str]]:
    """Map labels to passage ids, and each of these passages to its document. A document id is replaced by the
    passage of the document that shares most words with the query. Labels with unknown ids are dropped and
    counted; it is an error if no id is known.
    """
    targets = labels.named
    document: dict[str, str] = {}
    parts: dict[str, list[Passage]] = {}
    for passage in passages:
        if passage.id in targets:
            document[passage.id] = passage.doc
        elif passage.doc in targets:
            parts.setdefault(passage.doc, []).append(passage)
    unknown: list[str] = []
    splits: dict[str, Qrels] = {}
    for name, qrels in labels.splits.items():
        of_passages: Qrels = {}
        for query, judged in qrels.items():
            for id, grade in judged.items():
                if id not in document and id in parts:
                    best = closest(labels.queries[query], parts[id])
                    document[best.id] = best.doc
                    id = best.id
                if id in document:
                    of_passages.setdefault(query, {})[id] = grade
                else:
                    unknown.append(id)
        if not of_passages and (name != "train" or len(labels.splits) == 1):
            of = "" if name == UNSPLIT else f" of the split {name!r}"
            raise QontextError(
                f"none of the labeled ids{of} is the id of a passage or of a document",
                place=place,
                remedy=f"The labels contain ids such as {min(id for judged in qrels.values() for id in judged)!r}.",
            )
        splits[name] = of_passages
    if unknown:
        log.warn(
            f"{place}: 1 label has an id that is not in these documents, {unknown[0]!r}; it is ignored."
            if len(unknown) == 1
            else f"{place}: {len(unknown):,} labels have ids that are not in these documents, such as {unknown[0]!r}; "
            "they are ignored."
        )
    return Labels(labels.queries, splits), document


def closest(query: str, passages: list[Passage]) -> Passage:
    """The passage with the most words of a query."""
    words = set(apart(query))
    return max(passages, key=lambda p: len(words & set(apart(p.content))))
