"""A checkpoint that a disk damaged is named, and the one before it is at hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.training import checkpoint


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return module, optimizer


@pytest.fixture
def work(tmp_path: Path) -> Workdir:
    """Checkpoints of steps 1 and 2."""
    work = Workdir(tmp_path)
    module, optimizer = trained()
    for step in (1, 2):
        checkpoint.save(work, "c", module, optimizer, {"step": step, "skipped": 0, "passages": 8})
    return work


def refused(work: Workdir) -> str:
    with pytest.raises(QontextError) as caught:
        checkpoint.load(work, "c", *trained())
    assert f"Remove the folder {work.path}/c/step-00000002 to resume" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
def test_a_file_that_is_cut_or_gone(work: Workdir, name: str) -> None:
    folder = work.path / "c" / "step-00000002"
    whole = (folder / name).read_bytes()
    for content in (b"", whole[: len(whole) // 2], bytes(len(whole))):
        (folder / name).write_bytes(content)
        assert f"{name}: the checkpoint cannot be read: damaged" in refused(work)
    (folder / name).unlink()
    assert name in refused(work)
    shutil.rmtree(folder)
    state = checkpoint.load(work, "c", *trained())
    assert state is not None and state["step"] == 1


@pytest.mark.parametrize("value", [None, -1, "2", [], 1.5])
@pytest.mark.parametrize("name", ["step", "skipped", "passages"])
def test_a_state_of_odd_values(work: Workdir, name: str, value: Any) -> None:
    file = work.path / "c" / "step-00000002" / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    assert f"state.json: the checkpoint cannot be read: damaged: {name}: " in refused(work)


def test_tensors_of_another_model(work: Workdir) -> None:
    folder = work.path / "c" / "step-00000002"
    for name, message in (("weights", "its weights do not match"), ("optimizer", "its moments do not match")):
        file = folder / f"{name}.safetensors"
        tensors = load_file(file)
        key = next(key for key, value in tensors.items() if value.dim() == 2)
        for changed in (
            {**tensors, key: torch.zeros(4, 3)},
            {**tensors, f"{key}.other|x": torch.zeros(2, 2)},
        ):
            save_file(changed, file)
            assert message in refused(work)
        save_file(tensors, file)
