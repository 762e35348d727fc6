"""Which device to compute on, and in which number format."""

from __future__ import annotations

import contextlib
import os
from typing import Literal

import torch

from qontext.errors import QontextError, choose

Precision = Literal["auto", "bf16", "fp16", "fp32"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def resolve_device(name: str = "auto") -> torch.device:
    """`auto` = a CUDA GPU if there is one, else Apple's, else the CPU; or `cpu`, `cuda`, `cuda:1`, `mps`."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind, colon, number = name.partition(":")
    if choose(kind, ("cpu", "cuda", "mps"), "device") != "cuda":
        if colon:
            raise QontextError(f"unknown device {name!r}", remedy=f"Write {kind!r}.")
        if kind == "mps" and not torch.backends.mps.is_available():
            raise QontextError("torch finds no Apple GPU on this machine", remedy="Choose --device cpu.")
        return torch.device(kind)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise QontextError("torch finds no CUDA GPU on this machine", remedy="Choose --device cpu.")
    if colon and not (number.isdigit() and int(number) < count):
        names = ", ".join(f"cuda:{i}" for i in range(count))
        raise QontextError(f"there is no device {name!r} on this machine", remedy=f"Choose from: {names}.")
    return torch.device(name)


def own_device(name: str) -> str:
    """Under torchrun, `auto` and `cuda` are this process's own GPU."""
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if local and name in ("auto", "cuda") and torch.cuda.is_available() else name


def resolve_precision(name: Precision, device: torch.device) -> torch.dtype:
    """The format of activations and matrix products; weights and optimiser stay in fp32.

    `auto` is bf16 where the hardware computes in it, else fp32. A CPU that can merely emulate bf16 is
    slower with it than without, so its flags are asked, not torch's readiness to run it.
    """
    dtype = _DTYPES.get(choose(name, ("auto", *_DTYPES), "precision"))
    if dtype is None:
        return torch.bfloat16 if has_bf16(device) else torch.float32
    if dtype == torch.float16 and device.type == "cpu":
        raise QontextError("fp16 needs a GPU", remedy="Choose --precision bf16, fp32 or auto.")
    return dtype


def has_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 matrices in hardware."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        flags = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(getattr(torch.cpu, flag, lambda: False)() for flag in flags)
    return False


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    """Compute in `dtype` inside; fp32 switches off what is set around it."""
    if dtype == torch.float32:
        return torch.autocast(device.type, enabled=False)
    return torch.autocast(device.type, dtype=dtype)
