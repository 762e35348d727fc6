"""Memory that was freed leaves the process, though something small above it stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qontext.frame.errors import QontextError
from qontext.training.step import out_of_memory_as_sentence

CHILD = """
import torch
from pathlib import Path
from qontext.training.step import return_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

torch.ones(30 << 18), torch.ones(28 << 18)  # freed at once: glibc now serves such sizes from its heap
before = resident()
work = [torch.ones(6 << 18) for _ in range(8)]
held = torch.ones(1_000)  # keeps the heap from shrinking
del work
if {is_called}:
    assert return_freed_memory()
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_blocks_go_back_to_the_system() -> None:
    grown = [
        float(
            subprocess.run(
                [sys.executable, "-c", CHILD.format(is_called=is_called)], capture_output=True, text=True
            ).stdout
        )
        for is_called in (False, True)
    ]
    assert grown[1] < 8
    assert grown[0] > grown[1] + 8, "without it nothing is gained here, so it could go"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_running_out_of_memory_is_told_in_a_sentence(error: Exception) -> None:
    with pytest.raises(QontextError, match="out of memory at step 3"), out_of_memory_as_sentence(3):
        raise error


def test_other_errors_of_memory_stay_what_they_are() -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal") as raised, out_of_memory_as_sentence(3):
        raise error
    assert raised.value is error
