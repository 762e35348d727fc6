"""The dense layers of a retriever's folder, applied to the pooled vector."""

from __future__ import annotations

from pathlib import Path
from typing import NotRequired

from pydantic import PositiveInt
from safetensors.torch import load_file
from torch import nn
from typing_extensions import TypedDict

from qontext.frame.damage import opening, read_json
from qontext.frame.errors import QontextError


class Dense(TypedDict):
    """The fields read from a dense layer's config.json."""

    in_features: PositiveInt
    out_features: PositiveInt
    bias: NotRequired[bool]
    activation_function: NotRequired[str]


class DenseLayer(nn.Sequential):
    """A linear layer with its activation; `dimension` is its output dimension."""

    def __init__(self, linear: nn.Linear, activation: nn.Module) -> None:
        super().__init__(linear, activation)
        self.dimension = linear.out_features


def read_dense(path: Path) -> DenseLayer:
    config, file = read_json(path / "config.json", Dense), path / "model.safetensors"
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
