"""Every reader of text and labels, and what is wrong with its file: one sentence that names the place, and no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qontext.corpus.sources import FieldNames, Problem, open_source
from qontext.data import dpr, records
from qontext.data.collection import read_passages, read_qrels, read_queries
from qontext.data.labels import read_labels
from qontext.data.runs import read_run
from qontext.evaluation.answers import read_questions
from qontext.finetune.negatives.groups import read_candidates, read_groups
from qontext.frame.errors import QontextError
from qontext.retrieve.inputs import judgments

Reader = Callable[[Path], Any]
HALF = '"\\ud800"'
NO_ID = ("true", "1.5", "[1]")

READERS: dict[str, Reader] = {
    "passages": lambda path: list(read_passages(path)),
    "queries": read_queries,
    "qrels": read_qrels,
    "labels": lambda path: read_labels(str(path)),
    "questions": read_questions,
    "candidates": read_candidates,
    "groups": lambda path: list(read_groups(path)),
    "run": read_run,
    "judgments": lambda path: judgments(str(path), "test"),
}

# A good line for each reader of JSON lines, in which ID and TEXT are put.
LINES = {
    "passages": '{"_id": ID, "text": TEXT, "title": "t"}',
    "queries": '{"_id": ID, "text": TEXT}',
    "labels": '{"passage": ID, "query": TEXT}',
    "questions": '{"id": ID, "question": TEXT, "answers": ["a"]}',
}


def line(reader: str, id: str = '"1"', text: str = '"word"') -> str:
    return LINES[reader].replace("TEXT", text).replace("ID", id)


@pytest.mark.parametrize("reader", LINES)
@pytest.mark.parametrize("id", NO_ID)
def test_an_id_is_text_or_a_whole_number(tmp_path: Path, reader: str, id: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(f"{line(reader)}\n{line(reader, id=id)}\n")
    with pytest.raises(QontextError, match=r"file\.jsonl:2: the ('qid'|passage id|id) is "):
        READERS[reader](path)
    path.write_text(f"{line(reader)}\n{line(reader, id='12345678901234567890')}\n")
    assert "12345678901234567890" in repr(READERS[reader](path)) or reader == "candidates"


@pytest.mark.parametrize("reader", LINES)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda name: line(name, text=HALF), r"contains a lone surrogate \(U\+D800\)"),
        (lambda name: "[" * 200_000, "nested too deeply"),
        (lambda name: line(name)[:-3], "is not JSON"),
        (lambda name: "[1, 2]", "contains list, expected an object"),
        (lambda name: "{}", "."),
    ],
)
def test_bad_lines_of_json(tmp_path: Path, reader: str, bad: Callable[[str], str], message: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(f"{line(reader)}\n{bad(reader)}\n")
    with pytest.raises(QontextError, match=rf"file\.jsonl:2: .*{message}"):
        READERS[reader](path)


@pytest.mark.parametrize("depth", [1, 3, None])
def test_triples_are_the_first_different_negatives_of_each_query(tmp_path: Path, depth: int | None) -> None:
    """Queries are mixed, and pairs occur again."""
    drawn = np.random.default_rng(0).integers(0, 9, (200, 2)).tolist()
    (tmp_path / "triples.tsv").write_text("".join(f"q{q}\tpositive\tp{p}\n" for q, p in drawn))
    expected: dict[str, list[str]] = {}
    for query, passage in drawn:
        negatives = expected.setdefault(f"q{query}", [])
        if f"p{passage}" not in negatives:
            negatives.append(f"p{passage}")
    run = read_candidates(tmp_path / "triples.tsv", depth)
    assert {query: run.results(query)[0] for query in run} == {
        query: negatives[:depth] for query, negatives in expected.items()
    }


@pytest.mark.parametrize("grade", ["9" * 20, "1.0", ""])
def test_a_grade_is_a_whole_number_of_usual_size(tmp_path: Path, grade: str) -> None:
    (tmp_path / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\nq1\tp1\t{grade}\n", encoding="utf-8")
    with pytest.raises(QontextError, match=r"qrels\.tsv:2: the grade is ") as caught:
        read_qrels(tmp_path / "qrels.tsv")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "text", ["[MASK] is what", "[" * 100_000 + "]" * 100_000, "[]", "[1 or 2?]", '"quoted']
)
def test_queries_that_look_like_answers_stay_queries(tmp_path: Path, text: str) -> None:
    (tmp_path / "q.tsv").write_text(f"1\t{text}\n2\t{text}\n")
    assert read_queries(tmp_path / "q.tsv") == {"1": text, "2": text}


def test_answers_are_lists_as_python_and_json_write_them() -> None:
    strings = ["it's", 'a "b"', "c\\d", "naïve\u2028😀", "a/b, ]"]
    for written in (repr(strings), ascii(strings), json.dumps(strings)):
        assert dpr.read_list(written) == strings
    assert dpr.read_list("[1912, 'x']") == [1912, "x"] and dpr.read_list("[a]") is None


# Good columns for each reader of Parquet.
COLUMNS: dict[str, dict[str, list[Any]]] = {
    "passages": {"id": ["1", "2"], "title": ["", "t"], "text": ["a", "b"], "doc": ["1", "2"]},
    "queries": {"id": ["1", "2"], "text": ["a", "b"]},
    "judgments": {"passage": ["1", "1"], "query": ["a", "b"], "number": [0, 1]},
    "groups": {
        "query": ["1", "2"],
        "text": ["a", "b"],
        "positives": [["1"], ["2"]],
        "negatives": [["2"], []],
    },
}
IDS = {"passages": "id", "queries": "id", "judgments": "passage", "groups": "query"}


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("reader", COLUMNS)
def test_whole_numbers_and_long_strings_are_ids(tmp_path: Path, reader: str) -> None:
    name = IDS[reader]
    of_files = [
        READERS[reader](parquet(tmp_path / f"{kind}.parquet", {**COLUMNS[reader], name: pa.array(ids, kind)}))
        for kind, ids in (("string", ["1", "2"]), ("int64", [1, 2]), ("large_string", ["1", "2"]))
    ]
    assert of_files[0] == of_files[1] == of_files[2] and len(of_files[0]) == 2


@pytest.mark.parametrize("reader", COLUMNS)
def test_parquet_files_that_are_damaged(tmp_path: Path, reader: str) -> None:
    whole = parquet(tmp_path / "whole.parquet", COLUMNS[reader]).read_bytes()
    text = pa.array([b"\xff\xfe", b"a"], pa.binary()).view(pa.string())
    name = IDS[reader]
    bad = {
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "head": whole[:-4],
        "noise": bytes(range(256)) * 4,
        "inside": whole[:4] + bytes(len(whole) // 4) + whole[4 + len(whole) // 4 :],
        "names": whole.replace(name.encode(), b"\xff" * len(name)),
        "bytes": parquet(tmp_path / "x.parquet", {**COLUMNS[reader], name: text}).read_bytes(),
    }
    for what, content in bad.items():
        (tmp_path / f"{what}.parquet").write_bytes(content)
        with pytest.raises(QontextError, match=rf"{what}\.parquet: "):
            READERS[reader](tmp_path / f"{what}.parquet")


def test_a_table_with_all_its_columns_has_the_types_of_the_schema(tmp_path: Path) -> None:
    columns = {"passage": [1, 2], "query": ["a", "b"], "number": [0, 1], "score": [0.5, 1.0]}
    table = records.read_whole(parquet(tmp_path / "q.parquet", columns), records.QUERIES)
    assert [str(kind) for kind in table.schema.types] == ["string", "string", "int32", "double"]
    assert table.to_pydict() == {**columns, "passage": ["1", "2"]}
    none = {name: pa.array([], pa.large_string() if name == "query" else pa.int64()) for name in columns}
    empty = records.read_whole(parquet(tmp_path / "none.parquet", none), records.QUERIES)
    assert len(empty) == 0 and empty.schema.field("number").type == pa.int32()


def test_documents_of_tables_have_the_ids_that_judgments_name(tmp_path: Path) -> None:
    (tmp_path / "d.tsv").write_text("my␠id\ttext\n", encoding="utf-8")
    (document,) = open_source(str(tmp_path / "d.tsv"), fields=FieldNames()).documents()
    assert not isinstance(document, Problem) and document.id == "my id"
    assert [passage.id for passage in read_passages(tmp_path / "d.tsv")] == ["my id"]
