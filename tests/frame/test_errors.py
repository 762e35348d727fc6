"""Errors: bounded in length, with the beginning and the end of what they quote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qontext.frame.errors import QontextError, choose, shorten


@given(st.text(max_size=300), st.integers(40, 200))
def test_a_shortened_text_has_its_beginning_its_end_and_its_length(text: str, limit: int) -> None:
    short = shorten(text, limit)
    assert len(short) <= limit
    if len(text) <= limit:
        assert short == text
    else:
        assert (
            short.startswith(text[:5]) and short.endswith(text[-2:]) and f"({len(text)} characters)" in short
        )


@pytest.mark.parametrize("length", [10, 900, 901, 5_000, 1_000_000])
def test_every_error_is_bounded(length: int) -> None:
    long = "x" * length
    error = QontextError(
        f"unknown thing {long!r} of y", place=f"/{long}/docs.jsonl:17", remedy=f"Write {long}."
    )
    assert len(str(error)) < 2000 and str(error).endswith(".")
    assert "unknown thing 'x" in str(error) and "x' of y" in str(error) and "docs.jsonl:17" in str(error)
    assert error.message in str(error) and str(error.place) in str(error)
    with pytest.raises(QontextError) as chosen:
        choose(long, [f"{long}{n}" for n in range(9)], "verb")
    assert len(str(chosen.value)) < 2000
