"""A text's hidden states → its vector: pooling, for training and for search, and the dense layers of a folder after it.

Shapes: N texts, T tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NotRequired

import torch
from pydantic import PositiveInt
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typing_extensions import TypedDict

from qontext.frame.errors import QontextError
from qontext.frame.files import opening, read_json


def _mean(hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
    weights = mask_NT.unsqueeze(-1).to(hidden_NTH.dtype)
    return (hidden_NTH * weights).sum(1) / weights.sum(1)


def _max(hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
    return hidden_NTH.masked_fill(~mask_NT.unsqueeze(-1), -torch.inf).amax(1)


def _last(hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
    # The last token alone may have been computed: then it is at place 0.
    last_N = (mask_NT.sum(1) - 1).clamp(max=hidden_NTH.shape[1] - 1)
    return hidden_NTH[torch.arange(len(hidden_NTH), device=hidden_NTH.device), last_N]


def _weighted(hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
    """SGPT: the later a token, the more it weighs."""
    weights = mask_NT.cumsum(1).unsqueeze(-1).to(hidden_NTH.dtype) * mask_NT.unsqueeze(-1)
    return (hidden_NTH * weights).sum(1) / weights.sum(1)


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda hidden_NTH, mask_NT: hidden_NTH[:, 0],
    "mean": _mean,
    "max": _max,
    "lasttoken": _last,
    "weightedmean": _weighted,
    "mean_sqrt_len_tokens": lambda hidden_NTH, mask_NT: (
        _mean(hidden_NTH, mask_NT) * mask_NT.sum(1, keepdim=True).sqrt()
    ),
}


class Dense(TypedDict):
    """The fields read from a dense layer's config.json."""

    in_features: PositiveInt
    out_features: PositiveInt
    bias: NotRequired[bool]
    activation_function: NotRequired[str]


WEIGHTS = "model.safetensors"


class DenseLayer(nn.Sequential):
    """A linear layer with its activation; `dimension` is its output dimension."""

    def __init__(self, linear: nn.Linear, activation: nn.Module) -> None:
        super().__init__(linear, activation)
        self.dimension = linear.out_features

    def settings(self) -> dict[str, Any]:
        """Its config.json."""
        linear, activation = self
        about = {"in_features": linear.in_features, "out_features": linear.out_features}
        kind = type(activation)
        return {
            **about,
            "bias": linear.bias is not None,
            "activation_function": f"{kind.__module__}.{kind.__name__}",
        }


def save_dense(layer: DenseLayer, folder: Path) -> None:
    """Write the weights of a dense layer, as sentence-transformers reads them."""
    weights = {f"linear.{name}": weight.detach().cpu() for name, weight in layer[0].state_dict().items()}
    save_file(weights, folder / WEIGHTS)


def read_dense(path: Path) -> DenseLayer:
    config, file = read_json(path / "config.json", Dense), path / WEIGHTS
    if not file.is_file():
        pickled = (path / "pytorch_model.bin").is_file()
        raise QontextError(
            "the weights of the encoder's dense layer are "
            + ("pickled, which are not read: a pickle can run code" if pickled else "missing"),
            place=path,
            remedy="Expected model.safetensors: load and save the model with sentence-transformers.",
        )
    with opening(file, "the weights of the encoder's dense layer"):
        weights = {name.removeprefix("linear."): value for name, value in load_file(file).items()}
        shape = config["out_features"], config["in_features"]
        if weights["weight"].shape != shape:
            raise ValueError(f"they have the shape {tuple(weights['weight'].shape)}, expected {shape}")
        linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
        linear.load_state_dict(weights)
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if activation not in ("Tanh", "Identity", "GELU", "ReLU"):
        raise QontextError(
            f"the encoder's dense layer has the unsupported activation {activation}", place=path
        )
    return DenseLayer(linear, getattr(nn, activation)()).eval()
