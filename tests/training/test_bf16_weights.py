"""bf16 weights with fp32 master weights: the reference, small updates, and what is left of them afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.training.test_step import Slope, batch
from torch import Tensor, nn

from qontext.frame.errors import QontextError
from qontext.training import bf16_weights
from qontext.training.batch import Batch, Output, TrainableModel
from qontext.training.config import TrainingConfig
from qontext.training.distributed import join
from qontext.training.optimizer import Optimizer
from qontext.training.step import FRESH, Stepper


class Stack(TrainableModel):
    """Two linear layers, times what the micro-batch says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8, bias=False)])
        self.x = torch.randn(4, 8)

    def forward(self, rows: Any) -> Output:
        hidden = self.x * rows.slope
        for layer in self.layers:
            hidden = layer(hidden)
        return Output({"square": hidden.float().square().mean()})


def stepper(
    dtype: torch.dtype = torch.bfloat16, *, lr: float = 1e-2, clip: float = 1e9, on: bool = True
) -> Stepper:
    values = {"epochs": 1, "batch_size": 1, "lr": lr, "warmup": 0.0, "schedule": "constant", "clip": clip}
    config = TrainingConfig.make({**values, "bf16_weights": on}, where="test")
    stack = Stack().train()
    return Stepper(
        stack, Optimizer(stack, config, 4, dtype, torch.device("cpu")), join("cpu"), dtype, state=FRESH
    )


def weights(one: Stepper) -> list[Tensor]:
    return [p.detach().clone() for p in one.model.parameters()]


def test_master_weights_are_updated_in_fp32_and_rounded() -> None:
    one = stepper()
    master, low = Stack(), Stack()
    adamw = torch.optim.AdamW(
        [
            {"params": list(master.layers.parameters())[::2]},
            {"params": [master.layers[0].bias], "weight_decay": 0},
        ],
        lr=1e-2,
        weight_decay=0.01,
        fused=True,
    )
    for step, slope in enumerate((1.0, -2.0, 0.5)):
        one.step(step, batch(slope))
        with torch.no_grad():
            for p, m in zip(low.parameters(), master.parameters()):
                p.copy_(m.bfloat16() if m.ndim == 2 else m)
        low.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = low(Slope(slope, row_keys=np.zeros(1, np.uint64))).losses["square"]
        loss.backward()
        for p, m in zip(low.parameters(), master.parameters()):
            m.grad = p.grad
        adamw.step()
    assert all(map(torch.equal, weights(one), master.parameters()))
    layers: Any = one.model.layers
    assert all(torch.equal(layer.low, layer.weight.bfloat16()) for layer in layers)
    assert {layer.low.dtype for layer in layers} == {torch.bfloat16}


@pytest.mark.parametrize("bucket", [1 << 24, 1], ids=["one bucket", "a layer each"])
def test_a_step_is_that_of_autocast_in_the_same_bits(bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bf16_weights, "BUCKET", bucket)
    pair = stepper(), stepper(on=False)
    for step in range(3):
        for one in pair:
            one.step(step, batch(1.0 + step))
    assert all(map(torch.equal, *map(weights, pair)))
    clipped = stepper(clip=1e-3), stepper(clip=1e-3, on=False)
    for one in clipped:
        one.step(0, batch(1.0))
    for ours, theirs in zip(*map(weights, clipped)):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_gradients_of_micro_batches_are_summed_and_a_bad_step_changes_nothing() -> None:
    def rows(*slopes: float) -> Batch:
        return Batch(
            [Slope(slope, row_keys=np.zeros(1, np.uint64)) for slope in slopes], passages=len(slopes)
        )

    several, plain = stepper(), stepper(on=False)
    for one in (several, plain):
        one.backward(rows(1.0, 2.0, 3.0))
    ours: Any = [layer.low.grad for layer in several.model.layers]
    theirs: Any = [layer.weight.grad for layer in plain.model.layers]
    for own, other in zip(ours, theirs):
        assert own.dtype == torch.bfloat16 and torch.allclose(own.float(), other, rtol=2e-2, atol=1e-2)
    before = weights(several)
    several.optimizer.adamw.zero_grad()
    bf16_weights.clear(several.model)
    several.step(0, rows(float("nan")))
    assert all(map(torch.equal, weights(several), before)) and several.summary()["steps_skipped"] == 1
    several.step(1, rows(1.0))
    assert not all(map(torch.equal, weights(several), before))


def test_updates_below_the_resolution_of_bf16_add_up() -> None:
    one = stepper(lr=1e-4)
    first: Any = one.model.layers[0]
    with torch.no_grad():
        first.weight.fill_(1.0)
    bf16_weights.refresh(one.model)
    for step in range(3):
        one.step(step, batch(1.0))
    assert torch.equal(first.low, torch.ones(8, 8).bfloat16()), "less than half of 1/256 each"
    for step in range(60):
        one.step(step, batch(1.0))
    assert not torch.equal(first.low, torch.ones(8, 8).bfloat16())


def test_afterwards_the_model_is_as_it_was_built() -> None:
    one = stepper()
    one.step(0, batch(1.0))
    one.optimizer.finish()
    assert all(type(layer) is nn.Linear and not hasattr(layer, "low") for layer in one.model.layers)
    assert {p.dtype for p in one.model.parameters()} == {torch.float32}


def test_layers_that_are_frozen_without_adapters_stay_as_they_are() -> None:
    stack = Stack()
    layers: Any = stack.layers
    layers[0].requires_grad_(False)
    bf16_weights.add(stack)
    assert type(layers[0]) is nn.Linear and layers[0].weight.dtype == torch.float32
    assert layers[1].low.requires_grad


def test_another_format_is_refused() -> None:
    with pytest.raises(QontextError, match="--bf16-weights needs --precision bf16"):
        stepper(torch.float32)
