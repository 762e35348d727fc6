"""Configurations: documented, checked at construction, the same for flags, recipes and Python."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from qontext.frame import config
from qontext.frame.config import LARGEST, Input, Machine, Seed, StageConfig
from qontext.frame.errors import QontextError, choose


class Sample(StageConfig):
    source: Annotated[str, Input(positional=True)]
    """What is read."""

    size: int = Field(8, ge=1)
    """How much."""

    mode: Literal["a", "b"] = "a"
    """Which way."""

    more: Annotated[tuple[str, ...], Input()] = ()
    """What else is read."""

    note: str | None = None
    """Something to remember."""

    workers: Annotated[int, Machine()] = 0
    """Processes."""

    depth: Annotated[int, Field(ge=1)] | None = None
    """How far."""

    scale: float = 1.0
    """How large."""

    seed: Seed = 42
    """What is drawn."""

    out: str = "out"
    """Where to write."""


DEFAULTS = {"depth": None, "scale": 1.0, "seed": 42}


def test_text_under_a_field_is_its_documentation() -> None:
    assert Sample.model_fields["size"].description == "How much."


def test_what_does_not_fit_is_one_sentence_with_field_and_value() -> None:
    with pytest.raises(QontextError) as error:
        Sample.make({"source": "x", "size": 0, "mode": "c"}, where="sample (step 'one')")
    assert str(error.value) == (
        "sample (step 'one'): size = 0: input should be greater than or equal to 1; "
        "sample (step 'one'): mode = 'c': input should be 'a' or 'b'. See: qontext sample --help"
    )


def test_identity_is_what_determines_the_result() -> None:
    """Inputs count by their content, machine settings not at all."""
    one = Sample(source="x", workers=1, more=("p",))
    other = Sample(source="y", workers=4)
    assert one.identity() == other.identity() == {**DEFAULTS, "size": 8, "mode": "a", "note": None}
    assert Sample(source="x", size=9).identity() != one.identity()


@pytest.mark.parametrize("field", ["size", "depth", "scale", "workers"])
def test_numbers_are_bounded_even_where_no_bound_is_written(field: str) -> None:
    Sample.make({"source": "x", field: LARGEST}, where="sample")
    for value in (LARGEST + 1, 10**20, "9" * 5_000):
        with pytest.raises(QontextError, match=f"sample: {field} = "):
            Sample.make({"source": "x", field: value}, where="sample")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\0b", "contains a NUL character"),
        ("caf\udce9", "contains bytes that are not UTF-8"),
        ("~no-such-user/x", "the home directory of ~no-such-user is unknown"),
        (" ", "is an empty name"),
    ],
)
def test_text_that_can_be_no_path(text: str, message: str) -> None:
    for values in ({"source": text}, {"source": "x", "more": ("y", text)}, {"source": "x", "out": text}):
        with pytest.raises(QontextError, match=message):
            Sample.make(values, where="sample")
    if "~" in text or text == " ":  # which other settings may be
        assert Sample.make({"source": "x", "note": text}, where="sample").note == text
    else:
        with pytest.raises(QontextError, match=message):
            Sample.make({"source": "x", "note": text}, where="sample")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("split.max_tokens=128", ("split.max_tokens", 128)),
        ("pretrain.lr=3e-4", ("pretrain.lr", 3e-4)),
        ("split.keep=true", ("split.keep", True)),
        ("split.source=docs.jsonl", ("split.source", "docs.jsonl")),
        ("inputs.corpus=pydocs:", ("inputs.corpus", "pydocs:")),
        ('mine.runs=["a", "b"]', ("mine.runs", ["a", "b"])),
        ("a.b=c=d", ("a.b", "c=d")),
        pytest.param("a.b=" + "9" * 5_000, ("a.b", "9" * 5_000), id="more digits than an integer may have"),
        pytest.param("a.b=" + "[" * 5_000, ("a.b", "[" * 5_000), id="nested too deeply"),
    ],
)
def test_assignments(text: str, parsed: tuple[str, Any]) -> None:
    assert config.parse_assignment(text) == parsed


def test_choose_guesses_or_lists() -> None:
    assert choose("a", ["a", "b"], "letter") == "a"
    with pytest.raises(QontextError, match=r"unknown letter 'z'. Choose from: a, b.$"):
        choose("z", ["a", "b"], "letter")
    many = [f"recipe-{n}" for n in range(40)]
    with pytest.raises(
        QontextError, match=r"unknown recipe 'recipe-7x'\. Did you mean 'recipe-7' or [^:]*\?$"
    ):
        choose("recipe-7x", many, "recipe")
    with pytest.raises(QontextError, match="Choose from: recipe-0, recipe-1"):
        choose("zzz", many, "recipe")
