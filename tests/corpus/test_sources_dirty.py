"""What cannot be used: each kind is a Problem in its place, and the records around it are not lost."""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qontext.corpus.sources import FieldNames, Problem, open_source
from qontext.frame.errors import QontextError

GOOD = b'{"_id": "ok", "text": "fine"}'


def problems(path: Path) -> list[tuple[str, str, str]]:
    """(place without the folder, kind, message) of what is wrong."""
    items = open_source(str(path), fields=FieldNames()).documents()
    return [
        (item.place.removeprefix(f"{path.parent}/"), item.kind, item.message)
        for item in items
        if isinstance(item, Problem)
    ]


def ids(path: Path) -> list[str]:
    items = open_source(str(path), fields=FieldNames()).documents()
    return [item.id for item in items if not isinstance(item, Problem)]


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (b'{"_id": "1", "text": "cut', "broken JSON", "Unterminated string"),
        (b"[" * 100_000, "broken JSON", "recursion"),
        (b'["_id", "1"]', "broken JSON", "found list"),
        (b'{"text": "a"}', "missing field", "has no id \\(looked for _id, id, docid, doc_id; it has text\\)"),
        (b'{"_id": "1", "text": null}', "missing field", "has no text"),
        (b'{"_id": "", "text": "a"}', "missing field", "has no id"),
        (b'{"_id": 1.5, "text": "a"}', "wrong type", "not text, but float"),
        (b'{"_id": true, "text": "a"}', "wrong type", "bool"),
        (b'{"_id": "1", "text": ["a"]}', "wrong type", "list"),
        (b'{"_id": "1", "title": 3, "text": "a"}', "wrong type", "int"),
        (b'{"_id": "1", "doc_id": 2.5, "text": "a"}', "wrong type", "float"),
        (b'{"_id": "1", "paragraphs": "a"}', "wrong type", "NoneType"),
        (b'{"_id": "1", "paragraphs": ["a", 1]}', "wrong type", "int"),
        (b'{"_id": "1", "text": "caf\xe9"}', "wrong encoding", "is not utf-8 text"),
        (b'{"_id": "1", "text": "\\ud83d"}', "wrong encoding", "lone surrogate"),
        (b'{"_id": "1", "text": "a\\u0000b"}', "NUL bytes", "NUL"),
    ],
)
def test_json_lines(tmp_path: Path, line: bytes, kind: str, message: str) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(GOOD + b"\n\n" + line + b"\n" + GOOD + b"\n")
    ((place, actual, text),) = problems(path)
    assert (place, actual) == ("docs.jsonl:3", kind)
    assert re.search(message, text), text
    assert ids(path) == ["ok", "ok"]


def test_a_problem_does_not_break_a_document_apart(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    records = [
        {"_id": "a", "text": "x", "doc_id": "d"},
        {"_id": "b", "doc_id": "d"},
        {"_id": "c", "text": "z", "doc_id": "d"},
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    problem, document = open_source(str(path), fields=FieldNames()).documents()
    assert isinstance(problem, Problem) and problem.place == f"{path}:2"
    assert not isinstance(document, Problem) and document.passages == (("a", "x"), ("c", "z"))


@pytest.mark.parametrize(
    ("content", "place", "kind"),
    [
        (b"1\ta\nno tab\n2\tb\n", "x.tsv:2", "wrong columns"),
        (b"1\ta\n2\tb\tc\n3\td", "x.tsv:2", "wrong columns"),
        (b"D1\tu\tt\tb\nD2\tu\tt\nD3\tu\tt\tb", "x.tsv:2", "wrong columns"),
        (b'id\ttext\ttitle\n1\ta\tA\n2\t"open\tB\n3\tc\tC\n', "x.tsv:3", "wrong columns"),
        (b"1\ta\n\tb\n2\tc", "x.tsv:2", "missing field"),
        (b"1\ta\n7\tb\x00\n2\tc", "x.tsv:2", "NUL bytes"),
        (b"1\ta\n7\t\xff\n2\tc", "x.tsv:2", "wrong encoding"),
    ],
)
def test_tsv(tmp_path: Path, content: bytes, place: str, kind: str) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes(content)
    assert [problem[:2] for problem in problems(path)] == [(place, kind)]
    assert len(ids(path)) == 2


@pytest.mark.parametrize("copies", [1, 10])
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, copies: int) -> None:
    path = tmp_path / "docs.jsonl.gz"
    record = json.dumps({"_id": "x", "text": "word " * 100}).encode() + b"\n"
    path.write_bytes(gzip.compress(record * 3000 * copies, 1))
    source = open_source(str(path), fields=FieldNames())
    tracemalloc.start()
    assert sum(1 for _ in source.documents()) == 3000 * copies
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_500_000  # the corpus is 1.5 MB, then 15 MB


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": ["1", "3", "4", None], "text": ["fine", None, "n\0l", "fine"]}), path)
    assert [problem[:2] for problem in problems(path)] == [
        ("a.parquet: row 2", "missing field"),
        ("a.parquet: row 3", "NUL bytes"),
        ("a.parquet: row 4", "missing field"),
    ]
    assert ids(path) == ["1"]


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    pq.write_table(pa.table({"id": ["1"], "text": ["x"]}), folder / "a.parquet")
    content = (folder / "a.parquet").read_bytes()
    (folder / "b.parquet").write_bytes(content[:-20])
    (folder / "c.parquet").write_bytes(content)
    assert [problem[:2] for problem in problems(folder)] == [("parts/b.parquet: row 1", "damaged file")]
    assert ids(folder) == ["1", "1"]
    with pytest.raises(QontextError, match="not a readable Parquet file"):
        open_source(str(folder / "b.parquet"), fields=FieldNames())
