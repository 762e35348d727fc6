"""The CPU's dropout does what PyTorch's does: share, scale, gradient, attention, and the same after the same seed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertModel

from qontext.engine import dropout
from qontext.engine.dropout import CheapDropout, attend, use_cheap_dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_is_p_and_the_expectation_is_kept(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1_000, 401)  # not a multiple of four
    y = dropout.dropout(x, p)
    assert (y == 0).float().mean().item() == pytest.approx(p, abs=0.003)
    assert y[y != 0].unique().item() == pytest.approx(1 / (1 - p), rel=1e-3)
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)


def test_the_gradient_is_the_mask() -> None:
    x = torch.randn(7, 13, requires_grad=True)
    y = dropout.dropout(x, 0.3)
    y.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad * x, y)
    assert 0 < (x.grad == 0).sum() < x.numel()


def test_elements_are_dropped_independently() -> None:
    """Four decisions come from one draw: neighbours at any distance agree as often as strangers."""
    torch.manual_seed(0)
    kept = (dropout.dropout(torch.ones(400_000), 0.5) != 0).float()
    for distance in range(1, 9):
        agree = (kept[distance:] == kept[:-distance]).float().mean().item()
        assert agree == pytest.approx(0.5, abs=0.005)


def test_none_all_and_evaluation() -> None:
    x = torch.randn(5)
    assert torch.equal(dropout.dropout(x, 0.0), x)
    assert torch.equal(dropout.dropout(x, 1.0), torch.zeros(5))
    assert torch.equal(CheapDropout(0.5).eval()(x), x)


def test_attention_is_the_librarys_apart_from_what_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropout, "_dropout", lambda x, p: x)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind(0)
    mask = torch.arange(5)[None, None, None] < torch.tensor([5, 2, 3, 4])[:2, None, None, None]
    ours, _ = attend(nn.Module(), q, k, v, mask.expand(2, 1, 5, 5), dropout=0.1)
    theirs = F.scaled_dot_product_attention(q, k, v, mask.expand(2, 1, 5, 5)).transpose(1, 2)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_place_that_sees_nothing_stays_finite() -> None:
    q = torch.randn(1, 1, 3, 4)
    out, _ = attend(nn.Module(), q, q, q, torch.zeros(1, 1, 3, 3, dtype=torch.bool), dropout=0.1)
    assert torch.isfinite(out).all()


def test_a_model_keeps_its_weights_names_and_outputs() -> None:
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    model = BertModel(config).eval()
    ids, mask = torch.randint(0, 50, (3, 9)), torch.ones(3, 9, dtype=torch.long)
    mask[1, 5:] = 0
    before, names = model(ids, attention_mask=mask).last_hidden_state, list(model.state_dict())
    use_cheap_dropout(model)
    assert list(model.state_dict()) == names
    assert not any(type(module) is nn.Dropout for module in model.modules())
    assert torch.allclose(model(ids, attention_mask=mask).last_hidden_state, before, atol=1e-6)
    model.train()
    torch.manual_seed(3)
    first = model(ids, attention_mask=mask).last_hidden_state
    second = model(ids, attention_mask=mask).last_hidden_state
    torch.manual_seed(3)
    assert torch.equal(model(ids, attention_mask=mask).last_hidden_state, first)
    assert not torch.equal(first, second)
