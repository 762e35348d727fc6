"""Choosing the device and the number format.

bf16 has 8 significant bits: enough for matrix products inside a model, too few for numbers that are compared with
each other. Vectors, scores and losses are therefore always computed in fp32.
"""

from __future__ import annotations

import contextlib
import os
from types import MethodType
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from qontext.frame import artifacts, process
from qontext.frame.artifacts import Workdir
from qontext.frame.config import ComputeConfig
from qontext.frame.errors import QontextError, choose

Precision = Literal["auto", "bf16", "fp16", "fp32"]
AUTO = "QONTEXT_AUTO_PRECISION"
"""The environment variable for the value of `auto`, so that different machines agree."""

_ISA, _OLD_ISA = "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"
_WITHOUT_BF16 = ("sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2", "avx512_core", "avx512_core_vnni")
_ATTENTION, _DEBERTA = "DisentangledSelfAttention", ".modeling_deberta"
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
            raise QontextError(
                "torch cannot find an Apple GPU on this machine", remedy="Choose --device cpu."
            )
        return torch.device(kind)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise QontextError("torch cannot find a CUDA GPU on this machine", remedy="Choose --device cpu.")
    if colon and not (number.isdigit() and int(number) < count):
        names = ", ".join(f"cuda:{i}" for i in range(count))
        raise QontextError(f"there is no device {name!r} on this machine", remedy=f"Choose from: {names}.")
    return torch.device(name)


def own_device(name: str) -> str:
    """Under torchrun, `auto` and `cuda` are this process's own GPU."""
    local = process.local_rank()
    is_free = local is not None and name in ("auto", "cuda") and torch.cuda.is_available()
    return f"cuda:{local}" if is_free else name


def resolve_precision(name: Precision, device: torch.device) -> torch.dtype:
    """The format of activations and matrix products; weights and optimizer state stay in fp32.

    `auto` is the value of QONTEXT_AUTO_PRECISION; if not set, bf16 if the hardware supports it, else fp32. A
    CPU that only emulates bf16 is slower with it, so the CPU flags are checked, not torch's support.
    """
    dtype = _DTYPES.get(choose(name, ("auto", *_DTYPES), "precision"))
    if dtype is None:
        if setting := os.environ.get(AUTO):
            return _DTYPES[choose(setting, ("bf16", "fp32"), AUTO)]
        return torch.bfloat16 if has_bf16(device) else torch.float32
    if dtype == torch.float16 and device.type == "cpu":
        raise QontextError("fp16 needs a GPU", remedy="Choose --precision bf16, fp32 or auto.")
    return dtype


def settle_precision(work: Workdir, setting: Precision, device: torch.device) -> Precision:
    """The format, never `auto`, to compute a stage's directory in; see `artifacts.settle`."""
    here = precision_name(resolve_precision(setting, device))
    return cast(Precision, artifacts.settle(work, setting, here))


def precision_name(dtype: torch.dtype) -> str:
    """The name of a format, as for `--precision`."""
    return next(name for name, value in _DTYPES.items() if value == dtype)


def computes_in(options: ComputeConfig) -> str:
    """The resolved number format of these options, in this process."""
    return precision_name(resolve_precision(options.precision, resolve_device(own_device(options.device))))


def has_bf16(device: torch.device) -> bool:
    """True if the device multiplies bf16 matrices in hardware. oneDNN, which is used on a CPU, does not use
    units that ONEDNN_MAX_CPU_ISA excludes.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        if "bf16" in excluded_units():
            return False
        flags = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(getattr(torch.cpu, flag, lambda: False)() for flag in flags)
    return False


def excluded_units() -> set[str]:
    """The units, "bf16" and "avx512", that oneDNN was told not to use."""
    highest = os.environ.get(_ISA, os.environ.get(_OLD_ISA, "")).lower()
    excluded = {"bf16"} if highest in _WITHOUT_BF16 else set()
    return excluded | ({"avx512"} if highest in _WITHOUT_BF16[:5] else set())


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    """Compute in `dtype` inside this context; fp32 disables an outer autocast."""
    if dtype == torch.float32:
        return torch.autocast(device.type, enabled=False)
    return torch.autocast(device.type, dtype=dtype)


class Fp32Linear(nn.Linear):
    """A linear layer that always computes in fp32."""

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


def keep_fp32(model: nn.Module) -> None:
    """Make a transformer compute the modules outside its stack of layers in fp32: projections, poolers,
    heads. Otherwise the output would be rounded to 8 bits, and similar texts would have equal scores. Weights
    and their names do not change.
    """
    for child in model.children():
        if type(child) is nn.Linear:
            child.__class__ = Fp32Linear
        elif not isinstance(child, nn.ModuleList):
            keep_fp32(child)
        else:
            for module in child.modules():
                if type(module).__qualname__ == _ATTENTION and type(module).__module__.endswith(_DEBERTA):
                    _attend_in_fp32(module)


def _attend_in_fp32(module: nn.Module) -> None:
    """Let the attention of DeBERTa's first version compute in fp32: it masks bf16 scores with the least number of fp32."""

    def forward(module: nn.Module, hidden_NTH: Tensor, *rest: Any, **settings: Any) -> Any:
        with torch.autocast(hidden_NTH.device.type, enabled=False):
            return type(module).forward(module, hidden_NTH.float(), *rest, **settings)

    module.forward = MethodType(forward, module)
    for child in module.children():
        if isinstance(child, nn.Linear):  # which may have bf16 weights
            child.register_forward_hook(lambda linear, inputs, output: output.float())
