"""`qontext collect`: passages, queries and judgments as they are published → a labeled set in BEIR's layout.

    corpus.jsonl     the passages, with titles from a file of their own, if any
    queries.jsonl    the queries of all files
    qrels/SPLIT.tsv  the judgments of each split
    triples.tsv      the ids of triples of texts (query, positive, negative), if any

MS MARCO's files are read as they are downloaded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.files import hash64
from qontext.frame.stages import Stage

if TYPE_CHECKING:
    from qontext.data.collection import Passage, Qrels

SPLITS = ("train", "dev", "test")
_BATCH = 1 << 16
"""Triples that are looked up together."""


class CollectConfig(StageConfig):
    passages: Annotated[str, Input(positional=True)]
    """Passages or documents: MS MARCO's collection.tsv or msmarco-docs.tsv, RocketQA's para.txt, DPR's psgs_w100.tsv,
    JSON Lines, Parquet."""

    queries: Annotated[tuple[str, ...], Input()] = ()
    """Queries of the judgments, such as MS MARCO's queries.train.tsv. May be repeated."""

    titles: Annotated[str | None, Input()] = None
    """Titles of passages as id<tab>title, such as RocketQA's para.title.txt. Others keep their own."""

    train: Annotated[str | None, Input()] = None
    """Judgments of the split train, such as qrels.train.tsv."""

    dev: Annotated[str | None, Input()] = None
    """Judgments of the split dev, such as qrels.dev.small.tsv."""

    test: Annotated[str | None, Input()] = None
    """Judgments of the split test."""

    triples: Annotated[str | None, Input()] = None
    """Triples of texts, such as triples.train.small.tsv: 'qontext mine' reads their ids from triples.tsv of the result.
    MS MARCO's qidpidtriples files have ids; 'qontext mine' reads them as they are."""


def run(config: CollectConfig, work: Workdir) -> dict[str, Any]:
    from qontext.data.collection import check_qrels, read_qrels, write_qrels
    from qontext.data.lines import write_jsonl
    from qontext.data.load import refuse_repeated_ids

    files = {split: file for split in SPLITS if (file := getattr(config, split))}
    if not config.queries or not files:
        raise QontextError(
            "a labeled set needs queries and judgments",
            remedy="Pass --queries FILE, and --train, --dev or --test FILE.",
        )
    refuse_repeated_ids(config.passages, "passage id")
    queries = _queries(config.queries)
    qrels = {split: read_qrels(file) for split, file in files.items()}
    corpus = _Corpus(config, qrels.values())
    with work.write("corpus.jsonl") as path:
        write_jsonl(path, corpus.rows())
    for split, judged in qrels.items():
        check_qrels(judged, queries, corpus.judged, files[split])
        with work.write(f"qrels/{split}.tsv") as path:
            write_qrels(path, ((q, p, grade) for q, grades in judged.items() for p, grade in grades.items()))
    with work.write("queries.jsonl") as path:
        write_jsonl(path, ({"_id": id, "text": text} for id, text in queries.items()))
    summary = {"passages": corpus.passages, "passages_with_title": corpus.titled, "queries": len(queries)}
    summary |= {f"{split}_queries": len(judged) for split, judged in qrels.items()}
    return summary | (_triples(config.triples, queries, corpus, work) if config.triples else {})


def _queries(files: Iterable[str]) -> dict[str, str]:
    """The queries of all files; a query may be in several of them."""
    from qontext.data.collection import read_queries

    queries: dict[str, str] = {}
    for file in files:
        for id, text in read_queries(file).items():
            if queries.setdefault(id, text) != text:
                raise QontextError(f"the query {id!r} has another text in an earlier file", place=file)
    return queries


class _Corpus:
    """The lines of corpus.jsonl, and what is learned of the passages while they are written."""

    def __init__(self, config: CollectConfig, qrels: Iterable[Qrels]) -> None:
        from qontext.data.collection import read_titles

        self.config = config
        self.titles = read_titles(config.titles) if config.titles else {}
        self.passages = self.titled = 0
        self.judged: set[str] = set()
        """The ids in the judgments that are passages. (Query ids are looked up, too, to detect swapped columns.)"""
        self.named = {id for judged in qrels for query, grades in judged.items() for id in (query, *grades)}
        self.ids: list[str] = []
        self.hashes = array("Q")
        """With triples: ids of passages, and 64-bit hashes of their texts."""

    def rows(self) -> Iterator[dict[str, str]]:
        from qontext.data.collection import passage_row, read_passages

        unknown = len(self.titles)
        for passage in read_passages(self.config.passages):
            row = passage_row(passage)
            if passage.id in self.titles:
                row["title"], unknown = self.titles[passage.id], unknown - 1
            self._note(passage, row["title"])
            yield row
        if self.titles and unknown == len(self.titles):
            raise QontextError(
                f"no title belongs to any of these passages: the first is of {next(iter(self.titles))!r}",
                place=self.config.titles,
                remedy="Check that titles and passages belong together.",
            )

    def _note(self, passage: Passage, title: str) -> None:
        self.passages += 1
        self.titled += bool(title)
        if passage.id in self.named:
            self.judged.add(passage.id)
        if self.config.triples:
            self.ids.append(passage.id)
            self.hashes.append(_hashed(passage.text))


def _triples(source: str, queries: Mapping[str, str], corpus: _Corpus, work: Workdir) -> dict[str, int]:
    """Write the ids of triples of texts. Those with a text that is in no file are left out and counted."""
    import numpy as np

    from qontext.data.collection import read_columns
    from qontext.data.ids import escape

    query_of = {text: id for id, text in queries.items()}
    hashes = np.asarray(corpus.hashes, np.uint64)
    order = np.argsort(hashes, kind="stable")
    lines = read_columns(Path(source).expanduser(), 3, "query<tab>positive<tab>negative, as texts")
    known = unknown = 0
    with work.write("triples.tsv") as path, path.open("w", encoding="utf-8") as file:
        while batch := [fields for _, fields in islice(lines, _BATCH)]:
            wanted = np.array([[_hashed(text) for text in texts] for _, *texts in batch], np.uint64)
            places = order[np.searchsorted(hashes, wanted, sorter=order).clip(max=len(order) - 1)]
            are_known = (hashes[places] == wanted).all(axis=1)
            for (query, *_), numbers, is_known in zip(batch, places.tolist(), are_known.tolist()):
                id = query_of.get(query.strip())
                if id is None or not is_known:
                    unknown += 1
                    continue
                known += 1
                file.write("\t".join(map(escape, (id, *(corpus.ids[n] for n in numbers)))) + "\n")
    if not known:
        raise QontextError(
            "no triple has the texts of these queries and passages",
            place=source,
            remedy="Check that the files belong together.",
        )
    if unknown:
        log.warn(f"{source}: {unknown:,} triples have texts that are not in these queries and passages.")
    return {"triples": known, "triples_with_unknown_texts": unknown}


def _hashed(text: str) -> int:
    return hash64(text.strip())


STAGE = Stage(
    verb="collect",
    config=CollectConfig,
    run=run,
    examples="""
        qontext collect collection.tsv --queries queries.dev.small.tsv --dev qrels.dev.small.tsv --out msmarco
        qontext collect para.txt --titles para.title.txt --queries queries.train.tsv --train qrels.train.tsv --out msmarco
    """,
)
