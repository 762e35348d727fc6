"""Measurements as training goes on: which weights were best, and whether it is time to stop.

The history lies beside the checkpoints, so that a run that resumes decides as if it had not been interrupted: what
was measured after the step that it resumes from is measured again, with the same result.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from qontext import log
from qontext.artifacts import Workdir
from qontext.engine.distributed import Group
from qontext.engine.probe import Probe
from qontext.finetune.objective import BiEncoder

FOLDER = "checkpoints/best"
MEASURE = "MRR@10"


class Dev:
    """Measures every so many steps; is called by the loop after each step, on every rank."""

    def __init__(
        self,
        probe: Probe,
        model: BiEncoder,
        group: Group,
        work: Workdir,
        *,
        every: int,
        last: int,
        patience: int | None,
        keep_best: bool,
    ) -> None:
        self.probe, self.model, self.group, self.work = probe, model, group, work
        self.every, self.last, self.patience, self.keep_best = every, last, patience, keep_best

    def __call__(self, step: int) -> dict[str, Any]:
        if step % self.every and step != self.last:
            return {}
        found: dict[str, Any] = {}
        is_over = torch.zeros((), device=self.group.device)
        if self.group.is_first:
            measured = self.measure()
            found["dev"] = measured
            log.note(f"step {step:,}: " + ", ".join(f"{k} {v:.4f}" for k, v in measured.items()))
            is_over += self._record(step, measured)
        if self.group.sum(is_over).item():
            found["stop"] = True
            if self.group.is_first:
                log.note(f"No better for {self.patience} measurements: stopped at step {step:,}.")
        return found

    def measure(self) -> dict[str, float]:
        vectors = self.model.vectors
        return self.probe.measure(
            self.model, vectors, self.group.device, lambda ids, mask: vectors(ids, mask, are_queries=True)
        )

    def _record(self, step: int, measured: dict[str, float]) -> bool:
        """Write it down, keep the weights if they are the best so far; gives whether patience is over."""
        history = [*(row for row in self.history() if row["step"] < step), {"step": step, **measured}]
        best = _best(history)
        if best == step and self.keep_best:
            weights = {n: p.detach().cpu().contiguous() for n, p in self.model.named_parameters()}
            with self.work.write(f"{FOLDER}/weights.safetensors") as path:
                save_file(weights, path)
        self.work.write_json(f"{FOLDER}/dev.json", history)
        return bool(self.patience) and sum(row["step"] > best for row in history) >= (self.patience or 0)

    def history(self) -> list[dict[str, Any]]:
        path = self.work.path / FOLDER / "dev.json"
        found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
        return found

    def finish(self) -> dict[str, Any]:
        """Put the best weights into the model, if they are to be kept; gives what to report."""
        history = self.history()
        step = _best(history)
        if self.keep_best:
            weights = load_file(self.work.path / FOLDER / "weights.safetensors")
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    parameter.copy_(weights[name])
        kept = next(
            row for row in history if row["step"] == (step if self.keep_best else history[-1]["step"])
        )
        return {"kept": "best" if self.keep_best else "last", **kept, "stopped at": history[-1]["step"]}


def _best(history: list[dict[str, Any]]) -> int:
    """The step that measured best; of equals the first."""
    best: int = max(history, key=lambda row: (row[MEASURE], -row["step"]))["step"]
    return best
