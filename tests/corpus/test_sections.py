"""Sections: passages keep to theirs, know their headings and their place in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.corpus import make

from qontext import api
from qontext.corpus.sections import outline
from qontext.corpus.sentences import by_rules, pieces, shortened
from qontext.data.records import Block

LONG = "Here is a sentence of nine words, more or less. "


def rows(source: Path, out: Path, **settings: Any) -> list[dict[str, Any]]:
    artifact = api.split(source, out=out, **settings)
    return [row for part in artifact.parts() for row in pq.read_table(part).to_pylist()]


def test_a_passage_keeps_to_its_section(tmp_path: Path) -> None:
    text = f"# Guide\n\n{LONG * 4}\n\n## Install\n\n{LONG * 7}\n\n### Linux\n\n{LONG * 4}\n"
    (tmp_path / "guide.md").write_text(text)
    passages = rows(tmp_path / "guide.md", tmp_path / "out", max_tokens=60)
    assert [(row["headings"], row["title"]) for row in passages] == [
        ([], "Guide"),
        (["Install"], "Guide › Install"),
        (["Install"], "Guide › Install"),
        (["Install", "Linux"], "Guide › Install › Linux"),
    ]
    assert not any(name in row["text"] for row in passages for name in ("Install", "Linux"))
    assert [(row["file"], row["line"]) for row in passages] == [("guide.md", n) for n in (3, 7, 7, 11)]


def test_short_sections_are_joined_with_what_follows_and_their_headings(tmp_path: Path) -> None:
    text = "# Terms\n\n## A\n\nIs a.\n\n## B\n\nIs b.\n\n## C\n\n" + LONG * 6
    (tmp_path / "terms.md").write_text(text)
    passages = rows(tmp_path / "terms.md", tmp_path / "out", max_tokens=80)
    assert [(row["headings"], row["text"][:24]) for row in passages] == [
        ([], "A\nIs a.\n\nB\nIs b."),
        (["C"], LONG[:24]),
    ]
    assert (passages[0]["line"], passages[0]["last_line"]) == (5, 9)


def test_a_passage_of_a_pdf_knows_its_page_and_flows_over_its_end(tmp_path: Path) -> None:
    pages = [["A sentence that begins on one", "page and"], ["ends on the next page.", LONG], [LONG]]
    passages = rows(make.pdf(tmp_path / "r.pdf", pages), tmp_path / "out", max_tokens=20)
    assert [(row["page"], row["text"].split()[0]) for row in passages] == [(1, "A"), (2, "Here"), (3, "Here")]
    assert "page and\nends on" in passages[0]["text"] and passages[0]["line"] is None


@pytest.mark.parametrize("ending", [".txt", ".py", ".md"])
def test_the_lines_of_a_passage_are_those_of_the_file(tmp_path: Path, ending: str) -> None:
    text = "\n".join(f"line {n} is a line.{'' if n % 7 else chr(10)}" for n in range(1, 200))
    (tmp_path / f"t{ending}").write_text(text)
    for row in rows(tmp_path / f"t{ending}", tmp_path / "out", max_tokens=40):
        lines = text.split("\n")[row["line"] - 1 : row["last_line"]]
        assert "\n".join(lines).split() == row["text"].split()


def test_records_know_their_file_line_and_other_fields(tmp_path: Path) -> None:
    records = [
        {
            "_id": "p1",
            "doc_id": "d",
            "text": "One.",
            "lang": "de",
            "year": 2001,
            "n": [1, "b"],
            "x": {"y": 1},
        },
        {"_id": "p2", "doc_id": "d", "text": "Two.", "lang": "de", "year": 2002, "metadata": {"inner": True}},
        {"_id": "e", "text": "Three.", "url": "https://x.org/e"},
    ]
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    passages = rows(path, tmp_path / "split")
    assert [(r["file"], r["line"], json.loads(r["metadata"])) for r in passages] == [
        ("docs.jsonl", 1, {"lang": "de"}),
        ("https://x.org/e", 3, {"url": "https://x.org/e"}),
    ]
    kept = [json.loads(row["metadata"]) for row in rows(path, tmp_path / "kept", keep=True)]
    assert kept[:2] == [
        {"lang": "de", "n": [1, "b"], "year": 2001},
        {"inner": True, "lang": "de", "year": 2002},
    ]


def test_passages_of_code_begin_at_definitions_and_empty_lines(tmp_path: Path) -> None:
    parameters = "".join(f"    parameter_{n}: int = {n},\n" for n in range(8))
    body = "".join(f"    value = compute(parameter_{n})\n" for n in range(8))
    function = (
        f"def call(\n{parameters}) -> None:\n{body}\n    if value:\n        retry(value)\n    return value\n"
    )
    (tmp_path / "client.js").write_text("\n".join([function] * 3))
    passages = rows(tmp_path / "client.js", tmp_path / "out", max_tokens=100)
    begins = {row["text"].split("\n")[0] for row in passages}
    assert begins <= {"def call(", "value = compute(parameter_0)", "if value:"} | {
        f"value = compute(parameter_{n})" for n in range(8)
    }, begins
    assert len(passages) > 3 and all(row["tokens"] <= 100 for row in passages)


BLOCKS = st.lists(
    st.builds(
        Block,
        st.lists(
            st.sampled_from(["One two.", "Three four five?", "\n", "Six;", "seven", "x" * 30]), min_size=1
        )
        .map(" ".join)
        .filter(str.strip),
        st.sampled_from([(), ("A",), ("A", "B"), ("C",)]),
        tight=st.booleans(),
        code=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@given(BLOCKS, st.integers(5, 60))
def test_no_text_of_any_block_is_lost_or_told_twice(blocks: list[Block], limit: int) -> None:
    result = outline(tuple(blocks), by_rules, "en", limit)
    sentences = pieces(result.text, result.starts)
    tokens = [len(sentence.split()) for sentence in sentences]
    texts, last = [], 0
    for span, path in result.spans(tokens, limit, 0.0, "key"):
        assert span.first >= last
        last = span.last
        begin = result.starts[span.first]
        end = result.starts[span.last] if span.last < len(result.starts) else len(result.text)
        texts.append(result.text[begin:end])
        inside = [block for at, block in result.blocks if begin <= at < end]
        assert all(block.headings[: len(path)] == path for block in inside)
    # Nothing but white space and headings stands between and before the texts.
    expected = "".join("".join(block.text.split()) for block in blocks)
    assert "".join("".join(texts).split()).translate(dict.fromkeys(map(ord, "ABC"))) == expected


@given(st.text(alphabet="ab .\n,", max_size=200), st.integers(1, 12))
def test_long_sentences_are_cut_at_lines_then_marks_then_spaces(text: str, most: int) -> None:
    starts = shortened(text, [0], most)
    assert starts[0] == 0 and starts == sorted({*starts}) and starts[-1] <= max(0, len(text) - 1)
    assert shortened("a b\nc d, e f", [0], 5) == [0, 4]
    assert shortened("a b, c d", [0], 4) == [0, 5]
    assert shortened("abc def ghi", [0], 2) == [0, 8]


def test_a_heading_above_joined_sections_is_in_their_title_or_text() -> None:
    paths = {("A", "B", "C"): LONG * 12, ("A", "B", "D"): "Is d.", ("A", "E"): "Is e."}
    result = outline(tuple(Block(text, path) for path, text in paths.items()), by_rules, "en", 100)
    tokens = [len(sentence.split()) for sentence in pieces(result.text, result.starts)]
    passages = [(path, result.starts[span.first]) for span, path in result.spans(tokens, 100, 0.0, "key")]
    ends = [begin for _, begin in passages[1:]] + [len(result.text)]
    for path, text in paths.items():
        at = result.text.index(text)
        above, begin = next(passage for passage, end in zip(passages, ends) if passage[1] <= at < end)
        assert {*path} <= {*above, *result.text[begin:at].split()}, (path, above)
