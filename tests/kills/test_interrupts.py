"""Ctrl-C during a training's last step ends the whole pipeline, which resumes without training again."""

from __future__ import annotations

import shutil
from pathlib import Path

from .conftest import World, results


def interrupt(world: World, name: str, out: Path, trained: Path) -> None:
    running = world.disturbed.start(name, out, interrupt=trained)
    assert running.wait() == {130}, running.text()
    assert "saved at step" in running.text() and "Traceback" not in running.text()
    assert (trained / "claim.json").exists() and not (trained / "meta.json").exists()


def test_a_recipe(world: World, tmp_path: Path) -> None:
    whole, out = world.whole("run"), tmp_path / "run"
    interrupt(world, "run", out, out / "pretrain")
    assert not (out / "search").exists()
    again = world.disturbed.start("run", out)
    assert again.wait() == {0}, again.text()
    assert "resuming at step 4 of 4" in again.text()
    assert results(out) == results(whole)


def test_adapt(world: World, tmp_path: Path) -> None:
    world.whole("adapt")
    out = tmp_path / "adapt"
    shutil.copytree(world.planned(), out)
    interrupt(world, "adapt", out, out / "steps" / "pretrain")
    assert not (out / "model").exists()
    again = world.disturbed.start("adapt", out)
    assert again.wait() == {0}, again.text()
    assert "resuming at step" in again.text() and (out / "adapted.json").exists()
