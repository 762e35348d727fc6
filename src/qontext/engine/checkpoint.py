"""Checkpoints: weights and optimiser state as safetensors, whole or not there at all, the last ones kept.

A checkpoint of step t is all that a resume needs: what is random is a function of the step.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from qontext.artifacts import Workdir
from qontext.errors import QontextError

KEPT = 2
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
        save_file(
            {n: p.detach().contiguous() for n, p in module.named_parameters()}, folder / "weights.safetensors"
        )
        save_file(moments, folder / "optimizer.safetensors")
        (folder / "state.json").write_text(json.dumps(state))
    for old in _all(work.path / name)[:-KEPT]:
        work.remove(str(old.relative_to(work.path)))


def load(
    work: Workdir, name: str, module: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any] | None:
    """Take up the newest checkpoint, if there is one; gives its state."""
    found = _all(work.path / name)
    if not found:
        return None
    folder = found[-1]
    try:
        weights, moments = (
            load_file(folder / "weights.safetensors"),
            load_file(folder / "optimizer.safetensors"),
        )
        state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    except (SafetensorError, OSError, ValueError) as error:
        raise QontextError(
            f"the checkpoint cannot be read: {error}",
            place=folder,
            remedy="Remove this folder to go on from the one before it.",
        ) from None
    with torch.no_grad():
        for parameter_name, p in module.named_parameters():
            p.copy_(weights[parameter_name])
    for parameter_name, p in module.named_parameters():
        keys = [key for key in moments if key.rpartition("|")[0] == parameter_name]
        if keys:
            # Counters stay where the optimiser keeps them; moments go to their parameter's device.
            optimizer.state[p] = {
                key.rpartition("|")[2]: moments[key].to(
                    p.device if moments[key].dim() or p.is_cuda else "cpu"
                )
                for key in keys
            }
    return state


def remove(work: Workdir, name: str) -> None:
    """Drop all checkpoints, when what they led to is written."""
    if (work.path / name).exists():
        work.remove(name)


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if _NAME.fullmatch(path.name))
