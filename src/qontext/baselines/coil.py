"""A vector for each token, compared with those of the same token only: exact matches in context (COIL).

    v_i(x)  = W h_i + b                                                 hidden size → 32
    c(x)    = W' h_1 + b'                                               of [CLS]: hidden size → 768
    s(q, p) = Σ_{i in q: q_i in p} max_{j: p_j = q_i} <v_i(q), v_j(p)> + <c(q), c(p)>

Special tokens have no v. Gao et al. 2021, equations 3 to 5, with c (COIL-full) or without (COIL-tok); the released code sets
negative maxima to 0. With one dimension, relu(W h_i + b), and without c, v is the weight of a token (uniCOIL; Lin and Ma
2021), for passages that are expanded with queries.

c is stored like vectors of tokens that all texts have: pieces of 32 numbers, the dot product of which is the sum over the
pieces. In training, the first number of a vector is that of its token from 1; 0 for an absent one.

Shapes: N texts, T tokens, H hidden size, D dimensions, X = 1 + D, Q queries, I tokens of a query, P passages, J tokens of a
passage.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import TypedDict

from qontext.frame.config import Options
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.models.encoder import Encoder
from qontext.models.folder import FolderLayout
from qontext.models.load import seeded
from qontext.models.packed import Packed
from qontext.models.precision import Fp32Linear
from qontext.models.representations.base import SEED, Lengths, Representation
from qontext.models.representations.tokens import PRODUCTS_PER_BLOCK
from qontext.models.save import Card


class MatchesOptions(Options):
    token_dimensions: int = Field(32, ge=1, le=100_000)
    """Dimensions of a token's vector. 1: a weight, as in uniCOIL."""

    cls_dimensions: int = Field(768, ge=0, le=100_000)
    """Dimensions of the vector of the whole text. 0: none, so that only equal tokens count."""

    token_relu: bool = False
    """Set negative numbers of tokens' vectors to 0, as uniCOIL does."""


class _Settings(TypedDict):
    """The fields of the module's config.json."""

    token_dimensions: Annotated[int, Field(ge=1)]
    cls_dimensions: Annotated[int, Field(ge=0)]
    token_relu: bool


class Matches(Representation):
    Options = MatchesOptions
    module = "Matches"
    stored = "matches"
    index = "qontext.retrieve.index.sparse:MatchIndex"
    card = Card(
        "Retriever by exact matches in context",
        "A vector for each token, compared with those of the same token in the other text (COIL).",
    )
    is_special_V: Tensor

    def __init__(
        self, encoder: Encoder, sizes: MatchesOptions, lengths: Lengths | None = None, seed: int = SEED
    ) -> None:
        super().__init__()
        self.options, self.longest_text = sizes, max(lengths) if lengths else encoder.max_length
        self.even = False
        """True if every text is filled up to the longest."""
        self.vocabulary = encoder.vocab_size
        self.pieces = math.ceil(sizes.cls_dimensions / sizes.token_dimensions)
        with seeded(seed):
            self.token = Fp32Linear(encoder.hidden_size, sizes.token_dimensions)
            self.cls = Fp32Linear(encoder.hidden_size, sizes.cls_dimensions) if self.pieces else None
        is_special_V = torch.zeros(self.vocabulary, dtype=torch.bool)
        is_special_V[encoder.tokenizer.all_special_ids] = True
        self.register_buffer("is_special_V", is_special_V, persistent=False)

    @classmethod
    def new(
        cls, encoder: Encoder, layout: FolderLayout, options: Any, lengths: Lengths, seed: int = SEED
    ) -> Self:
        representation = cls(encoder, options, lengths.with_prompts(encoder), seed)
        if layout.representation == "matches":
            assert layout.module is not None
            trained = MatchesOptions(**read_json(layout.module / "config.json", _Settings))
            if trained != options:
                raise QontextError(
                    f"the encoder was trained with {trained}, got {options}", place=layout.module
                )
            representation.load_parameters(layout)
        representation.fill_up()
        return representation

    @classmethod
    def load(cls, encoder: Encoder, layout: FolderLayout) -> Self:
        assert layout.module is not None
        representation = cls(encoder, MatchesOptions(**read_json(layout.module / "config.json", _Settings)))
        representation.load_parameters(layout)
        return representation

    def fill_up(self) -> None:
        self.even = True

    def forward(self, encoder: Encoder, ids_NT: Tensor, mask_NT: Tensor, are_queries: bool) -> Tensor:
        """[N, pieces + T, X]"""
        (last_NTH,) = encoder(ids_NT, mask_NT)
        vectors_NTD = self.token(last_NTH)
        vectors_NTD = vectors_NTD.relu() if self.options.token_relu else vectors_NTD
        present_NT1 = (mask_NT & ~self.is_special_V[ids_NT])[..., None]
        tokens_NTX = torch.cat([ids_NT[..., None] + 1, vectors_NTD], -1) * present_NT1
        if self.even:
            tokens_NTX = pad(tokens_NTX, (0, 0, 0, self.longest_text - tokens_NTX.shape[1]))
        if self.cls is None:
            return tokens_NTX
        return torch.cat([self._whole(last_NTH[:, 0]), tokens_NTX], 1)

    def _whole(self, first_NH: Tensor) -> Tensor:
        """[N, pieces, X] the vector of the whole text."""
        assert self.cls is not None
        whole = self.cls(first_NH)
        whole = pad(whole, (0, self.pieces * self.options.token_dimensions - whole.shape[1]))
        numbers = self.vocabulary + torch.arange(1, self.pieces + 1, device=whole.device)
        terms = numbers.to(whole.dtype).expand(len(whole), -1)[..., None]
        return torch.cat([terms, whole.unflatten(1, (self.pieces, -1))], -1)

    def similarity(self, queries_QIX: Tensor, passages_PJX: Tensor) -> Tensor:
        whole = [texts[:, : self.pieces, 1:].flatten(1) for texts in (queries_QIX, passages_PJX)]
        return whole[0] @ whole[1].T + matches(queries_QIX[:, self.pieces :], passages_PJX[:, self.pieces :])

    def pack(self, texts_NTX: Tensor) -> Packed:
        texts = texts_NTX.cpu().numpy()
        is_present = (texts[..., 0] > 0) & texts[..., 1:].any(-1)  # a weight of 0 adds nothing
        starts = np.concatenate([[0], is_present.sum(1).cumsum()])
        return Packed(starts, texts[is_present][:, 1:], texts[is_present][:, 0].astype(np.int32) - 1)

    def width(self, encoder: Encoder) -> int:
        return self.vocabulary + self.pieces

    def save(self, encoder: Encoder, folder: Path, lengths: Lengths, *, max_length: int) -> None:
        self.save_module(encoder, folder, self.options.model_dump(), max_length=max_length)


def matches(queries_QIX: Tensor, passages_PJX: Tensor) -> Tensor:
    """[Q, P] Σ over a query's tokens of the greatest dot product with the same token's vectors, in blocks of queries."""
    terms_PJ, flat_ND = passages_PJX[..., 0], passages_PJX[..., 1:].flatten(0, 1)
    rows = max(1, PRODUCTS_PER_BLOCK // max(1, queries_QIX.shape[1] * len(flat_ND)))
    scores = []
    for some_QIX in queries_QIX.split(rows):
        terms_K11 = some_QIX[..., 0].flatten()[:, None, None]
        products_KPJ = (some_QIX[..., 1:].flatten(0, 1) @ flat_ND.T).unflatten(1, terms_PJ.shape)
        is_same_KPJ = (terms_K11 == terms_PJ) & (terms_K11 > 0)
        greatest_KP = products_KPJ.masked_fill(~is_same_KPJ, -torch.inf).amax(2)
        scores_KP = greatest_KP.masked_fill(~is_same_KPJ.any(2), 0.0)
        scores.append(scores_KP.unflatten(0, some_QIX.shape[:2]).sum(1))
    return torch.cat(scores) if scores else queries_QIX.new_empty(0, len(passages_PJX))
