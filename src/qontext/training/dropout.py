"""Dropout for training on a CPU, as a function of the row, the position in it, and the dropout module.

    y = x · [u ≥ p] / (1 - p)        u uniform over 2^16 values, four of them from one 64-bit hash
    hash = mix(… mix(mix(row, site), first index), …, last index / 4)

A row's mask is the same in any micro-batch, at any padding width and on any rank, so neither the token budget
nor the number of processes changes a result. The hash costs about as much as PyTorch's generator (a quarter
of a small encoder's step). p is rounded to a multiple of 2^-16, and the scale is that of the rounded p, so
that the expectation is x. On a GPU, PyTorch's fused dropout is used: there, masks depend on how a batch is split. So do
those of what all rows share, such as DeBERTa's table of relative positions, which PyTorch draws on a CPU, too.

Shapes: N rows of a micro-batch, A heads, T tokens, D size of a head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qontext.models import attention
from qontext.training.randomness import U64

LEVELS = 1 << 16
ATTENTION = "sdpa_cheap_dropout"
# 64-bit multipliers of splitmix64, as signed integers.
_GOLDEN, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_HASHES_AT_A_TIME = 1 << 16
"""Block size that stays in the CPU cache between the steps of the hash."""


class _ForwardPass:
    """The current forward pass: its rows' keys [N], which advance with each mask."""

    rows: Tensor | None = None


@contextlib.contextmanager
def drawn_for(row_keys: U64) -> Iterator[None]:
    """Context of one forward pass of a micro-batch, with random draws by the keys [N] of its rows. The same
    keys in the same model draw the same masks. PyTorch's own generator is seeded by the first key.
    """
    torch.manual_seed(int(row_keys[0] >> np.uint64(1)))
    _ForwardPass.rows = torch.from_numpy(row_keys.view(np.int64))
    try:
        yield
    finally:
        _ForwardPass.rows = None


def drawn_again() -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """Contexts of a layer whose forward pass is computed twice: the second draws what the first did."""
    return contextlib.nullcontext(), _with_rows(_ForwardPass.rows)


@contextlib.contextmanager
def _with_rows(rows: Tensor | None) -> Iterator[None]:
    before, _ForwardPass.rows = _ForwardPass.rows, rows
    try:
        yield
    finally:
        _ForwardPass.rows = before


@torch.compiler.disable  # type: ignore[untyped-decorator]
def draw_kept(shape: Sequence[int], p: float, device: torch.device) -> Tensor:
    """A mask [N, …] in int16: 0 with probability p, else -1 (all bits), drawn for each row and position. Draws depend
    on indices, not on the shape, so a wider tensor begins with a narrower one's values. Arithmetic on booleans would
    take four times as long.
    """
    keys = _place_keys(shape, device)
    threshold = round(p * LEVELS)
    if threshold >= LEVELS:
        return torch.zeros(*shape, dtype=torch.int16, device=device)
    kept = torch.empty(len(keys), shape[-1], dtype=torch.int16, device=device)
    steps = _steps(-(-shape[-1] // 4), device)
    at_a_time = max(1, _HASHES_AT_A_TIME // len(steps))
    for begin in range(0, len(keys), at_a_time):
        some = slice(begin, begin + at_a_time)
        draws = _mix(keys[some] + steps).view(torch.int16)[:, : shape[-1]]
        torch.ge(draws, threshold - LEVELS // 2, out=kept[some]).neg_()
    return kept.view(*shape)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def draw_uniform(shape: Sequence[int], device: torch.device) -> Tensor:
    """Numbers of a shape [N, …] between 0 and 1, drawn for each row and position, as in `draw_kept`."""
    hashes = _mix(_place_keys(shape, device) + _steps(shape[-1], device))
    return ((hashes >> 40) & 0xFFFFFF).float().mul_(2.0**-24).view(*shape)


def _place_keys(shape: Sequence[int], device: torch.device) -> Tensor:
    """[…, 1] a key for every position except the last index; advances the rows' keys."""
    rows = _ForwardPass.rows
    assert rows is not None, "random masks are drawn within drawn_for"
    assert len(rows) == shape[0], f"{shape[0]} rows, but keys of {len(rows)}"
    _ForwardPass.rows = rows + _GOLDEN
    keys = _mix(rows.to(device, copy=True))
    for size in shape[1:-1]:
        keys = _mix(keys[..., None] + _steps(size, device))
    return keys.view(-1, 1)


def _steps(size: int, device: torch.device) -> Tensor:
    """The offsets from a key of `size` indices."""
    return torch.arange(1, size + 1, device=device) * _GOLDEN


def _mix(hashes: Tensor) -> Tensor:
    """Mix the bits, in place. Each shift is arithmetic; the product after it spreads what its sign repeats."""
    for multiplier in (_FIRST, _SECOND):
        hashes.bitwise_xor_(hashes >> 32).mul_(multiplier)
    return hashes


def _apply(x: Tensor, kept: Tensor, scale: float) -> Tensor:
    """x · [kept] · scale."""
    if x.element_size() == 2:  # a 16-bit number is kept or cleared by its bits
        return (x.contiguous().view(torch.int16) & kept).view(x.dtype).mul_(scale)
    return kept.to(x.dtype).mul_(x).mul_(-scale)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return _apply(x, kept, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return _apply(gradients[0], kept, ctx.scale), None, None


def drop(x: Tensor, p: float) -> Tensor:
    """`torch.nn.functional.dropout` in training, on the CPU: [N, …] → [N, …]."""
    threshold = round(p * LEVELS)
    if threshold >= LEVELS:
        return x * 0
    if not threshold:
        return x
    kept, scale = draw_kept(x.shape, p, x.device), LEVELS / (LEVELS - threshold)
    return _Dropped.apply(x, kept, scale)  # type: ignore[no-untyped-call, no-any-return]


class CheapDropout(nn.Module):
    """Replacement of `nn.Dropout` on the CPU."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        rows = _ForwardPass.rows
        if rows is not None and len(x) != len(rows):  # a table of positions, which all rows share
            return nn.functional.dropout(x, self.p, self.training)
        return drop(x, self.p) if self.training else x


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Attention with the dropout of this file."""
    return attention.attend(module, query, key, value, attention_mask, drop=drop, **settings)


def use_cheap_dropout(model: nn.Module) -> None:
    """Replace the dropout of a model that is trained on the CPU. Its weights and their names do not change."""
    attention.use(model, ATTENTION, attend)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Dropout:
                setattr(module, name, CheapDropout(child.p).train(child.training))
