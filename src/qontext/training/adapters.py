"""LoRA: training low-rank adapters of frozen weights.

    h = W x + (α / r) · B A x          A: [r, in], drawn; B: [out, r], zero at first

Every linear layer in the stack of a backbone has an adapter, unless the layer is frozen; its other weights do not change, so
that they need neither gradients nor the optimizer's moments. What else is trained, such as an MLM head, a decoder or a
classifier with its pooler, is trained whole. A model is saved merged, as W + (α / r) · B A, and needs no library
afterwards. (Hu et al. 2021.)
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qontext.frame.errors import QontextError, missing_extra

FOLDER = "adapter"
"""The folder of the adapter in a model folder, in peft's format."""
_PREFIX = "base_model.model."
_NAME = "default"


def add(backbone: nn.Module, rank: int, seed: int) -> None:
    """Freeze the backbone apart from a pooler, and add an adapter to each linear layer of its stack.
    α is twice the rank."""
    if find_spec("peft") is None:
        raise missing_extra("peft", "lora", "--lora-rank")
    if _layers(backbone):  # in an earlier phase
        return
    from peft import LoraConfig, inject_adapter_in_model

    names = [
        f"{lists}.{inner}"
        for lists, stack in backbone.named_modules()
        if isinstance(stack, nn.ModuleList)
        for inner, one in stack.named_modules()
        if isinstance(one, nn.Linear)
    ]
    if not names:
        raise QontextError(
            f"{type(backbone).__name__} has no linear layers for adapters", remedy="Remove --lora-rank."
        )
    settings: Any = {"target_modules": sorted(set(names)), "bias": "none", "lora_dropout": 0.0}
    config = LoraConfig(r=rank, lora_alpha=2 * rank, **settings)
    pooler = [p for name, p in trained(backbone).items() if name.startswith("pooler.")]
    backbone.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, backbone, _NAME)
    for parameter in pooler:
        parameter.requires_grad_()


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def adapted(model: nn.Module) -> Iterator[Any]:
    """The layers with adapters."""
    return (layer for _, _, layer in _layers(model))


def _layers(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """(parent, name, layer) of the layers with adapters."""
    if find_spec("peft") is None:
        return []
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if hasattr(child, "lora_A") and hasattr(child, "get_base_layer")
    ]


@contextlib.contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """The model as one without adapters, in whose weights they are. Nothing happens to others."""
    layers = _layers(model)
    originals: list[Tensor] = []
    try:
        for parent, name, layer in layers:
            base = layer.get_base_layer()
            originals.append(base.weight.data)
            base.weight.data = base.weight.data.float() + layer.get_delta_weight(_NAME).detach()
            setattr(parent, name, base)
        yield
    finally:
        for (parent, name, layer), original in zip(layers, originals):
            layer.get_base_layer().weight.data = original
            setattr(parent, name, layer)


def save(backbone: nn.Module, folder: Path, base: str) -> None:
    """Write the adapter alone as peft does: ``PeftModel.from_pretrained(AutoModel.from_pretrained(base), folder)``. Trained
    beside weights in bf16, it belongs to the base model in bf16."""
    from safetensors.torch import save_file

    names = {id(layer): name for name, layer in backbone.named_modules()}
    weights, targets, config = {}, [], None
    for _, _, layer in _layers(backbone):
        name = names[id(layer)]
        targets.append(name)
        config = {"r": layer.r[_NAME], "lora_alpha": layer.lora_alpha[_NAME]}
        for part in ("lora_A", "lora_B"):
            weight = getattr(layer, part)[_NAME].weight
            weights[f"{_PREFIX}{name}.{part}.weight"] = weight.detach().cpu().contiguous()
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "bias": "none",
        "inference_mode": True,
        "lora_dropout": 0.0,
        "target_modules": sorted(targets),
        **(config or {}),
    }
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
