"""A retriever: any directory that sentence-transformers or transformers saved, as text → vector.

Pooling, dense layers, normalization, prompts and length limit are those of the folder, so that the vectors
equal those of sentence-transformers. Encoding is faster: texts are sorted by their exact length in tokens and
split into batches of about equal work, with little padding.

Shapes: N texts, T tokens, H hidden size, D dimensions of the vector.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qontext.data.collection import Passage
from qontext.data.passage import TitleRule
from qontext.frame.errors import QontextError, first_line, raise_if_out_of_memory
from qontext.models.dense import read_dense
from qontext.models.first_token import compute_first_token_alone
from qontext.models.lanes import each, lanes_for
from qontext.models.layout import QUERY_FOLDER, Kind, read_layout, require_vector
from qontext.models.load import quiet
from qontext.models.locate import locate
from qontext.models.packed import Packed
from qontext.models.packing import batches_by_length, grid_for, pad
from qontext.models.pooling import POOLINGS
from qontext.models.precision import Precision, autocast, keep_fp32, resolve_device, resolve_precision
from qontext.models.products import use_where_faster
from qontext.models.titles import Titles
from qontext.models.tokenizer import check_vocabulary, load_tokenizer, token_ids


class Retriever:
    """A loaded encoder: texts → vectors in fp32.

    >>> retriever = Retriever("sentence-transformers/all-MiniLM-L6-v2")
    >>> queries = retriever.encode_queries(["who grinds flour?"])
    >>> passages = retriever.encode_passages(["The mill grinds flour.", "The boat crosses the river."])
    >>> (queries @ passages.T).shape
    (1, 2)

    Args:
        name: A model folder, or the name of a model on the Hugging Face Hub. device: auto, cpu, cuda, cuda:N
        or mps. precision: Number format of matrix products; auto is bf16 if the hardware supports it, else
        fp32. pooling: Pooling for a folder that does not define it: cls, mean, max or lasttoken. max_length:
        Maximum tokens of a text; longer texts are truncated. Default: the encoder's limit. batch_tokens:
        Tokens per batch, including padding. dimensions: Cut vectors to their first dimensions, as an encoder trained
        with 'finetune --dimensions' allows. Default: all. title: prepend, sep or leave: what is done with the titles of
        passages. Default: as the folder says, else prepend.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        *,
        device: str = "auto",
        precision: Precision = "auto",
        pooling: str | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        dimensions: int | None = None,
        title: TitleRule | None = None,
    ) -> None:
        name = os.fspath(name)
        self._settings: dict[str, Any] = {"device": device, "precision": precision, "pooling": pooling}
        self._settings |= {"max_length": max_length, "batch_tokens": batch_tokens, "dimensions": dimensions}
        self._of_queries: Retriever | None = None
        self.device = resolve_device(device)
        self.dtype = resolve_precision(precision, self.device)
        self.grid = grid_for(self.device, self.dtype, inference=True)
        self.layout = read_layout(locate(name), pooling=pooling)
        require_vector(self.layout, name)
        if self.layout.pooling not in POOLINGS:
            raise QontextError(
                f"the encoder's pooling {self.layout.pooling!r} is not supported",
                place=name,
                remedy=f"Supported: {', '.join(POOLINGS)}.",
            )
        self.tokenizer = load_tokenizer(self.layout.transformer)
        self.titles = Titles.of(title or self.layout.title or "prepend", self.tokenizer, name)
        self.model = _read_model(self.layout.transformer).to(self.device)
        use_where_faster(self.model, self.device, self.dtype)
        if self.layout.pooling == "cls":
            compute_first_token_alone(self.model)
        check_vocabulary(self.tokenizer, self.model.get_input_embeddings().num_embeddings, name)
        self.dense = [read_dense(path).to(self.device) for path in self.layout.dense]
        self.max_length = self._longest(max_length, name)
        # A GPU needs large batches; a CPU is fastest while those of all its threads fit its caches.
        self.batch_tokens = batch_tokens or (65_536 if self.device.type != "cpu" else 1_024)
        self.width = int(self.model.config.hidden_size)
        """Dimensions of a token's vector."""
        self.dimension = self.dense[-1].dimension if self.dense else self.width
        if dimensions is not None:
            self.cut(dimensions)

    def cut(self, dimensions: int) -> None:
        """Return only the first dimensions of vectors from now on."""
        if not 1 <= dimensions <= self.dimension:
            raise QontextError(
                f"dimensions = {dimensions}, but the encoder's vectors have {self.dimension}",
                place=self.layout.transformer,
            )
        self.dimension = self._settings["dimensions"] = dimensions
        if self._of_queries is not None:
            self._of_queries.cut(dimensions)

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray[Any, Any]:
        """Encode queries, with the query prompt if the model has one: [N, D]."""
        return self.encode(queries, "query")

    def encode_passages(self, passages: Sequence[Passage | str]) -> np.ndarray[Any, Any]:
        """Encode passages (title and text, joined) or plain texts, with the passage prompt if the model has
        one: [N, D]."""
        return self.encode(
            [p if isinstance(p, str) else p.joined(self.titles.between) for p in passages], "passage"
        )

    def encode(
        self, texts: Sequence[str], kind: Kind, *, advance: Callable[[int], None] | None = None
    ) -> np.ndarray[Any, Any]:
        """[N, D] vectors of the texts, in their order."""
        half = self.of(kind)
        return half.encode_tokens(half.tokenize(texts, kind), advance=advance)

    def of(self, kind: Kind) -> Retriever:
        """The encoder for texts of this kind: this one, or the query encoder of an untied pair."""
        half = self.layout.transformer / QUERY_FOLDER
        if kind != "query" or not (half / "config.json").is_file():
            return self
        if self._of_queries is None:
            self._of_queries = Retriever(str(half), **self._settings)
            if self._of_queries.dimension != self.dimension:
                raise QontextError(
                    f"has {self._of_queries.dimension} dimensions, the passages' encoder has {self.dimension}",
                    place=half,
                )
        return self._of_queries

    def tokenize(self, texts: Sequence[str], kind: Kind, max_length: int | None = None) -> list[Any]:
        """Token ids of each text, with prompt and special tokens, truncated at `max_length` (default: the encoder's)."""
        return token_ids(self.tokenizer, self.layout, texts, kind, max_length or self.max_length)

    def encode_tokens(
        self, tokens: Sequence[Any], *, advance: Callable[[int], None] | None = None
    ) -> np.ndarray[Any, Any]:
        vectors = np.empty((len(tokens), self.dimension), np.float32)
        lengths = np.array([len(ids) for ids in tokens])
        waiting: list[tuple[Any, Tensor]] = []
        batches = list(batches_by_length(lengths, self.batch_tokens, self.grid))
        most = lanes_for(lengths, batches, self.model.config)
        outputs = each(lambda rows: self._forward([tokens[row] for row in rows]), batches, self.device, most)
        with closing(outputs):
            for batch in zip(batches, outputs):
                waiting.append(batch)
                if len(waiting) > 1:  # the device computes one batch while the other is copied
                    _store(vectors, *waiting.pop(0))
                if advance:
                    advance(len(batch[0]))
        for rows, out_ND in waiting:
            _store(vectors, rows, out_ND)
        if not np.isfinite(vectors).all():
            raise self._not_finite()
        return vectors

    def encode_each_token(
        self,
        tokens: Sequence[Any],
        form: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]] = lambda vectors: vectors,
        *,
        advance: Callable[[int], None] | None = None,
    ) -> Packed:
        """The vectors of each text's tokens, without the special ones, each of length 1 and turned into another `form`."""
        if self.layout.pooling == "cls":
            return self._of_all_tokens.encode_each_token(tokens, form, advance=advance)
        if not len(tokens):
            return Packed(np.zeros(1, np.int64), form(np.zeros((0, self.width), np.float32)))
        lengths = np.array([len(ids) for ids in tokens])
        batches = list(batches_by_length(lengths, self.batch_tokens, self.grid))
        most = lanes_for(lengths, batches, self.model.config)
        parts = []
        outputs = each(
            lambda rows: self._each_token([tokens[row] for row in rows], form), batches, self.device, most
        )
        with closing(outputs):
            for rows, part in zip(batches, outputs):
                parts.append(part)
                if advance:
                    advance(len(rows))
        return Packed.join(parts).take(np.argsort(np.concatenate(batches)))

    def encode_tokens_of_queries(self, queries: Sequence[str]) -> list[np.ndarray[Any, Any]]:
        """[T, H] for each query."""
        half = self.of("query")
        packed = half.encode_each_token(half.tokenize(queries, "query"))
        return np.split(packed.values, packed.starts[1:-1])

    @cached_property
    def _of_all_tokens(self) -> Retriever:
        """The same encoder, whose last layer is not for the first token alone."""
        return Retriever(str(self.layout.transformer), **{**self._settings, "pooling": "mean"})

    def _each_token(self, tokens: list[Any], form: Callable[[Any], Any]) -> Packed:
        hidden_NTH, _ = self._hidden(tokens)
        vectors_NTH = nn.functional.normalize(hidden_NTH, dim=2).cpu().numpy()
        special = self.tokenizer.all_special_ids
        are_own = [~np.isin(ids, special) for ids in tokens]
        # A text of special tokens alone keeps them, and one of no tokens has a vector of zeros.
        are_own = [own if own.any() else ~own for own in are_own]
        nothing = np.zeros((1, self.width), np.float32)
        parts = [
            vectors[: len(own)][own] if len(own) else nothing for vectors, own in zip(vectors_NTH, are_own)
        ]
        starts, own = np.cumsum([0, *map(len, parts)]), np.concatenate(parts)
        if not np.isfinite(own).all():
            raise self._not_finite()
        return Packed(starts, form(own))

    def _forward(self, tokens: list[Any]) -> Tensor:
        hidden_NTH, mask_NT = self._hidden(tokens)
        out_ND = POOLINGS[self.layout.pooling](hidden_NTH, mask_NT)
        for layer in self.dense:
            out_ND = layer(out_ND)
        out_ND = out_ND[:, : self.dimension]
        return nn.functional.normalize(out_ND, dim=1) if self.layout.normalize else out_ND

    def _hidden(self, tokens: list[Any]) -> tuple[Tensor, Tensor]:
        """[N, T, H] the model's output, and [N, T] which tokens are no padding."""
        longest = max(len(ids) for ids in tokens)
        width = None if self.grid.rows == 1 else min(self.grid.padded(longest), max(self.max_length, longest))
        padded, mask = pad(tokens, self.tokenizer.pad_token_id or 0, width)
        ids_NT = torch.from_numpy(padded).to(self.device, non_blocking=True)
        mask_NT = torch.from_numpy(mask).to(self.device, non_blocking=True)
        attention = None if mask.all() else mask_NT.long()
        with autocast(self.device, self.dtype):
            hidden_NTH = self.model(input_ids=ids_NT, attention_mask=attention).last_hidden_state
        return hidden_NTH.float(), mask_NT

    def _not_finite(self) -> QontextError:
        return QontextError(
            "the encoder returns vectors that are not finite",
            place=self.layout.transformer,
            remedy="Encode with --precision fp32 or bf16; if that does not help, the weights are damaged.",
        )

    def _longest(self, length: int | None, name: str) -> int:
        positions = getattr(self.model.config, "max_position_embeddings", None)
        if length and positions and length > positions:
            raise QontextError(f"the encoder's limit is {positions:,} tokens, got {length:,}", place=name)
        limits = [self.layout.max_length, self.tokenizer.model_max_length, positions]
        return int(length or min(limit for limit in limits if limit))


def _store(vectors: np.ndarray[Any, Any], rows: Any, out_ND: Tensor) -> None:
    vectors[rows] = out_ND.cpu().numpy()


def _read_model(directory: Path) -> Any:
    """The backbone in fp32, without a pooler: no vector depends on it, and many folders have no weights for it, so that
    the library would initialize them at random."""
    from transformers import AutoModel

    try:
        with quiet():
            model, report = AutoModel.from_pretrained(
                str(directory),
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except Exception as error:  # the library raises whatever its parsers raise
        raise_if_out_of_memory(error)
        raise QontextError(
            f"cannot load the encoder: {first_line(error)}",
            place=directory,
            remedy="Expected config.json and model.safetensors.",
        ) from None
    prefix = "encoder." if model.config.is_encoder_decoder else ""
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    if "add_pooling_layer" in inspect.signature(type(model).__init__).parameters:
        model.pooler = None
    missing = {*report["missing_keys"]} & {prefix + name for name in model.state_dict()}
    if missing:
        raise QontextError(
            f"the weights do not belong to this config.json: {len(missing)} are missing, such as {min(missing)}",
            place=directory,
        )
    keep_fp32(model)
    return model.eval()
