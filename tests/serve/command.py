"""`qontext` in processes of their own: servers that are started, killed and started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import IO, Any


class Command:
    """`qontext …` in a process of its own."""

    def __init__(self, *arguments: Any, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qontext", *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = ""

    def url(self) -> str:
        """The address that it says it listens on."""
        stream: IO[str] = self.process.stderr  # type: ignore[assignment]
        for line in stream:
            self.log += line
            if match := re.search(r"^(?:Serving|Judge) .* at (http://\S+) ", line):
                return match[1]
        raise AssertionError(self.log)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """The exit code after a signal, and what it said last."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors
