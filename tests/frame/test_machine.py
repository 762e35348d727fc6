"""The machine as it is described and measured."""

from __future__ import annotations

import pytest

from qontext.frame import machine

FILES = {
    "/proc/meminfo": ["MemTotal: 99 kB", "MemAvailable: 4000000 kB"],
    "/sys/fs/cgroup/memory.max": ["1000000000"],
    "/sys/fs/cgroup/memory.current": ["900000000"],
    "/sys/fs/cgroup/memory.stat": ["anon 1", "file 8", "inactive_file 500000000", "active_file 300000000"],
}


def test_files_that_a_container_has_read_leave_its_memory_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_lines", lambda file: iter(FILES.get(file, [])))
    assert machine.free_memory() == 900_000_000
    monkeypatch.setitem(FILES, "/sys/fs/cgroup/memory.max", ["max"])
    assert machine.free_memory() == 4_000_000 * 1024
