"""Memory that was freed leaves the process, though something small above it stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD = """
import torch
from pathlib import Path
from qontext.training.memory import return_freed_memory

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
