"""Starting and stopping: as a command, with what cannot be served, on ports that are taken, by signals."""

from __future__ import annotations

import signal
import socket
from typing import Any

import httpx
import pytest
from tests.serve.conftest import World

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


def test_faiss_indexes_are_served(world: World) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")
    service = open_service(world.config("hnsw", "vectors"))
    for system in service.systems.values():
        assert [len(system.search(question, 5)) for question in ("boat", "lamp")] == [5, 5]
    assert service.systems["hnsw"].encoder is service.systems["vectors"].encoder
    service.close()
