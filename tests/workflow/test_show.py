"""`qontext show`: what made a directory, from what, and whether it is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from qontext import api
from qontext.frame import artifacts
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    (tmp_path / "docs.jsonl").write_text('{"_id": "d", "text": "One. Two."}\n')
    passages: Artifact = api.split(tmp_path / "docs.jsonl", out=tmp_path / "runs" / "split", max_tokens=77)
    return passages


def test_it_tells_what_made_it_from_what_and_how(
    artifact: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    assert api.show(artifact) == {"path": str(artifact.path), **artifact.meta}
    output = capsys.readouterr().out
    for part in ("qontext split", "docs.jsonl", "max tokens", "77", "passages", artifact.digest):
        assert part in output


def test_verify(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    api.show(artifact, verify=True)
    assert "no file has changed since it was written" in capsys.readouterr().err
    artifact.parts()[0].write_bytes(b"else")
    with pytest.raises(QontextError, match=r"changed since it was written: part-00000.parquet"):
        api.show(artifact, verify=True)


def test_a_folder_of_directories(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    claim = {"verb": "tokens", "format": 1, "config": {}, "inputs": {}, "key": "k"}
    artifacts.begin(artifact.path.parent / "tokens", claim)
    listed = api.show(artifact.path.parent)["directories"]
    assert [(row["directory"], row["made_by"]) for row in listed] == [
        ("split", "qontext split"),
        ("tokens", "not finished"),
    ]
    assert "passages 1" in capsys.readouterr().out


def test_what_cannot_be_shown(artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, message in (
        (tmp_path / "nowhere", "no such file or folder"),
        (tmp_path / "empty", "contains no output of qontext"),
        (tmp_path / "docs.jsonl", "no such directory"),
    ):
        with pytest.raises(QontextError, match=message):
            api.show(path)


def test_an_unfinished_directory_says_how_to_finish_it(tmp_path: Path) -> None:
    artifacts.begin(tmp_path / "a", {"verb": "tokens", "format": 1, "config": {}, "inputs": {}, "key": "k"})
    with pytest.raises(QontextError, match=r"'tokens' directory is not finished.*resumes"):
        api.show(tmp_path / "a")
