"""Recipes that extend others: which settings, steps and inputs they have, in which order; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qontext import api
from qontext.frame.errors import QontextError
from qontext.workflow.recipe import describe_recipe, read_recipe

BASE = """
[recipe]
title = "base"
cost = "an hour"

[inputs]
source = ""
start = "@split"

[split]
source = "$source"
max_tokens = 40
seed = 7

[tokens]
texts = "$start"
tokenizer = "here"

[small]
split.max_tokens = 10
"""


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Read a recipe that extends the base; returns its steps' settings by name."""
    (tmp_path / "base.toml").write_text(BASE)

    def call(text: str, *changes: str, small: bool = False) -> dict[str, dict[str, Any]]:
        (tmp_path / "own.toml").write_text(text)
        changes = ("inputs.source=docs", *changes) if "extends" in text else changes
        found = read_recipe(str(tmp_path / "own.toml"), changes, small=small)
        return {step.name: step.settings for step in found.steps}

    return call


def test_settings_are_replaced_one_by_one(read: Any) -> None:
    tables = read('[recipe]\nextends = "base.toml"\n[split]\nmax_tokens = 50\nseed = ""\n')
    assert tables["split"] == {"source": "docs", "max_tokens": 50}
    assert tables["tokens"] == {"texts": "@split", "tokenizer": "here"}


def test_a_new_step_comes_before_the_one_that_needs_it(read: Any) -> None:
    tables = read("""
        [recipe]
        extends = "base.toml"
        [inputs]
        start = "@two"
        [after]
        verb = "split"
        source = "elsewhere"
        [one]
        verb = "split"
        source = "elsewhere"
        [two]
        verb = "split"
        source = "@one"
    """)
    assert list(tables) == ["split", "one", "two", "tokens", "after"]
    assert tables["tokens"]["texts"] == "@two", "an input may name a step"


def test_steps_are_left_out(read: Any) -> None:
    tables = read('[recipe]\nextends = "base.toml"\nwithout = ["tokens"]\n')
    assert list(tables) == ["split"]
    with pytest.raises(QontextError, match=r"unknown earlier step.*'split'"):
        read('[recipe]\nextends = "base.toml"\nwithout = ["split"]\n')


def test_the_small_profile_is_inherited_and_comes_before_what_is_set(read: Any) -> None:
    text = '[recipe]\nextends = "base.toml"\n[split]\nmax_tokens = 50\n[small]\nsplit.seed = 3\n'
    assert read(text, small=True)["split"] == {"source": "docs", "max_tokens": 10, "seed": 3}
    assert read(text, "split.max_tokens=20", small=True)["split"]["max_tokens"] == 20
    assert read(text)["split"]["max_tokens"] == 50


def test_a_dropped_step_does_not_come_back_with_the_small_profile(read: Any) -> None:
    text = '[recipe]\nextends = "base.toml"\nwithout = ["split"]\n[tokens]\ntexts = "docs"\n[small]\ntokens.seed = ""\n'
    assert list(read(text, "inputs.start=docs", small=True)) == ["tokens"]


def test_a_recipe_is_shown_with_all_that_it_takes_from_others(read: Any, tmp_path: Path) -> None:
    read('[recipe]\nextends = "base.toml"\npublished = ["BERT"]\n[split]\nmax_tokens = 50\n')
    shown = api.recipes(str(tmp_path / "own.toml"))
    assert (shown["title"], shown["cost"], shown["needs"]) == ("base", "an hour", ["source"])
    assert shown["published"][0]["MRR@10"] == 33.4
    assert 'source = "$source"' in shown["recipe"] and "max_tokens = 50" in shown["recipe"]
    (tmp_path / "shown.toml").write_text(shown["recipe"])
    assert (
        describe_recipe(str(tmp_path / "shown.toml")).steps
        == describe_recipe(str(tmp_path / "own.toml")).steps
    )
    assert "max_tokens = 10" in api.recipes(str(tmp_path / "own.toml"), small=True)["recipe"]


def test_the_list_names_needed_inputs_and_published_figures() -> None:
    rows = {row["name"]: row for row in api.recipes()["recipes"]}
    assert set(rows["qac-cocondenser-msmarco"]["needs"].split(", ")) == {
        "condenser",
        "data",
        "topics_2019",
        "topics_2020",
    }
    assert rows["qac-cocondenser-msmarco"]["published"] == "MRR@10 39.4"
    assert rows["laptop"]["published"] == ""
