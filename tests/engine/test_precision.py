"""Devices and number formats: what is asked for is checked against what there is."""

from __future__ import annotations

import pytest
import torch

from qontext.engine.precision import autocast, resolve_device, resolve_precision
from qontext.errors import QontextError

CPU = torch.device("cpu")


def flags(monkeypatch: pytest.MonkeyPatch, *, avx512: bool, amx: bool) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)


@pytest.mark.parametrize(("avx512", "amx"), [(True, False), (False, True), (False, False)])
def test_auto_is_bf16_only_on_hardware_that_has_it(
    monkeypatch: pytest.MonkeyPatch, avx512: bool, amx: bool
) -> None:
    flags(monkeypatch, avx512=avx512, amx=amx)
    expected = torch.bfloat16 if avx512 or amx else torch.float32
    assert resolve_precision("auto", CPU) == expected


def test_a_torch_without_the_flags_computes_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert resolve_precision("auto", CPU) == torch.float32


def test_named_precisions() -> None:
    assert resolve_precision("fp32", CPU) == torch.float32
    assert resolve_precision("bf16", CPU) == torch.bfloat16
    assert resolve_precision("fp16", torch.device("cuda")) == torch.float16
    with pytest.raises(QontextError, match=r"fp16 needs a GPU.*bf16, fp32"):
        resolve_precision("fp16", CPU)
    with pytest.raises(QontextError, match="Did you mean 'bf16'"):
        resolve_precision("bf61", CPU)  # type: ignore[arg-type]


def test_autocast_computes_in_the_format_and_leaves_fp32_alone() -> None:
    x = torch.randn(2, 2)
    with autocast(CPU, torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
    with autocast(CPU, torch.float32):
        assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16), autocast(CPU, torch.float32):
        assert (x @ x).dtype == torch.float32


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == torch.device("cuda")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    for wrong in ("cuda:2", "cuda:x", "cuda:"):
        with pytest.raises(QontextError, match="cuda:0, cuda:1"):
            resolve_device(wrong)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == CPU
    with pytest.raises(QontextError, match="no CUDA GPU"):
        resolve_device("cuda")
    with pytest.raises(QontextError, match="no Apple GPU"):
        resolve_device("mps")
    with pytest.raises(QontextError, match="Choose from: cpu, cuda, mps"):
        resolve_device("gpu")
    with pytest.raises(QontextError, match="unknown device 'cpu:1'"):
        resolve_device("cpu:1")
