"""What a step does to the weights when something is wrong, with every kind of optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny import Server
from torch import nn

from qontext.frame.errors import QontextError
from qontext.training.batch import Batch, Output, Rows, TrainableModel
from qontext.training.config import TrainingConfig
from qontext.training.distributed import join
from qontext.training.optimizer import Optimizer
from qontext.training.step import FRESH, Stepper


@dataclass(frozen=True)
class Slope(Rows):
    slope: float


class Line(TrainableModel):
    """A loss that is what the micro-batch says, times the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def forward(self, rows: Slope) -> Output:
        return Output({"line": (self.weight * rows.slope).sum()})


def batch(slope: float) -> Batch:
    return Batch([Slope(slope, row_keys=np.zeros(1, np.uint64))], passages=1)


def stepper(dtype: torch.dtype = torch.float32, *, fused: bool, lr: float = 0.1, **state: Any) -> Stepper:
    line = Line()
    config = TrainingConfig.make(
        {"epochs": 1, "batch_size": 1, "lr": 0.1, "warmup": 0.0, "schedule": "constant"}, where="test"
    ).model_copy(update={"lr": lr})
    optimizer = Optimizer(line, config, 4, dtype, torch.device("cpu"))
    optimizer.adamw = torch.optim.AdamW(line.parameters(), lr=lr, weight_decay=0.0, fused=fused)
    return Stepper(line, optimizer, join("cpu"), dtype, state={**FRESH, **state})


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("slope", [1.0, float("nan"), float("inf")])
def test_a_bad_step_changes_nothing_and_is_counted(slope: float, fused: bool) -> None:
    one = stepper(fused=fused)
    one.step(0, batch(slope))
    changed = not torch.equal(one.model.weight, torch.ones(2, 2))
    assert changed == (slope == 1.0)
    assert one.summary()["steps_skipped"] == (slope != 1.0)


def test_weights_that_ran_away_are_no_result() -> None:
    one = stepper(fused=True, lr=1e39)
    one.step(0, batch(1.0))
    with pytest.raises(QontextError, match=r"no longer finite\. Lower --lr"):
        one.summary()


def test_a_resumed_run_goes_on_with_its_loss_scale() -> None:
    one = stepper(torch.float16, fused=True)
    one.optimizer.scaler.scale(torch.ones(()))
    one.optimizer.scaler.update(8.0)
    again = stepper(torch.float16, fused=True, **{**one.state(1), "step": 0})
    assert again.optimizer.scaler.state_dict() == one.optimizer.scaler.state_dict()
    assert again.optimizer.scaler.get_scale() == 8.0


class Mean(Line):
    """A loss that is a mean over the rows of the batch."""

    def forward(self, rows: Slope) -> Output:
        total = len(rows.row_keys) * (self.weight * rows.slope).sum()
        return Output({"mean": total / self.batch_rows})


def test_a_mean_over_rows_does_not_depend_on_the_micro_batches() -> None:
    micro = [Slope(2.0, row_keys=np.zeros(count, np.uint64)) for count in (1, 3)]
    whole = Slope(2.0, row_keys=np.zeros(4, np.uint64))
    gradients = []
    for parts in (micro, [whole]):
        one = stepper(fused=False)
        one.model = Mean()
        one.backward(Batch(parts, passages=4))
        assert one.model.batch_rows == 4
        gradients.append(one.model.weight.grad)
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(gradients[0], torch.full((2, 2), 2.0))


TOTAL = """
from qontext.training.distributed import join
group = join("cpu")
print(group.total(group.rank + 2))
"""


def test_the_rows_of_all_ranks_are_counted(warm: Server, tmp_path: Path) -> None:
    running = warm.launch({"code": TOTAL, "cwd": str(tmp_path)}, tmp_path / "said", 2)
    assert running.wait() == {0}, running.text()
    assert [path.read_text().split()[-1] for path in running.outputs] == ["5", "5"]
