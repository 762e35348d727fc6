"""What a step does to the weights when something is wrong, with every kind of optimiser."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from qontext.engine.distributed import join
from qontext.engine.settings import LoopSettings
from qontext.engine.stepper import Stepper
from qontext.errors import QontextError

FRESH = {"step": 0, "skipped": 0, "passages": 0}
BATCH = SimpleNamespace(passages=1)


class Line(nn.Module):
    """A loss that is what the micro-batch says, times the weight."""

    contrastive = False

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def forward(self, micro: Any) -> Any:
        return SimpleNamespace(losses={"line": (self.weight * micro.slope).sum()}, vectors=None)


def stepper(
    slope: float, dtype: torch.dtype = torch.float32, *, fused: bool, lr: float = 0.1, **state: Any
) -> Stepper:
    line = Line()
    settings = LoopSettings(4, lr, 0.0, "constant", 0.0, 1.0, dtype, "auto", 60, 1)
    optimizer = torch.optim.AdamW(line.parameters(), lr=lr, weight_decay=0.0, fused=fused)
    micro = SimpleNamespace(seed=0, slope=slope)
    return Stepper(
        line, optimizer, settings, join("cpu"), lambda batch, group: ([micro], None), {**FRESH, **state}
    )


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("slope", [1.0, float("nan"), float("inf")])
def test_a_bad_step_changes_nothing_and_is_counted(slope: float, fused: bool) -> None:
    one = stepper(slope, fused=fused)
    one.step(0, BATCH)
    changed = not torch.equal(one.trainee.weight, torch.ones(2, 2))
    assert changed == (slope == 1.0)
    assert one.summary()["steps skipped"] == (slope != 1.0)


def test_weights_that_ran_away_are_no_result() -> None:
    one = stepper(1.0, fused=True, lr=1e39)
    one.step(0, BATCH)
    with pytest.raises(QontextError, match=r"not finite numbers any more\. Lower --lr"):
        one.summary()


def test_a_resumed_run_goes_on_with_its_loss_scale() -> None:
    one = stepper(1.0, torch.float16, fused=True)
    one.scaler.scale(torch.ones(()))
    one.scaler.update(8.0)
    again = stepper(1.0, torch.float16, fused=True, **{**one.state(1), "step": 0})
    assert again.scaler.state_dict() == one.scaler.state_dict()
    assert again.scaler.get_scale() == 8.0
