"""Matrix products on a CPU by oneDNN, where that is faster than what PyTorch calls.

PyTorch leaves fp32 products on x86 to MKL, which uses half of the width of an AMD processor's vector units; oneDNN
uses all of it and is twice as fast there. It also keeps weights in an order of its own, which PyTorch does not ask for.

Shapes: Q queries, B rows of a block, D dimensions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from qontext.frame import machine
from qontext.models import attention
from qontext.models.precision import excluded_units

_PIECE = 1_024
"""Rows at a time, so that what is computed stays in the cache until it is where it belongs."""


@cache
def fp32_is_faster() -> bool:
    """True if fp32 products should be oneDNN's on this machine."""
    return machine.is_amd_with_avx512() and "avx512" not in excluded_units() and _is_available()


def _is_available() -> bool:
    has_both = all(
        hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight")
    )
    return torch.backends.mkldnn.is_available() and has_both


def scores(queries_QD: Tensor, block_BD: Tensor, out_QB: Tensor) -> Tensor:
    """The inner products of all pairs, in `out_QB`."""
    is_fp32 = queries_QD.dtype == torch.float32
    if queries_QD.device.type != "cpu" or not is_fp32 or not fp32_is_faster():
        return torch.mm(queries_QD, block_BD.T, out=out_QB)
    for begin in range(0, len(block_BD), _PIECE):
        some = slice(begin, begin + _PIECE)
        out_QB[:, some] = _linear(queries_QD, block_BD[some], None)
    return out_QB


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, after: str = "none") -> Tensor:
    """x Wᵀ + b, and what comes after it: "none" or "gelu"."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, after, [], "none")
    return out


class StoredLinear(nn.Linear):
    """A linear layer for inference on a CPU, with a copy of its weights in the format and the order that products need:
    autocast would round them, and the library reorder them, in every forward pass.
    """

    stored: Tensor
    stored_bias: Tensor | None
    after = "none"

    @staticmethod
    def become(layer: nn.Linear, dtype: torch.dtype) -> None:
        layer.__class__ = StoredLinear
        layer.stored = _reordered(layer.weight.detach().to(dtype))
        layer.stored_bias = None if layer.bias is None else layer.bias.detach().to(dtype)

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            x = input.to(self.stored.dtype)
            if not self.stored.is_mkldnn:
                return nn.functional.linear(x, self.stored, self.stored_bias)
            return _linear(x, self.stored, self.stored_bias, self.after)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and other processes: an order of weights is only this machine's."""
        return self.__dict__ | {"stored": self.stored.to_dense() if self.stored.is_mkldnn else self.stored}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.stored = _reordered(self.stored)


def _reordered(weight: Tensor) -> Tensor:
    """The weight in the library's order, where it computes this format itself."""
    can = _is_available() and (weight.dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight) if can else weight
    return reordered


def use_where_faster(
    model: nn.Module, device: torch.device, dtype: torch.dtype, *, keep: bool = True
) -> None:
    """For inference on a CPU: linear layers with stored weights, except those that always compute in fp32, and in bf16
    attention as plain matrix products. The model cannot be trained after that. Without `keep`, the layers let go of the
    weights that they were loaded with, unless other layers share them.
    """
    if device.type != "cpu" or (dtype == torch.float32 and not fp32_is_faster()):
        return
    model.requires_grad_(requires_grad=False)  # products with stored weights have no gradients
    if dtype == torch.bfloat16:
        attention.use(model)
    for module in model.modules():
        if type(module) is nn.Linear:
            StoredLinear.become(module, dtype)
            if not keep:
                empty = torch.empty(0, dtype=module.weight.dtype)
                module.weight = nn.Parameter(empty, requires_grad=False)
    for module in model.modules():
        _join_activation(module)


def _join_activation(module: nn.Module) -> None:
    """Let the first layer of BERT's feed-forward part and of those like it compute the activation, too."""
    dense, activation = getattr(module, "dense", None), getattr(module, "intermediate_act_fn", None)
    is_exact = type(activation).__name__ == "GELUActivation"
    if isinstance(dense, StoredLinear) and dense.stored.is_mkldnn and is_exact:
        dense.after = "gelu"
        module.intermediate_act_fn = nn.Identity()
