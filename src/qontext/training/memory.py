"""Memory: out-of-memory errors with a remedy, and returning freed memory to the system.

glibc keeps freed memory for later allocations. Micro-batches of many shapes fragment it, so that the process
grows with the number of micro-batches although only one is in memory at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache

import torch

from qontext.frame.errors import QontextError


@contextlib.contextmanager
def out_of_memory_as_sentence(step: int) -> Iterator[None]:
    """Raises a QontextError with the remedy if memory runs out inside."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
            raise
        raise QontextError(
            f"out of memory at step {step}",
            remedy="Lower --micro-tokens (the token budget per micro-batch), or --batch-size, or set "
            "--gradient-cache on. The run resumes from its last checkpoint.",
        ) from None


def return_freed_memory() -> bool:
    """Return the pages of freed memory to the system; returns True if there were any.

    Takes some hundredths of a second for gigabytes, and as much again when the memory is next used: suitable
    between micro-batches, not between operations.
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
