"""A text's hidden states → its vector, for training and for search.

Shapes: N texts, T tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _mean(hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
    weights = mask_NT.unsqueeze(-1).to(hidden_NTH.dtype)
    return (hidden_NTH * weights).sum(1) / weights.sum(1)


def _max(hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
    return hidden_NTH.masked_fill(~mask_NT.unsqueeze(-1), -torch.inf).amax(1)


def _last(hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
    return hidden_NTH[torch.arange(len(hidden_NTH), device=hidden_NTH.device), mask_NT.sum(1) - 1]


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda hidden_NTH, mask_NT: hidden_NTH[:, 0],
    "mean": _mean,
    "max": _max,
    "lasttoken": _last,
}
