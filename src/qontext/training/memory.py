"""Memory: what a step needs, out-of-memory errors with a remedy, and returning freed memory to the system.

    weights 4 P (+ 2 P for copies in 16 bits), gradients 4 T, moments 8 T, activations of a micro-batch, scores of tokens

of P parameters, T of which are trained; with bf16 weights, gradients of linear layers take half, and so do frozen weights
beside adapters, without copies. Activations are those that the backward pass keeps of a forward pass of the same
architecture without numbers (PyTorch's device `meta`), so that every architecture is predicted alike.

glibc returns large freed blocks to the system at once; the next allocation then has to fetch and clear every page again,
which takes a fifth of a training step. During training, freed memory is therefore kept for later allocations.
Micro-batches of many shapes fragment it, so that the process grows with the number of micro-batches although only one is
in memory at a time: between them, it is returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from qontext.frame.errors import QontextError
from qontext.training.dropout import drawn_again

# Numbers of the settings in glibc's malloc.h.
_MMAP_MAX, _TRIM_THRESHOLD, _LARGEST = -4, -1, 2**31 - 1


class StepMemory(NamedTuple):
    """Bytes that a training step needs."""

    weights: int
    gradients: int
    moments: int
    activations: int
    read: int = 0
    """The bytes of the weights as they are read, before a step."""

    @property
    def total(self) -> int:
        return sum(self[:4])


def step_memory(
    folder: Path,
    *,
    rows: int,
    tokens: int,
    dtype: torch.dtype,
    predicted: int = 0,
    lora_rank: int = 0,
    recomputed: bool = False,
    bf16_weights: bool = False,
) -> StepMemory:
    """The memory of a step of training the encoder in a folder, with micro-batches of so many rows and tokens per row, of
    which so many tokens in all are predicted at a time."""
    from transformers import AutoModel

    from qontext.models.load import quiet, read_config

    config = read_config(folder)
    with torch.device("meta"), quiet():
        auto: Any = AutoModel  # untyped
        model: nn.Module = auto.from_config(config, attn_implementation="eager").train()
    weights = sum(p.numel() for p in model.parameters())
    stacks = [stack for stack in model.modules() if isinstance(stack, nn.ModuleList)]
    linear = {m for stack in stacks for m in stack.modules() if isinstance(m, nn.Linear)}
    low = bf16_weights * sum(m.weight.numel() for m in linear)
    adapters = bool(lora_rank) * sum(lora_rank * (m.in_features + m.out_features) for m in linear)
    trained = adapters or weights
    copies = 2 * (weights - bool(adapters) * low) if dtype.itemsize == 2 else 0
    if adapters and recomputed:  # those of one layer at a time
        copies //= max(1, _layer_count(model))
    activations = _kept(model.to(dtype), rows, tokens, recomputed=recomputed)
    activations += 8 * predicted * config.vocab_size  # scores and their gradient
    kept = 4 * (weights + adapters) - 2 * bool(adapters) * low
    gradients = 4 * trained - 2 * (not adapters) * low
    return StepMemory(kept + copies, gradients, 8 * trained, activations, read=4 * weights)


def _kept(model: nn.Module, rows: int, tokens: int, *, recomputed: bool) -> int:
    """Bytes that the backward pass of a model on the device meta keeps, besides weights."""
    own = {id(p) for p in model.parameters()}
    storages: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in own:
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage  # kept, so that no other one gets its number
        return tensor

    ids = torch.ones(rows, tokens, dtype=torch.long, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model(input_ids=ids).last_hidden_state
    whole = sum(int(storage.nbytes()) for storage in storages.values())
    layers = _layer_count(model)
    if not recomputed or not layers:
        return whole
    return whole // layers + layers * int(hidden.numel() * hidden.element_size())


def _layer_count(model: nn.Module) -> int:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return sum(isinstance(module, GradientCheckpointingLayer) for module in model.modules())


_OUT_OF_MEMORY = re.compile(
    "out of memory|not enough memory|(can't|cannot|failed to) allocate memory", re.IGNORECASE
)
"""The messages of PyTorch and of drivers; an illegal memory access is none."""


@contextlib.contextmanager
def out_of_memory_as_sentence(step: int) -> Iterator[None]:
    """Raises a QontextError with the remedy if memory runs out inside."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_said = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not is_said and not _OUT_OF_MEMORY.search(str(error)):
            raise
        raise QontextError(
            f"out of memory at step {step}",
            remedy="Lower --micro-tokens (the token budget per micro-batch), or --batch-size, or set "
            "--gradient-cache on, or --activation-checkpointing. The run resumes from its last checkpoint.",
        ) from None


def recompute_layers(model: nn.Module, *, draws_by_rows: bool = True) -> None:
    """Keep only the inputs of a model's transformer layers for the backward pass, and compute each again there: activation
    checkpointing. The gradient is the same. Without `draws_by_rows`, dropout is PyTorch's own, as on a GPU, and layers can
    be compiled."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer) and not getattr(layer, "is_recomputed", False):
            vars(layer).update(
                forward=_computed_twice(layer, layer.forward, draws_by_rows), is_recomputed=True
            )


def _computed_twice(layer: nn.Module, forward: Callable[..., Any], draws_by_rows: bool) -> Callable[..., Any]:
    draws: dict[str, Any] = {"context_fn": drawn_again} if draws_by_rows else {}

    def compute(*values: Any, **settings: Any) -> Any:
        if not (layer.training and torch.is_grad_enabled()):
            return forward(*values, **settings)
        return checkpoint(forward, *values, use_reentrant=False, **draws, **settings)

    # torch.compile accepts no contexts like these.
    return torch.compiler.disable(compute) if draws_by_rows else compute


def keep_freed_memory() -> None:
    """Let this process keep the pages of freed memory; no effect if the C library is not glibc."""
    if (choose := _libc("mallopt")) is not None:
        choose(_MMAP_MAX, 0)
        choose(_TRIM_THRESHOLD, _LARGEST)


def return_freed_memory() -> bool:
    """Return the pages of freed memory to the system; returns True if there were any.

    Takes some hundredths of a second for gigabytes, and as much again when the memory is next used: suitable
    between micro-batches, not between operations.
    """
    trim = _libc("malloc_trim")
    return trim is not None and bool(trim(0))


@cache
def _libc(name: str) -> Callable[..., int] | None:
    """A function of glibc."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):  # not glibc
        return None
    return function
