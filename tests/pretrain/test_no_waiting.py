"""A step on a GPU must not make the host wait, nor compute logits that nobody asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qontext.models import families
from qontext.training.distributed import join
from qontext.training.optimizer import Optimizer
from qontext.training.step import Cache, Stepper

READS = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "item")


class Watch(TorchDispatchMode):
    """Notes the operations that hand a tensor's value to Python."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in READS:
            self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("cache", ["off", "on"])
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "mlm"},
        {"method": "condenser"},
        {"method": "cocondenser", "context": "query"},
        {"method": "cot-mae", "context": "query", "decoder": "autoregressive"},
        {"method": "cot-mae", "context": "near", "contrastive_weight": 1.0},
        {"method": "retromae"},
        {"method": "dupmae"},
        {"method": "seed"},
        {"method": "costa"},
        {"method": "simlm"},
        {"method": "bow", "context": "query", "target": "both", "contrastive_weight": 1.0},
    ],
    ids=lambda settings: f"{settings['method']}-{settings.get('decoder', settings.get('context', ''))}",
)
def test_no_step_reads_a_value(
    plan_of: Callable[..., Any],
    configure: Callable[..., Any],
    encoder: Any,
    monkeypatch: pytest.MonkeyPatch,
    generator: str,
    settings: dict[str, Any],
    cache: Cache,
) -> None:
    if settings["method"] == "simlm":
        settings = {**settings, "generator": generator}
    # On a CPU the library's masks are looked into; what is tested is what runs on a GPU.
    monkeypatch.setattr(families, "_ready_made", lambda config, mask: True)
    config = configure(**settings)
    trained = config.objective(encoder).train()
    group = join("cpu")
    optimizer = Optimizer(trained, config, 9, torch.float32, group.device)
    stepper = Stepper(trained, optimizer, group, torch.float32, cache=cache)
    plan = plan_of(config, micro_tokens=200)
    with Watch() as watch:
        for step in range(2):
            stepper.step(step, plan(step))
        assert watch.calls == []
        assert trained.progress == 1 / 9, "losses may depend on the share of the steps that are done"
        stepper.report(2)
    assert watch.calls, "a report does read values: the watch works"
