"""A passage as the vectors of its first tokens, a query as one vector: ME-BERT.

    s(q, p) = max_{j ≤ m} <h_1(q), h_j(p)>      h_j: the last layer's vector of token j; the first is [CLS]

A passage can thus match different questions by different vectors, at nearly the cost of one. Which tokens come first matters
little: each sees the whole passage. Luan et al. 2021; m = 3 as in the released code, which has one more layer norm, and
dropout, after the last layer.

Shapes: N texts, T tokens, H hidden size, Q queries, P passages, M vectors of a passage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import TypedDict

from qontext.frame.config import Options
from qontext.frame.files import read_json
from qontext.models.encoder import Encoder
from qontext.models.folder import FolderLayout
from qontext.models.packed import Packed
from qontext.models.representations.base import SEED, Lengths, Representation
from qontext.models.representations.tokens import max_similarity, present
from qontext.models.save import Card


class FirstTokensOptions(Options):
    passage_vectors: int = Field(3, ge=1, le=100_000)
    """Vectors of a passage: those of its first tokens."""


class _Settings(TypedDict):
    """The fields of the module's config.json."""

    vectors: Annotated[int, Field(ge=1)]


class FirstTokens(Representation):
    Options = FirstTokensOptions
    module = "FirstTokens"
    stored = "tokens"
    index = "qontext.retrieve.index.exact:TokenIndex"
    card = Card(
        "Retriever with several vectors of a passage",
        "A query is the last layer's first vector; a passage is several of the first ones (ME-BERT).",
    )

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    @classmethod
    def new(
        cls, encoder: Encoder, layout: FolderLayout, options: Any, lengths: Lengths, seed: int = SEED
    ) -> Self:
        return cls(options.passage_vectors)

    @classmethod
    def load(cls, encoder: Encoder, layout: FolderLayout) -> Self:
        assert layout.module is not None
        return cls(read_json(layout.module / "config.json", _Settings)["vectors"])

    def forward(self, encoder: Encoder, ids_NT: Tensor, mask_NT: Tensor, are_queries: bool) -> Tensor:
        """[N, M, H]; vectors that a text does not have are 0, and so are all but the first of a query."""
        (last_NTH,) = encoder(ids_NT, mask_NT)
        count = 1 if are_queries else self.count
        first = last_NTH[:, :count].float() * mask_NT[:, :count, None]
        return pad(first, (0, 0, 0, self.count - first.shape[1]))

    def similarity(self, queries_QMH: Tensor, passages_PMH: Tensor) -> Tensor:
        return max_similarity(queries_QMH[:, :1], passages_PMH)

    def pack(self, texts_NMH: Tensor) -> Packed:
        return present(texts_NMH)

    def save(self, encoder: Encoder, folder: Path, lengths: Lengths, *, max_length: int) -> None:
        settings = {"vectors": self.count}
        self.save_module(encoder, folder, settings, max_length=max_length, similarity="maxsim")
