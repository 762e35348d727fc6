"""A BERT encoder in NumPy, for a question or two: without torch and transformers, which take seconds to import.

    h⁰ = norm(word + position + type)
    a  = norm(h + W_o softmax(q kᵀ / √d) v)        q, k, v = W h
    h' = norm(a + W_2 gelu(W_1 a))

Vectors are those of `Retriever` up to rounding. Other encoders need that class.

Shapes: T tokens, H hidden size, A heads, D size of a head.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from qontext.frame.files import opening, read_json
from qontext.models.folder import QUERY_FOLDER, FolderLayout, ModelFolder, TextKind, locate

Floats = NDArray[np.float32]


class _Limits(TypedDict, total=False):
    """The fields read from tokenizer_config.json."""

    model_max_length: float | None


class LightRetriever:
    """``encode(texts, kind) → [N, H]`` in fp32, one text at a time."""

    def __init__(
        self, layout: FolderLayout, config: Mapping[str, Any], *, max_length: int | None = None
    ) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        folder = layout.transformer
        settings = {**_DEFAULTS, **config}
        self.layout = layout
        self.heads, self.epsilon = settings["num_attention_heads"], settings["layer_norm_eps"]
        with opening(folder / "model.safetensors", "the weights of a BERT encoder"):
            weights = load_file(folder / "model.safetensors")
            self.weights = {
                n.removeprefix("bert."): w.astype(np.float32, copy=False) for n, w in weights.items()
            }
            self.layers = settings["num_hidden_layers"]
            self._forward([0])  # whatever is missing is missed here
        with opening(folder / "tokenizer.json", "a tokenizer"):
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        longest = read_json(folder / "tokenizer_config.json", _Limits).get("model_max_length")
        limits = (max_length, layout.max_length, settings["max_position_embeddings"], longest)
        self.tokenizer.enable_truncation(min(int(limit) for limit in limits if limit))

    @property
    def dimension(self) -> int:
        return int(self.weights["embeddings.word_embeddings.weight"].shape[1])

    def encode(self, texts: Sequence[str], kind: TextKind) -> Floats:
        """[N, H] vectors of the texts, in their order."""
        vectors = [self._encode(text, kind) for text in texts]
        return np.stack(vectors) if vectors else np.zeros((0, self.dimension), np.float32)

    def encode_tokens_of_queries(self, queries: Sequence[str]) -> list[Floats]:
        """[T, H] for each query: the vectors of its tokens, without the special ones, each of length 1."""
        return [self._tokens_of(query) for query in queries]

    def _tokens_of(self, query: str) -> Floats:
        ids = self._ids(query, "query")
        if not ids:
            return np.zeros((1, self.weights["embeddings.word_embeddings.weight"].shape[1]), np.float32)
        added = self.tokenizer.get_added_tokens_decoder()
        are_own = np.array([id not in added or not added[id].special for id in ids])
        hidden_TH = self._forward(ids)[are_own if are_own.any() else ~are_own]
        vectors_TH: Floats = hidden_TH / np.linalg.norm(hidden_TH, axis=1, keepdims=True)
        return vectors_TH

    def _ids(self, text: str, kind: TextKind) -> list[int]:
        prepared = (self.layout.prompt(kind) + text).strip()
        ids: list[int] = self.tokenizer.encode(prepared.lower() if self.layout.lower else prepared).ids
        return ids

    def _encode(self, text: str, kind: TextKind) -> Floats:
        hidden_TH = self._forward(self._ids(text, kind))
        vector_H: Floats = hidden_TH[0] if self.layout.pooling == "cls" else hidden_TH.mean(0)
        return vector_H / np.linalg.norm(vector_H) if self.layout.normalize else vector_H

    def _forward(self, ids: list[int]) -> Floats:
        tables = [
            self.weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        ]
        words, positions, types = tables
        hidden_TH = self._norm(words[ids] + positions[: len(ids)] + types[0], "embeddings.LayerNorm")
        for number in range(self.layers):
            layer = f"encoder.layer.{number}"
            attended_TH = self._attend(hidden_TH, f"{layer}.attention.self")
            output_TH = self._linear(attended_TH, f"{layer}.attention.output.dense")
            hidden_TH = self._norm(hidden_TH + output_TH, f"{layer}.attention.output.LayerNorm")
            inner = _gelu(self._linear(hidden_TH, f"{layer}.intermediate.dense"))
            output_TH = self._linear(inner, f"{layer}.output.dense")
            hidden_TH = self._norm(hidden_TH + output_TH, f"{layer}.output.LayerNorm")
        return hidden_TH

    def _attend(self, hidden_TH: Floats, name: str) -> Floats:
        query_ATD, key_ATD, value_ATD = (
            self._linear(hidden_TH, f"{name}.{part}").reshape(len(hidden_TH), self.heads, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores_ATT = query_ATD @ key_ATD.swapaxes(1, 2) / np.float32(np.sqrt(query_ATD.shape[-1]))
        weights_ATT = np.exp(scores_ATT - scores_ATT.max(-1, keepdims=True))
        weights_ATT /= weights_ATT.sum(-1, keepdims=True)
        mixed: Floats = (weights_ATT @ value_ATD).swapaxes(0, 1).reshape(len(hidden_TH), -1)
        return mixed

    def _linear(self, x: Floats, name: str) -> Floats:
        result: Floats = x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return result

    def _norm(self, x: Floats, name: str) -> Floats:
        centered = x - x.mean(-1, keepdims=True)
        scale = np.sqrt(np.square(centered).mean(-1, keepdims=True) + np.float32(self.epsilon))
        result: Floats = centered / scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return result


def light_folder(name: str | os.PathLike[str]) -> ModelFolder | None:
    """The folder of the query encoder of a model, if `LightRetriever` supports it. Its weights are not loaded."""
    folder = locate(os.fspath(name))
    half = folder.transformer / QUERY_FOLDER
    if (half / "config.json").is_file():
        folder = locate(str(half))
    return folder if is_light(folder.layout, folder.config) else None


def open_light(
    name: str | os.PathLike[str],
    max_length: int | None = None,
    prompts: Mapping[TextKind, str | None] | None = None,
) -> LightRetriever | None:
    """The query encoder of a model folder, with its prompts or others; None if it is not supported here."""
    if (folder := light_folder(name)) is None:
        return None
    return LightRetriever(folder.layout.prompted(prompts or {}), folder.config, max_length=max_length)


def is_light(layout: FolderLayout, config: Mapping[str, Any]) -> bool:
    """True if `LightRetriever` supports an encoder's folder."""
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act", "gelu") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder")
        and layout.representation == "vector"
        and not layout.dense
        and layout.pooling in ("cls", "mean")
        and all((layout.transformer / name).is_file() for name in _FILES)
        and _formats(layout.transformer / "model.safetensors") <= {"F32", "F16"}
    )


def _formats(file: Path) -> set[str]:
    """The number formats of the weights, except integers."""
    from safetensors import safe_open

    with opening(file, "readable weights"), safe_open(file, framework="np") as weights:
        formats = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    return {name for name in formats if not name.startswith(("I", "U"))}


_DEFAULTS = {
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
}
"""transformers' defaults for BERT."""
_FILES = ("model.safetensors", "tokenizer.json", "tokenizer_config.json")
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def _gelu(x: Floats) -> Floats:
    """x Φ(x), with the error function to 1.5e-7 (Abramowitz and Stegun 1964, formula 7.1.26)."""
    z = np.abs(x) / np.float32(np.sqrt(2))
    t = 1 / (1 + np.float32(0.3275911) * z)
    polynomial = np.zeros_like(t)
    for coefficient in reversed(_ERF):
        polynomial = (polynomial + np.float32(coefficient)) * t
    erf = np.copysign(1 - polynomial * np.exp(-z * z), x)
    result: Floats = x * (1 + erf) / 2
    return result
