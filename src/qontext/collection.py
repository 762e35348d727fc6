"""Labelled sets: passages, queries and judgements (qrels), in the layouts in which they are published.

A *collection* is a folder in BEIR's layout: ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/SPLIT.tsv``, each
plain, ``.gz`` or ``.zst``. The readers below take each of the three from elsewhere, too. Nothing is read
before it is asked for, and passages stream.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from qontext import artifacts, records
from qontext.config import existing
from qontext.errors import QontextError, choose

Qrels = dict[str, dict[str, int]]
"""query → passage → grade."""

_ENDINGS = ("", ".gz", ".zst")


class Passage(NamedTuple):
    """A passage as search and training read it; `doc` is the document that it is a part of."""

    id: str
    title: str
    text: str
    doc: str

    @property
    def content(self) -> str:
        """What encoders and BM25 read: title and text, joined by a space."""
        return f"{self.title} {self.text}" if self.title else self.text


@dataclass(frozen=True)
class Collection:
    """A labelled set in a folder."""

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
        """id → text of all queries, or of those that the split judges, in the order of the file."""
        queries = read_queries(self.path)
        if split is None:
            return queries
        judged = self.qrels(split)
        if missing := next((id for id in judged if id not in queries), None):
            raise QontextError(
                f"names the query {missing!r}, which is not among the queries",
                place=self._qrels_file(split),
                remedy="Check that the columns are query, passage, grade and that the files belong together.",
            )
        return {id: text for id, text in queries.items() if id in judged}

    def qrels(self, split: str) -> Qrels:
        return read_qrels(self._qrels_file(split))

    def _qrels_file(self, split: str) -> Path:
        if not self.splits:
            raise QontextError("has no judgements: no qrels/SPLIT.tsv", place=self.path)
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
    """The passages of a `split` artifact, a Parquet file, a BEIR folder or corpus file, ``id<tab>text``, or DPR's
    ``id<tab>text<tab>title``.

    Identifiers are not checked for duplicates here, since passages stream; whoever indexes them does.
    """
    from qontext import dpr  # which reads lines as we do

    path = existing(source, "passages")
    if path.is_dir() and not _is_parquet(path):
        path = _one_of(path, "corpus", ".jsonl")
    if _is_parquet(path):
        columns = ["id", "title", "text", "doc"]
        for batch in records.read_table(path, records.PASSAGES, columns=columns):
            yield from map(Passage, *(batch.column(name).to_pylist() for name in columns))
    elif _ends_well(path, ".tsv") and dpr.is_passages(path):
        for place, id, title, text in dpr.passages(path):
            yield Passage(_filled(id, place, "id"), title, text, id)
    elif _ends_well(path, ".tsv"):
        for place, (id, text) in _tab_separated(path, 2, "id<tab>text"):
            yield Passage(_filled(id, place, "id"), "", text, id)
    else:
        for place, row in read_jsonl(path):
            id = _id(row, place)
            doc = row.get("doc_id")
            yield Passage(
                id, _text(row, "title", place), _text(row, "text", place), id if doc is None else str(doc)
            )


def read_queries(source: Path | str) -> dict[str, str]:
    """id → text, in order, from BEIR JSON lines, ``id<tab>text``, a BEIR folder, Parquet, or DPR's questions.

    In Parquet the columns are `id` and `text`, or those that `generate` writes: the id of a generated query
    is then its passage's id and its number, joined by a colon.
    """
    path = existing(source, "queries")
    if path.is_dir() and not _is_parquet(path):
        path = _one_of(path, "queries", ".jsonl")
    queries: dict[str, str] = {}
    for place, id, text in _query_rows(path):
        if id in queries:
            raise QontextError(f"the query id {id!r} occurs twice", place=place)
        queries[id] = _filled(text, place, "query text")
    if not queries:
        raise QontextError("holds no queries", place=path)
    return queries


def generated_id(passage: str, number: int) -> str:
    """The id of a passage's generated query."""
    return f"{passage}:{number}"


def read_qrels(source: Path | str) -> Qrels:
    """Judgements from BEIR's three columns with a header, or TREC's four (query, 0, passage, grade)."""
    path = existing(source, "judgements")
    if path.is_dir():
        raise QontextError(
            "is a folder, not a file of judgements", place=path, remedy="Name a qrels/SPLIT.tsv in it."
        )
    qrels: Qrels = {}
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t") if "\t" in line else line.split()
        if number == 1 and _is_header(fields, path):
            continue
        if not line.strip():
            continue
        query, passage, grade = _judgement(fields, f"{path}:{number}")
        if qrels.setdefault(query, {}).setdefault(passage, grade) != grade:
            raise QontextError(
                f"judges query {query!r} and passage {passage!r} again, with another grade",
                place=f"{path}:{number}",
            )
    if not qrels:
        raise QontextError("holds no judgements", place=path)
    return qrels


def check_qrels(qrels: Qrels, queries: Container[str], passages: Container[str], place: Path | str) -> None:
    """Refuse judgements that name unknown queries or passages, and say so if the columns are swapped."""
    for query, judged in qrels.items():
        if query not in queries:
            swapped = query in passages
            raise QontextError(
                f"names the query {query!r}, which is "
                + ("a passage: the columns are swapped" if swapped else "not among the queries"),
                place=place,
                remedy="The columns are query, passage, grade."
                if swapped
                else "Check that the files belong together.",
            )
        for passage in judged:
            if passage not in passages:
                raise QontextError(
                    f"names the passage {passage!r}, which is not among the passages",
                    place=place,
                    remedy="Check that the files belong together.",
                )


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or compressed, without line ends; damage is told in a sentence."""
    number = 0
    try:
        with _open_bytes(path) as raw:
            for number, line in enumerate(raw, start=1):
                yield line.decode("utf-8").rstrip("\r\n").removeprefix("\ufeff" if number == 1 else "")
    except UnicodeDecodeError as error:
        raise QontextError(f"is not UTF-8 text: {error.reason}", place=f"{path}:{number}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError) as error:
        raise QontextError(
            f"the compressed file is damaged or cut off after line {number}: {error}",
            place=path,
            remedy="Fetch or write it again.",
        ) from None


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each line of a JSON lines file; empty lines are skipped."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise QontextError(f"is not JSON: {error}", place=f"{path}:{number}") from None
        if not isinstance(row, dict):
            raise QontextError(
                f"holds {type(row).__name__} where an object is expected", place=f"{path}:{number}"
            )
        yield f"{path}:{number}", row


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """One object a line; compressed where the name ends with .gz."""
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(path.open("wb"))
        if path.suffix == ".gz":
            # Without a time stamp or a name inside, the same rows give the same bytes.
            file = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        file.writelines((json.dumps(row, ensure_ascii=False) + "\n").encode() for row in rows)


def passage_row(passage: Passage) -> dict[str, str]:
    """A passage as a line of BEIR's corpus.jsonl."""
    return {"_id": passage.id, "title": passage.title, "text": passage.text, "doc_id": passage.doc}


def _open_bytes(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    if path.suffix == ".zst":
        return io.BufferedReader(zstandard.open(path, "rb"))
    return path.open("rb")


def _query_rows(path: Path) -> Iterator[tuple[str, str, str]]:
    from qontext import dpr

    if _is_parquet(path):
        yield from _parquet_queries(path)
    elif dpr.is_questions(path):
        yield from ((place, id, text) for place, id, text, _ in dpr.questions(path))
    elif _ends_well(path, ".jsonl") or _ends_well(path, ".json"):
        for place, row in read_jsonl(path):
            yield place, _id(row, place), _text(row, "text", place)
    else:
        for place, (id, text) in _tab_separated(path, 2, "id<tab>text"):
            yield place, _filled(id.strip(), place, "id"), text.strip()


def _parquet_queries(path: Path) -> Iterator[tuple[str, str, str]]:
    import pyarrow.parquet as pq

    for part in records.parquet_parts(path):
        table = pq.read_table(part)
        if "query" in table.column_names:
            rows = ((generated_id(row["passage"], row["number"]), row["query"]) for row in table.to_pylist())
        elif {"id", "text"} <= set(table.column_names):
            rows = ((row["id"], row["text"]) for row in table.to_pylist())
        else:
            raise QontextError(
                f"has neither id and text nor passage, query and number: {', '.join(table.column_names)}",
                place=part,
            )
        yield from ((str(part), id, text) for id, text in rows)


def _tab_separated(path: Path, count: int, expected: str) -> Iterator[tuple[str, list[str]]]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != count:
            raise QontextError(f"has {len(fields)} columns, expected {expected}", place=f"{path}:{number}")
        yield f"{path}:{number}", fields


def _is_header(fields: list[str], path: Path) -> bool:
    names = [field.strip().lower().replace("_", "-") for field in fields]
    if names[0] in ("corpus-id", "doc-id", "docid", "passage-id", "pid"):
        raise QontextError(
            f"the columns are {', '.join(names)}, expected query-id, corpus-id, score", place=f"{path}:1"
        )
    return names[0] in ("query-id", "qid", "query")


def _judgement(fields: list[str], place: str) -> tuple[str, str, int]:
    if len(fields) not in (3, 4):
        raise QontextError(
            f"has {len(fields)} columns, expected query, passage, grade (or TREC's query, 0, passage, grade)",
            place=place,
        )
    query, passage, grade = fields[0].strip(), fields[-2].strip(), fields[-1].strip()
    try:
        return _filled(query, place, "query id"), _filled(passage, place, "passage id"), int(grade)
    except ValueError as error:
        if isinstance(error, QontextError):
            raise
        raise QontextError(
            f"the grade is {grade!r}, expected a whole number in the last column", place=place
        ) from None


def _is_parquet(path: Path) -> bool:
    if path.is_dir():
        if any(path.glob("corpus.jsonl*")):  # a labelled set, even if a stage made it
            return False
        return artifacts.is_artifact(path) or (path / artifacts.CLAIM).exists() or any(path.glob("*.parquet"))
    return path.suffix == ".parquet"


def _one_of(folder: Path, stem: str, suffix: str) -> Path:
    """The one file that is there: plain or compressed."""
    for ending in _ENDINGS:
        if (found := folder / f"{stem}{suffix}{ending}").is_file():
            return found
    raise QontextError(f"has no {stem}{suffix} (nor .gz, .zst)", place=folder)


def _ends_well(path: Path, suffix: str) -> bool:
    return any(path.name.endswith(suffix + ending) for ending in _ENDINGS)


def _id(row: Mapping[str, Any], place: str) -> str:
    id = row.get("_id", row.get("id"))
    if id is None or id == "" or isinstance(id, dict | list):
        raise QontextError("has no '_id'", place=place)
    return str(id)


def _text(row: Mapping[str, Any], name: str, place: str) -> str:
    value = row.get(name)
    if value is None and name == "title":
        return ""
    if not isinstance(value, str):
        what = f"has no {name!r}" if value is None else f"{name!r} is not text"
        raise QontextError(what, place=place)
    return value


def _filled(value: str, place: str, what: str) -> str:
    if not value.strip():
        raise QontextError(f"the {what} is empty", place=place)
    return value
