"""Memory: out-of-memory errors with a remedy, and returning freed memory to the system.

glibc returns large freed blocks to the system at once; the next allocation then has to fetch and clear every page again,
which takes a fifth of a training step. During training, freed memory is therefore kept for later allocations.
Micro-batches of many shapes fragment it, so that the process grows with the number of micro-batches although only one is
in memory at a time: between them, it is returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache

import torch

from qontext.frame.errors import QontextError

# Numbers of the settings in glibc's malloc.h.
_MMAP_MAX, _TRIM_THRESHOLD, _LARGEST = -4, -1, 2**31 - 1


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


def keep_freed_memory() -> None:
    """Let this process keep the pages of freed memory; no effect if the C library is not glibc."""
    if (choose := _libc("mallopt")) is not None:
        choose(_MMAP_MAX, 0)
        choose(_TRIM_THRESHOLD, _LARGEST)


def return_freed_memory() -> bool:
    """Return the pages of freed memory to the system; returns True if there were any.

    Takes some hundredths of a second for gigabytes, and as much again when the memory is next used: suitable
    between micro-batches, not between operations.
    """
    trim = _libc("malloc_trim")
    return trim is not None and bool(trim(0))


@cache
def _libc(name: str) -> Callable[..., int] | None:
    """A function of glibc."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):  # not glibc
        return None
    return function
