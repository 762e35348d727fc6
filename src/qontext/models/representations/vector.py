"""One vector, from the last layer's [CLS], the mean over the tokens, or the last token, and the dense layers of its folder.

    s(q, p) = <h_q, h_p>        cosine: of vectors of length one

Matryoshka: the loss is the mean over vectors cut to their first d dimensions, for several d (Kusupati et al. 2022).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

import torch.nn.functional as F
from pydantic import model_validator
from torch import Tensor

from qontext.frame.config import Options
from qontext.frame.errors import QontextError
from qontext.models.encoder import Encoder
from qontext.models.folder import FolderLayout
from qontext.models.pooling import POOLINGS
from qontext.models.representations.base import SEED, Lengths, Representation
from qontext.models.save import Card, Pooling, Similarity


class VectorOptions(Options):
    pooling: Literal["auto", "cls", "mean", "lasttoken"] = "auto"
    """Vector of a text: the last layer's [CLS], the mean over its tokens, or the last token. Auto: from the encoder's
    folder, else [CLS], or of a decoder, the last token."""

    similarity: Literal["auto", "dot", "cosine"] = "auto"
    """Similarity of vectors. Auto: from the encoder's folder, else dot product."""

    dimensions: tuple[int, ...] = ()
    """Train these numbers of first dimensions to be vectors, too (Matryoshka), such as 64 and 128. May be repeated. They
    are used with 'qontext encode --dimensions'."""

    @model_validator(mode="after")
    def _different(self) -> Self:
        if min(self.dimensions, default=1) < 1 or len(set(self.dimensions)) < len(self.dimensions):
            raise QontextError("dimensions must be different numbers from 1")
        return self


class Vector(Representation):
    Options = VectorOptions
    module = "Pooling"
    card = Card("Dense retriever", "Queries and passages as vectors.", "SentenceTransformer")

    def __init__(
        self, pooling: Pooling = "cls", similarity: Similarity = "dot", dimensions: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.pooling, self.compared, self.dimensions = pooling, similarity, dimensions
        self.temperature = 1.0 if similarity == "dot" else 0.05
        self.reads_first_token = pooling == "cls"

    @classmethod
    def new(
        cls, encoder: Encoder, layout: FolderLayout, options: Any, lengths: Lengths, seed: int = SEED
    ) -> Self:
        pooling, similarity = resolve(layout, options)
        if options.pooling != "cls":
            pooling = encoder.pooling(pooling)
        if max(options.dimensions, default=0) >= encoder.dimension:
            raise QontextError(
                f"dimensions = {max(options.dimensions)}, but the encoder's vectors have {encoder.dimension}: "
                "name smaller numbers"
            )
        return cls(pooling, similarity, options.dimensions)

    def forward(self, encoder: Encoder, ids_NT: Tensor, mask_NT: Tensor, are_queries: bool) -> Tensor:
        (last_NTH,) = encoder(ids_NT, mask_NT)
        vectors_NH = encoder.project(POOLINGS[self.pooling](last_NTH.float(), mask_NT))
        return F.normalize(vectors_NH, dim=1) if self.compared == "cosine" else vectors_NH

    def similarity(self, queries_QH: Tensor, passages_PH: Tensor) -> Tensor:
        return queries_QH @ passages_PH.T

    def versions(self, texts_MH: Tensor) -> list[Tensor]:
        cut = [texts_MH[:, :width] for width in self.dimensions]
        if self.compared == "cosine":
            cut = [F.normalize(part, dim=1) for part in cut]
        return [*cut, texts_MH]

    def width(self, encoder: Encoder) -> int:
        return encoder.dimension

    def about(self) -> dict[str, str]:
        return {"pooling": self.pooling, "similarity": self.compared}

    def save(self, encoder: Encoder, folder: Path, lengths: Lengths, *, max_length: int) -> None:
        encoder.save(
            folder,
            max_length=max_length,
            pooling=self.pooling,
            similarity=self.compared,
            mlm_head=False,
            normalize=self.compared == "cosine",
        )


def resolve(layout: FolderLayout, options: Any) -> tuple[Pooling, Similarity]:
    """Pooling and similarity: from the options, else from the encoder's folder."""
    pooling = layout.pooling if options.pooling == "auto" else options.pooling
    is_cosine = layout.normalize if options.similarity == "auto" else options.similarity == "cosine"
    if pooling not in get_args(Pooling):
        raise QontextError(
            f"training with the encoder's pooling {pooling!r} is not supported",
            place=layout.transformer,
            remedy="Set --pooling cls, mean or lasttoken.",
        )
    return cast(Pooling, pooling), "cosine" if is_cosine else "dot"
