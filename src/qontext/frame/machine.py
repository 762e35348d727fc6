"""The machine that a stage ran on: processor, memory, GPUs, versions of the libraries in use."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "bm25s", "faiss")

_UNITS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


@cache
def _hardware() -> dict[str, Any]:
    hardware: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
    }
    if units := _units():
        hardware["units"] = units
    hardware["cores"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with_memory = hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
    if with_memory:
        hardware["memory_gib"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    return hardware


def cores() -> int:
    """The number of cores that this process may use."""
    return int(_hardware()["cores"] or 1)


def load() -> float:
    """The number of processes that ran or waited for a core, averaged over the last minute; 0 where it is unknown."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def is_amd_with_avx512() -> bool:
    """True if the processor is one of AMD's that has 512-bit vector units."""
    return _cpu_line("vendor_id") == "AuthenticAMD" and "avx512f" in _units()


def describe() -> dict[str, Any]:
    """Describe the machine and the libraries that this process has loaded; loads none itself."""
    loaded = [name for name in _LIBRARIES if name in sys.modules]
    versions = {name: str(getattr(sys.modules[name], "__version__", "?")) for name in loaded}
    return {**_hardware(), "gpus": _gpus(), "versions": versions}


def _processor() -> str:
    return _cpu_line("model name") or platform.processor() or "unknown"


def _units() -> list[str]:
    """The processor's units for matrix products, by their names on Linux."""
    flags = _cpu_line("flags").split()
    return [unit for unit in _UNITS if unit in flags]


@cache
def _cpu_line(name: str) -> str:
    """Linux' description of the first core; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _gpus() -> list[str]:
    """The names of the GPUs that torch has used, if it is loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
