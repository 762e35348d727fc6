"""The head beside the checkpoint, from which later training can continue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from qontext.frame import log
from qontext.frame.damage import opening
from qontext.frame.errors import QontextError
from qontext.pretrain.objectives.base import Objective

FILE = "head.safetensors"


def save_head(objective: Objective, folder: Path) -> None:
    """Write the objective's head, if it has one, with its kind."""
    weights = {n: p.detach().cpu().contiguous() for n, p in objective.head_parameters()}
    if weights:
        # A single entry: several would be written in random order.
        save_file(weights, folder / FILE, {"kind": f"{objective.head_kind} of {objective.head_reads}"})


def load_head(objective: Objective, folder: Path) -> bool:
    """Load the objective's head from `folder`, if it has the same kind; returns True if loaded."""
    file, own = folder / FILE, dict(objective.head_parameters())
    if not own or not file.is_file():
        return False
    with opening(file, "a safetensors file with a head"), safe_open(file, framework="pt") as stored:
        kind = (stored.metadata() or {}).get("kind")
        weights = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    if kind is None:
        raise QontextError(
            "is not a head written by Qontext", place=file, remedy="Remove it from the folder."
        )
    kind, _, reads = kind.partition(" of ")
    if kind != objective.head_kind:
        log.note(f"The head in {folder} is a {kind} head; a new {objective.head_kind} head is initialized.")
        return False
    if _shapes(weights) != _shapes(own):
        raise QontextError(
            "the shapes of this head differ from the configured ones",
            place=file,
            remedy="Set --decoder-layers to the value used for that head.",
        )
    if reads and reads != objective.head_reads:
        log.warn(
            f"The head in {folder} was trained on {reads} and continues on {objective.head_reads}: "
            "set --early-layer-number to the value used for that head."
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    return True


def _shapes(weights: Mapping[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(weights[name].shape) for name in sorted(weights)}
