"""Keeping a process as small as what it holds, on a CPU.

glibc keeps what is freed for the next allocation. Micro-batches of many shapes leave holes that fit nothing later, and
the process grows with the number of micro-batches though it holds one at a time.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def return_freed_memory() -> bool:
    """Give the pages of freed memory back to the system; gives whether there were some.

    Takes some hundredths of a second for gigabytes, and as much again when the memory is next used: worth it between
    micro-batches, not between operations.
    """
    trim = _trim()
    return trim is not None and bool(trim(0))


@cache
def _trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # not glibc
        return None
    return found
