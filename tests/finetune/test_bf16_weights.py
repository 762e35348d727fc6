"""A fine-tuning with bf16 weights: resumed in the same bits, and with the gradient cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.finetune.test_run import losses

from qontext.training import checkpoint

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
