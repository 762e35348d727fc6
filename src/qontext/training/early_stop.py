"""Evaluations during training: keeping the best weights, and early stopping.

The history is stored beside the checkpoints, so that a resumed run decides as if it had not been interrupted:
evaluations after the checkpoint's step are repeated, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.damage import opening, read_json
from qontext.training.batch import TrainableModel
from qontext.training.distributed import Group
from qontext.training.metrics import Metrics

Keep = Literal["best", "last"]


@dataclass(frozen=True)
class Schedule:
    """When to evaluate (every n steps and at the `last` one), which weights to keep, and when to stop."""

    every: int
    last: int
    keep: Keep
    patience: int | None = None


class Evaluations:
    """Evaluates on rank 0. `watch` is the deciding measure; with `minimize`, lower is better."""

    def __init__(
        self,
        measure: Callable[[], dict[str, float]],
        model: TrainableModel,
        group: Group,
        work: Workdir,
        schedule: Schedule,
        *,
        phase: str,
        watch: str = "MRR@10",
        minimize: bool = False,
    ) -> None:
        self.measure, self.model, self.group, self.work = measure, model, group, work
        self.schedule, self.watch, self.minimize = schedule, watch, minimize
        self.folder = f"checkpoints/{phase}/best"
        self.before: dict[str, float] = {}
        """The evaluation before the first step."""

    def begin(self) -> None:
        """Evaluate before the first step, on rank 0; not repeated on resume."""
        file = f"{self.folder}/before.json"
        if self.group.is_first and not self.work.has(file):
            self.work.write_json(file, self.measure())
        if self.group.is_first:
            self.before = read_json(self.work.path / file, dict[str, float])

    def after(self, step: int, metrics: Metrics | None, last: int | None = None) -> bool:
        """Called after each step, on every rank. Returns True if the training should stop. `last` is the last step, if
        it is another one now than the schedule's."""
        if step % self.schedule.every and step != (last or self.schedule.last):
            return False
        stop = torch.zeros((), device=self.group.device)
        if self.group.is_first:
            measured = self.measure()
            if metrics is not None:
                metrics.write(step, {"dev": measured})
            log.note(f"step {step:,}: " + ", ".join(f"{k} {v:.4f}" for k, v in measured.items()))
            stop += self._record(step, measured)
        if not self.group.sum(stop).item():
            return False
        if self.group.is_first:
            log.note(
                f"No improvement in {self.schedule.patience} evaluations; stopping early at step {step:,}."
            )
        return True

    def _record(self, step: int, measured: dict[str, float]) -> bool:
        """Extend the history, keep the weights if they are the best so far; returns True if patience is exhausted."""
        history = [*(row for row in self.history() if row["step"] < step), {"step": step, **measured}]
        best = self._best(history)
        if best == step and self.schedule.keep == "best":
            weights = {n: p.detach().cpu().contiguous() for n, p in self.model.named_parameters()}
            with self.work.write(f"{self.folder}/weights.safetensors") as path:
                save_file(weights, path)
        self.work.write_json(f"{self.folder}/dev.json", history)
        patience = self.schedule.patience
        return patience is not None and sum(row["step"] > best for row in history) >= patience

    def history(self) -> list[dict[str, Any]]:
        path = self.work.path / self.folder / "dev.json"
        history: list[dict[str, Any]] = read_json(path, list[dict[str, float]]) if path.exists() else []
        return history

    def finish(self) -> dict[str, Any]:
        """Load the best weights on every rank, if they are to be kept; returns the summary."""
        self.group.wait()
        history = self.history()
        best = self._best(history)
        if self.schedule.keep == "best":
            path = self.work.path / self.folder / "weights.safetensors"
            with opening(path, "the weights of this model"), torch.no_grad():
                weights = load_file(path)
                for name, parameter in self.model.named_parameters():
                    parameter.copy_(weights[name])
        step = history[-1]["step"] if self.schedule.keep == "last" else best
        row = next(row for row in history if row["step"] == step)
        stopped_at = history[-1]["step"]
        return {
            "dev_before": self.before,
            "dev": {"kept": self.schedule.keep, **row, "best_step": best, "stopped_at": stopped_at},
            "history": history,
        }

    def _best(self, history: list[dict[str, Any]]) -> int:
        """The best step; the first of equal ones."""
        sign = -1 if self.minimize else 1
        best: int = max(history, key=lambda row: (sign * row[self.watch], -row["step"]))["step"]
        return best
