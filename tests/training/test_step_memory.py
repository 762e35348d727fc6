"""The predicted memory of a training step: what the backward pass really keeps, and what adapt does with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from qontext.adapt import prepare
from qontext.frame import machine
from qontext.models.encoder import load_encoder
from qontext.training.memory import step_memory


def test_activations_are_those_that_the_backward_pass_keeps(minilm: Path) -> None:
    encoder = load_encoder(minilm).train()
    own, saved = {id(p) for p in encoder.parameters()}, dict[int, int]()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        encoder(torch.ones(2, 32, dtype=torch.long), None)
    shape: dict[str, Any] = {"rows": 2, "tokens": 32, "dtype": torch.float32}
    predicted = step_memory(minilm, **shape)
    assert predicted.activations == pytest.approx(sum(saved.values()), rel=0.1)
    parameters = sum(p.numel() for p in encoder.backbone.parameters())
    assert predicted.gradients == pytest.approx(4 * parameters, rel=0.01)
    assert predicted.moments == 2 * predicted.gradients == 2 * predicted.weights
    adapted = step_memory(minilm, **shape, lora_rank=8, recomputed=True)
    assert adapted.gradients < predicted.gradients / 20 and adapted.activations < predicted.activations / 3
    linear = sum(m.weight.numel() for m in encoder.backbone.modules() if isinstance(m, torch.nn.Linear))
    shape |= {"dtype": torch.bfloat16}
    full, full_low = step_memory(minilm, **shape), step_memory(minilm, **shape, bf16_weights=True)
    assert full.total - full_low.total == 2 * linear, "gradients"
    beside, beside_low = (step_memory(minilm, **shape, lora_rank=8, bf16_weights=on) for on in (False, True))
    assert beside.total - beside_low.total == 4 * linear, "weights, and copies of them"


def test_adapt_trains_adapters_where_all_weights_do_not_fit(
    minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("QONTEXT_AUTO_PRECISION", "fp32")

    def fitted(gibibytes: float, rank: int | None = None) -> tuple[dict[str, Any], list[str]]:
        monkeypatch.setattr(machine, "free_memory", lambda: int(gibibytes * 2**30))
        notes: list[str] = []
        settings, memory = prepare.fit_into_memory(rank, minilm, 64, notes)
        assert memory > 0
        return settings, notes

    assert fitted(100) == ({}, []) == fitted(0), "the free memory may be unknown"
    settings, notes = fitted(1.1)
    assert (
        settings == {"activation_checkpointing": True}
        and "layers are computed twice, and it needs" in notes[0]
    )
    settings, notes = fitted(0.6)
    assert settings == {"lora_rank": 16, "lr": 3e-4, "activation_checkpointing": True}
    assert "adapters are trained beside frozen weights (LoRA) and layers are computed twice" in notes[0]
    assert "memory may run out" in fitted(0.1)[1][1]
    assert fitted(100, 4)[0] == {"lora_rank": 4, "lr": 3e-4}
    assert fitted(0.6, 0)[0] == {"activation_checkpointing": True}
    monkeypatch.setenv("QONTEXT_AUTO_PRECISION", "bf16")
    settings, notes = fitted(0.1)
    assert settings == {"lora_rank": 16, "lr": 3e-4, "activation_checkpointing": True, "bf16_weights": True}
    assert "layers are computed twice and frozen weights are in bf16, and it needs" in notes[0]
