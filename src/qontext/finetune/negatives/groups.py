"""Training groups: a query, its positives and its hard negatives; and published files of negatives."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from qontext.data import dpr, records
from qontext.data.ids import unescape
from qontext.data.lines import plain_name, read_jsonl, read_lines
from qontext.data.runs import Run, is_unranked, read_run
from qontext.frame import html
from qontext.frame.errors import QontextError

SHOWN = 10
"""Groups in the table of a notebook."""


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


class Groups(list[Group]):
    """Training groups; a table in a notebook, and a file for `finetune`."""

    def write(self, path: Path | str) -> None:
        """Write a Parquet file, which `finetune` reads."""
        if bare := next((group.query for group in self if not group.text), None):
            raise QontextError(f"the query {bare!r} has no text", remedy="Pass queries= to mine.")
        records.write_table(Path(path), self.table())

    def table(self) -> pa.Table:
        """The groups as rows."""
        return pa.Table.from_pylist([group._asdict() for group in self], schema=GROUPS)

    def __repr__(self) -> str:
        return f"{len(self):,} groups with {sum(len(group.negatives) for group in self):,} negatives"

    def _repr_html_(self) -> str:
        rows = [
            {**group._asdict(), "positives": len(group.positives), "negatives": len(group.negatives)}
            for group in self[:SHOWN]
        ]
        return html.table(rows, repr(self))


def read_groups(source: Path | str) -> Iterator[Group]:
    """The groups that `mine` wrote, or the questions of DPR's training file, in order."""
    path = Path(source).expanduser()
    if dpr.is_training_file(path):
        yield from map(Group._make, dpr.labeled(path))
        return
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


def read_candidates(path: Path | str, depth: int | None = None) -> Run:
    """Candidate negatives: a run, or a published file of negatives, whose order becomes the score. Of such a file, at most
    `depth` candidates of each query are kept.

    - MS MARCO's ``qidpidtriples.*.tsv[.gz]``: query id, positive id, negative id;
    - sentence-transformers' ``msmarco-hard-negatives.jsonl.gz``: ``{"qid", "pos", "neg": {system: [ids]}}``; the
      systems' lists are taken in turn, best first;
    - DPR's ``biencoder-nq-train.json``: the hard negatives of each question.
    """
    name = plain_name(path)
    pairs: Iterator[tuple[str, str]]
    if dpr.is_training_file(Path(path)):
        pairs = ((id, negative) for id, _, _, hard in dpr.labeled(Path(path)) for negative in hard)
    elif name.endswith(".jsonl"):
        pairs = _hard_negatives(Path(path))
    elif name.endswith(".tsv") and not is_unranked(Path(path)):
        pairs = _triples(Path(path))
    else:
        return read_run(path)
    return _first_of_each(pairs, sys.maxsize if depth is None else depth, path)


def _triples(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in read_lines(path):
        if len(ids := line.split()) != 3:
            what = "expected three ids, as in a qidpidtriples file, or triples.tsv of 'qontext collect --triples'"
            raise QontextError(what, place=f"{path}:{number}")
        yield unescape(ids[0]), unescape(ids[2])


def _hard_negatives(path: Path) -> Iterator[tuple[str, str]]:
    for _, row in read_jsonl(path):
        for of_rank in zip_longest(*row["neg"].values()):
            for id in of_rank:
                if id is not None:
                    yield str(row["qid"]), str(id)


def _first_of_each(pairs: Iterable[tuple[str, str]], depth: int, path: Path | str) -> Run:
    """The first `depth` different passages of each query, in order. Ids are kept as numbers: MS MARCO's file has 400 million
    pairs."""
    queries: dict[str, int] = {}
    passages: dict[str, int] = {}
    kept: list[dict[int, None]] = []
    for query, passage in pairs:
        own = queries.setdefault(query, len(queries))
        if own == len(kept):
            kept.append({})
        if len(kept[own]) < depth:
            kept[own][passages.setdefault(passage, len(passages))] = None
    if not kept:
        raise QontextError("contains no negatives", place=path)
    sizes = [len(own) for own in kept]
    codes = np.fromiter(chain.from_iterable(kept), np.int64, sum(sizes))
    ranks = np.concatenate([np.arange(size) for size in sizes])
    of_query = np.repeat(np.arange(len(kept)), sizes)
    return Run.from_codes(
        of_query, list(queries), codes, np.array(list(passages), dtype=object), -ranks, place=path
    )
