"""Attention by plain matrix products is PyTorch's fused attention, up to the format's rounding."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qontext.models import attention
from qontext.models.retriever import Retriever

FORMATS = [(torch.bfloat16, 2e-2), (torch.float32, 1e-5)]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is the plain path, whatever is faster on this machine."""
    monkeypatch.setattr(attention, "fused_is_faster_in_bf16", lambda: False)


def inputs(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, 2, 7, 8).to(dtype).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize(("dtype", "tolerance"), FORMATS, ids=["bf16", "fp32"])
@pytest.mark.parametrize("kind", ["all", "padded", "causal", "biased"])
def test_it_is_the_fused_attention(dtype: torch.dtype, tolerance: float, kind: str) -> None:
    query, key, value = inputs(dtype)
    mask = torch.arange(7) < torch.tensor([7, 3, 5])[:, None, None, None] if kind == "padded" else None
    bias = torch.randn(1, 2, 7, 7).to(dtype) if kind == "biased" else None
    settings = {"is_causal": kind == "causal", "position_bias": bias}
    ours, _ = attention.attend(nn.Module(), query, key, value, mask, **settings)
    full: Tensor | None = bias if bias is not None else mask
    theirs = F.scaled_dot_product_attention(query, key, value, attn_mask=full, is_causal=kind == "causal")
    assert torch.allclose(ours.transpose(1, 2), theirs, atol=tolerance)
    gradients = [torch.autograd.grad(out.float().square().sum(), query)[0] for out in (ours, theirs)]
    assert (gradients[0] - gradients[1]).abs().max() < 4 * tolerance * gradients[1].abs().max()


@pytest.mark.parametrize("kind", ["padded", "continued"])
def test_heads_may_share_keys(kind: str) -> None:
    """Six heads over two of keys and values; `continued`: three new places after four that are cached."""
    torch.manual_seed(0)
    T = 7 if kind == "padded" else 3
    query = torch.randn(3, 6, T, 8).bfloat16().requires_grad_()
    key, value = (torch.randn(3, 2, 7, 8).bfloat16().requires_grad_() for _ in range(2))
    mask = torch.ones(T, 7, dtype=torch.bool).tril(7 - T)
    if kind == "padded":
        mask = mask & (torch.arange(7) < torch.tensor([7, 3, 5])[:, None, None, None])
    own_mask = mask if kind == "padded" else None
    ours, _ = attention.attend(nn.Module(), query, key, value, own_mask, is_causal=True)
    repeated = (x.repeat_interleave(3, 1) for x in (key, value))
    theirs = F.scaled_dot_product_attention(query, *repeated, attn_mask=mask)
    assert torch.allclose(ours.transpose(1, 2), theirs, atol=2e-2)
    for x in (query, key, value):
        one, other = (
            torch.autograd.grad(out.float().square().sum(), x, retain_graph=True)[0] for out in (ours, theirs)
        )
        assert (one - other).abs().max() < 0.08 * other.abs().max()


def test_dropout_is_asked_for_the_weights() -> None:
    query, key, value = inputs(torch.float32)
    dropped: list[Tensor] = []

    def drop(weights: Tensor, p: float) -> Tensor:
        dropped.append(weights)
        return weights * 0

    out, _ = attention.attend(nn.Module(), query, key, value, None, dropout=0.5, drop=drop)
    assert not out.any() and torch.allclose(dropped[0].sum(-1), torch.ones(3, 2, 7))


@pytest.mark.parametrize("is_fast", [False, True])
def test_a_retriever_in_bf16_uses_it_where_it_is_faster(
    minilm: Path, monkeypatch: pytest.MonkeyPatch, is_fast: bool
) -> None:
    texts = ["a short text", "a text that is longer than the other one " * 9]
    exact = Retriever(minilm, device="cpu", precision="fp32").encode(texts, "passage")
    monkeypatch.setattr(attention, "fused_is_faster_in_bf16", lambda: is_fast)
    calls: list[torch.dtype] = []
    real = torch.Tensor.softmax

    def counted(self: Tensor, dim: int) -> Tensor:
        calls.append(self.dtype)
        return real(self, dim)

    monkeypatch.setattr(torch.Tensor, "softmax", counted)
    rounded = Retriever(minilm, device="cpu", precision="bf16").encode(texts, "passage")
    assert bool(calls) != is_fast and np.abs(rounded - exact).max() < 0.02


def test_mpnets_attention_is_that_of_the_library_with_its_bias_and_mask() -> None:
    from transformers import MPNetConfig, MPNetModel

    torch.manual_seed(0)
    config = MPNetConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        initializer_range=0.5,
    )
    plain = MPNetModel(config).eval()
    ours = copy.deepcopy(plain)
    attention.use(ours)
    ids, mask = torch.randint(3, 50, (3, 9)), torch.arange(9) < torch.tensor([9, 5, 2])[:, None]
    assert (
        ours.encoder.layer[1].attention.attn.forward is not type(ours.encoder.layer[1].attention.attn).forward
    )
    results = []
    for model in (plain, ours):
        with torch.no_grad():
            free = model(ids, mask).last_hidden_state[mask]
        last = model(ids, mask).last_hidden_state[mask]
        (last * torch.linspace(-1, 1, last.numel()).view_as(last)).sum().backward()
        bias = model.encoder.relative_attention_bias.weight.grad
        assert bias is not None
        results.append((free, last.detach(), bias))
    assert results[0][2].abs().max() > 1e-4
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
