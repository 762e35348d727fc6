"""Contrastive gradients over the whole batch, in memory that does not grow with it.

    v_i = ∂L_co / ∂h_i from the vectors, gathered over all ranks
    ∂L/∂Θ = Σ_i ( <v_i, ∂h_i/∂Θ> + ∂L_i/∂Θ )   micro-batch by micro-batch

Without the cache, all micro-batches are kept until v is known. With the cache they are encoded twice: first
without gradients, for the vectors; then again, with the same dropout, to back-propagate v and their own
losses. Both yield the same gradient. Scores are computed in blocks of rows, never all at once.

Gao et al. 2021; section 3.3 of Gao & Callan 2022, equations 9–12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from qontext.training.batch import Losses
from qontext.training.distributed import RankGroup

M = TypeVar("M")
SCORES_PER_BLOCK = 1 << 22
"""Scores per block: 16 MiB, and a few times that with their masks and gradients."""


def contrast_gradient(
    contrast: Callable[[Tensor, slice], Losses], vectors_NH: Tensor, group: RankGroup
) -> tuple[Losses, Tensor]:
    """This rank's share of the contrastive losses, and the gradient of the whole loss with respect to its vectors.

    `contrast(all_vectors, rows)` returns the losses of rows against all vectors. A vector counts as a row here and
    as a column of every rank's rows, so the gradients of all columns are summed over ranks.
    """
    everyone = group.gather(vectors_NH.detach().float()).requires_grad_()
    n = len(vectors_NH)
    first = group.rank * n
    total: Losses = {}
    rows = max(1, SCORES_PER_BLOCK // everyone[..., 0].numel())
    for begin in range(first, first + n, rows):
        losses = contrast(everyone, slice(begin, min(begin + rows, first + n)))
        if losses:
            torch.stack(list(losses.values())).sum().backward()
        total = {name: total.get(name, 0) + loss.detach() for name, loss in losses.items()}
    gradient = torch.zeros_like(everyone) if everyone.grad is None else everyone.grad
    return total, group.sum(gradient)[first : first + n]


def backward(
    micro: Sequence[M],
    forward: Callable[[M], tuple[Losses, Tensor]],
    represent: Callable[[M], Tensor],
    contrast: Callable[[Tensor, slice], Losses],
    group: RankGroup,
    *,
    cached: bool,
    scale: Callable[[Tensor], Tensor] = lambda loss: loss,
    between: Callable[[], object] = lambda: None,
) -> Losses:
    """Back-propagate the micro-batches' own losses and the contrastive one; returns this rank's share of each.

    `forward` and `represent` must draw the same dropout for the same micro-batch, whenever they are called.
    `between` is called after each recomputed micro-batch, when its memory has been freed.
    """
    total: Losses = {}

    def add(losses: Losses) -> None:
        for name, loss in losses.items():
            total[name] = total.get(name, 0) + loss.detach()

    if cached:
        with torch.no_grad():
            # Copies: a [CLS] vector is a view that would keep all tokens' hidden states of its micro-batch.
            parts = [represent(one).float().clone() for one in micro]
        losses, gradient = contrast_gradient(contrast, torch.cat(parts), group)
        add(losses)
        for one, part in zip(micro, gradient.split([len(p) for p in parts])):
            own, vectors = forward(one)
            add(own)
            _backward([*own.values()], vectors, part, scale)
            del own, vectors
            between()
        return total
    outputs = [forward(one) for one in micro]
    vectors = torch.cat([vectors.float() for _, vectors in outputs])
    losses, gradient = contrast_gradient(contrast, vectors, group)
    add(losses)
    for own, _ in outputs:
        add(own)
    _backward([loss for own, _ in outputs for loss in own.values()], vectors, gradient, scale)
    return total


def _backward(losses: list[Tensor], vectors: Tensor, gradient: Tensor, scale: Any) -> None:
    roots = [scale(loss) for loss in losses] + [vectors.float()]
    torch.autograd.backward(roots, [torch.ones_like(root) for root in roots[:-1]] + [scale(gradient)])
