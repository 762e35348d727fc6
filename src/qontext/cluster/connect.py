"""A connection to a Ray cluster, or a Ray of this machine alone; what can go wrong with either, in a sentence."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import IO, Any

from qontext.frame import log, trust
from qontext.frame.errors import QontextError, first_line, missing_extra
from qontext.frame.parts import cluster

STORE = 100 * 2**20
"""Bytes of shared memory of a Ray that is started here: parts go through files, not through it."""
LOOK, HEADLESS = 5.0, 30.0
"""Seconds between two looks at a cluster, and without its head until a job stops: Ray ends every process of it after 60."""
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_SECONDS = 5.0
_TOKEN = "it wants another token (RAY_AUTH_TOKEN)"


@contextlib.contextmanager
def connected(on: str) -> Iterator[Any]:
    """The module `ray`, connected; disconnected afterwards, and ended if it was started here."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise missing_extra("ray", "scale", f"--on {on}") from None
    if ray.is_initialized():  # by the program that calls this one
        yield ray
        return
    with contextlib.ExitStack() as stack:
        if not _join(ray, on):
            folder = tempfile.mkdtemp(prefix="qr-")  # short: sockets lie below it
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            log.note("No Ray cluster is running on this machine: starting Ray for this command.")
            stack.callback(ray.shutdown)
            _init(ray, "local", include_dashboard=False, object_store_memory=STORE, _temp_dir=folder)
        else:
            stack.callback(ray.shutdown)
        yield ray


def _join(ray: Any, on: str) -> bool:
    """Connect to a cluster that is running; False if `on` names none and there is none on this machine."""
    trust.require(cluster({"on": on}))
    if on != "ray" and (problem := problem_at(on.removeprefix("ray://"))):  # Ray itself would try for minutes
        raise _refused(on, problem)
    with tempfile.TemporaryFile() as output:
        try:
            with _stderr_to(output):
                _init(ray, "auto" if on == "ray" else on)
            return True
        except Exception as error:
            output.seek(0)
            wrong_token = b"AuthToken" in output.read()
            if isinstance(error, ConnectionError) and on == "ray" and not wrong_token:
                return False
            raise _refused(on, _TOKEN if wrong_token else _reason(error)) from None


@contextlib.contextmanager
def _stderr_to(file: IO[bytes]) -> Iterator[None]:
    """Inside, what is written to stderr goes to the file: Ray's own lines while it tries to connect."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _init(ray: Any, address: str, **settings: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(address=address, logging_level="ERROR", log_to_driver=False, **settings)


class ClusterHead:
    """The head of a cluster, as seen from here. Where it is gone, many calls wait for it until Ray ends this process."""

    def __init__(self, ray: Any, on: str) -> None:
        is_named = ":" in on
        self.address = on.removeprefix("ray://") if is_named else str(ray.get_runtime_context().gcs_address)
        self.seen = self.looked = time.monotonic()

    def is_gone(self) -> bool:
        return bool(problem_at(self.address))

    def look(self) -> bool:
        """Look after it every `LOOK` seconds: whether it has been seen just now. Gone for too long is an error."""
        now = time.monotonic()
        if now - self.looked <= LOOK:
            return False
        self.looked = now
        if not (problem := problem_at(self.address)):
            self.seen = now
        elif now - self.seen > HEADLESS:
            raise QontextError(
                f"the head of the Ray cluster at {self.address} is gone: {problem}",
                remedy="Start the cluster again; the same command resumes.",
            )
        return self.seen == now


def problem_at(address: str) -> str:
    """The reason that nobody can be reached at HOST:PORT; empty if somebody listens."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
    except (OSError, OverflowError) as error:
        return first_line(error)
    return ""


def _reason(error: Exception) -> str:
    """Ray's message, in short."""
    text = " ".join(str(error).split())
    if "ersion" in text:
        return "it has other versions of Ray or Python: " + text[:300]
    if isinstance(error, ConnectionError):
        return "it does not answer as a Ray cluster does, or wants another token"
    return first_line(error)


def _refused(on: str, reason: str) -> QontextError:
    cluster = "the Ray cluster of this machine" if on == "ray" else f"the Ray cluster at {on}"
    return QontextError(f"cannot connect to {cluster}: {reason}", remedy=_REMEDY)


_REMEDY = (
    "Check the address (ray start prints it), RAY_AUTH_MODE and RAY_AUTH_TOKEN, and that Ray and Python have the same "
    "versions everywhere."
)
