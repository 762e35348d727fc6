"""Cross-entropy in blocks against PyTorch's, and the rounded weights that it shares."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from qontext.models import prediction
from qontext.models.prediction import rounded, weighted_cross_entropy, weights_do_not_change

CPU = torch.device("cpu")


def gradients(loss: Tensor, *of: Tensor) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, of)]


@pytest.mark.parametrize("form", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", [1 << 24, 700], ids=["one block", "blocks"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_loss_and_gradients_are_those_of_the_plain_way(
    form: torch.dtype, block: int, bias: bool, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "SCORES_PER_BLOCK", block)
    torch.manual_seed(7)
    output = nn.Linear(16, 101, bias=bias)
    hidden, labels, weights = (
        torch.randn(23, 16, requires_grad=True),
        torch.randint(101, (23,)),
        torch.rand(23),
    )
    trained = [hidden, *output.parameters()]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=form == torch.bfloat16):
        losses = nn.functional.cross_entropy(output(hidden).float(), labels, reduction="none")
        expected = gradients(scale * (losses * weights).sum(), *trained)
        ours = gradients(scale * weighted_cross_entropy(hidden, output, labels, weights), *trained)
    tolerance = 1e-5 if form == torch.float32 else 1e-2
    for a, b in zip(expected, ours, strict=True):
        assert (a - b).abs().max() <= tolerance * a.abs().max()


def test_nothing_to_predict_is_a_loss_of_zero() -> None:
    output, hidden = nn.Linear(8, 5), torch.zeros(0, 8, requires_grad=True)
    loss = weighted_cross_entropy(hidden, output, torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    loss.backward()
    assert loss == 0 and output.weight.grad is not None and not output.weight.grad.any()


def test_a_weight_is_rounded_once_within_a_step_and_anew_after_its_update() -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    with weights_do_not_change():
        assert rounded(weight, torch.bfloat16) is rounded(weight, torch.bfloat16)
        with torch.no_grad():
            assert not rounded(weight, torch.bfloat16).requires_grad
        assert rounded(weight, torch.bfloat16).requires_grad
    optimizer = torch.optim.AdamW([weight], lr=0.5, fused=True)
    weight.grad = torch.ones(4, 4)
    optimizer.step()
    with weights_do_not_change():
        assert torch.equal(rounded(weight, torch.bfloat16), weight.to(torch.bfloat16))
