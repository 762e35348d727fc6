"""Dropout for training on a CPU, where PyTorch's own takes a quarter of a small encoder's step.

    y = x · [u ≥ p] / (1 - p)        u uniform over 2^16 values, four of them from one 64-bit draw

PyTorch draws a floating-point number per element and keeps a floating-point mask; attention with dropout adds
guards against rows that see nothing. p is rounded to a multiple of 2^-16, and the scale is that of the rounded p, so
that the expectation is x. What is drawn comes from PyTorch's generator: the same after the same `manual_seed`.

Shapes: N sequences, A heads, T tokens, D size of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

LEVELS = 1 << 16
ATTENTION = "sdpa_cheap_dropout"
_ZERO = torch.zeros(())


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
        kept = (draws.view(torch.int16)[: x.numel()] >= threshold - LEVELS // 2).view(x.shape)
        ctx.save_for_backward(kept)
        ctx.scale = LEVELS / (LEVELS - threshold)
        return torch.where(kept, x, _ZERO).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return torch.where(kept, gradients[0], _ZERO).mul_(ctx.scale), None


def dropout(x: Tensor, p: float) -> Tensor:
    """`torch.nn.functional.dropout` in training, on the CPU."""
    threshold = round(p * LEVELS)
    if threshold >= LEVELS:
        return x * 0
    return _Dropped.apply(x, threshold) if threshold else x  # type: ignore[no-untyped-call]


class CheapDropout(nn.Module):
    """Stands in for `nn.Dropout`, on the CPU."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,  # the name that models call it by
    scaling: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: [N, A, T, D] each → [N, T, A, D]. Without dropout, the library's fused one."""
    if not dropout:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, 0.0, scaling, is_causal=False, **rest
        )
        return out, None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores_NATT = (query * scale) @ key.transpose(-1, -2)
    if attention_mask is not None:
        # The lowest number, not -inf: a padded place that sees nothing must not become NaN. Added, because the mask is
        # smaller than the scores, and a sum is cheaper than a choice.
        lowest = torch.finfo(scores_NATT.dtype).min
        scores_NATT = scores_NATT + (~attention_mask).to(scores_NATT.dtype) * lowest
    weights_NATT = _dropout(scores_NATT.softmax(dim=-1).to(value.dtype), dropout)
    return (weights_NATT @ value).transpose(1, 2).contiguous(), None


_dropout = dropout


def use_cheap_dropout(trainee: nn.Module) -> None:
    """Have a model that is trained on the CPU draw its dropout here. Its weights and their names stay as they are."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    for module in list(trainee.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Dropout:
                setattr(module, name, CheapDropout(child.p).train(child.training))
        config = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) == "sdpa":
            config._attn_implementation = ATTENTION  # type: ignore[union-attr]
