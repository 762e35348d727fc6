"""Cross-entropy over a vocabulary, for tokens that are predicted from hidden states.

    L = Σ_k w_k · (log Σ_v exp(z_kv) − z_k,label)        z = h Wᵀ + b
    ∂L/∂z_kv = w_k · (softmax(z)_kv − [v = label])

The scores of all predicted tokens are the largest matrices of a training. On a CPU, they are computed in blocks of
rows, and each block's gradient at once, so that a block is read and written only a few times. PyTorch's own
functions would take four times as long beside the matrix products.

Shapes: K predicted tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCORES_PER_BLOCK = 1 << 24
"""Scores per block: 64 MiB."""
SCORES_IN_CACHE = 1 << 20
"""Scores that what is no product reads and writes several times before it goes on: 4 MiB in fp32."""


def weighted_cross_entropy(
    hidden_KH: Tensor, output: nn.Linear, labels_K: Tensor, weights_K: Tensor
) -> Tensor:
    """Σ weight · CE(output(hidden), label), in the format of the surrounding autocast; sums are in fp32."""
    if hidden_KH.device.type != "cpu":
        losses_K = F.cross_entropy(output(hidden_KH).float(), labels_K, reduction="none")
        return (losses_K * weights_K).sum()
    form = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden_KH.dtype
    with torch.autocast("cpu", enabled=False):
        matrix, bias = (
            rounded(output.weight, form),
            None if output.bias is None else rounded(output.bias, form),
        )
        loss: Tensor = _InBlocks.apply(hidden_KH.to(form), matrix, bias, labels_K, weights_K)  # type: ignore[no-untyped-call]
    return loss


class TiedOutput:
    """Word embeddings as a linear layer, for a model without a head."""

    bias = None

    def __init__(self, embedding: nn.Embedding) -> None:
        self.weight = embedding.weight

    def __call__(self, hidden_KH: Tensor) -> Tensor:
        return F.linear(hidden_KH, self.weight)


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, matrix: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor
    ) -> Tensor:
        train = any(ctx.needs_input_grad[:3])
        of_hidden, of_matrix, of_bias = torch.empty_like(hidden), None, weights.new_zeros(len(matrix))
        loss = weights.new_zeros(())
        rows = max(1, SCORES_PER_BLOCK // len(matrix))
        for begin in range(0, len(hidden), rows):
            some = slice(begin, begin + rows)
            scores = F.linear(hidden[some], matrix, bias)
            loss += _cross_entropy(
                scores, labels[some, None], weights[some, None], of_bias if train else None
            )
            if train:
                of_hidden[some] = scores @ matrix
                part = scores.T @ hidden[some]
                of_matrix = part if of_matrix is None else of_matrix.float().add_(part)
        if train:
            gradients = (of_hidden, torch.zeros_like(matrix) if of_matrix is None else of_matrix, of_bias)
            ctx.save_for_backward(*(one.to(hidden.dtype) for one in gradients))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        by = gradients[0]
        scaled = ctx.saved_tensors if by.numpy() == 1 else [saved * by for saved in ctx.saved_tensors]
        return (*(one if needed else None for one, needed in zip(scaled, ctx.needs_input_grad)), None, None)


def _cross_entropy(
    scores_KV: Tensor, labels_K1: Tensor, weights_K1: Tensor, of_bias_V: Tensor | None
) -> Tensor:
    """Σ weight · CE. With `of_bias_V`, the scores become their gradient, whose sum over rows is added to it."""
    loss = weights_K1.new_zeros(())
    rows = max(1, SCORES_IN_CACHE // scores_KV.shape[1])
    for begin in range(0, len(scores_KV), rows):
        some = slice(begin, begin + rows)
        labels, weights = labels_K1[some], weights_K1[some]
        scores = scores_KV[some].float()
        scores -= scores.amax(1, keepdim=True)
        own = scores.gather(1, labels)
        totals = scores.exp_().sum(1, keepdim=True)
        loss += ((totals.log() - own) * weights).sum()
        if of_bias_V is not None:
            scores *= weights / totals
            scores.scatter_add_(1, labels, -weights)
            of_bias_V += scores.sum(0)
            scores_KV[some] = scores
    return loss


class _Shared:
    """The rounded weights of the current step; None outside of one."""

    copies: dict[tuple[int, torch.dtype, bool], Tensor] | None = None


@contextlib.contextmanager
def weights_do_not_change() -> Iterator[None]:
    """Context in which a weight is rounded once, however often it is used. An update of weights ends it."""
    _Shared.copies = {}
    try:
        yield
    finally:
        _Shared.copies = None


def rounded(weight: Tensor, form: torch.dtype) -> Tensor:
    """The weight in this format, as part of the graph."""
    if weight.dtype == form or _Shared.copies is None:
        return weight.to(form)
    key = id(weight), form, torch.is_grad_enabled()
    if key not in _Shared.copies:
        _Shared.copies[key] = weight.to(form)
    return _Shared.copies[key]
