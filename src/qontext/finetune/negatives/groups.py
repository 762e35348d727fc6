"""Training groups: a query, its positives and its hard negatives; and published files of negatives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from qontext.data import dpr, records
from qontext.data.compression import plain_name
from qontext.data.ids import id_of, unescape
from qontext.data.lines import read_jsonl, read_lines
from qontext.data.runs import Run, read_run
from qontext.frame.errors import QontextError

GROUPS = pa.schema(
    [
        pa.field("query", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("positives", pa.list_(pa.string()), nullable=False),
        # Hardest first.
        pa.field("negatives", pa.list_(pa.string()), nullable=False),
    ]
)


class Group(NamedTuple):
    """One training query: its id and text, and passage ids."""

    query: str
    text: str
    positives: list[str]
    negatives: list[str]


def read_groups(source: Path | str) -> Iterator[Group]:
    """The groups that `mine` wrote, or the questions of DPR's training file, in order."""
    path = Path(source).expanduser()
    if dpr.is_training_file(path):
        yield from map(Group._make, dpr.labeled(path))
        return
    if path.is_file() and path.suffix != ".parquet":
        raise QontextError(
            "are not training groups, which are Parquet files",
            place=path,
            remedy="Create them with 'qontext mine RUN QRELS', or name a folder in BEIR's layout, to train on its "
            "positives, or DPR's biencoder-nq-train.json.",
        )
    for batch in records.read_table(source, GROUPS, columns=GROUPS.names):
        yield from map(Group, *(batch.column(name).to_pylist() for name in GROUPS.names))


def candidates_of(groups: Path | str) -> Run:
    """The groups' passages as a run, positives first, for a teacher to score."""
    queries: list[str] = []
    passages: list[str] = []
    scores: list[int] = []
    for group in read_groups(groups):
        own = list(dict.fromkeys([*group.positives, *group.negatives]))
        queries += [group.query] * len(own)
        passages += own
        scores += range(0, -len(own), -1)
    return Run.from_columns(queries, passages, scores, place=groups)


def read_candidates(path: Path | str) -> Run:
    """Candidate negatives: a run, or a published file of negatives, whose order becomes the score.

    - MS MARCO's ``qidpidtriples.*.tsv[.gz]``: query id, positive id, negative id;
    - sentence-transformers' ``msmarco-hard-negatives.jsonl.gz``: ``{"qid", "pos", "neg": {system: [ids]}}``; the
      systems' lists are taken in turn, best first;
    - DPR's ``biencoder-nq-train.json``: the hard negatives of each question.
    """
    name = plain_name(path)
    if dpr.is_training_file(Path(path)):
        return _ranked({id: dict.fromkeys(hard) for id, _, _, hard in dpr.labeled(Path(path))}, path)
    if name.endswith(".jsonl"):
        return _ranked(_hard_negatives(Path(path)), path)
    if name.endswith(".tsv"):
        return _ranked(_triples(Path(path)), path)
    return read_run(path)


def _triples(path: Path) -> dict[str, dict[str, None]]:
    negatives_of: dict[str, dict[str, None]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split()
        if len(fields) != 3:
            raise QontextError(
                "expected three ids: query, positive, negative",
                place=f"{path}:{number}",
                remedy="Triples of texts have no ids: use MS MARCO's qidpidtriples file.",
            )
        query, _, negative = map(unescape, fields)
        negatives_of.setdefault(query, {})[negative] = None
    return negatives_of


def _hard_negatives(path: Path) -> dict[str, dict[str, None]]:
    negatives_of: dict[str, dict[str, None]] = {}
    for place, row in read_jsonl(path):
        systems = row.get("neg")
        if not isinstance(systems, dict) or not all(isinstance(ids, list) for ids in systems.values()):
            raise QontextError("expected an object with 'qid' and 'neg': {system: [ids]}", place=place)
        negatives = negatives_of.setdefault(id_of(row.get("qid"), place, "'qid'"), {})
        for rank in range(max(map(len, systems.values()), default=0)):
            for ids in systems.values():
                if rank < len(ids):
                    negatives[id_of(ids[rank], place, "id of a negative")] = None
    return negatives_of


def _ranked(negatives_of: dict[str, dict[str, None]], path: Path | str) -> Run:
    queries = [query for query, ids in negatives_of.items() for _ in ids]
    passages = [id for ids in negatives_of.values() for id in ids]
    if not passages:
        raise QontextError("contains no negatives", place=path)
    return Run.from_columns(
        queries, passages, [-n for ids in negatives_of.values() for n in range(len(ids))], place=path
    )
