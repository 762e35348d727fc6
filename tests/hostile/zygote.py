"""A warm process: everything heavy is imported once, and every command line runs in a fork of it.

So a case costs milliseconds instead of seconds of imports, has its own working directory, streams and limits, and may
crash, hang or exhaust its memory without harm. Requests and replies are lines of JSON on stdin and stdout.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.preload import preload

CPU_SECONDS, WALL_SECONDS = 20, 60
MEMORY, FILE_SIZE = 6 << 30, 1 << 30
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an import prints is no reply
    preload()
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), file=replies, flush=True)


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """Run `argv` in a fork, in the folder `cwd`; its streams go to the files `out` and `err`."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = run(request)
        finally:
            os._exit(code)
    handle = os.pidfd_open(child)
    hung = not select.select([handle], [], [], WALL_SECONDS)[0]
    if hung:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    os.close(handle)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ProcessLookupError):  # what it left running
        os.killpg(child, signal.SIGKILL)
    return {
        "code": status,
        "hung": hung or status == -signal.SIGXCPU,
        "seconds": round(time.monotonic() - started, 2),
    }


def run(request: dict[str, Any]) -> int:
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    limit()
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), "utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), "utf-8")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w")), "utf-8", "backslashreplace", line_buffering=True
    )
    if "signal" in request:  # for the test of this file
        signal.raise_signal(signal.Signals[f"SIG{request['signal']}"])
    sys.argv = ["qontext", *request["argv"]]

    try:
        importlib.import_module("qontext.cli").main()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    try:  # what the interpreter does at its end
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        code = 120
        with contextlib.suppress(OSError, ValueError):
            print(f"Exception ignored while flushing sys.stdout: {error}", file=sys.stderr)
    return code


def limit() -> None:
    """Bounds on what a case may take of the machine, and no privileges over files."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, size + MEMORY),
        (resource.RLIMIT_FSIZE, FILE_SIZE),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most if kind != resource.RLIMIT_CPU else most + 5))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if os.geteuid() == 0:  # root reads and writes whatever it likes, which no user does
        drop_privileges()


def drop_privileges() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    if libc.capget(header, data) == 0:
        data[0] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
        libc.capset(header, data)


if __name__ == "__main__":
    main()
