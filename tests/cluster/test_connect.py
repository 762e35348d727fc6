"""Addresses of clusters to which nothing can connect."""

from __future__ import annotations

import socket

import pytest

from qontext.cluster import connect
from qontext.frame.errors import QontextError

ray = pytest.importorskip("ray", reason="the package ray is not installed")


def test_an_address_at_which_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for on in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(
            QontextError, match=f"cannot connect to the Ray cluster at {on}: .*refused. Check"
        ):
            with connect.connected(on):
                pass


def test_a_cluster_of_another_version_or_token_is_one_sentence() -> None:
    mismatch = RuntimeError(
        "Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n    Python: 3.11.7"
    )
    assert connect._reason(mismatch).startswith("it has other versions of Ray or Python: Version mismatch")
    assert "another token" in connect._reason(ConnectionError("ray client connection timeout"))
