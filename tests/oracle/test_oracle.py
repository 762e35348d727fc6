"""Every loss and its gradient against numbers that were computed from the equations, not by Qontext.

`expected.json` holds batches, losses and gradients; `reference.py` must still compute them, and so must Qontext,
however its batches are cut. A wrong average or activation cannot come back unnoticed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tests.oracle import reference
from tests.oracle.cases import CASES, build
from tests.oracle.regenerate import FILE, WATCHED, expected

from qontext.training import gradient_cache

RECORDED: dict[str, Any] = json.loads(FILE.read_text())


def test_every_case_is_recorded() -> None:
    assert RECORDED.keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_the_reference_computes_what_is_recorded(name: str) -> None:
    recorded = RECORDED[name]
    computed = expected(name, recorded["rows"], build(name, 100_000).weights)
    assert computed["losses"] == pytest.approx(recorded["losses"], rel=1e-8)
    assert computed["gradient"] == pytest.approx(recorded["gradient"], rel=1e-8)


@pytest.mark.parametrize("micro_tokens", [100_000, 60], ids=["one rectangle", "many rectangles"])
@pytest.mark.parametrize("name", CASES)
def test_qontext_computes_what_is_recorded(
    name: str, micro_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if micro_tokens == 60:  # the scores, too, in several blocks
        monkeypatch.setattr(gradient_cache, "SCORES_PER_BLOCK", 40)
    recorded, setup = RECORDED[name], build(name, micro_tokens)
    assert (len(setup.batch.micro) > 2) == (micro_tokens == 60)
    assert setup.rows == recorded["rows"], "other batches: see regenerate.py"
    losses, gradient = setup.gradients()
    assert losses == pytest.approx(recorded["losses"], rel=1e-5)
    for watched in WATCHED:
        assert gradient[watched].norm().item() == pytest.approx(recorded["gradient"][watched], rel=1e-5), (
            watched
        )
    _, exact = reference.gradients(CASES[name].loss, setup.weights, recorded["rows"])
    apart = sum(float((exact[n] - gradient[n]).square().sum()) for n in exact) ** 0.5
    assert apart < 1e-5 * recorded["gradient"]["all"]


def test_another_average_would_be_seen() -> None:
    """Texts of the recorded batch differ in their masked tokens, so a mean over texts is another number."""
    rows = RECORDED["cocondenser, queries, cache"]["rows"]
    weights = build("cocondenser, queries, cache", 100_000).weights
    exact = {name: value.double() for name, value in weights.items()}
    with torch.no_grad():
        whole = reference.condenser(exact, rows)["late_mlm"]
        per_text = reference.mean([reference.condenser(exact, [row])["late_mlm"] for row in rows])
    assert abs(whole - per_text) > 1e-3 * whole
