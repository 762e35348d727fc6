"""What the gradient cache holds from its first pass: vectors, not the hidden states that they were taken from."""

from __future__ import annotations

import gc

import torch

from qontext.training.distributed import RankGroup
from qontext.training.gradient_cache import backward


def test_only_vectors_are_kept_between_the_passes() -> None:
    weight = torch.ones(4, requires_grad=True)
    kept: list[int] = []

    def represent(rows: torch.Tensor) -> torch.Tensor:
        return (rows[:, :, None] * weight)[:, 0]  # [CLS]: a view into all tokens' states

    def contrast(vectors: torch.Tensor, rows: slice) -> dict[str, torch.Tensor]:
        gc.collect()
        held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors()}
        kept.append(sum(size for size in held.values() if size == 8 * 1_000 * 4 * 4))
        return {"contrastive": vectors[rows].sum()}

    micro = [torch.ones(8, 1_000) for _ in range(3)]
    calls: list[int] = []
    backward(
        micro,
        lambda one: ({}, represent(one)),
        represent,
        contrast,
        RankGroup(0, 1, torch.device("cpu")),
        cached=True,
        between=lambda: calls.append(1),
    )
    assert kept == [0]
    assert len(calls) == 3
    assert weight.grad is not None and torch.equal(weight.grad, torch.full((4,), 24.0))


def _tensors() -> list[torch.Tensor]:
    return [value for value in gc.get_objects() if type(value) is torch.Tensor]
