"""Any id is written where white space separates columns, and read back as it was."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qontext.data.collection import read_qrels, read_queries, write_qrels
from qontext.data.ids import escape, escape_all, id_of, unescape, unescape_all
from qontext.frame.errors import QontextError

ids = st.text(
    st.one_of(
        st.sampled_from(" \t\r\n\x1b\x00\x7f\x85\u00a0\u2028\ufeff␀␉␛␠␡;a0#\"'\\%é"),
        st.characters(exclude_categories=("Cs",)),
    ),
    min_size=1,
)


def test_every_character_is_visible_and_comes_back() -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    written = [escape(character) for character in characters]
    assert all(text.isprintable() for text in written[:0xAD])
    assert all(text.split() == [text] and "\ufeff" not in text for text in written)
    assert [unescape(text) for text in written] == characters
    assert len(set(written)) == len(written)


@given(st.lists(ids, min_size=1))
def test_ids_come_back_one_by_one_and_all_at_once(names: list[str]) -> None:
    written = [escape(name) for name in names]
    assert all(text.split() == [text] for text in written)
    assert [unescape(text) for text in written] == names
    for kind in (pa.string(), pa.large_string()):
        assert escape_all(pa.array(names, kind)).to_pylist() == written
        assert unescape_all(pa.array(written, kind)).to_pylist() == names


@pytest.mark.parametrize(
    ("id", "written"),
    [
        ("My file 1.md#0", "My␠file␠1.md#0"),
        ("a\tb\n", "a␉b␊"),
        ("\u00a0", "␛a0;"),
        ("\x1b[0m", "␛1b;[0m"),
        ("␠", "␛2420;"),
        ("a%20b", "a%20b"),
        ("C:\\x", "C:\\x"),
        ("naïve#1", "naïve#1"),
    ],
)
def test_the_form_that_the_documentation_shows(id: str, written: str) -> None:
    assert (escape(id), unescape(written)) == (written, id)


@pytest.mark.parametrize("text", ["␛", "␛zz;", "␛41;", "␛20;", "␛110000;", "␛d800;", "␛a0", "␛A0;"])
def test_text_that_is_no_escape_is_read_verbatim(text: str) -> None:
    assert unescape(text) == text


@pytest.mark.parametrize(
    "value", [True, False, 1.5, float("nan"), float("inf"), None, "", [], ["a"], {}, b"a"], ids=repr
)
def test_values_that_are_no_ids_are_refused_with_their_place(value: object) -> None:
    with pytest.raises(QontextError, match=r"^q\.jsonl:7: the id is "):
        id_of(value, "q.jsonl:7")
    assert id_of(7, "q.jsonl:7") == id_of("7", "q.jsonl:7") == "7"


@given(st.lists(ids, min_size=2, unique=True))
def test_judgments_of_any_ids(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    path = tmp_path_factory.mktemp("qrels") / "test.tsv"
    query, *passages = names
    write_qrels(path, ((query, passage, grade) for grade, passage in enumerate(passages)))
    assert read_qrels(path) == {query: {passage: grade for grade, passage in enumerate(passages)}}
    # TREC's four columns, too, which any white space separates.
    lines = path.read_text(encoding="utf-8").split("\n")[1:-1]
    fields = [line.split("\t") for line in lines]
    path.write_text("".join(f"{q} 0  {p} {grade}\n" for q, p, grade in fields), encoding="utf-8")
    assert read_qrels(path) == {query: {passage: grade for grade, passage in enumerate(passages)}}


def test_ids_with_spaces_of_other_programs_are_taken_between_tabs(tmp_path: Path) -> None:
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nmy query\tMy file 1.md#0\t1\n")
    assert read_qrels(tmp_path / "qrels.tsv") == {"my query": {"My file 1.md#0": 1}}
    (tmp_path / "q.tsv").write_text("my query\twhat\nyour␠query\twho\n", encoding="utf-8")
    assert read_queries(tmp_path / "q.tsv") == {"my query": "what", "your query": "who"}


def test_a_query_may_be_called_query(tmp_path: Path) -> None:
    (tmp_path / "qrels.tsv").write_text("query\tp1\t1\nq2\tp2\t1\n")
    assert read_qrels(tmp_path / "qrels.tsv") == {"query": {"p1": 1}, "q2": {"p2": 1}}


def test_json_holds_ids_verbatim(tmp_path: Path) -> None:
    rows = [{"_id": "a␠b", "text": "x"}, {"_id": " \u00a0", "text": "y"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(read_queries(tmp_path / "q.jsonl")) == ["a␠b", " \u00a0"]
