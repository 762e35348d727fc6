"""The shipped sweeps have an arm for each row of the papers' tables, with the settings and the figure of that row."""

from __future__ import annotations

from typing import Any

import pytest

from qontext import api
from qontext.evaluation.benchmarks import named
from qontext.workflow.recipe import Recipe, describe_recipe
from qontext.workflow.run import published_rows
from qontext.workflow.sweep import axes_of, expand
from qontext.workflow.tables import find_recipe, missing_inputs, read_arms, read_tables, shipped

SWEEPS = [path.stem for path in shipped("sweeps")]


def arms_of(name: str) -> dict[str, Recipe]:
    return {arm: describe_recipe(name, arm=arm) for arm in read_arms(find_recipe(name))}


def setting(recipe: Recipe, step: str, field: str) -> Any:
    (only,) = (one for one in recipe.steps if one.name == step)
    return only.settings.get(field)


def figure(recipe: Recipe) -> float | None:
    """MRR@10 of the last published system, if any."""
    return [None, *(row["MRR@10"] for row in published_rows(recipe) if "MRR@10" in row)][-1]


@pytest.mark.parametrize(
    ("name", "fields", "rows"),
    [
        (
            "cot-mae-table-3", ("encoder_mask", "decoder_mask"),
            {
                (0.0, 0.15): 37.8, (0.0, 0.3): 38.4, (0.15, 0.15): 38.7, (0.15, 0.3): 38.8, (0.15, 0.45): 38.9,
                (0.45, 0.45): 39.0, (0.45, 0.6): 38.8, (0.3, 0.15): 38.8, (0.3, 0.3): 38.9, (0.3, 0.45): 39.2,
            },
        ),
        (
            "cot-mae-table-4", ("context",),
            {
                ("near",): 38.7, ("olap",): 38.7, ("rand",): 38.8, ("near+olap",): 39.1, ("near+rand",): 38.8,
                ("olap+rand",): 39.1, ("near+olap+rand",): 39.2,
            },
        ),
        ("cot-mae-table-5", ("decoder_layers",), {(1,): 38.6, (2,): 39.2, (3,): 38.8, (4,): 38.9, (6,): 39.0}),
        (
            "qac-table-3", ("method", "candidates"),
            {
                ("cocondenser", 1): 39.3, ("cocondenser", 5): 39.4, ("cocondenser", 10): 39.1,
                ("cocondenser", 20): 39.4, ("cot-mae", 1): 39.9, ("cot-mae", 5): 40.2, ("cot-mae", 10): 39.7,
                ("cot-mae", 20): 39.7,
            },
        ),
        (
            "qac-table-4", ("method", "context"),
            {
                ("cocondenser", "query"): 39.4, ("cocondenser", "query+rand"): 39.1, ("cot-mae", "query"): 40.2,
                ("cot-mae", "query+near+olap+rand"): 38.4,
            },
        ),
        (
            "qac-table-1", ("method", "context", "directions"),
            {
                ("cocondenser", "rand", None): 38.8, ("cocondenser", "query", None): 39.4,
                ("cot-mae", "near+olap+rand", None): 38.8, ("cot-mae", "near+olap+rand", "forward"): None,
                ("cot-mae", "query", None): 40.2,
            },
        ),
    ],
)  # fmt: skip
def test_an_arm_for_each_row(
    name: str, fields: tuple[str, ...], rows: dict[tuple[Any, ...], float | None]
) -> None:
    arms = {
        tuple(setting(recipe, "pretrain", field) for field in fields): figure(recipe)
        for recipe in arms_of(name).values()
    }
    assert arms == rows


def test_coCondenser_s_tables() -> None:
    labels = arms_of("cocondenser-table-3")
    assert [figure(recipe) for recipe in labels.values()] == [33.4, 38.2, 39.1]
    assert [setting(recipe, "retriever-2", "teacher") for recipe in labels.values()] == [
        None,
        None,
        "@teacher",
    ]
    losses = list(arms_of("cocondenser-table-4").values())
    assert [figure(recipe) for recipe in losses] == [36.6, 36.7, 38.2]
    weights = [
        setting(losses[1], "pretrain", f"{name}_weight") for name in ("head", "late_mlm", "contrastive")
    ]
    assert weights == [0, 0, None]
    for recipe in losses[1:]:
        assert (
            setting(recipe, "pretrain", "encoder")
            == "$condenser"
            == setting(losses[0], "retriever-2", "encoder")
        )
    stages = list(arms_of("cocondenser-table-5").values())
    assert [[row["MRR@10"] for row in published_rows(recipe)][-2:] for recipe in stages] == [
        [33.8, 36.6],
        [35.7, 38.2],
    ]
    for recipe in arms_of("cocondenser-figure-3").values():
        assert setting(recipe, "score-1", "next_run") == "@run-2"


def test_the_curves_of_figure_2_share_their_pretrainings() -> None:
    inputs = tuple(f"inputs.{name}=given" for name in ("data", "topics_2019", "topics_2020"))
    sweep = expand("cot-mae-figure-2", inputs, axes_of([*arms_of("cot-mae-figure-2")], ()))
    trained = [step for step in sweep.recipe.steps if step.stage.verb == "pretrain"]
    assert len(sweep.labels) == 16
    assert [step.settings["decoder_init"] for step in trained] == ["random", "0,1", "5,11", "10,11"]
    tuned = [step for step in sweep.recipe.steps if step.name.startswith("retriever-2")]
    assert [step.settings["encoder"] for step in tuned[:4]] == [
        f"@{trained[0].name}/snapshots/{number}" for number in (1, 2, 3, 4)
    ]


def test_the_list_has_the_sweeps() -> None:
    rows = {row["name"]: row for row in api.recipes()["recipes"] if row["arms"]}
    assert list(rows) == SWEEPS
    assert (rows["cot-mae-table-3"]["arms"], rows["cot-mae-figure-2"]["arms"]) == (10, 16)
    assert "condenser" in rows["qac-table-1"]["needs"] and "condenser" not in rows["cot-mae-table-3"]["needs"]


@pytest.mark.parametrize("name", SWEEPS)
def test_every_arm_is_valid_and_reproduces_what_is_published(name: str) -> None:
    file = find_recipe(name)
    for arm, recipe in arms_of(name).items():
        inputs = tuple(
            f"inputs.{input_name}=given" for input_name in missing_inputs(read_tables(file, arm=arm))
        )
        assert inputs, "MS MARCO is an input"
        assert all(named(system) for system in recipe.published), arm
        assert {"score-1", "score-2"} <= {step.name for step in recipe.steps}
    small = read_arms(file, small=True)
    assert set(small) <= set(arms_of(name)) and len(small) > 1
