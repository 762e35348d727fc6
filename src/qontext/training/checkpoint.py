"""Checkpoints: weights and optimizer state as safetensors, written atomically; the last ones are kept. A
checkpoint of step t is sufficient to resume, since all randomness is a function of the step.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NotRequired

import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typing_extensions import TypedDict

from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.files import damaged, opening, read_json, require_regular
from qontext.training.adapters import trained

KEPT = 2


class State(TypedDict):
    """The training state in a checkpoint, besides weights."""

    step: NonNegativeInt
    skipped: NonNegativeInt
    passages: NonNegativeInt
    losses: NotRequired[dict[str, float]]
    scaler: NotRequired[dict[str, Any]]
    stopped: NotRequired[bool]
    elapsed: NotRequired[NonNegativeFloat]


_NAME = re.compile(r"step-(\d{8})")


def save(
    work: Workdir, name: str, module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> None:
    """Write checkpoint `name`/step-…, then drop all but the newest ones."""
    names = {id(p): n for n, p in module.named_parameters()}
    moments: dict[str, Tensor] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            for key, value in optimizer.state.get(p, {}).items():
                moments[f"{names[id(p)]}|{key}"] = value.detach().contiguous()
    with work.write_folder(f"{name}/step-{state['step']:08}") as folder:
        weights = {n: p.detach().contiguous() for n, p in trained(module).items()}
        save_file(weights, folder / "weights.safetensors")
        save_file(moments, folder / "optimizer.safetensors")
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    for old in _all(work.path / name)[:-KEPT]:
        work.remove(str(old.relative_to(work.path)))


def load(
    work: Workdir, name: str, module: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any] | None:
    """Load the newest checkpoint, if any; returns its state."""
    folders = _all(work.path / name)
    if not folders:
        return None
    folder = folders[-1]
    try:
        weights, moments, state = _read(folder, module)
    except QontextError as error:
        raise QontextError(
            f"the checkpoint cannot be read: {error.message}",
            place=error.place,
            remedy=f"Remove the folder {folder} to resume from the previous checkpoint.",
        ) from None
    with torch.no_grad():
        for parameter_name, p in trained(module).items():
            p.copy_(weights[parameter_name])
    for parameter_name, p in trained(module).items():
        # Counters stay on the optimizer's device; moments go to their parameter's device.
        own = {
            key: value.to(p.device if value.dim() or p.is_cuda else "cpu")
            for (name, key), value in moments.items()
            if name == parameter_name
        }
        if own:
            optimizer.state[p] = own
    return state


def _read(
    folder: Path, module: nn.Module
) -> tuple[dict[str, Tensor], dict[tuple[str, str], Tensor], dict[str, Any]]:
    """Weights, the optimizer's moments by parameter and name, and the state, validated against the module."""
    state: dict[str, Any] = read_json(folder / "state.json", State)
    files = folder / "weights.safetensors", folder / "optimizer.safetensors"
    tensors: list[dict[str, Tensor]] = []
    for file in files:
        require_regular(file)
        with opening(file, "safetensors"):
            tensors.append(load_file(file))
    weights, moments = (
        tensors[0],
        {(k.rpartition("|")[0], k.rpartition("|")[2]): v for k, v in tensors[1].items()},
    )
    shapes = {name: p.shape for name, p in trained(module).items()}
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    if {name: weight.shape for name, weight in weights.items() if name not in frozen} != shapes:
        raise damaged(files[0], "its weights do not match this model")
    if any(value.dim() and value.shape != shapes.get(name) for (name, _), value in moments.items()):
        raise damaged(files[1], "its moments do not match this model")
    return weights, moments, state


def remove(work: Workdir, name: str) -> None:
    """Remove all checkpoints, once the result is written."""
    if (work.path / name).exists():
        work.remove(name)


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if _NAME.fullmatch(path.name))
