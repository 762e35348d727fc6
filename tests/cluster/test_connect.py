"""Addresses of clusters to which nothing can connect."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.conftest import another_cluster

from qontext.cluster import connect
from qontext.frame import trust
from qontext.frame.errors import QontextError


@pytest.fixture
def guarded() -> Iterator[str]:
    """The address of a cluster whose clients need the token aaa…"""
    with another_cluster(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 64) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


ray = pytest.importorskip("ray", reason="the package ray is not installed")


def test_an_address_at_which_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # by other tests of this process
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for on in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(trust.Untrusted), connect.connected(on):
            pass
        trust.give(on)
        with pytest.raises(
            QontextError, match=f"cannot connect to the Ray cluster at {on}: .*refused. Check"
        ):
            with connect.connected(on):
                pass


def test_a_cluster_with_another_token(guarded: str, tmp_path: Path) -> None:
    """In a process of its own, since Ray reads the token once."""
    (tmp_path / "p.tsv").write_text("p0\tBread is baked.\n")
    argv = ["generate", str(tmp_path / "p.tsv"), "--generator", "keyphrase", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 64}
    command = [sys.executable, "-m", "qontext", *argv, "--on", guarded]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert "it wants another token (RAY_AUTH_TOKEN)" in done.stderr.strip().splitlines()[-1]


def test_a_cluster_of_another_version_or_token_is_one_sentence() -> None:
    mismatch = RuntimeError(
        "Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n    Python: 3.11.7"
    )
    assert connect._reason(mismatch).startswith("it has other versions of Ray or Python: Version mismatch")
    assert "another token" in connect._reason(ConnectionError("ray client connection timeout"))
