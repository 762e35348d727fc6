"""Checks of `gpu.py`: the device computes what a CPU computes, whichever way a step is computed.

Each has a difference and the largest that passes. Differences of losses are relative; those of weights are relative to the
largest change of a weight since the start, so that they say something about the training, not about the initialization.
All are of models without dropout, as its bits on a GPU depend on the micro-batches.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
from gpu_training import Setting, batches, objective_of, stepper_of

from qontext.frame.artifacts import Workdir
from qontext.training import checkpoint

FP32, BF16, SAME = 1e-4, 2e-2, 5e-2
STEPS, MICRO_TOKENS = 4, 1_024
"""Few tokens, so that a step has several micro-batches."""


def all_checks(setting: Setting) -> list[dict[str, Any]]:
    checks = []
    for method in setting.methods:
        start = objective_of(method, setting, dropout=0.0)
        checks += [
            {"method": method, **check}
            for check in (
                like_a_cpu(method, start, setting, torch.float32, FP32),
                like_a_cpu(method, start, setting, setting.low, BF16),
                cached_like_plain(method, start, setting),
                resumed_like_whole(method, start, setting),
            )
        ]
    return checks


def like_a_cpu(method: str, start: Any, setting: Setting, dtype: torch.dtype, most: float) -> dict[str, Any]:
    """Losses and gradient norm of a step, against fp32 on a CPU."""
    plan = batches(method, setting, setting.checked_batch, MICRO_TOKENS)
    reports = []
    for device, form in (("cpu", torch.float32), (setting.device, dtype)):
        run = stepper_of(copy.deepcopy(start), setting, device, form)
        run.step(0, plan(0))
        reports.append(run.report(1))
    cpu, here = ({**r["losses"], "gradient_norm": r["gradient_norm"]} for r in reports)
    worst = max(abs(here[name] - cpu[name]) / max(abs(cpu[name]), 1e-6) for name in cpu)
    name = str(dtype).removeprefix("torch.")
    return verdict(f"losses and gradient norm in {name} as in fp32 on a CPU", worst, most)


def cached_like_plain(method: str, start: Any, setting: Setting) -> dict[str, Any]:
    """The gradient of a step with the gradient cache, against that without. (AdamW would make of rounding in tiny gradients
    other weights.)"""
    plan = batches(method, setting, setting.checked_batch, MICRO_TOKENS)
    gradients = []
    for cache in ("off", "on"):
        run = stepper_of(copy.deepcopy(start), setting, setting.device, torch.float32, cache=cache)
        run.backward(plan(0))
        own = [p.grad.flatten().double().cpu() for p in run.model.parameters() if p.grad is not None]
        gradients.append(torch.cat(own))
    difference = float((gradients[0] - gradients[1]).norm() / gradients[0].norm())
    return verdict("gradient with the cache as plain", difference, FP32)


def resumed_like_whole(method: str, start: Any, setting: Setting) -> dict[str, Any]:
    """The weights of a training that is saved and resumed halfway, against those of an uninterrupted one."""
    whole = trained(method, start, setting, STEPS)
    plan = batches(method, setting, setting.checked_batch, MICRO_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        work = Workdir(Path(folder))
        first = stepper_of(copy.deepcopy(start), setting, setting.device, torch.float32)
        for step in range(STEPS // 2):
            first.step(step, plan(step))
        checkpoint.save(work, "check", first.model, first.optimizer.adamw, first.state(STEPS // 2))
        second = stepper_of(
            objective_of(method, setting, dropout=0.0, seed=1), setting, setting.device, torch.float32
        )
        state = checkpoint.load(work, "check", second.model, second.optimizer.adamw)
        assert state is not None
        for step in range(int(state["step"]), STEPS):
            second.step(step, plan(step))
    difference = apart(weights(whole), weights(second.model), weights(start))
    return {**verdict("resumed as whole", difference, SAME), "same bits": difference == 0.0}


def trained(method: str, start: Any, setting: Setting, steps: int) -> Any:
    plan = batches(method, setting, setting.checked_batch, MICRO_TOKENS)
    run = stepper_of(copy.deepcopy(start), setting, setting.device, torch.float32)
    for step in range(steps):
        run.step(step, plan(step))
    return run.model


def weights(model: Any) -> dict[str, Any]:
    return {name: p.detach().cpu().double() for name, p in model.named_parameters()}


def apart(a: dict[str, Any], b: dict[str, Any], start: dict[str, Any]) -> float:
    moved = max(float((a[name] - start[name]).abs().max()) for name in a)
    return max(float((a[name] - b[name]).abs().max()) for name in a) / moved


def verdict(what: str, difference: float, most: float) -> dict[str, Any]:
    return {
        "check": what,
        "difference": float(f"{difference:.3g}"),
        "at most": most,
        "passed": difference <= most,
    }
