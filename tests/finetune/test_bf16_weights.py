"""A fine-tuning with bf16 weights: resumed in the same bits, with the gradient cache, and frozen beside adapters."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.finetune.test_run import losses

from qontext.models.encoder import load_encoder
from qontext.training import adapters, bf16_weights, checkpoint

Finetune = Callable[..., Any]
BF16: dict[str, Any] = {
    "precision": "bf16",
    "bf16_weights": True,
    "steps": 4,
    "dropout": 0.1,
    "micro_tokens": 60,
}


def test_a_resumed_training_ends_in_the_same_bits(
    finetune: Finetune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finetune(tmp_path / "whole", gradient_cache="off", **BF16)
    cached = finetune(tmp_path / "cached", gradient_cache="on", **BF16)
    assert losses(cached.path) == pytest.approx(losses(whole.path), rel=1e-2)
    save = checkpoint.save

    def dying(*values: Any) -> None:
        save(*values)
        raise RuntimeError("killed")

    monkeypatch.setattr(checkpoint, "save", dying)
    with pytest.raises(RuntimeError):
        finetune(tmp_path / "out", checkpoint_minutes=0, gradient_cache="off", **BF16)
    monkeypatch.setattr(checkpoint, "save", save)
    assert finetune(tmp_path / "out", gradient_cache="off", **BF16).digest == whole.digest


@pytest.fixture
def rounded(start: Path, tmp_path: Path) -> Path:
    """The start with the linear layers of its stack in bf16's numbers."""
    folder = tmp_path / "rounded"
    shutil.copytree(start, folder)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if ".layer." in name and weight.ndim == 2:
            weights[name] = weight.bfloat16().float()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_frozen_weights_are_rounded_once(
    finetune: Finetune, rounded: Path, start: Path, tmp_path: Path
) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    settings: dict[str, Any] = {**BF16, "lora_rank": 3, "gradient_cache": "off"}
    ours = finetune(tmp_path / "ours", **settings)
    theirs = finetune(tmp_path / "theirs", encoder=rounded, **{**settings, "bf16_weights": False})
    weights = [load_file(result.path / "model.safetensors") for result in (ours, theirs)]
    assert {w.dtype for w in weights[0].values()} == {torch.float32}
    assert all(torch.equal(weights[1][name], weight) for name, weight in weights[0].items())
    assert losses(ours.path) == losses(theirs.path)


def test_frozen_weights_take_half_the_memory_and_compute_everywhere(start: Path) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    encoder = load_encoder(start)
    backbone = encoder.backbone
    adapters.add(backbone, 3, None, 0)
    before = {name: p.detach().clone() for name, p in backbone.named_parameters()}
    bf16_weights.add(backbone)
    low = {name for name, p in backbone.named_parameters() if p.dtype == torch.bfloat16}
    assert low == {name for name in before if name.endswith("base_layer.weight")}
    ids = torch.arange(1, 9)[None]
    with torch.inference_mode():
        hidden = backbone(input_ids=ids).last_hidden_state
    bf16_weights.remove(backbone)
    assert all(
        torch.equal(p, before[name].bfloat16() if name in low else before[name])
        for name, p in backbone.named_parameters()
    )
    with adapters.merged(backbone), torch.inference_mode():
        assert {p.dtype for p in backbone.parameters()} == {torch.float32}
        assert torch.equal(hidden, backbone(input_ids=ids).last_hidden_state), "B is zero"
