"""Validation of a model folder before a library builds the model: regular files, and sizes that match the weights.

A damaged config.json can ask for a million layers. Building them takes hours or all memory, so the sizes are compared
with the headers of the weights first, which are read in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.frame.artifacts import is_artifact, open_artifact
from qontext.frame.damage import damaged, opening, read_json
from qontext.frame.disk import require_regular

WEIGHTS = "model*.safetensors"

_LAYERS = (
    "num_hidden_layers",
    "n_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
_SIZES = (
    "hidden_size", "d_model", "dim", "embedding_size", "vocab_size", "intermediate_size", "d_ff", "hidden_dim",
    "encoder_ffn_dim", "decoder_ffn_dim", "num_attention_heads", "n_heads", "num_heads", "encoder_attention_heads",
    "decoder_attention_heads", "d_kv", "head_dim", "num_labels",
)  # fmt: skip
_POSITIONS = ("max_position_embeddings", "n_positions")
_HALVES = ("encoder", "decoder", "text_config")
_MOST = 10_000_000
"""Maximum size for weights that cannot be inspected."""

Shapes = dict[str, list[int]]


def check_model(directory: Path) -> dict[str, Any]:
    """The validated settings of config.json; checks the other files, too."""
    for file in sorted(directory.iterdir()):
        if file.exists() and not file.is_dir():
            require_regular(file)
    _check_weights(directory)
    place = directory / "config.json"
    config: dict[str, Any] = read_json(place, dict[str, Any])
    shapes = {name: shape for file in sorted(directory.glob(WEIGHTS)) for name, shape in _shapes(file)}
    _check_sizes(config, shapes, place)
    for half in _HALVES:
        if isinstance(config.get(half), dict):
            _check_sizes(config[half], shapes, place)
    return config


def _check_weights(directory: Path) -> None:
    """Refuse weights with other bytes than a stage wrote. `directory` may be a half of a model."""
    if folder := next(filter(is_artifact, (directory, directory.parent)), None):
        open_artifact(folder).check_content(".safetensors")


def _shapes(file: Path) -> Iterator[tuple[str, list[int]]]:
    from safetensors import safe_open

    with opening(file, "readable weights"), safe_open(file, framework="np") as weights:
        shapes = [(name, list(weights.get_slice(name).get_shape())) for name in weights.keys()]  # noqa: SIM118
    yield from shapes


def _check_sizes(config: dict[str, Any], shapes: Shapes, place: Path) -> None:
    widest = max((max(shape, default=1) for shape in shapes.values()), default=_MOST)
    positions = [
        max(shape, default=1) for name, shape in shapes.items() if "position" in name or ".wpe." in name
    ]
    limits = {
        **dict.fromkeys(_LAYERS, len(shapes) or 10_000),
        **dict.fromkeys(_SIZES, widest),
        **dict.fromkeys(_POSITIONS, max(positions, default=_MOST)),
    }
    for name, limit in limits.items():
        value = config.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise damaged(place, f"{name} is {str(value)[:40]!r}, expected a positive integer")
        if value > limit:
            raise damaged(place, f"{name} is {value:,}, which does not match the weights")
