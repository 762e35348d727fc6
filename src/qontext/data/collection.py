"""Labeled sets: passages, queries and judgments (qrels), in the layouts in which they are published.

A *collection* is a folder in BEIR's layout: ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/SPLIT.tsv``, each
plain, ``.gz`` or ``.zst``. The readers below also read each of the three from other formats. Nothing is read
before it is needed, and passages stream.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qontext.data import dpr, records
from qontext.data.ids import escape, id_of, unescape
from qontext.data.lines import SUFFIXES, first_line, read_jsonl, read_lines
from qontext.data.passage import PASSAGE_COLUMNS, as_json, passages_of
from qontext.data.passage import Passage as Passage
from qontext.frame import artifacts
from qontext.frame.config import existing
from qontext.frame.errors import QontextError, choose

Qrels = dict[str, dict[str, int]]
"""query → passage → grade."""

_PASSAGE_FIELDS = ("_id", "id", "title", "text", "doc_id")
_SUFFIXES = ("", *SUFFIXES)
_GRADE = re.compile(r"[+-]?[0-9]{1,9}")


@dataclass(frozen=True)
class Collection:
    """A labeled set in a folder."""

    path: Path

    @property
    def splits(self) -> list[str]:
        """The names of the judged parts, such as train, dev, test."""
        names = {
            p.name.split(".tsv")[0] for p in (self.path / "qrels").glob("*.tsv*") if _ends_well(p, ".tsv")
        }
        return sorted(names)

    def passages(self) -> Iterator[Passage]:
        return read_passages(self.path)

    def queries(self, split: str | None = None) -> dict[str, str]:
        """id → text of all queries, or of those judged in the split, in file order."""
        queries = read_queries(self.path)
        if split is None:
            return queries
        judged = self.qrels(split)
        if missing := next((id for id in judged if id not in queries), None):
            raise QontextError(
                f"judges the query {missing!r}, which is not in the queries file",
                place=self._qrels_file(split),
                remedy="Check that the columns are query, passage, grade and that the files belong together.",
            )
        return {id: text for id, text in queries.items() if id in judged}

    def qrels(self, split: str) -> Qrels:
        return read_qrels(self._qrels_file(split))

    def _qrels_file(self, split: str) -> Path:
        if not self.splits:
            raise QontextError("has no judgments: no qrels/SPLIT.tsv", place=self.path)
        choose(split, self.splits, f"split of {self.path}")
        return _one_of(self.path / "qrels", split, ".tsv")


def load_collection(folder: Path | str) -> Collection:
    """The collection in a folder of BEIR's layout."""
    path = existing(folder, "the collection")
    if not path.is_dir():
        raise QontextError("a collection is a folder with corpus.jsonl, queries.jsonl and qrels/", place=path)
    _one_of(path, "corpus", ".jsonl")
    _one_of(path, "queries", ".jsonl")
    return Collection(path)


def read_passages(source: Path | str) -> Iterator[Passage]:
    """The passages of a `split` artifact, a Parquet file, a BEIR folder or corpus file, or a TSV file: ``id text``, ``id
    title text`` (RocketQA's MS MARCO), ``id url title text`` (MS MARCO's documents), or DPR's with its header.

    Ids are not checked for duplicates here, since passages are streamed; indexing checks them.
    """
    path = existing(source, "passages")
    if path.is_dir() and not is_parquet(path):
        path = _one_of(path, "corpus", ".jsonl")
    if is_parquet(path):
        for batch in records.read_table(path, records.PASSAGES, columns=PASSAGE_COLUMNS):
            yield from passages_of(batch, path)
    elif _is_tsv(path) and dpr.is_passages(path):
        for place, text_of_id, title, text in dpr.passages(path):
            id = unescape(_filled(text_of_id, place, "id"))
            yield Passage(id, title, text, id)
    elif _is_tsv(path):
        for place, (text_of_id, *_, title, text) in _passage_rows(path):
            id = unescape(_filled(text_of_id, place, "id"))
            yield Passage(id, title, text, id)
    else:
        yield from (passage for passage, _ in _json_passages(path))


def read_metadata(source: Path | str) -> Iterator[tuple[Passage, str]]:
    """The passages of a BEIR folder or corpus file, each with its other fields as a JSON object (empty in
    other files)."""
    path = existing(source, "passages")
    path = _one_of(path, "corpus", ".jsonl") if path.is_dir() else path
    if _is_tsv(path):
        yield from ((passage, "{}") for passage in read_passages(path))
        return
    for passage, row in _json_passages(path):
        others = {name: value for name, value in row.items() if name not in _PASSAGE_FIELDS}
        nested = others.pop("metadata", None)
        yield passage, as_json({**nested, **others} if isinstance(nested, dict) else others)


def _json_passages(path: Path) -> Iterator[tuple[Passage, dict[str, Any]]]:
    for place, row in read_jsonl(path):
        id = _id(row, place)
        doc = row.get("doc_id")
        doc = id if doc is None or doc == "" else id_of(doc, place, "doc_id")
        yield Passage(id, _text(row, "title", place), _text(row, "text", place), doc), row


def read_queries(source: Path | str) -> dict[str, str]:
    """id → text, in order, from BEIR JSON lines, ``id<tab>text``, a BEIR folder, Parquet, DPR's questions, or the lines of a
    ``.txt`` or ``.log`` file, each different one a question.

    In Parquet the columns are `id` and `text`, or those that `generate` writes: the id of a generated query
    is then its passage's id and its number, joined by a colon.
    """
    path = existing(source, "queries")
    if path.is_dir() and not is_parquet(path):
        path = _one_of(path, "queries", ".jsonl")
    queries: dict[str, str] = {}
    for place, id, text in _query_rows(path):
        if id in queries:
            raise QontextError(f"the query id {id!r} occurs twice", place=place)
        queries[id] = _filled(text, place, "query text")
    if not queries:
        raise QontextError("contains no queries", place=path)
    return queries


def read_asked(source: Path | str, among: Container[str] | None = None) -> dict[str, str]:
    """id → text of the different questions of a search log, in any format of `read_queries`, `among` these ids: the first of
    those that are the same but for case and spaces."""
    queries = read_queries(source)
    first: dict[str, str] = {}
    for id, text in queries.items():
        if among is None or id in among:
            first.setdefault(_as_asked(text), id)
    return {id: queries[id] for id in first.values()}


def _as_asked(text: str) -> str:
    return " ".join(text.split()).lower()


def read_titles(source: Path | str) -> dict[str, str]:
    """id → title, from ``id<tab>title`` (RocketQA's para.title.txt)."""
    rows = read_columns(existing(source, "titles"), 2, "id<tab>title")
    return {unescape(_filled(id.strip(), place, "id")): title.strip() for place, (id, title) in rows}


def generated_id(passage: str, number: int) -> str:
    """The id of a passage's generated query."""
    return f"{passage}:{number}"


def read_qrels(source: Path | str) -> Qrels:
    """Judgments from BEIR's three columns with a header, or TREC's four (query, 0, passage, grade)."""
    path = existing(source, "judgments")
    if path.is_dir():
        raise QontextError(
            "is a folder, not a judgments file", place=path, remedy="Name a qrels/SPLIT.tsv in it."
        )
    qrels: Qrels = {}
    for place, line in read_lines(path):
        fields = line.split("\t") if "\t" in line else line.split()
        if place == f"{path}:1" and _is_header(fields, path):
            continue
        query, passage, grade = _judgment(fields, place)
        if qrels.setdefault(query, {}).setdefault(passage, grade) != grade:
            raise QontextError(
                f"judges query {query!r} and passage {passage!r} twice, with different grades", place=place
            )
    if not qrels:
        raise QontextError("contains no judgments", place=path)
    return qrels


def check_qrels(qrels: Qrels, queries: Container[str], passages: Container[str], place: Path | str) -> None:
    """Refuse judgments with unknown query or passage ids; swapped columns are detected."""
    for query, judged in qrels.items():
        if query not in queries:
            swapped = query in passages
            raise QontextError(
                f"names the query {query!r}, which is "
                + ("a passage: the columns are swapped" if swapped else "not in the queries"),
                place=place,
                remedy="The columns are query, passage, grade."
                if swapped
                else "Check that the files belong together.",
            )
        for passage in judged:
            if passage not in passages:
                raise QontextError(
                    f"names the passage {passage!r}, which is not in the passages",
                    place=place,
                    remedy="Check that the files belong together.",
                )


def write_qrels(path: Path, judgments: Iterable[tuple[str, str, int]]) -> None:
    """Write BEIR's three columns with their header, one (query, passage, grade) per line."""
    with path.open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        file.writelines(
            f"{escape(query)}\t{escape(passage)}\t{grade}\n" for query, passage, grade in judgments
        )


def read_columns(path: Path, count: int, expected: str) -> Iterator[tuple[str, list[str]]]:
    """(place, columns) of each line of a file with this number of columns, separated by tabs."""
    for place, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) != count:
            raise QontextError(f"has {len(fields)} columns, expected {expected}", place=place)
        yield place, fields


def passage_row(passage: Passage) -> dict[str, str]:
    """A passage as a line of BEIR's corpus.jsonl."""
    return {"_id": passage.id, "title": passage.title, "text": passage.text, "doc_id": passage.doc}


def _query_rows(path: Path) -> Iterator[tuple[str, str, str]]:
    is_text = _ends_well(path, ".txt") or _ends_well(path, ".log")
    if is_parquet(path):
        yield from _parquet_queries(path)
    elif is_text and "\t" not in first_line(path):
        yield from _lines_asked(path)
    elif dpr.is_questions(path):
        yield from ((place, id, text) for place, id, text, _ in dpr.questions(path))
    elif _ends_well(path, ".jsonl") or _ends_well(path, ".json"):
        for place, row in read_jsonl(path):
            yield place, _id(row, place), _text(row, "text", place)
    else:
        for place, (id, text) in read_columns(path, 2, "id<tab>text"):
            yield place, unescape(_filled(id.strip(), place, "id")), text.strip()


def _lines_asked(path: Path) -> Iterator[tuple[str, str, str]]:
    """The different lines of a log of questions."""
    seen = set()
    for place, line in read_lines(path):
        if (asked := _as_asked(line)) not in seen:
            seen.add(asked)
            yield place, f"line-{place.rpartition(':')[2]}", " ".join(line.split())


def _parquet_queries(path: Path) -> Iterator[tuple[str, str, str]]:
    for part in records.parquet_parts(path):
        names = records.open_parquet(part).schema_arrow.names
        is_generated = "query" in names
        if not is_generated and not {"id", "text"} <= set(names):
            raise QontextError(
                f"has neither id and text nor passage, query and number: {', '.join(names)}", place=part
            )
        schema = records.QUERIES if is_generated else records.TEXTS
        number = 0
        for batch in records.read_table(part, schema, columns=schema.names):
            columns = [batch.column(name).to_pylist() for name in schema.names]
            if is_generated:
                passages, texts, numbers = columns
                columns = [list(map(generated_id, passages, numbers)), texts]
            for id, text in zip(*columns):
                number += 1
                place = f"{part}: row {number}"
                yield place, _filled(id, place, "id", blank=True), text


_LAYOUTS = {2: "id<tab>text", 3: "id<tab>title<tab>text", 4: "id<tab>url<tab>title<tab>text"}
"""The TSV files of passages and documents without a header, by their number of columns."""


def _passage_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(place, [id, …, title, text]) of each line, in the layout of the first one."""
    count = first_line(path).count("\t") + 1
    for place, fields in read_columns(
        path, count if count in _LAYOUTS else 2, _LAYOUTS.get(count, _LAYOUTS[2])
    ):
        yield place, fields if count > 2 else [fields[0], "", fields[1]]


def _is_header(fields: list[str], path: Path) -> bool:
    names = [field.strip().lower().replace("_", "-") for field in fields]
    if _GRADE.fullmatch(names[-1]):
        return False  # a judgment of a query with that id
    if names[0] in ("corpus-id", "doc-id", "docid", "passage-id", "pid"):
        raise QontextError(
            f"the columns are {', '.join(names)}, expected query-id, corpus-id, score", place=f"{path}:1"
        )
    return names[0] in ("query-id", "qid", "query")


def _judgment(fields: list[str], place: str) -> tuple[str, str, int]:
    if len(fields) not in (3, 4):
        raise QontextError(
            f"has {len(fields)} columns, expected query, passage, grade (or TREC's query, 0, passage, grade)",
            place=place,
        )
    query, passage, grade = fields[0].strip(), fields[-2].strip(), fields[-1].strip()
    if not _GRADE.fullmatch(grade):
        raise QontextError(
            f"the grade is {grade[:40]!r}, expected a whole number of at most 9 digits in the last column",
            place=place,
        )
    return (
        unescape(_filled(query, place, "query id")),
        unescape(_filled(passage, place, "passage id")),
        int(grade),
    )


def is_parquet(path: Path) -> bool:
    if path.is_dir():
        if any(path.glob("corpus.jsonl*")):  # a labeled set, even if a stage wrote it
            return False
        return artifacts.is_artifact(path) or (path / artifacts.CLAIM).exists() or any(path.glob("*.parquet"))
    return path.suffix == ".parquet"


def _one_of(folder: Path, stem: str, suffix: str) -> Path:
    """The existing file: plain or compressed."""
    for ending in _SUFFIXES:
        if (file := folder / f"{stem}{suffix}{ending}").is_file():
            return file
    raise QontextError(
        f"has no {stem}{suffix}, plain or compressed ({', '.join(SUFFIXES)} are read)", place=folder
    )


def _is_tsv(path: Path) -> bool:
    """True if the name is one of a file with columns (RocketQA's is para.txt)."""
    return _ends_well(path, ".tsv") or _ends_well(path, ".txt")


def _ends_well(path: Path, suffix: str) -> bool:
    return any(path.name.endswith(suffix + ending) for ending in _SUFFIXES)


def _id(row: Mapping[str, Any], place: str) -> str:
    id = row.get("_id", row.get("id"))
    if id is None or id == "":
        raise QontextError("has no '_id'", place=place)
    return id_of(id, place)


def _text(row: Mapping[str, Any], name: str, place: str) -> str:
    value = row.get(name)
    if value is None and name == "title":
        return ""
    if not isinstance(value, str):
        what = f"has no {name!r}" if value is None else f"{name!r} is not text"
        raise QontextError(what, place=place)
    return value


def _filled(value: str, place: str, what: str, *, blank: bool = False) -> str:
    """The value, if it is not empty or, where that is not allowed, `blank`."""
    if not (value if blank else value.strip()):
        raise QontextError(f"the {what} is empty", place=place)
    return value
