"""A retriever: any directory that sentence-transformers or transformers saved, as text → vector, or as text → what its
representation says.

Pooling, dense layers, normalization, prompts and length limit are those of the folder, so that the vectors
equal those of sentence-transformers. Encoding is faster: texts are sorted by their exact length in tokens and
split into batches of about equal work, with little padding.

Shapes: N texts, T tokens, H hidden size, D dimensions of the vector.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from qontext.data.load import as_texts
from qontext.data.passage import Passage, TitleRule
from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.models.attention import compute_first_token_alone
from qontext.models.batching import Ints, grid_for, pad, run_batches
from qontext.models.encoder import UNLIMITED, load_encoder
from qontext.models.families import find_family, is_decoder, most_positions
from qontext.models.folder import QUERY_FOLDER, TextKind, locate
from qontext.models.load import load_backbone
from qontext.models.packed import Packed, pack_own
from qontext.models.pooling import POOLINGS, read_dense
from qontext.models.precision import Precision, autocast, resolve_device, resolve_precision
from qontext.models.products import use_where_faster
from qontext.models.tokenizer import Titles, check_vocabulary, end_texts, load_tokenizer, token_ids

if TYPE_CHECKING:
    from qontext.models.representations.base import Representation

R = TypeVar("R")


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
        passages. Default: as the folder says, else prepend. prompts: Texts before those of a kind. Default: the folder's.
        packed: Accept an encoder whose texts do not become one vector each (SPLADE, ColBERT): `encode` returns `Packed`.
    """

    model: Any
    """The backbone; with a `representation`, the `Encoder` that it reads."""
    representation: Representation | None = None
    """The representation of texts; None for the pooled vector."""
    dense: Sequence[Any] = ()
    """The dense layers after the pooling."""
    width: int
    """Dimensions of a token's vector."""
    dimension: int
    """D, or of packed representations the size of what is compared."""

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
        packed: bool = False,
        prompts: Mapping[TextKind, str | None] | None = None,
    ) -> None:
        name = os.fspath(name)
        self._settings: dict[str, Any] = {"device": device, "precision": precision, "pooling": pooling}
        self._settings |= {"max_length": max_length, "batch_tokens": batch_tokens, "dimensions": dimensions}
        self._settings["prompts"] = prompts
        self._of_queries: Retriever | None = None
        self.device = resolve_device(device)
        self.dtype = resolve_precision(precision, self.device)
        self.grid = grid_for(self.device, self.dtype, inference=True)
        layout = locate(name).layout.prompted(prompts or {})
        self.layout = replace(layout, pooling=pooling or layout.pooling)
        opened = self._open_pooled if layout.module is None else self._open_representation
        positions = opened(name, accepts_packed=packed)
        self.positions = positions or UNLIMITED
        self.titles = Titles.of(title or self.layout.title or "prepend", self.tokenizer, name)
        if max_length and positions and max_length > positions:
            raise QontextError(f"the encoder's limit is {positions:,} tokens, got {max_length:,}", place=name)
        limits = (self.layout.max_length, self.tokenizer.model_max_length, positions)
        self.max_length = int(max_length or min(UNLIMITED, *(limit for limit in limits if limit)))
        # A GPU needs large batches; a CPU is fastest while those of all its threads fit its caches.
        self.batch_tokens = batch_tokens or (65_536 if self.device.type != "cpu" else 1_024)
        if dimensions is not None:
            self.cut(dimensions)

    def _open_pooled(self, name: str, *, accepts_packed: bool) -> int | None:
        """Load the model, its pooling and its dense layers; returns the maximum tokens of a text, if there is one."""
        if self.layout.pooling not in POOLINGS:
            raise QontextError(
                f"the encoder's pooling {self.layout.pooling!r} is not supported",
                place=name,
                remedy=f"Supported: {', '.join(POOLINGS)}.",
            )
        self.tokenizer = load_tokenizer(self.layout.transformer)
        model = load_backbone(self.layout.transformer).to(self.device)
        if self.layout.is_bare and is_decoder(model.config):  # whose first token sees nothing
            self.tokenizer = end_texts(self.tokenizer)
            self.layout = replace(self.layout, pooling=self._settings["pooling"] or "lasttoken")
        use_where_faster(model, self.device, self.dtype)
        if self.layout.pooling == "cls":
            compute_first_token_alone(model)
        check_vocabulary(self.tokenizer, model.get_input_embeddings().num_embeddings, name)
        self.model, self.config = model, model.config
        self.dense = [read_dense(path).to(self.device) for path in self.layout.dense]
        self.width = int(find_family(model.config).output_size(model.config))
        self.dimension = self.dense[-1].dimension if self.dense else self.width
        return most_positions(model.config)

    def _open_representation(self, name: str, *, accepts_packed: bool) -> int:
        """Load the encoder and the representation, whose forward pass is that of training."""
        kind = self.layout.representation_class()
        if kind.stored != "vector" and not accepts_packed:
            raise QontextError(
                f"is an encoder of the representation {self.layout.representation!r}, not of one vector",
                place=name,
                remedy="'qontext encode' and 'qontext search' use it; name an encoder of one vector here.",
            )
        with log.warnings_only():  # an MLM head is only missed by a representation that reads it
            encoder = load_encoder(str(self.layout.transformer))
        self.representation = kind.load(encoder, self.layout).to(self.device).eval()
        self.model, self.config, self.tokenizer = encoder.to(self.device), encoder.config, encoder.tokenizer
        use_where_faster(self.model, self.device, self.dtype)
        self.width, self.dimension = encoder.hidden_size, self.representation.width(encoder)
        return encoder.max_length

    def __repr__(self) -> str:
        return f"Retriever({str(self.layout.transformer)!r}, {self.dimension} dimensions)"

    def modules(self) -> nn.ModuleList:
        """All that has weights."""
        after = self.dense if self.representation is None else (self.representation,)
        return nn.ModuleList([self.model, *after])

    @property
    def is_packed(self) -> bool:
        """True if texts become `Packed` representations, not one vector each."""
        return self.representation is not None and self.representation.stored != "vector"

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
        vectors: np.ndarray[Any, Any] = self.encode(as_texts(queries, "queries"), "query")
        return vectors

    def encode_passages(self, passages: Sequence[Passage | str]) -> np.ndarray[Any, Any]:
        """Encode passages (title and text) or plain texts, with the passage prompt if the model has one: [N, D]."""
        items, between = as_texts(passages, "passages"), self.titles.between
        texts = [item if isinstance(item, str) else item.joined(between) for item in items]
        vectors: np.ndarray[Any, Any] = self.encode(texts, "passage")
        return vectors

    def encode(
        self,
        texts: Sequence[str],
        kind: TextKind,
        *,
        advance: Callable[[int], None] | None = None,
    ) -> Any:
        """[N, D] vectors of the texts, in their order, or their packed representations."""
        half = self.of(kind)
        return half.encode_tokens(half.tokenize(texts, kind), kind, advance=advance)

    def of(self, kind: TextKind) -> Retriever:
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

    def tokenize(self, texts: Sequence[str], kind: TextKind, max_length: int | None = None) -> list[Any]:
        """Token ids of each text, with prompt and special tokens, truncated at `max_length` (default: the encoder's)."""
        longest = max_length or self.max_length
        if self.representation is not None:
            longest = min(self.representation.longest(kind) or longest, longest)
        return token_ids(self.tokenizer, self.layout, texts, kind, longest)

    def encode_tokens(
        self,
        tokens: Sequence[Any],
        kind: TextKind,
        *,
        advance: Callable[[int], None] | None = None,
    ) -> Any:
        """[N, D] vectors of tokenized texts, or their packed representations."""
        if self.is_packed:
            texts = tokens if len(tokens) else self.tokenize(["."], kind)  # nothing, in the form of something
            return self._packed(texts, lambda rows: self._pack(rows, kind), advance)[: len(tokens)]
        vectors = np.empty((len(tokens), self.dimension), np.float32)

        def store(rows: Ints, out_ND: Tensor) -> None:
            vectors[rows] = out_ND.cpu().numpy()

        self._run(lambda rows: self._forward(rows, kind), store, tokens, advance)
        return self._finite(vectors, vectors)

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
        return self._packed(tokens, lambda rows: self._tokens_of(rows, self._hidden(rows)[0], form), advance)

    def encode_with_tokens(
        self,
        tokens: Sequence[Any],
        form: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]],
        *,
        advance: Callable[[int], None] | None = None,
    ) -> tuple[np.ndarray[Any, Any], Packed]:
        """[N, D] vectors of tokenized texts, and those of their tokens as `encode_each_token` returns them, from one forward
        pass."""
        if self.representation is not None or not len(tokens):
            vectors: np.ndarray[Any, Any] = self.encode_tokens(tokens, "passage", advance=advance)
            return vectors, self.encode_each_token(tokens, form)
        source = self._of_all_tokens if self.layout.pooling == "cls" else self
        vectors = np.empty((len(tokens), self.dimension), np.float32)
        parts: list[Packed] = []
        order: list[Ints] = []

        def compute(rows: list[Any]) -> tuple[Tensor, Packed]:
            hidden_NTH, mask_NT = source._hidden(rows)
            return self._pooled(hidden_NTH, mask_NT), source._tokens_of(rows, hidden_NTH, form)

        def store(rows: Ints, made: tuple[Tensor, Packed]) -> None:
            vectors[rows] = made[0].cpu().numpy()
            parts.append(made[1])
            order.append(rows)

        source._run(compute, store, tokens, advance)
        return self._finite(vectors, vectors), Packed.join(parts).take(np.argsort(np.concatenate(order)))

    def encode_tokens_of_queries(self, queries: Sequence[str]) -> list[np.ndarray[Any, Any]]:
        """[T, H] for each query."""
        half = self.of("query")
        packed = half.encode_each_token(half.tokenize(queries, "query"))
        return np.split(packed.values, packed.starts[1:-1])

    def _packed(self, tokens: Sequence[Any], compute: Callable[[list[Any]], Packed], advance: Any) -> Packed:
        """The packed representations of all texts, in their order."""
        parts: list[Packed] = []
        order: list[Ints] = []

        def store(rows: Ints, part: Packed) -> None:
            parts.append(part)
            order.append(rows)

        self._run(compute, store, tokens, advance)
        return Packed.join(parts).take(np.argsort(np.concatenate(order)))

    def _run(
        self, compute: Callable[[list[Any]], Any], store: Any, tokens: Sequence[Any], advance: Any
    ) -> None:
        run_batches(
            lambda rows: compute([tokens[row] for row in rows]),
            store,
            np.array([len(ids) for ids in tokens]),
            tokens=self.batch_tokens,
            device=self.device,
            grid=self.grid,
            config=self.config,
            advance=advance,
        )

    @cached_property
    def _of_all_tokens(self) -> Retriever:
        """The same encoder, whose last layer is not for the first token alone."""
        return Retriever(str(self.layout.transformer), **{**self._settings, "pooling": "mean"})

    def _tokens_of(self, tokens: list[Any], hidden_NTH: Tensor, form: Callable[[Any], Any]) -> Packed:
        vectors_NTH = nn.functional.normalize(hidden_NTH, dim=2).cpu().numpy()
        own = pack_own(tokens, vectors_NTH, self.tokenizer.all_special_ids)
        return replace(own, values=form(self._finite(own.values, own.values)))

    def _pack(self, tokens: list[Any], kind: TextKind) -> Packed:
        assert self.representation is not None
        packed = self.representation.pack(self._represent(tokens, kind))
        return self._finite(packed, self.representation.checked(packed.values, self.model))

    def _forward(self, tokens: list[Any], kind: TextKind) -> Tensor:
        if self.representation is not None:
            texts = self.representation.checked(self._represent(tokens, kind), self.model)
            return texts[:, : self.dimension]
        return self._pooled(*self._hidden(tokens))

    def vectors_of(self, ids_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """[N, D] the vectors of padded texts, of which `mask_NT` are the tokens."""
        hidden_NTH = self.model(input_ids=ids_NT, attention_mask=mask_NT.long()).last_hidden_state
        return self._pooled(hidden_NTH.float(), mask_NT)

    def _pooled(self, hidden_NTH: Tensor, mask_NT: Tensor) -> Tensor:
        """[N, D] the texts' vectors."""
        out_ND: Tensor = POOLINGS[self.layout.pooling](hidden_NTH, mask_NT)
        for layer in self.dense:
            out_ND = layer(out_ND)
        out_ND = out_ND[:, : self.dimension]
        return nn.functional.normalize(out_ND, dim=1) if self.layout.normalize else out_ND

    def _represent(self, tokens: list[Any], kind: TextKind) -> Tensor:
        """[N, …] the representation, as in training."""
        assert self.representation is not None
        ids_NT, mask_NT, _ = self._inputs(tokens, self._padded(tokens, self.model.max_length))
        with autocast(self.device, self.dtype):
            texts: Tensor = self.representation(self.model, ids_NT, mask_NT, kind == "query")
        return texts

    def _hidden(self, tokens: list[Any]) -> tuple[Tensor, Tensor]:
        """[N, T, H] the model's output, or [N, 1, H] of the first token, and [N, T] which are no padding."""
        width = None if self.grid.rows == 1 else self._padded(tokens, self.max_length)
        ids_NT, mask_NT, is_full = self._inputs(tokens, width)
        with autocast(self.device, self.dtype):
            if self.representation is not None:
                (hidden_NTH,) = self.model(ids_NT, mask_NT)
            else:
                attention = None if is_full else mask_NT.long()
                hidden_NTH = self.model(input_ids=ids_NT, attention_mask=attention).last_hidden_state
        return hidden_NTH.float(), mask_NT

    def _inputs(self, tokens: list[Any], width: int | None) -> tuple[Tensor, Tensor, bool]:
        """[N, T] the token ids, [N, T] which of them are no padding, and whether all are."""
        padded, mask = pad(tokens, self.tokenizer.pad_token_id or 0, width)
        ids_NT = torch.from_numpy(padded).to(self.device, non_blocking=True)
        mask_NT = torch.from_numpy(mask).to(self.device, non_blocking=True)
        return ids_NT, mask_NT, bool(mask.all())

    def _padded(self, tokens: list[Any], limit: int) -> int:
        """The width to which these texts are padded."""
        longest = max(len(ids) for ids in tokens)
        return min(self.grid.padded(longest), max(limit, longest))

    def _finite(self, result: R, values: np.ndarray[Any, Any]) -> R:
        """The result, refused if its values are not finite."""
        if not np.isfinite(values).all():
            raise QontextError(
                "the encoder returns vectors that are not finite",
                place=self.layout.transformer,
                remedy="Encode with --precision fp32 or bf16; if that does not help, the weights are damaged.",
            )
        return result
