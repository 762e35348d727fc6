"""The contrastive loss between the members of pairs, of coCondenser and of methods that add it to their own losses.

    L_co(i) = -log  exp(s(h_i, h_i')) / Σ_{k ≠ i} exp(s(h_i, h_k))        k over all 2n rows of all ranks
    s       = <h, h'> / τ, or their cosine / τ

Gao & Callan 2022, equation 6. False negatives: a row k with the text of i or of i', or whose partner k' has the text of i,
is excluded from the sum; with `mask_same_document`, so are the other rows of i's document.

Beside it, the same between the tokens of the same forward pass, whose signs `encode --tokens` stores and `rerank --tokens`
compares (ColBERT's loss, Khattab & Zaharia 2020): from the context q of each pair, such as a query, to the passages p.

    L_tok(q) = -log  exp(m(q, p_q) / τ) / Σ_p exp(m(q, p) / τ)            p over the n passages of all ranks
    m(q, p)  = mean_{i in q} max_{j in p} <e_i, e_j>                      e = h / |h|, without special tokens
    L        = w · mean over rows of L_co  +  w_tok · mean over contexts of L_tok

Shapes: M rows of the whole batch, R rows of a slice of it, H hidden size, W tokens of the longest text; Q contexts of a
slice, P passages of the batch.
"""

from __future__ import annotations

from typing import Annotated, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import pad

from qontext.frame.config import Advanced, Options
from qontext.frame.errors import QontextError
from qontext.models.encoder import Encoder
from qontext.models.representations.tokens import max_similarity
from qontext.pretrain.batches import Keys
from qontext.pretrain.objectives.base import Common
from qontext.pretrain.texts import Text


class Contrast(Options):
    """Options of methods with a contrastive loss."""

    contrastive_weight: float = Field(0.0, ge=0)
    """Weight of the contrastive loss; 0 disables it."""

    temperature: float = Field(1.0, gt=0)
    """Temperature of the contrastive loss."""

    mask_same_document: bool = False
    """Do not use other passages of the same document as negatives."""

    token_weight: Annotated[float, Advanced()] = Field(0.0, ge=0)
    """Weight of a contrastive loss between the tokens of contexts and passages (MaxSim), as 'rerank --tokens' compares
    them; 0 disables it. It needs memory for all pairs of tokens of the batch."""

    @model_validator(mode="after")
    def _has_vectors_to_add_tokens_to(self) -> Self:
        if self.token_weight > 0 and self.contrastive_weight == 0:
            raise QontextError(
                "token_weight adds to the contrastive loss of vectors, whose weight is 0",
                remedy="Set --contrastive-weight, too.",
            )
        return self


def contrast(
    options: Contrast, vectors_MH: Tensor, keys: Keys, rows: slice, *, is_cosine: bool
) -> dict[str, Tensor]:
    """The rows' shares of the mean of L_co over the batch, weighted; nothing if the weight is 0."""
    if options.contrastive_weight == 0:
        return {}
    if is_cosine:
        vectors_MH = F.normalize(vectors_MH, dim=-1)
    scores_RM = vectors_MH[rows] @ vectors_MH.T / options.temperature
    everyone = torch.arange(len(vectors_MH), device=vectors_MH.device)
    mine, is_self = keys[rows], everyone[rows][:, None] == everyone
    is_partner = (mine.pair[:, None] == keys.pair) & ~is_self
    left_out = is_self | _false_negatives(options, mine, keys, is_partner)
    scores_RM = scores_RM.masked_fill(left_out, float("-inf"))
    loss = F.cross_entropy(scores_RM, is_partner.int().argmax(dim=1), reduction="sum") / len(vectors_MH)
    return {"contrastive": options.contrastive_weight * loss}


def contrast_tokens(options: Contrast, tokens_MWH: Tensor, keys: Keys, rows: slice) -> dict[str, Tensor]:
    """The rows' shares of the mean of L_tok over the batch, weighted. A token of zeros is absent."""
    is_query_R = keys.is_context[rows]
    queries, passages = keys[rows][is_query_R], keys[~keys.is_context]
    if not len(queries.pair):
        return {"tokens": 0 * tokens_MWH.sum()}
    queries_QIH = _trimmed(tokens_MWH[rows][is_query_R])
    passages_PJH = _trimmed(tokens_MWH[~keys.is_context])
    counts_Q = queries_QIH.any(-1).sum(1).clamp(min=1)
    similarity_QP = max_similarity(queries_QIH, passages_PJH) / counts_Q[:, None]
    is_own_QP = queries.pair[:, None] == passages.pair
    left_out = _false_negatives(options, queries, passages, is_own_QP)
    scores_QP = (similarity_QP / options.temperature).masked_fill(left_out, float("-inf"))
    loss = F.cross_entropy(scores_QP, is_own_QP.int().argmax(dim=1), reduction="sum") / len(passages.pair)
    return {"tokens": options.token_weight * loss}


def _false_negatives(options: Contrast, mine: Keys, others: Keys, is_own: Tensor) -> Tensor:
    """[R, M] which of the others are no negatives, except a row's `own`: those with its text or its partner's, those whose
    partner has its text, and with `mask_same_document` those of its document."""
    is_left_out = mine.text[:, None] == others.text
    is_left_out |= (mine.partner[:, None] == others.text) | (mine.text[:, None] == others.partner)
    if options.mask_same_document:
        is_left_out |= mine.document[:, None] == others.document
    return is_left_out & ~is_own


def _trimmed(tokens_NWH: Tensor) -> Tensor:
    """Without the places, but for the first one, at which no text has a token."""
    is_used_W = tokens_NWH.detach().any(-1).any(0)
    is_used_W[0] = True
    return tokens_NWH[:, is_used_W]


class Contrasting:
    """Base class of methods with this loss, before `Objective`."""

    options: Contrast
    common: Common
    encoder: Encoder

    def contrasted(self, vector_NH: Tensor, last_NTH: Tensor, text: Text) -> Tensor:
        """h_x after the dense layers [N, D]; with a loss between tokens, [N, 1 + W, H]: h_x, then e of each place, 0 where
        there is no token."""
        vector_NH = self.encoder.project(vector_NH)
        if self.options.token_weight == 0:
            return vector_NH
        special = torch.tensor(self.encoder.tokenizer.all_special_ids, device=text.ids.device)
        is_token_NT = text.mask & ~torch.isin(text.ids, special)
        # A text of special tokens alone keeps them, as in `Retriever.encode_each_token`.
        is_token_NT = torch.where(is_token_NT.any(1, keepdim=True), is_token_NT, text.mask)
        tokens_NTH = F.normalize(last_NTH.float(), dim=-1) * is_token_NT[..., None]
        width = self.common.max_tokens or self.encoder.max_length
        tokens_NWH = pad(tokens_NTH, (0, 0, 0, width - tokens_NTH.shape[1]))
        return torch.cat([vector_NH.float()[:, None], tokens_NWH], dim=1)

    def contrast(self, vectors: Tensor, keys: Keys, rows: slice) -> dict[str, Tensor]:
        is_cosine = self.common.similarity == "cosine"
        if self.options.token_weight == 0:
            return contrast(self.options, vectors, keys, rows, is_cosine=is_cosine)
        losses = contrast(self.options, vectors[:, 0], keys, rows, is_cosine=is_cosine)
        return losses | contrast_tokens(self.options, vectors[:, 1:], keys, rows)
