"""The number format that a directory is computed in: recorded, shown, and kept by whoever resumes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from qontext import api
from qontext.frame import artifacts, computed, execution, stages
from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.config import Machine, StageConfig
from qontext.frame.errors import QontextError


class Settings(StageConfig):
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    here: Annotated[str, Machine()] = "fp32"
    """The number format that `auto` resolves to on this machine."""
    device: Annotated[str, Machine()] = "cpu"
    parts: Annotated[int, Machine()] = 2
    """After how many parts the process is killed."""


class Killed(BaseException):
    pass


def run(settings: Settings, work: Workdir) -> dict[str, Any]:
    setting = settings.precision
    precision = computed.settle(
        work, setting, settings.here if setting == "auto" else setting, settings.device
    )
    for number in range(2):
        if number == settings.parts:
            raise Killed
        if not work.has(f"{number}.txt"):
            with work.write(f"{number}.txt") as path:
                path.write_text(f"{setting} {precision}")
    return {}


STAGE = stages.Stage("split", Settings, run, "")


def make(out: Path, **settings: Any) -> Artifact:
    return execution.execute(STAGE, Settings.make(settings, where="split"), out)


def begin(out: Path, **settings: Any) -> None:
    with pytest.raises(Killed):
        make(out, parts=1, **settings)


def formats(artifact: Artifact) -> list[str]:
    return [path.read_text() for path in artifact.parts()]


def test_the_resolved_format_and_the_device_are_recorded_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = make(tmp_path / "out", here="bf16")
    assert artifacts.open_artifact(artifact.path).meta["computed"] == {
        "precision": "bf16",
        "devices": ["cpu"],
    }
    api.show(artifact)
    assert "bf16 on cpu" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("again", [{}, {"precision": "bf16"}])
def test_resumed_on_another_machine_it_stays_in_its_format(
    tmp_path: Path, again: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    begin(out, here="bf16", device="cuda")
    shutil.move(out, tmp_path / "moved")
    artifact = make(tmp_path / "moved", here="fp32", **again)
    assert formats(artifact) == ["auto bf16", "auto bf16"], "as it was begun"
    assert artifact.meta["computed"] == {"precision": "bf16", "devices": ["cpu", "cuda"]}
    messages = " ".join(capsys.readouterr().err.split())
    assert "default on this machine is fp32: to start over in fp32, remove the directory" in messages
    # The result is that of `auto`, on any machine, and that of its format by name.
    for settings in ({"here": "fp32"}, {"here": "bf16"}, {"precision": "bf16"}):
        assert make(artifact.path, **settings).digest == artifact.digest
    shutil.rmtree(artifact.path)
    assert formats(make(artifact.path, here="fp32")) == ["auto fp32", "auto fp32"], (
        "the remedy of the warning"
    )


def test_another_format_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    begin(out, here="bf16")
    for _ in range(2):  # interrupted, then finished
        with pytest.raises(
            QontextError, match=r"precision was 'auto \(bf16\)' and is now 'fp32'.*--overwrite"
        ):
            make(out, precision="fp32")
        make(out)
    named = tmp_path / "named"
    make(named, precision="bf16")
    with pytest.raises(QontextError, match=r"precision was 'bf16' and is now 'auto'"):
        make(named, here="bf16")


def test_other_settings_and_formats_do_not_count_as_the_same(tmp_path: Path) -> None:
    class More(Settings):
        word: str = "a"

    stage = stages.Stage("split", More, run, "")
    execution.execute(stage, More(here="bf16"), tmp_path / "out")
    with pytest.raises(QontextError, match=r"word was 'a' and is now 'b'"):
        execution.execute(stage, More(precision="bf16", word="b"), tmp_path / "out")


def test_processes_that_write_one_directory_agree(tmp_path: Path) -> None:
    """Whoever computes first decides, whether the others ask before its end or after."""
    claim = {"verb": "split", "format": 1, "config": {"precision": "auto"}, "inputs": {}, "key": "k"}
    works = [artifacts.begin(tmp_path, claim, "0"), Workdir(tmp_path, "1"), Workdir(tmp_path, "2")]
    assert computed.settle(works[0], "auto", "bf16", "cpu") == "bf16"
    assert computed.settle(works[1], "auto", "fp32", "cpu") == "bf16"
    artifacts.finish(works[0], claim, {}, 0.0)
    assert computed.settle(works[2], "auto", "fp32", "cpu") == "bf16"
    assert not (tmp_path / artifacts.CLAIM).exists()


def test_an_interrupted_directory_of_an_older_version_is_resumed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    begin(out, here="bf16")
    claim = artifacts.read_description(out / artifacts.CLAIM)
    del claim["computed"]
    Workdir(out).write_json(artifacts.CLAIM, claim)
    assert make(out, here="bf16").meta["computed"]["precision"] == "bf16"


@pytest.mark.parametrize("text", ["{}", "5", '{"precision": 3, "devices": ["cpu"]}'])
def test_a_damaged_format_is_told(tmp_path: Path, text: str) -> None:
    file = make(tmp_path / "out").path / artifacts.META
    file.write_text(json.dumps({**json.loads(file.read_text()), "computed": json.loads(text)}))
    for use in (api.show, lambda path: make(path, precision="fp32")):
        with pytest.raises(QontextError, match=r"meta\.json: damaged: computed"):
            use(file.parent)
