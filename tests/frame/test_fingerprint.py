"""The fingerprint of a folder: artifacts in it count by digest, what was made from it does not count."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from qontext import api
from qontext.corpus.split import SplitConfig
from qontext.frame import artifacts, execution, machine
from qontext.frame import fingerprint as module
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.fingerprint import fingerprint
from qontext.frame.inputs import Unchanged
from qontext.frame.parts import Part, Parts, PartsConfig, slices
from qontext.frame.stages import Stage


def make(path: Path, text: str, inputs: dict[str, str] | None = None) -> None:
    described = {name: {"path": where, "digest": ""} for name, where in (inputs or {}).items()}
    claim = {"verb": "x", "format": 1, "config": {}, "inputs": described, "key": ""}
    work = artifacts.begin(path, claim)
    work.write_json("part.json", text)
    artifacts.finish(work, claim, {}, 0.0)


def test_a_folder_changes_with_what_is_in_it(tmp_path: Path) -> None:
    make(tmp_path / "a", "one")
    (tmp_path / "notes.txt").write_text("x")
    before = fingerprint(tmp_path)
    artifacts.clear(tmp_path / "a")
    make(tmp_path / "a", "one")
    assert fingerprint(tmp_path) == before  # made again with the same bytes
    artifacts.clear(tmp_path / "a")
    make(tmp_path / "a", "two")
    changed = fingerprint(tmp_path)
    assert changed != before
    (tmp_path / "notes.txt").write_text("y")
    assert fingerprint(tmp_path) != changed


def test_what_is_made_from_a_folder_is_no_part_of_it(tmp_path: Path) -> None:
    make(tmp_path / "a", "one")
    before = fingerprint(tmp_path)
    make(tmp_path / "report", "from it", {"runs[0]": str(tmp_path)})
    assert fingerprint(tmp_path) == before


def test_a_models_card_is_no_part_of_it_but_a_document_is(tmp_path: Path) -> None:
    for name, is_model in (("model", True), ("documents", False)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        if is_model:
            (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "README.md").write_text("one")
        before = fingerprint(folder)
        (folder / "README.md").write_text("two")
        assert (fingerprint(folder) == before) == is_model
        (folder / "config.json").write_text('{"layers": 2}')
        assert fingerprint(folder) != before


def test_unfinished_work_counts_as_it_grows(tmp_path: Path) -> None:
    claim = {"verb": "x", "format": 1, "config": {}, "inputs": {}, "key": ""}
    work: Workdir = artifacts.begin(tmp_path / "a", claim)
    work.write_json("log.json", "short")
    before = fingerprint(tmp_path)
    work.write_json("log.json", "a longer one")
    assert fingerprint(tmp_path) != before


def test_the_machine_is_recorded(tmp_path: Path) -> None:
    make(tmp_path / "a", "one")
    recorded = artifacts.open_artifact(tmp_path / "a").meta["made"]["machine"]
    assert recorded == machine.describe()
    assert recorded["cores"] >= 1
    assert "numpy" not in recorded["versions"] or recorded["versions"]["numpy"]


# Inputs that change while a stage reads them


class CopyConfig(StageConfig):
    source: Annotated[str, Input()]


class CopyInParts(PartsConfig):
    source: Annotated[str, Input()]


def copying(meanwhile: Callable[[Path], object]) -> list[Stage[Any]]:
    """Stages that copy their input's files, one with a function and one in parts, while something else happens."""

    def copy(source: str, work: Workdir) -> None:
        for number, file in enumerate(sorted(Path(source).iterdir())):
            work.write_text(f"copy-{number}", file.read_text())
        meanwhile(Path(source))

    class Copies(Parts[CopyInParts]):
        def plan(self) -> list[Part]:
            return slices(2, 1, lambda number: f"copy-{number}")

        def make(self, part: Part, content: Any) -> dict[str, int]:
            self.work.write_text(part.name, (Path(self.config.source) / f"{part.number}.txt").read_text())
            if part.number:
                meanwhile(Path(self.config.source))
            return {}

        def finish(self, outcome: Any) -> dict[str, Any]:
            return {}

    return [
        Stage("copy", CopyConfig, lambda config, work: copy(config.source, work), ""),
        Stage("copies", CopyInParts, Copies, ""),
    ]


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    for number in range(2):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"Text {number}.")
    return tmp_path / "texts"


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "0.txt").unlink(),
        lambda folder: (folder / "0.txt").write_text("Text 9."),
        lambda folder: (folder / "2.txt").write_text("Text 2."),
    ],
)
def test_an_input_that_changes_while_it_is_read_finishes_nothing(
    kind: int, change: Callable[[Path], object], two_files: Path, tmp_path: Path
) -> None:
    stage, out = copying(change)[kind], tmp_path / "out"
    with pytest.raises(QontextError, match=r"source changed while it was read.*Run the same command again"):
        execution.execute(stage, stage.config(source=str(two_files)), out)
    assert not list(out.glob("copy-*")) and not (out / "meta.json").exists()


@pytest.mark.parametrize("kind", [0, 1])
def test_an_input_that_is_only_touched_is_unchanged(kind: int, two_files: Path, tmp_path: Path) -> None:
    stage = copying(lambda folder: os.utime(folder / "0.txt", (1, 1)))[kind]
    made = execution.execute(stage, stage.config(source=str(two_files)), tmp_path / "out")
    assert len(made.parts()) == 2


def test_unchanged_inputs_are_hashed_once(
    two_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(module, "content_hash", lambda path: hashed.append(path) or path.name)
    stage = copying(lambda folder: None)[0]
    execution.execute(stage, stage.config(source=str(two_files)), tmp_path / "out")
    assert len(hashed) == 2


def test_what_is_hidden_in_a_folder_of_documents_is_no_content(tmp_path: Path) -> None:
    folder, out = tmp_path / "docs", tmp_path / "passages"
    (folder / ".git").mkdir(parents=True)
    (folder / "mill.txt").write_text("The mill grinds flour.")
    before = api.split(folder, workers=1, out=out).meta
    (folder / ".git" / "index").write_text("polled")
    assert api.split(folder, workers=1, out=out).meta == before
    unchanged = Unchanged(SplitConfig(source=str(folder)))
    (folder / ".git" / "index").write_text("polled again")
    unchanged.check(before)
    (folder / "mill.txt").write_text("The mill is closed.")
    with pytest.raises(QontextError, match="source"):
        api.split(folder, workers=1, out=out)
