"""Every faster way of computing a step gives the plain way's gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qontext.models.batching import FINE, Grid
from qontext.models.encoder import load_encoder
from qontext.training import gradient_cache
from qontext.training.batch import prepare
from qontext.training.distributed import RankGroup
from qontext.training.dropout import drawn_for, use_cheap_dropout

ALONE = RankGroup(0, 1, torch.device("cpu"))
Gradients = dict[str, torch.Tensor]


def gradients(objective: Any, batch: Any, *, cached: bool) -> tuple[dict[str, float], Gradients]:
    """Losses and gradients of a batch, as the loop computes them."""
    objective.zero_grad()
    micro, keys = prepare(batch, ALONE)

    def forward(one: Any) -> Any:
        with drawn_for(one.row_keys):
            output = objective(one)
        return output.losses, output.vectors

    def represent(one: Any) -> Any:
        with drawn_for(one.row_keys):
            return objective.represent(one)

    losses = gradient_cache.backward(
        micro,
        forward,
        represent,
        lambda vectors, rows: objective.contrast(vectors, keys, rows),
        ALONE,
        cached=cached,
    )
    return (
        {name: loss.item() for name, loss in losses.items()},
        {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None},
    )


def equal(one: Any, other: Any, tolerance: float = 2e-5) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        scale = gradient.abs().max().clamp(min=1e-4)
        assert ((other[1][name] - gradient).abs().max() / scale).item() < tolerance, name


@pytest.fixture
def objective(corpus: Path, configure: Callable[..., Any]) -> Callable[..., Any]:
    def make(dropout: float, **settings: Any) -> Any:
        encoder = load_encoder("tiny", tokenizer=str(corpus / "tokenizer"), dropout=dropout, seed=1)
        own = {"temperature": 20.0} if settings["method"] == "cocondenser" else {}
        config = configure(queries="queries", **own, **settings)
        trainee = config.objective(encoder).train()
        trainee.config = config  # for the batch plan
        use_cheap_dropout(trainee)  # as the stepper does
        return trainee

    return make


@pytest.mark.parametrize("context", ["rand", "query"])
def test_the_gradient_cache_gives_the_plain_gradient_with_dropout_on(
    objective: Callable[..., Any], plan_of: Callable[..., Any], context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_cache, "SCORES_PER_BLOCK", 5 * 32)  # the scores, too, in several blocks
    trained = objective(0.1, method="cocondenser", context=context, batch_size=16)
    batch = plan_of(trained.config, micro_tokens=200)(0)
    assert len(batch.micro) > 3
    plain, cached = (gradients(trained, batch, cached=cached) for cached in (False, True))
    equal(plain, cached)
    assert plain[0].keys() == {"head_mlm", "late_mlm", "contrastive"}
    assert gradients(trained, batch, cached=True)[0] == cached[0]
    without = objective(0.0, method="cocondenser", context=context, batch_size=16)
    assert gradients(without, batch, cached=False)[0]["late_mlm"] != pytest.approx(
        plain[0]["late_mlm"], rel=1e-6
    )


@pytest.mark.parametrize(
    ("method", "settings", "generative"),
    [
        ("bow", {"target": "context"}, {"bow"}),
        ("cot-mae", {}, {"context_mlm"}),
    ],
)
def test_a_generative_and_a_contrastive_loss_on_the_same_pairs(
    objective: Callable[..., Any],
    plan_of: Callable[..., Any],
    method: str,
    settings: dict[str, Any],
    generative: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gradient_cache, "SCORES_PER_BLOCK", 5 * 32)
    contrast = {"contrastive_weight": 0.5, "temperature": 20.0}
    trained = objective(0.1, method=method, context="query", batch_size=16, **settings, **contrast)
    batch = plan_of(trained.config, micro_tokens=200)(0)
    plain, cached = (gradients(trained, batch, cached=cached) for cached in (False, True))
    equal(plain, cached)
    assert plain[0].keys() == {"encoder_mlm", "contrastive"} | generative


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mlm", {}),
        ("condenser", {}),
        ("cocondenser", {}),
        ("cot-mae", {}),
        ("cot-mae", {"decoder": "autoregressive"}),
        ("retromae", {}),
        ("dupmae", {}),
        ("seed", {}),
        ("costa", {}),
        ("bow", {"target": "both"}),
    ],
)
def test_small_rectangles_give_the_gradient_of_one_padded_batch_with_dropout_on(
    objective: Callable[..., Any], plan_of: Callable[..., Any], name: str, settings: dict[str, Any]
) -> None:
    context = "query" if name == "cot-mae" else "rand"
    trained = objective(0.1, method=name, context=context, batch_size=16, **settings)
    results = []
    for micro_tokens, grid in ((100_000, FINE), (150, FINE), (150, Grid(32, 3))):
        batch = plan_of(trained.config, micro_tokens=micro_tokens, grid=grid)(0)
        trained.zero_grad()
        if trained.contrastive:
            results.append(gradients(trained, batch, cached=False))
            continue
        total: dict[str, Any] = {}
        for one in batch.micro:
            with drawn_for(one.row_keys):
                losses = trained(one).losses
            torch.stack(list(losses.values())).sum().backward()
            total = {n: total.get(n, 0) + loss.item() for n, loss in losses.items()}
        results.append(
            (total, {n: p.grad.clone() for n, p in trained.named_parameters() if p.grad is not None})
        )
        assert (len(batch.micro) == 1) == (micro_tokens == 100_000)
    equal(results[0], results[1])
    equal(results[0], results[2])


def test_an_epoch_visits_every_anchor_once_in_another_order_each_time(
    plan_of: Callable[..., Any], configure: Callable[..., Any]
) -> None:
    plan = plan_of(configure(method="mlm", batch_size=5))
    orders = []
    for epoch in (0, 1):
        visits = [
            t
            for step in range(plan.steps_per_epoch)
            for t in plan(epoch * plan.steps_per_epoch + step).keys.text.tolist()
        ]
        assert len(visits) == 5 * plan.steps_per_epoch
        assert len(set(visits)) > 0.9 * len(visits)  # a few passages share their text
        orders.append(visits)
    assert orders[0] != orders[1]


def test_documents_as_anchors_draw_another_passage_at_each_visit(
    plan_of: Callable[..., Any], configure: Callable[..., Any], sources: Any
) -> None:
    import numpy as np

    config = configure(method="cocondenser", context="rand", batch_size=8)
    plan = plan_of(config, documents=sources.passages.groups)
    groups = sources.passages.groups
    drawn = [plan._anchors(step)[0] for step in range(12)]
    visits = np.searchsorted(groups, np.concatenate(drawn), "right") - 1
    assert set(visits.tolist()) == set(range(len(groups) - 1))
    assert len(set(np.concatenate(drawn).tolist())) > len(groups)
