"""Numbered strings: in the order of Python's strings, whatever they are made of and however long."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qontext.data.numbering import ascending, by_occurrence, first_with_space

letters = st.characters(exclude_categories=("Cs",))


@pytest.mark.parametrize("alphabet", ["ab1", "a\0", letters])
@pytest.mark.parametrize("longest", [8, 20, 70])
def test_ascending_is_the_order_of_strings(alphabet, longest: int) -> None:  # type: ignore[no-untyped-def]
    @given(st.lists(st.text(alphabet, max_size=longest), min_size=1))
    def holds(names: list[str]) -> None:
        codes, ids = ascending(names)
        assert ids.to_pylist() == sorted(set(names))
        assert [ids[code].as_py() for code in codes.tolist()] == names

    holds()


def test_a_column_in_pieces() -> None:
    column = pa.chunked_array([["b", "a"], ["a" * 9, "b"]]).slice(1)
    codes, ids = ascending(column)
    assert (codes.tolist(), ids.to_pylist()) == ([0, 1, 2], ["a", "a" * 9, "b"])
    assert ascending([])[1].to_pylist() == []


def test_by_occurrence() -> None:
    codes, names = by_occurrence(pa.chunked_array([["b", "a"], ["c", "a"]]))
    assert (codes.tolist(), names) == ([0, 1, 2, 1], ["b", "a", "c"])


@given(st.lists(st.text(st.one_of(st.sampled_from("ab \t\x1c\u00a0\u2028é"), letters))))
def test_spaces_are_those_at_which_python_splits(names: list[str]) -> None:
    first = next((name for name in names if name.split() != [name]), None)
    assert first_with_space(pa.array(names, pa.string())) == first
