"""Devices and number formats: what is asked for is checked against what there is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.conftest import SENTENCES, batch
from torch import nn

from qontext.frame.errors import QontextError
from qontext.models.precision import AUTO, Fp32Linear, autocast, keep_fp32, resolve_device, resolve_precision

CPU = torch.device("cpu")
ISA = "ONEDNN_MAX_CPU_ISA"


@pytest.fixture(autouse=True)
def _as_the_hardware_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (AUTO, ISA, "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)


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


@pytest.mark.parametrize("name", [ISA, "DNNL_MAX_CPU_ISA"])
def test_units_that_are_switched_off_do_not_count(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    flags(monkeypatch, avx512=True, amx=True)
    for isa in ("SSE41", "AVX2", "avx2_vnni_2", "AVX512_CORE", "avx512_core_vnni"):
        monkeypatch.setenv(name, isa)
        assert resolve_precision("auto", CPU) == torch.float32, isa
        assert resolve_precision("bf16", CPU) == torch.bfloat16, "emulated"
    for isa in ("ALL", "AVX512_CORE_BF16", "AVX10_1_512_AMX", "avx512_core_amx"):
        monkeypatch.setenv(name, isa)
        assert resolve_precision("auto", CPU) == torch.bfloat16, isa


@pytest.mark.parametrize("units", [False, True])
def test_the_environment_says_what_auto_is(monkeypatch: pytest.MonkeyPatch, units: bool) -> None:
    flags(monkeypatch, avx512=units, amx=False)
    for name, expected in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        monkeypatch.setenv(AUTO, name)
        assert resolve_precision("auto", CPU) == expected
    assert resolve_precision("bf16", CPU) == torch.bfloat16, "what is asked for by its name counts"
    monkeypatch.setenv(AUTO, "fp8")
    with pytest.raises(QontextError, match=r"unknown QONTEXT_AUTO_PRECISION 'fp8'.*bf16, fp32"):
        resolve_precision("auto", CPU)


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
    with pytest.raises(QontextError, match="cannot find a CUDA GPU"):
        resolve_device("cuda")
    with pytest.raises(QontextError, match="cannot find an Apple GPU"):
        resolve_device("mps")
    with pytest.raises(QontextError, match="Choose from: cpu, cuda, mps"):
        resolve_device("gpu")
    with pytest.raises(QontextError, match="unknown device 'cpu:1'"):
        resolve_device("cpu:1")


def is_rounded(values: torch.Tensor) -> bool:
    """True if all values are numbers of bf16."""
    return bool((values.bfloat16().float() == values).all())


def test_only_what_stands_outside_the_layers_is_kept_in_fp32() -> None:
    layer = nn.Sequential(nn.Linear(8, 8))
    model = nn.ModuleDict({"project": nn.Linear(8, 8), "layers": nn.ModuleList([layer])})
    names = list(model.state_dict())
    keep_fp32(model)
    assert list(model.state_dict()) == names
    assert type(model["project"]) is Fp32Linear and type(layer[0]) is nn.Linear
    x, copied = torch.randn(4, 8), copy.deepcopy(model)
    with torch.no_grad():
        copied["project"].weight.zero_()
    for dtype in (torch.bfloat16, torch.float32):
        with torch.no_grad(), autocast(CPU, dtype):
            assert model["project"](x.to(dtype)).dtype == torch.float32
            assert not is_rounded(model["project"](x))
            assert (copied["project"](x) == copied["project"].bias).all(), (
                "a copy computes with its own weights"
            )
    with autocast(CPU, torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_vectors_are_not_rounded_to_bf16(checkpoint: tuple[Path, Any]) -> None:
    """Of every architecture, in training as in search: the layers compute in bf16, what comes out last does not."""
    from qontext.finetune.bi_encoder import BiEncoder
    from qontext.models.encoder import load_encoder
    from qontext.models.representations.vector import Vector
    from qontext.models.retriever import Retriever

    folder, _ = checkpoint
    encoder = load_encoder(str(folder))
    ids, mask = batch(encoder.tokenizer)
    pooling: Any
    for pooling in ("cls", "mean"):
        whole = Retriever(str(folder), device="cpu", precision="fp32", pooling=pooling)
        exact = torch.from_numpy(whole.encode(SENTENCES, "passage"))
        with torch.no_grad(), autocast(CPU, torch.bfloat16):
            trained = BiEncoder(encoder, Vector(pooling)).vectors(ids, mask)
        half = Retriever(str(folder), device="cpu", precision="bf16", pooling=pooling)
        searched = torch.from_numpy(half.encode(SENTENCES, "passage"))
        for vectors in (trained, searched):
            assert vectors.dtype == torch.float32 and not is_rounded(vectors)
            assert (vectors - exact).abs().max() < 0.05 * exact.abs().max()
            assert not torch.equal(vectors, exact), "the layers computed in bf16"
