"""Cleaning that was killed; what `clean` keeps and removes of a directory of `adapt` is tested with `adapt`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from qontext import api
from qontext.workflow import clean


@pytest.mark.parametrize("name", clean.REMOVED)
def test_the_rest_of_a_folder_whose_removal_was_cut_short_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "adapted.json").write_text(
        '{"format": 1, "index": "index", "system": "bm25", "weights": [1, 0], "read_tokens": 64}'
    )
    (tmp_path / name / "pretrain").mkdir(parents=True)
    (tmp_path / name / "pretrain" / "meta.json").write_text("{}")
    monkeypatch.setattr(clean, "_calibrate", lambda root: None)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            api.clean(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] != ["adapted.json"]
    planned = api.clean(tmp_path, dry_run=True)
    assert planned["bytes"] == 2
    assert [row["folder"] for row in api.clean(tmp_path)["removed"]] == [name]
    assert [path.name for path in tmp_path.iterdir()] == ["adapted.json"]
