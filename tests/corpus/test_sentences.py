"""Sentences: nothing is lost, whatever the text; and the starts are where a reader expects them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qontext.corpus.sentences import PIECE, SPLITTERS, pieces, shortened, token_count

# Text as documents have it: words, marks that end sentences or do not, white space of every kind.
WORDS = [
    "Mr",
    "e.g",
    "The",
    "cat",
    "3.14",
    "U.S.A",
    "café",
    "日本語",
    "。",
    ".",
    "!",
    "?",
    "…",
    '"',
    ")",
    "–",
]
SPACES = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u2028", "\x1c", "\x85", ""]
texts = st.lists(st.sampled_from(WORDS + SPACES)).map("".join) | st.text(max_size=200)


@pytest.mark.parametrize("splitter", ["sentencex", "newline"])
@given(text=texts)
@example(text="")
@example(text="   ")
@example(text="\n\nOne.\n\n\nTwo. ")
@example(text="One. One. One.")
@example(text="the U.S.A\u00a0.")
def test_sentences_are_the_text_and_none_is_white_space(splitter: str, text: str) -> None:
    starts = SPLITTERS[splitter](text, "en")
    assert starts[0] == 0 and starts == sorted(set(starts)) and starts[-1] <= len(text)
    parts = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)])]
    assert "".join(parts) == text
    assert "".join(pieces(text, starts)) == text
    if text.strip():
        assert all(part.strip() for part in parts)
        assert all(not part[:1].isspace() for part in parts[1:])


@given(text=texts)
def test_pieces_hold_the_white_space_before_a_sentence(text: str) -> None:
    starts = SPLITTERS["sentencex"](text, "en")
    parts = pieces(text, starts)
    assert len(parts) == len(starts)
    assert [p.strip() for p in parts] == [text[a:b].strip() for a, b in zip(starts, [*starts[1:], len(text)])]
    assert all(piece == piece.rstrip() for piece in parts[:-1])


def split(text: str, by: str = "sentencex") -> list[str]:
    return [piece.strip() for piece in pieces(text, SPLITTERS[by](text, "en"))]


def test_abbreviations_end_no_sentence() -> None:
    text = "Dr. Smith went to Washington, D.C. in Jan. 2020. He stayed 3.5 days."
    assert split(text) == [
        "Dr. Smith went to Washington, D.C. in Jan. 2020.",
        "He stayed 3.5 days.",
    ]


def test_a_paragraph_ends_a_sentence() -> None:
    assert split("A heading\n\nA sentence. Another") == ["A heading", "A sentence.", "Another"]


def test_repeated_sentences_are_told_apart() -> None:
    assert SPLITTERS["sentencex"]("No. No. No.", "en") == [0, 4, 8]


def test_lines() -> None:
    assert split("one\n\n  two\nthree\n", "newline") == ["one", "two", "three"]


@pytest.mark.parametrize("text", ["a" * 20_000, "漢字" * 2_000, "Such as " + "a" * 9_000 + " and more."])
@pytest.mark.parametrize("most", [1, 2, 142])
def test_long_runs_of_letters_are_cut_within_the_limit(text: str, most: int) -> None:
    starts = shortened(text, [0], most)
    parts = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)])]
    assert all(sum(map(token_count, PIECE.findall(part))) <= most for part in parts)
    assert len(parts) <= len(text) / most + 4 and "".join(parts) == text
