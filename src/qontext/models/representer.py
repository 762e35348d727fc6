"""A retriever whose texts do not become one vector: text → what its folder's representation packs.

The forward pass is that of training. Single vectors have a class of their own, `Retriever`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch

from qontext.data.collection import Passage
from qontext.data.passage import TitleRule
from qontext.frame.errors import QontextError
from qontext.models.encoder import load_encoder
from qontext.models.lanes import each, lanes_for
from qontext.models.layout import Kind, read_layout
from qontext.models.locate import locate
from qontext.models.packed import Packed
from qontext.models.packing import batches_by_length, grid_for, pad
from qontext.models.precision import Precision, autocast, resolve_device, resolve_precision
from qontext.models.products import use_where_faster
from qontext.models.representations import REPRESENTATIONS
from qontext.models.retriever import Retriever
from qontext.models.titles import Titles
from qontext.models.tokenizer import token_ids


class Representer:
    """A loaded encoder: texts → packed representations in fp32.

    Args:
        name: A model folder, or the name of a model on the Hugging Face Hub. device: auto, cpu, cuda, cuda:N
        or mps. precision: Number format of matrix products; auto is bf16 if the hardware supports it, else
        fp32. max_length: Maximum tokens of a passage; longer ones are truncated. Default: the encoder's limit.
        batch_tokens: Tokens per batch, including padding. title: prepend, sep or leave: what is done with the titles of
        passages. Default: as the folder says, else prepend.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        *,
        device: str = "auto",
        precision: Precision = "auto",
        max_length: int | None = None,
        batch_tokens: int | None = None,
        title: TitleRule | None = None,
    ) -> None:
        name = os.fspath(name)
        self.device = resolve_device(device)
        self.dtype = resolve_precision(precision, self.device)
        self.grid = grid_for(self.device, self.dtype, inference=True)
        self.layout = read_layout(locate(name))
        kind: Any = REPRESENTATIONS.load(self.layout.representation)
        encoder = load_encoder(str(self.layout.transformer))
        self.representation = kind.load(encoder, self.layout).to(self.device).eval()
        self.encoder = encoder.to(self.device)
        self.titles = Titles.of(title or self.layout.title or "prepend", encoder.tokenizer, name)
        use_where_faster(self.encoder, self.device, self.dtype)
        self.dimension: int = self.representation.width(encoder)
        if max_length and max_length > encoder.max_length:
            raise QontextError(
                f"the encoder's limit is {encoder.max_length:,} tokens, got {max_length:,}", place=name
            )
        limits = (self.layout.max_length, encoder.tokenizer.model_max_length, encoder.max_length)
        self.max_length = max_length or int(min(limit for limit in limits if limit))
        self.batch_tokens = batch_tokens or (65_536 if self.device.type != "cpu" else 1_024)

    def encode_passages(self, passages: Sequence[Passage | str]) -> Packed:
        """The representations of passages (title and text, joined) or plain texts."""
        return self.encode(
            [p if isinstance(p, str) else p.joined(self.titles.between) for p in passages], "passage"
        )

    def encode(
        self, texts: Sequence[str], kind: Kind, *, advance: Callable[[int], None] | None = None
    ) -> Packed:
        """The representations of the texts, in their order."""
        return self.encode_tokens(self.tokenize(texts, kind), kind, advance=advance)

    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[Any]:
        """Token ids of each text, with prompt and special tokens, truncated at the length limit."""
        longest = min(self.representation.longest(kind) or self.max_length, self.max_length)
        return token_ids(self.encoder.tokenizer, self.layout, texts, kind, longest)

    def encode_tokens(
        self, tokens: Sequence[Any], kind: Kind, *, advance: Callable[[int], None] | None = None
    ) -> Packed:
        parts, order = [], []
        lengths = np.array([len(ids) for ids in tokens])
        batches = list(batches_by_length(lengths, self.batch_tokens, self.grid))
        most = lanes_for(lengths, batches, self.encoder.config)
        outputs = each(
            lambda rows: self._forward([tokens[row] for row in rows], kind), batches, self.device, most
        )
        with closing(outputs):
            for rows, part in zip(batches, outputs):
                parts.append(part)
                order.append(rows)
                if advance:
                    advance(len(rows))
        packed = Packed.join(parts).take(np.argsort(np.concatenate(order)))
        if not np.isfinite(packed.values).all():
            raise QontextError(
                "the encoder returns numbers that are not finite",
                place=self.layout.transformer,
                remedy="Encode with --precision fp32 or bf16; if that does not help, the weights are damaged.",
            )
        return packed

    def _forward(self, tokens: list[Any], kind: Kind) -> Packed:
        longest = max(len(ids) for ids in tokens)
        width = min(self.grid.padded(longest), max(self.encoder.max_length, longest))
        ids, mask = pad(tokens, self.encoder.tokenizer.pad_token_id, width)
        ids_NT, mask_NT = (torch.from_numpy(array).to(self.device) for array in (ids, mask))
        with autocast(self.device, self.dtype):
            texts = self.representation(self.encoder, ids_NT, mask_NT, kind == "query")
        packed: Packed = self.representation.pack(texts)
        return packed


def open_retriever(name: str | os.PathLike[str], **settings: Any) -> Retriever | Representer:
    """The retriever in a folder, whatever its representation."""
    if read_layout(locate(os.fspath(name))).representation == "vector":
        return Retriever(name, **settings)
    return Representer(name, **settings)
