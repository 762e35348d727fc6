"""Ctrl-C and SIGTERM as a request to stop at a good place, instead of at once."""

from __future__ import annotations

import signal
import threading
from typing import Any

from qontext import log


class StopFlag:
    requested = False


class StopRequests:
    """While inside, SIGINT and SIGTERM set a flag, so that the step under way ends first. A second one is obeyed at once."""

    def __enter__(self) -> StopFlag:
        self.flag, self.before = StopFlag(), {}

        def request(number: int, frame: Any) -> None:
            if self.flag.requested:
                raise KeyboardInterrupt
            self.flag.requested = True
            log.note("Stopping after this step …")

        if threading.current_thread() is threading.main_thread():  # signals go nowhere else
            self.before = {
                number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self.flag

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
