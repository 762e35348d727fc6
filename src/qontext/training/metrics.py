"""Metrics of a training run: JSON lines, loss curves, and optional trackers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qontext.frame.artifacts import Workdir
from qontext.frame.errors import missing_extra

FILE = "logs/metrics.jsonl"


class Metrics:
    """Appends to `logs/metrics.jsonl`. Lines after the step that a run resumes from are dropped first."""

    def __init__(self, work: Workdir, from_step: int, track: str = "none", phase: str = "") -> None:
        self.path = work.path / FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.phase = phase
        lines = [line for line in read(self.path) if line["phase"] != phase or line["step"] <= from_step]
        with work.write(FILE) as path:
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        self._tracker: Any = None
        self._finish: Callable[[], object] = lambda: None
        if track != "none":
            self._tracker, self._finish = _tracker(track, work.path)

    def write(self, step: int, values: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"phase": self.phase, "step": step, **values}) + "\n")
        if self._tracker is not None:
            self._tracker(step, {f"{self.phase}/{k}": v for k, v in _flat(values).items()})

    def close(self) -> None:
        """Flush the tracker."""
        self._finish()


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, without a truncated last line."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def plot(work: Workdir) -> None:
    """The losses over the steps, as `logs/loss.png`; one panel for each phase."""
    lines = [line for line in read(work.path / FILE) if "losses" in line]
    if len(lines) < 2:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    phases = list(dict.fromkeys(line["phase"] for line in lines))
    figure, panels = plt.subplots(
        1, len(phases), figsize=(6 * len(phases), 3.6), squeeze=False, layout="constrained"
    )
    for phase, panel in zip(phases, panels[0]):
        rows = [line for line in lines if line["phase"] == phase]
        for name in rows[0]["losses"]:
            panel.plot(
                [r["step"] for r in rows], [r["losses"].get(name) for r in rows], label=name.replace("_", " ")
            )
        panel.set_xlabel("step")
        panel.set_ylabel("loss")
        panel.set_title(phase)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False)
    with work.write("logs/loss.png") as path:
        figure.savefig(path, format="png", dpi=120, metadata={"Software": None})
    plt.close(figure)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, float]:
    flattened: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flattened |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            flattened[prefix + name] = value
    return flattened


def _tracker(kind: str, path: Path) -> Any:
    if kind == "tensorboard":
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing_extra("tensorboard", "track", "Logging to TensorBoard") from None
        writer = SummaryWriter(str(path / "logs" / "tensorboard"))

        def log_scalars(step: int, values: dict[str, float]) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        return log_scalars, writer.close
    try:
        import trackio
    except ImportError:
        raise missing_extra("trackio", "track", "Logging to trackio") from None
    trackio.init(project="qontext", name=path.name)
    return lambda step, values: trackio.log(values, step=step), trackio.finish
