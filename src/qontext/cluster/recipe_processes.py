"""The steps of a recipe in several processes; they wait for steps of a single process."""

from __future__ import annotations

from pathlib import Path

from qontext.cluster.launcher import Torchrun, watch
from qontext.frame import log, trust
from qontext.frame.errors import QontextError
from qontext.workflow.recipe import Recipe, demands, read_recipe
from qontext.workflow.run import plan
from qontext.workflow.tables import read_tables


def shared_by(processes: int, recipe: Recipe) -> int:
    """The largest number of processes for which there are GPUs and which divides every batch of the recipe:
    the plan may be from another machine, or edited."""
    import torch

    if torch.cuda.is_available():
        processes = min(processes, torch.cuda.device_count())
    batches = [step.settings["batch_size"] for step in recipe.steps if "batch_size" in step.settings]
    return next(p for p in range(processes, 0, -1) if not any(batch % p for batch in batches))


def run_steps(recipe: Path, steps: Path, processes: int, on: str) -> None:
    """Run the remaining steps of a recipe in this number of processes; return at once if one is enough or all
    steps are done."""
    if processes < 2 or all(state == "done" for _, state, _ in plan(read_recipe(str(recipe)), steps)):
        return
    command = ["run", str(recipe), "--out", str(steps), "--on", on]
    command += ["--quiet"] if not log.is_shown() else []
    failed = QontextError(
        f"the recipe stopped in one of {processes} processes, whose message is above",
        place=recipe,
        remedy="Run the same command again to resume; --processes 1 uses a single process.",
    )
    # The processes read what this one does, without asking: `adapt` wrote the recipe.
    tables = read_tables(recipe)
    reads = {*demands(tables, recipe)} - {*demands(tables, recipe, is_foreign=False)}
    trust.give([demand.words for demand in reads])
    _give_back_memory()
    watch(Torchrun(processes, command, failed))


def _give_back_memory() -> None:
    """Free this process's GPU cache for the worker processes."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
