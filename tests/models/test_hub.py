"""Models on the Hub, from a server on this machine that speaks its API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import constants

from qontext.models import hub


def test_a_part_of_a_download_is_no_cached_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    entry = tmp_path / "models--acme--large"
    folder = entry / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("0" * 40)
    shards = [f"model-{n:05}-of-00002.safetensors" for n in (1, 2)]
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[1]}}
    for name, content in {
        "tokenizer.json": "{}",
        "config.json": "{}",
        shards[0]: "",
        "model.safetensors.index.json": json.dumps(index),
    }.items():
        (folder / name).write_text(content)
        assert not hub.is_local("acme/large"), name
    (folder / shards[1]).touch()
    assert hub.is_local("acme/large") and hub.locate("acme/large", "model", weights=True) == folder
    (folder / "config.json").unlink()
    assert not hub.is_local("acme/large")
    (folder / "modules.json").write_text("[]")
    assert hub.is_local("acme/large")
