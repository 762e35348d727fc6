from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from qontext.data.collection import (
    Passage,
    check_qrels,
    load_collection,
    read_passages,
    read_qrels,
    read_queries,
)
from qontext.frame.errors import QontextError

CORPUS = '{"_id": "p1", "title": "T", "text": "one", "doc_id": "d"}\n\n{"_id": 2, "text": "two"}\n'
QUERIES = '{"_id": "q1", "text": "first"}\n{"_id": "q2", "text": "second"}\n'
QRELS = "query-id\tcorpus-id\tscore\nq2\tp1\t2\nq2\t2\t0\n"


def plain(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def zipped(path: Path, text: str) -> None:
    Path(f"{path}.gz").write_bytes(gzip.compress(text.encode()))


def squeezed(path: Path, text: str) -> None:
    Path(f"{path}.zst").write_bytes(zstandard.compress(text.encode()))


@pytest.mark.parametrize(
    ("line", "title", "text"),
    [
        ("D1\tA text", "", "A text"),
        ("D1\tA title\tA text", "A title", "A text"),
        ("D1\t\tA text", "", "A text"),
        ("D1\thttps://x.org\tA title\tA text", "A title", "A text"),
    ],
)
def test_passages_and_documents_in_tsv_files_without_a_header(
    tmp_path: Path, line: str, title: str, text: str
) -> None:
    """MS MARCO's passages, RocketQA's with titles, and MS MARCO's documents."""
    path = tmp_path / "corpus.tsv"
    path.write_text(f"{line}\n")
    assert list(read_passages(path)) == [Passage("D1", title, text, "D1")]
    path.write_text(f"{line}\n{line}\tmore\n")
    with pytest.raises(QontextError, match=r":2: has . columns, expected id<tab>.*text$"):
        list(read_passages(path))


@pytest.mark.parametrize("write", [plain, zipped, squeezed])
def test_a_folder_reads_the_same_however_it_is_compressed(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    (tmp_path / "qrels").mkdir()
    write(tmp_path / "corpus.jsonl", CORPUS)
    write(tmp_path / "queries.jsonl", QUERIES)
    write(tmp_path / "qrels" / "dev.tsv", QRELS)
    collection = load_collection(tmp_path)
    assert collection.splits == ["dev"]
    assert list(collection.passages()) == [("p1", "T", "one", "d"), ("2", "", "two", "2")]
    assert [p.content for p in collection.passages()] == ["T one", "two"]
    assert collection.queries() == {"q1": "first", "q2": "second"}
    assert collection.queries("dev") == {"q2": "second"}
    assert collection.qrels("dev") == {"q2": {"p1": 2, "2": 0}}


def test_the_counts_of_a_real_set(shared_data: Callable[[str], Path]) -> None:
    collection = load_collection(shared_data("fairytaleqa"))
    assert sum(1 for _ in collection.passages()) == 4_094
    assert {split: len(collection.queries(split)) for split in collection.splits} == {
        "train": 8_548,
        "dev": 1_025,
        "test": 1_007,
    }


def test_qrels_of_trec_and_of_beir_are_told_apart(tmp_path: Path) -> None:
    trec, bare = tmp_path / "a.txt", tmp_path / "b.tsv"
    trec.write_text("q1 0 p1 2\nq1 Q0 p2 -1\n")
    bare.write_text("q1\tp1\t2\n")
    assert read_qrels(trec) == {"q1": {"p1": 2, "p2": -1}}
    assert read_qrels(bare) == {"q1": {"p1": 2}}
    bare.write_text("\n\nq1\tp1\t2\n\n")
    assert read_qrels(bare) == {"q1": {"p1": 2}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 0 p1 1\nq1 p1\n", r":2: has 2 columns"),
        ("q1\tp1\thigh\n", r":1: the grade is 'high'"),
        ("1\tp1\tq1\n", r":1: the grade is 'q1'"),
        ("corpus-id\tquery-id\tscore\np\tq\t1\n", r":1: the columns are corpus-id, query-id"),
        ("q1\tp1\t1\nq1\tp1\t2\n", r":2: judges .* twice, with different grades"),
        ("query-id\tcorpus-id\tscore\n", "contains no judgments"),
    ],
)
def test_bad_qrels_are_told_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "qrels.tsv").write_text(text)
    with pytest.raises(QontextError, match=message):
        read_qrels(tmp_path / "qrels.tsv")


def test_swapped_columns_and_unknown_ids_are_told_apart() -> None:
    with pytest.raises(QontextError, match="which is a passage: the columns are swapped"):
        check_qrels({"p1": {"q1": 1}}, {"q1"}, {"p1"}, "x.tsv")
    with pytest.raises(QontextError, match=r"x\.tsv: names the passage 'p9', which is not in"):
        check_qrels({"q1": {"p9": 1}}, {"q1"}, {"p1"}, "x.tsv")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "q.jsonl",
            '{"_id": "1", "text": "a"}\n{"_id": "1", "text": "b"}\n',
            ":2: the query id '1' occurs twice",
        ),
        ("q.jsonl", '{"_id": "1"}\n', ":1: has no 'text'"),
        ("q.jsonl", '{"text": "a"}\n', ":1: has no '_id'"),
        ("q.jsonl", "not json\n", ":1: is not JSON"),
        ("q.tsv", "1 no tab\n", ":1: has 1 columns, expected id<tab>text"),
        ("q.tsv", "1\t \n", ":1: the query text is empty"),
        ("q.tsv", "", "contains no queries"),
    ],
)
def test_bad_queries_are_told_with_their_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(QontextError, match=message):
        read_queries(tmp_path / name)


def test_a_truncated_gzip_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(CORPUS.encode() * 99)[:-20])
    with pytest.raises(QontextError, match="cannot be read from here on"):
        list(read_passages(tmp_path / "corpus.jsonl.gz"))
