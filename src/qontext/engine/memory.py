"""Keeping a process as small as what it holds, on a CPU.

glibc serves tensors of some megabytes from its heap once a few were freed. Micro-batches of many shapes then leave holes
that fit nothing later, and the process grows with the number of micro-batches though it holds one at a time.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE = 1 << 17


@cache
def return_freed_memory() -> bool:
    """Have blocks above 1 MiB come from the system and go back to it when freed; gives whether that could be set."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_TRIM_THRESHOLD, _LARGE))
