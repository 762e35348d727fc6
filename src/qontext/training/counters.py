"""Counters of a training between two reports: losses, the gradient norm, passages and time.

The sums stay on the device and are read back when they are reported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from qontext.training.batch import Losses
from qontext.training.distributed import Group


class Counters:
    """Sums since the last report, and totals since the training began."""

    def __init__(self, group: Group, state: Mapping[str, Any]) -> None:
        self.group = group
        window = state.get("window", {"steps": 0, "norm": 0.0, "losses": {}})
        # The saved sums are those over all ranks: after resuming, the first rank continues them.
        self.losses: Losses = {
            name: torch.tensor(total if group.is_first else 0.0, device=group.device)
            for name, total in window["losses"].items()
        }
        self.norm = torch.tensor(window["norm"], device=group.device)
        self.steps, self.passages = int(window["steps"]), 0
        self.passages_in_all = int(state["passages"])
        self.last_losses: dict[str, float] = state.get("losses", {})
        self.started = self.reported = time.monotonic()

    def add(self, losses: Losses, norm: Tensor, passages: int) -> None:
        for name, loss in losses.items():
            self.losses[name] = self.losses.get(name, 0) + torch.nan_to_num(loss.float())
        self.norm += torch.nan_to_num(norm, nan=0.0, posinf=0.0)
        self.steps += 1
        self.passages += passages
        self.passages_in_all += passages

    def report(self, skipped: Tensor) -> dict[str, Any]:
        """The means since the last report. All ranks call it: losses are summed over them."""
        names = sorted(self.losses)
        sums = torch.stack([self.losses[name] for name in names]) / self.steps
        read = [*self.group.sum(sums).tolist(), *torch.stack([self.norm / self.steps, skipped]).tolist()]
        now = time.monotonic()
        elapsed, self.reported = now - self.reported, now
        self.last_losses = {name: round(value, 6) for name, value in zip(names, read)}
        values = {
            "losses": self.last_losses,
            "loss": round(sum(self.last_losses.values()), 6),
            "gradient_norm": round(read[-2], 4),
            "skipped": int(read[-1]),
            "passages_per_second": round(self.passages / elapsed, 2),
            "seconds": round(now - self.started, 2),
        }
        self.losses, self.steps, self.passages = {}, 0, 0
        self.norm = torch.zeros_like(self.norm)
        return values

    def seconds(self) -> float:
        """Rates since this process started to train."""
        return round(time.monotonic() - self.started, 1)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint. All ranks call it: losses are summed over them."""
        names = sorted(self.losses)
        sums = self.group.sum(torch.stack([self.losses[name] for name in names])).tolist() if names else []
        return {
            "window": {"steps": self.steps, "norm": self.norm.item(), "losses": dict(zip(names, sums))},
            "passages": self.passages_in_all,
            "losses": self.last_losses,
        }
