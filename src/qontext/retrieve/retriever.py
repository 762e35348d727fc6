"""A retriever: any directory that sentence-transformers or transformers saved, as text → vector.

The layout's own pooling, dense layers, normalisation, prompts and length limit are respected, so that the
vectors are those which sentence-transformers computes. Ours are computed faster: texts are sorted by their
exact length in tokens and cut into batches of about equal work, with hardly a padded token.

Shapes: N texts, T tokens, H hidden size, D dimensions of the vector.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from qontext.engine.load import quiet
from qontext.engine.locate import locate
from qontext.engine.precision import Precision, autocast, resolve_device, resolve_precision
from qontext.engine.tokenizer import load_tokenizer
from qontext.errors import QontextError

Kind = Literal["query", "passage"]
QUERY_FOLDER = "query"
"""Where a retriever's directory holds another one for queries: the second half of an untied pair."""
_PROMPTS: dict[Kind, tuple[str, ...]] = {"query": ("query",), "passage": ("document", "passage", "corpus")}
_LEGACY_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}


def _mean(hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
    weights = mask_NT.unsqueeze(-1).to(hidden_NTH.dtype)
    return (hidden_NTH * weights).sum(1) / weights.sum(1)


def _max(hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
    return hidden_NTH.masked_fill(~mask_NT.unsqueeze(-1), -torch.inf).amax(1)


def _last(hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
    return hidden_NTH[torch.arange(len(hidden_NTH), device=hidden_NTH.device), mask_NT.sum(1) - 1]


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda hidden_NTH, mask_NT: hidden_NTH[:, 0],
    "mean": _mean,
    "max": _max,
    "lasttoken": _last,
}


@dataclass(frozen=True)
class Layout:
    """What a directory says about how its vectors are made."""

    transformer: Path
    pooling: str
    dense: tuple[Path, ...]
    normalize: bool
    prompts: dict[str, str]
    default_prompt: str | None
    lower: bool
    max_length: int | None
    similarity: str
    """dot or cosine."""

    def prompt(self, kind: Kind) -> str:
        """What stands before each text of this kind."""
        name = next((name for name in _PROMPTS[kind] if name in self.prompts), self.default_prompt)
        return self.prompts.get(name, "") if name else ""


def read_layout(directory: Path, *, pooling: str | None = None) -> Layout:
    """The layout of a transformer's directory. Without modules.json it is `pooling` (else CLS) alone."""
    root = next((d for d in (directory, directory.parent) if (d / "modules.json").is_file()), None)
    if root is None:
        return Layout(directory, pooling or "cls", (), False, {}, None, False, None, "dot")
    modules = [(m["type"].rpartition(".")[2], root / m["path"]) for m in _read(root / "modules.json")]
    unknown = [kind for kind, _ in modules if kind not in ("Transformer", "Pooling", "Dense", "Normalize")]
    if unknown:
        raise QontextError(
            f"the encoder has a module of type {unknown[0]}, which is not supported", place=root
        )
    paths = dict(modules)
    settings = _read(root / "config_sentence_transformers.json")
    transformer = _read(directory / "sentence_bert_config.json")
    return Layout(
        transformer=directory,
        pooling=pooling or _pooling(paths.get("Pooling")),
        dense=tuple(path for kind, path in modules if kind == "Dense"),
        normalize="Normalize" in paths or settings.get("similarity_fn_name") == "cosine",
        prompts={name: text for name, text in (settings.get("prompts") or {}).items() if text},
        default_prompt=settings.get("default_prompt_name"),
        lower=bool(transformer.get("do_lower_case")),
        max_length=transformer.get("max_seq_length"),
        similarity=settings.get("similarity_fn_name") or ("cosine" if "Normalize" in paths else "dot"),
    )


class Retriever:
    """A loaded encoder: ``encode(texts, kind) → [N, D]`` in fp32."""

    def __init__(
        self,
        name: str,
        *,
        device: str = "auto",
        precision: Precision = "auto",
        pooling: str | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {"device": device, "precision": precision, "pooling": pooling}
        self._settings |= {"max_length": max_length, "batch_tokens": batch_tokens}
        self._of_queries: Retriever | None = None
        self.device = resolve_device(device)
        self.dtype = resolve_precision(precision, self.device)
        self.layout = read_layout(locate(name), pooling=pooling)
        if self.layout.pooling not in POOLINGS:
            raise QontextError(
                f"the encoder pools by {self.layout.pooling!r}, which is not supported",
                place=name,
                remedy=f"Supported: {', '.join(POOLINGS)}.",
            )
        self.tokenizer = load_tokenizer(self.layout.transformer)
        self.model = _read_model(self.layout.transformer).to(self.device)
        self.dense = [_read_dense(path).to(self.device) for path in self.layout.dense]
        self.max_length = self._longest(max_length, name)
        # A GPU wants work in large pieces; a CPU is fastest while a batch fits its caches.
        self.batch_tokens = batch_tokens or (65_536 if self.device.type != "cpu" else 2_048)
        self.dimension = self.dense[-1].dimension if self.dense else int(self.model.config.hidden_size)

    def encode(
        self, texts: Sequence[str], kind: Kind, *, advance: Callable[[int], None] | None = None
    ) -> np.ndarray[Any, Any]:
        """[N, D] vectors of the texts, in their order."""
        half = self.of(kind)
        return half.encode_tokens(half.tokenize(texts, kind), advance=advance)

    def of(self, kind: Kind) -> Retriever:
        """What encodes texts of this kind: this one, or for queries the other half of an untied pair."""
        half = self.layout.transformer / QUERY_FOLDER
        if kind != "query" or not (half / "config.json").is_file():
            return self
        if self._of_queries is None:
            self._of_queries = Retriever(str(half), **self._settings)
            if self._of_queries.dimension != self.dimension:
                raise QontextError(
                    f"makes {self._of_queries.dimension} dimensions, the passages' encoder {self.dimension}",
                    place=half,
                )
        return self._of_queries

    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[Any]:
        """Token ids of each text, with prompt and special tokens, cut at the length limit."""
        prompt = self.layout.prompt(kind)
        prepared = [(prompt + text).strip() for text in texts]
        prepared = [text.lower() for text in prepared] if self.layout.lower else prepared
        backend = self.tokenizer.backend_tokenizer
        backend.no_padding()
        backend.enable_truncation(self.max_length)
        return [np.array(e.ids, dtype=np.int32) for e in backend.encode_batch_fast(prepared)]

    def encode_tokens(
        self, tokens: Sequence[Any], *, advance: Callable[[int], None] | None = None
    ) -> np.ndarray[Any, Any]:
        vectors = np.empty((len(tokens), self.dimension), np.float32)
        lengths = np.array([len(ids) for ids in tokens])
        waiting: list[tuple[Any, Tensor]] = []
        with torch.inference_mode(), autocast(self.device, self.dtype):
            for rows in batches(lengths, self.batch_tokens):
                waiting.append((rows, self._forward([tokens[row] for row in rows])))
                if len(waiting) > 1:  # the device computes one batch while the other is copied
                    _store(vectors, *waiting.pop(0))
                if advance:
                    advance(len(rows))
            for rows, out_ND in waiting:
                _store(vectors, rows, out_ND)
        if not np.isfinite(vectors).all():
            raise QontextError(
                "the encoder gives vectors that are not finite numbers",
                place=self.layout.transformer,
                remedy="Encode with --precision fp32 or bf16; if that is no better, its weights are damaged.",
            )
        return vectors

    def _forward(self, tokens: list[Any]) -> Tensor:
        width = max(map(len, tokens))
        padded = np.full((len(tokens), width), self.tokenizer.pad_token_id or 0, dtype=np.int64)
        mask = np.zeros((len(tokens), width), dtype=bool)
        for row, ids in enumerate(tokens):
            padded[row, : len(ids)] = ids
            mask[row, : len(ids)] = True
        ids_NT = torch.from_numpy(padded).to(self.device, non_blocking=True)
        mask_NT = torch.from_numpy(mask).to(self.device, non_blocking=True)
        attention = None if mask.all() else mask_NT.long()
        hidden_NTH = self.model(input_ids=ids_NT, attention_mask=attention).last_hidden_state
        out_ND = POOLINGS[self.layout.pooling](hidden_NTH.float(), mask_NT)
        for layer in self.dense:
            out_ND = layer(out_ND)
        return nn.functional.normalize(out_ND.float(), dim=1) if self.layout.normalize else out_ND.float()

    def _longest(self, wanted: int | None, name: str) -> int:
        positions = getattr(self.model.config, "max_position_embeddings", None)
        if wanted and positions and wanted > positions:
            raise QontextError(f"the encoder reads at most {positions:,} tokens, not {wanted:,}", place=name)
        limits = [self.layout.max_length, self.tokenizer.model_max_length, positions]
        return int(wanted or min(limit for limit in limits if limit))


def batches(lengths: np.ndarray[Any, Any], tokens: int) -> Iterator[np.ndarray[Any, Any]]:
    """Row numbers of batches of at most `tokens` tokens, padding included, longest texts first.

    A batch holds texts of one length as long as these fill at least half of it.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        stop = start + max(1, tokens // longest)
        same = int(np.searchsorted(-lengths[order], -longest, side="right"))
        if same < stop and (same - start) * longest * 2 >= tokens:
            stop = same
        yield order[start : min(stop, len(order))]
        start = stop


def _store(vectors: np.ndarray[Any, Any], rows: Any, out_ND: Tensor) -> None:
    vectors[rows] = out_ND.cpu().numpy()


def _pooling(path: Path | None) -> str:
    if path is None:
        return "mean"
    config = _read(path / "config.json")
    if not config.get("include_prompt", True):
        return "mean without the prompt"
    modes = config.get("pooling_mode") or [name for key, name in _LEGACY_POOLING.items() if config.get(key)]
    modes = [modes] if isinstance(modes, str) else list(modes) or ["mean"]
    return " + ".join(modes)


def _read_model(directory: Path) -> Any:
    from transformers import AutoModel

    try:
        with quiet():
            model = AutoModel.from_pretrained(
                str(directory), use_safetensors=True, trust_remote_code=False, dtype=torch.float32
            )
    except Exception as error:  # the library raises whatever its parsers raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise QontextError(
            f"cannot load the encoder: {reason}",
            place=directory,
            remedy="Expected config.json and model.safetensors.",
        ) from None
    return (model.get_encoder() if model.config.is_encoder_decoder else model).eval()


class _Dense(nn.Sequential):
    """A linear layer with its activation; `dimension` is its output's."""

    def __init__(self, linear: nn.Linear, activation: nn.Module) -> None:
        super().__init__(linear, activation)
        self.dimension = linear.out_features


def _read_dense(path: Path) -> _Dense:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    config, file = _read(path / "config.json"), path / "model.safetensors"
    if not file.is_file():
        pickled = (path / "pytorch_model.bin").is_file()
        raise QontextError(
            "the weights of the encoder's dense layer are "
            + ("pickled, which are not read: a pickle can run code" if pickled else "missing"),
            place=path,
            remedy="Expected model.safetensors: load and save the model with sentence-transformers.",
        )
    try:
        weights = {name.removeprefix("linear."): value for name, value in load_file(file).items()}
        linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
        linear.load_state_dict(weights)
    except (SafetensorError, KeyError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise QontextError(f"the encoder's dense layer cannot be read: {reason}", place=path) from None
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if activation not in ("Tanh", "Identity", "GELU", "ReLU"):
        raise QontextError(
            f"the encoder's dense layer has the unsupported activation {activation}", place=path
        )
    return _Dense(linear, getattr(nn, activation)()).eval()


def _read(path: Path) -> Any:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise QontextError(f"is not JSON: {error}", place=path) from None
