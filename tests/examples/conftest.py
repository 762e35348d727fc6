"""The workspace, made once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest
from tests.examples.workspace import Workspace


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Of several test processes, the one that comes first makes it; each has a server of its own."""
    for package in ("faiss", "sentence_transformers", "milvus_lite"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "examples"
    shared.mkdir(exist_ok=True)
    opened = Workspace(shared, tmp_path_factory.mktemp("server"))
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "made").exists():
            opened.make()
            (shared / "made").touch()
    yield opened
    opened.server.close()
