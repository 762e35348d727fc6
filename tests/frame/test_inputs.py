"""The fingerprint of a folder: artifacts in it count by digest, what was made from it does not count."""

from __future__ import annotations

from pathlib import Path

import pytest

from qontext import api
from qontext.frame import artifacts
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.inputs import fingerprint


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


def test_what_is_hidden_in_a_folder_of_documents_is_no_content(tmp_path: Path) -> None:
    folder, out = tmp_path / "docs", tmp_path / "passages"
    (folder / ".git").mkdir(parents=True)
    (folder / "mill.txt").write_text("The mill grinds flour.")
    before = api.split(folder, workers=1, out=out).meta
    (folder / ".git" / "index").write_text("polled")
    assert api.split(folder, workers=1, out=out).meta == before
    (folder / "mill.txt").write_text("The mill is closed.")
    with pytest.raises(QontextError, match="source"):
        api.split(folder, workers=1, out=out)
