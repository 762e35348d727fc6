"""Training groups: a query, its positives and its hard negatives; and published files of negatives."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from qontext.data import dpr, records
from qontext.data.ids import id_of, unescape
from qontext.data.lines import plain_name, read_jsonl, read_lines
from qontext.data.runs import Run, is_unranked, read_run
from qontext.frame import html
from qontext.frame.errors import QontextError

Ints = np.ndarray[Any, Any]
SHOWN = 10
"""Groups in the table of a notebook."""
_BATCH = 1 << 20
"""Pairs that are looked at together."""

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
            {
                "query": group.query,
                "text": group.text,
                "positives": len(group.positives),
                "negatives": len(group.negatives),
            }
            for group in self[:SHOWN]
        ]
        return html.table(rows, repr(self))


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
    for place, line in read_lines(path):
        fields = line.split()
        if len(fields) != 3:
            raise QontextError(
                "expected three ids: query, positive, negative",
                place=place,
                remedy="Triples of texts have no ids: use MS MARCO's qidpidtriples file, or triples.tsv of 'qontext collect "
                "--triples'.",
            )
        yield unescape(fields[0]), unescape(fields[2])


def _hard_negatives(path: Path) -> Iterator[tuple[str, str]]:
    for place, row in read_jsonl(path):
        systems = row.get("neg")
        if not isinstance(systems, dict) or not all(isinstance(ids, list) for ids in systems.values()):
            raise QontextError("expected an object with 'qid' and 'neg': {system: [ids]}", place=place)
        query = id_of(row.get("qid"), place, "'qid'")
        for rank in range(max(map(len, systems.values()), default=0)):
            for ids in systems.values():
                if rank < len(ids):
                    yield query, id_of(ids[rank], place, "id of a negative")


def _first_of_each(pairs: Iterable[tuple[str, str]], depth: int, path: Path | str) -> Run:
    """The first `depth` different passages of each query, in order. Pairs are kept as numbers: MS MARCO's file has 400
    million."""
    numbers: tuple[dict[str, int], dict[str, int]] = ({}, {})
    kept = np.zeros(0, np.int64)
    """The kept pairs, sorted: the query's number in the upper 32 bits, the passage's in the lower ones."""
    counts = np.zeros(0, np.int64)
    columns: list[tuple[Ints, Ints, Ints]] = []
    stream = iter(pairs)
    while batch := list(islice(stream, _BATCH)):
        queries, passages = (
            np.fromiter((of.setdefault(pair[n], len(of)) for pair in batch), np.int64, len(batch))
            for n, of in enumerate(numbers)
        )
        counts = np.pad(counts, (0, len(numbers[0]) - len(counts)))
        keys = queries << 32 | passages
        different, first = np.unique(keys, return_index=True)
        place = np.minimum(np.searchsorted(kept, different), max(0, len(kept) - 1))
        order = np.sort(first[kept[place] != different] if len(kept) else first)
        grouped = order[np.argsort(queries[order], kind="stable")]
        query, sizes = np.unique(queries[grouped], return_counts=True)
        ranks = np.arange(len(grouped)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        ranks += np.repeat(counts[query], sizes)
        counts[query] += sizes
        chosen, ranks = grouped[ranks < depth], ranks[ranks < depth]
        columns.append((queries[chosen].astype(np.int32), passages[chosen].astype(np.int32), ranks))
        kept = np.sort(np.concatenate([kept, keys[chosen]]), kind="stable")
    if not columns:
        raise QontextError("contains no negatives", place=path)
    queries, passages, ranks = (np.concatenate(column) for column in zip(*columns))
    ids = np.array(list(numbers[1]), dtype=object)
    return Run.from_codes(queries, list(numbers[0]), passages, ids, -ranks, place=path)
