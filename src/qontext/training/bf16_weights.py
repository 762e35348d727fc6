"""bf16 weights with fp32 master weights: the weights of layers and their gradients in 16 bits, updates in 32.

    w = round(m) to bf16        g = ∂L/∂w, in bf16        m ← AdamW(m, g), in fp32

The master weights m are the model's own parameters: they are saved, resumed and evaluated, so that an update smaller than
bf16's resolution is not lost. The linear layers of a stack compute with w, which autocast would round again in every
micro-batch, and have no gradient in fp32. Gradients of several micro-batches are summed in bf16. (Micikevicius et al. 2018.)

The frozen weights beside adapters have no updates to lose: they are rounded once, and kept in bf16 alone until the model is
saved.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qontext.training import adapters

BUCKET = 1 << 24
"""Weights whose gradients are in fp32 at a time: 64 MiB."""


class Bf16Linear(nn.Linear):
    """A linear layer that computes with its bf16 weight under autocast, and with its master weight elsewhere."""

    low: Tensor

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_autocast_enabled(input.device.type):
            return F.linear(input, self.low, self.bias)
        return super().forward(input)


class FrozenBf16Linear(nn.Linear):
    """A linear layer beside an adapter, whose only weight is in bf16."""

    def forward(self, input: Tensor) -> Tensor:
        is_autocast = torch.is_autocast_enabled(input.device.type)
        return F.linear(input, self.weight if is_autocast else self.weight.to(input.dtype), self.bias)


def add(model: nn.Module) -> None:
    """Give the linear layers in the stacks of a model bf16 weights: those that are trained, and the frozen ones beside
    adapters. Others, such as embeddings, heads and the adapters, are in fp32 under autocast, too."""
    adapted = list(adapters.adapted(model))
    inner = {id(one) for layer in adapted for one in layer.modules()}
    for layer in (one.get_base_layer() for one in adapted):
        if type(layer) is nn.Linear:
            layer.__class__ = FrozenBf16Linear
            layer.weight.data = layer.weight.data.bfloat16()
    for stack in model.modules():
        if isinstance(stack, nn.ModuleList):
            for layer in stack.modules():
                if type(layer) is nn.Linear and layer.weight.requires_grad and id(layer) not in inner:
                    layer.__class__ = Bf16Linear
                    layer.low = layer.weight.detach().bfloat16().requires_grad_()


def remove(model: nn.Module) -> None:
    """Leave a model its master weights alone, and the frozen ones beside adapters as they are."""
    for layer in _layers(model):
        del layer.low
        layer.__class__ = nn.Linear  # type: ignore[assignment]


def refresh(model: nn.Module) -> None:
    """Round the master weights again, after they were loaded."""
    for layer in _layers(model):
        layer.low.detach().copy_(layer.weight.detach())


def gradients(model: nn.Module) -> list[Tensor]:
    """The gradients of the model's parameters, and of its bf16 weights."""
    weights = [*model.parameters(), *(layer.low for layer in _layers(model))]
    return [weight.grad for weight in weights if weight.grad is not None]


def clear(model: nn.Module) -> None:
    """Clear the gradients of the bf16 weights."""
    for layer in _layers(model):
        layer.low.grad = None


def clip(model: nn.Module, most: float) -> Tensor:
    """Clip the gradients to a norm, which is computed in fp32; returns the norm before that."""
    found = gradients(model)
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in found]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    for gradient in found:
        gradient.mul_((most / (norm + 1e-6)).clamp(max=1.0))
    return norm


def update(model: nn.Module, adamw: torch.optim.AdamW) -> None:
    """Update the master weights by the gradients of the bf16 weights, a bucket at a time, and round them."""
    for bucket in _buckets(model):
        for layer in bucket:
            assert layer.low.grad is not None
            layer.weight.grad = layer.low.grad.float()
        adamw.step()
        adamw.zero_grad(set_to_none=True)
    clear(model)
    refresh(model)


def _layers(model: nn.Module) -> list[Bf16Linear]:
    return [module for module in model.modules() if isinstance(module, Bf16Linear)]


def _buckets(model: nn.Module) -> Iterator[list[Bf16Linear]]:
    """The layers with gradients."""
    bucket: list[Bf16Linear] = []
    for layer in _layers(model):
        if layer.low.grad is not None:
            bucket.append(layer)
        if sum(one.weight.numel() for one in bucket) >= BUCKET:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
