"""The head beside the checkpoint: written with it, so that training can go on with a trained one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from qontext import log
from qontext.errors import QontextError
from qontext.pretrain.objectives.base import Objective

FILE = "head.safetensors"


def save_head(objective: Objective, folder: Path) -> None:
    """Write the objective's head, if it has one, with what kind it is."""
    weights = {n: p.detach().cpu().contiguous() for n, p in objective.head_parameters()}
    if weights:
        # One entry only: several would be written in an order of chance.
        save_file(weights, folder / FILE, {"kind": f"{objective.head_kind} of {objective.head_reads}"})


def load_head(objective: Objective, folder: Path) -> bool:
    """Start the objective's head from the one in `folder`, if that is of its kind; gives whether it did."""
    file, own = folder / FILE, dict(objective.head_parameters())
    if not own or not file.is_file():
        return False
    try:
        with safe_open(file, framework="pt") as stored:
            kind = (stored.metadata() or {}).get("kind")
            weights = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise QontextError(f"cannot read the head: {error}", place=file) from None
    if kind is None:
        raise QontextError("is no head that qontext wrote", place=file, remedy="Take it out of the folder.")
    kind, _, reads = kind.partition(" of ")
    if kind != objective.head_kind:
        log.note(f"The head in {folder} is a {kind} head; a {objective.head_kind} head starts anew.")
        return False
    if _shapes(weights) != _shapes(own):
        raise QontextError(
            "the head there has other shapes than the one that is asked for",
            place=file,
            remedy="Set --decoder-layers as it was set for that head.",
        )
    if reads and reads != objective.head_reads:
        log.warn(
            f"The head in {folder} was trained on {reads} and goes on with {objective.head_reads}: "
            "set --early-layer-number as it was set for that head."
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    return True


def _shapes(weights: Mapping[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(weights[name].shape) for name in sorted(weights)}
