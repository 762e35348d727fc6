"""Starting and stopping: as a command, with what cannot be served, on ports that are taken, by signals."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.conftest import World

from qontext import api
from qontext.frame.errors import QontextError
from qontext.serve.verb import open_service


def test_the_command_serves_until_a_signal(world: World, command: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        running = command("serve", world / "bm25", "--port", 0, "--device", "cpu")
        url = running.url()
        assert httpx.post(f"{url}/v1/search", json={"query": "boat"}).status_code == 200
        assert running.stop(number) == (0, "Stopped.\n")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/healthz")


def test_a_port_in_use(world: World, command: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        running = command("serve", world / "bm25", "--port", taken.getsockname()[1])
        _, errors = running.process.communicate(timeout=60)
    assert running.process.returncode == 2
    assert errors.startswith("error: cannot listen on 127.0.0.1:") and "address already in use" in errors
    assert errors.count("\n") == 1


def test_an_address_beyond_this_machine_needs_a_token(world: World, command: Any) -> None:
    running = command("serve", world / "bm25", "--host", "0.0.0.0", QONTEXT_TOKEN="")
    _, errors = running.process.communicate(timeout=60)
    assert running.process.returncode == 2 and "needs a token" in errors


def test_without_the_extra_the_command_says_how_to_install_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    for missing, settings in (("fastapi", {}), ("uvicorn", {}), ("mcp", {"mcp": True})):
        with monkeypatch.context() as patch:
            patch.setattr(
                importlib.util, "find_spec", lambda name, m=missing: None if name == m else real(name)
            )
            with pytest.raises(QontextError, match=r"pip install 'qontext\[serve\]'"):
                api.serve((str(world / "bm25"),), **settings)


def refused(world: World, *directories: str, **settings: Any) -> str:
    with pytest.raises(QontextError) as caught:
        open_service(world.config(*directories, **settings))
    return str(caught.value)


def test_what_cannot_be_served(world: World, tmp_path: Path) -> None:
    assert "no such directory" in refused(world, "nothing")
    (tmp_path / "plain").mkdir()
    assert "contains no document in a supported format" in refused(world, str(tmp_path / "plain"))
    assert "not searchable" in refused(world, "mine/index/passages")
    assert "two directories have the name" in refused(world, "mine", "mine=bm25")
    assert "ends in -query" in refused(world, "a-query=bm25")
    assert "a reranker and a directory" in refused(world, "reranker=vectors", reranker=("reranker",))
    assert "contains no encoder" in refused(world, "bm25", reranker=("data",))
    assert "a collection is a folder" in refused(world, "bm25", data="docs.jsonl")
    assert "split" in refused(world, "bm25", data="data", split="nothing")
    (tmp_path / "adapting").mkdir()
    (tmp_path / "adapting" / "plan.json").write_text("{}")
    assert "not a finished 'qontext adapt' directory" in refused(world, str(tmp_path / "adapting"))
    claim = tmp_path / "claimed"
    claim.mkdir()
    meta = json.loads((world / "vectors" / "meta.json").read_text())
    kept = {key: meta[key] for key in ("verb", "format", "config", "inputs", "key")}
    (claim / "claim.json").write_text(json.dumps(kept))
    assert "is not finished" in refused(world, str(claim))


def test_moved_and_lost_parts(world: World, tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    shutil.copytree(world / "bm25", lost)
    meta = json.loads((lost / "meta.json").read_text())
    for name, entry in meta["inputs"].items():
        meta["inputs"][name] = {**entry, "path": str(tmp_path / "gone"), "beside": "../gone"}
    (lost / "meta.json").write_text(json.dumps(meta))
    assert "--passages" in refused(world, str(lost))
    passages = str(world / "mine" / "index" / "passages")
    service = open_service(world.config(str(lost), passages=passages))
    assert len(service.default.passages) > 50
    service.close()
    assert "which is not in the passages" in refused(world, str(lost), passages=str(world / "docs.jsonl"))


def test_faiss_indexes_are_served(world: World) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")
    service = open_service(world.config("hnsw", "vectors"))
    for system in service.systems.values():
        assert [len(system.search(question, 5)) for question in ("boat", "lamp")] == [5, 5]
    assert service.systems["hnsw"].encoder is service.systems["vectors"].encoder
    service.close()
