"""Models on the Hub, from a server on this machine that speaks its API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.release.hub_server import TOKEN, Hub, running_hub

from qontext.frame import machine
from qontext.frame.errors import QontextError
from qontext.models import hub
from qontext.models.encoder import load_encoder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with running_hub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.address)
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        running.visibility["acme/large"] = "public"
        yield running


def weights(shards: int, parameters: int | None = None) -> dict[str, object]:
    names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)]
    files = [{"rfilename": name, "size": 5 << 30} for name in names]
    files.append(
        {"rfilename": "consolidated.safetensors", "size": 1 << 40}
    )  # another copy, which is not read
    counted = {"safetensors": {"parameters": {"BF16": parameters}, "total": parameters}}
    return {"siblings": files, **(counted if parameters else {})}


def about_models(server: Hub) -> list[str]:
    return [request for request in server.requests if "acme" in request]


def test_a_model_that_does_not_fit_into_memory_is_not_downloaded(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "free_memory", lambda: 16 << 30)
    asked = ["GET /api/models/acme/large"]
    # An encoder computes with 4 bytes for each number, of which two are stored.
    server.weights["acme/large"] = weights(3, (15 << 30) // 2)
    with pytest.raises(
        QontextError, match=r"need 30 GiB of memory, of which 16\.0 GiB are free\. Nothing was downloaded"
    ):
        load_encoder("acme/large")
    assert about_models(server) == asked
    server.weights["acme/large"] = weights(4)
    with pytest.raises(QontextError, match="need 20 GiB of memory"):
        hub.locate("acme/large", "language model", weights=True)
    assert about_models(server) == 2 * asked


def test_a_model_that_fits_or_of_which_nothing_is_known_is_downloaded(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "free_memory", lambda: 16 << 30)
    server.weights["acme/large"] = weights(3)
    for name in ("acme/large", "acme/none"):
        with pytest.raises(QontextError, match=r"could not download|has no public model"):
            hub.locate(name, "language model", weights=True)
    monkeypatch.setattr(machine, "free_memory", lambda: 0)
    server.weights["acme/large"] = weights(400)
    with pytest.raises(QontextError, match="could not download"):
        hub.locate("acme/large", "language model", weights=True)


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
    variant = folder / "model.fp16.safetensors.index.json"  # which nothing reads
    variant.write_text(json.dumps({"weight_map": {"a": "model.fp16-00001-of-00001.safetensors"}}))
    assert hub.is_local("acme/large") and hub.locate("acme/large", "model", weights=True) == folder
    (folder / "config.json").unlink()
    assert not hub.is_local("acme/large")
    (folder / "modules.json").write_text("[]")
    assert hub.is_local("acme/large")
    for name in shards:
        (folder / name).unlink()
    (folder / "model.safetensors").touch()
    assert hub.is_local("acme/large"), "the library reads no index beside it"
