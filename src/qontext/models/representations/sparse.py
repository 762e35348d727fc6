"""Weights of words, for search by words that a text has, and by words that it does not have but should (SPLADE).

    w_v(x) = max_t log(1 + relu(φ(h_t)_v))                              for every entry v of the vocabulary
    s(q, p) = Σ_v w_v(q) · w_v(p)
    FLOPS   = Σ_v ( mean over texts of w_v )²                           of the queries, and of the passages
    L       = L_contrastive or distilled + λ_q(t) · FLOPS_q + λ_p(t) · FLOPS_p
    λ(t)    = λ · min(1, t / T)²

φ is the MLM head, which predicts words: an encoder without one must learn it first (`pretrain --method mlm`). FLOPS
estimates how many multiplications a search takes (Paria et al. 2020), and drives weights to 0. Formal et al. 2021, SPLADE
v2 ("SPLADE-max"); λ as in the released configuration.

Shapes: N texts, T tokens, H hidden size, V vocabulary, M texts of the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from qontext.frame.config import Options
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.models.encoder import Encoder
from qontext.models.folder import FolderLayout
from qontext.models.packed import Packed
from qontext.models.representations.base import SEED, Lengths, Representation
from qontext.models.save import Card, ModuleFolder, write_modules

LOGITS_PER_BLOCK = 1 << 24
"""Logits that are computed at once: 64 MiB."""


class SparseOptions(Options):
    query_flops: float = Field(3e-4, ge=0)
    """Weight of the FLOPS regularization of queries; greater ones leave fewer words."""

    passage_flops: float = Field(1e-4, ge=0)
    """Weight of the FLOPS regularization of passages."""

    flops_warmup: float = Field(1 / 3, ge=0, le=1)
    """Share of the steps over which both weights grow quadratically."""


class Sparse(Representation):
    Options = SparseOptions
    module = "SpladePooling"
    stored = "sparse"
    index = "qontext.retrieve.index.sparse:SparseIndex"
    card = Card("Sparse retriever", "Queries and passages as weights of words (SPLADE).", "SparseEncoder")

    def __init__(self, options: SparseOptions | None = None) -> None:
        super().__init__()
        self.options = options or SparseOptions()

    @classmethod
    def new(
        cls, encoder: Encoder, layout: FolderLayout, options: Any, lengths: Lengths, seed: int = SEED
    ) -> Self:
        if layout.representation == "sparse":
            _check(layout)
        return cls(options)

    @classmethod
    def load(cls, encoder: Encoder, layout: FolderLayout) -> Self:
        _check(layout)
        return cls()

    def forward(self, encoder: Encoder, ids_NT: Tensor, mask_NT: Tensor, are_queries: bool) -> Tensor:
        (last_NTH,) = encoder(ids_NT, mask_NT)
        # Padding repeats the first token, which changes no maximum.
        last_NTH = torch.where(mask_NT[..., None], last_NTH, last_NTH[:, :1])
        rows = max(1, LOGITS_PER_BLOCK // (last_NTH.shape[1] * encoder.vocab_size))
        greatest = [encoder.mlm_logits(some).max(1).values for some in last_NTH.split(rows)]
        return torch.cat(greatest).float().relu().log1p()

    def similarity(self, queries_QV: Tensor, passages_PV: Tensor) -> Tensor:
        return queries_QV @ passages_PV.T

    def regularize(
        self, texts_MV: Tensor, is_query_M: Tensor, rows: slice, progress: float
    ) -> dict[str, Tensor]:
        """(Σ of these rows of w_v / their number) · mean of w_v, which adds up to the square of the mean."""
        growth = min(1.0, progress / self.options.flops_warmup) ** 2 if self.options.flops_warmup else 1.0
        kinds = {"query_flops": is_query_M, "passage_flops": ~is_query_M}
        losses = {}
        for name, texts in kinds.items():
            if weight := getattr(self.options, name):
                share_V = texts_MV[rows][texts[rows]].sum(0) / texts.sum()
                losses[name] = weight * growth * (share_V * texts_MV[texts].mean(0)).sum()
        return losses

    def pack(self, texts_NV: Tensor) -> Packed:
        weights = texts_NV.cpu().numpy()
        row, term = np.nonzero(weights)
        starts = np.searchsorted(row, np.arange(len(weights) + 1))
        return Packed(starts, weights[row, term], term.astype(np.int32))

    def width(self, encoder: Encoder) -> int:
        return encoder.vocab_size

    def save(self, encoder: Encoder, folder: Path, lengths: Lengths, *, max_length: int) -> None:
        encoder.save_weights(folder, max_length=max_length, mlm_head=True)
        modules = [
            ModuleFolder("sparse_encoder.models.MLMTransformer", ""),
            ModuleFolder("sparse_encoder.models.SpladePooling", "1_SpladePooling", POOLING),
        ]
        prompts = self.saved_prompts(encoder)
        write_modules(
            folder, "SparseEncoder", modules, max_length=max_length, similarity="dot", prompts=prompts
        )


POOLING = {"pooling_strategy": "max", "activation_function": "relu"}
"""The name of this pooling in sentence-transformers."""


class _Settings(TypedDict, total=False):
    """The fields read from the module's config.json."""

    pooling_strategy: str
    activation_function: str


def _check(layout: FolderLayout) -> None:
    """Refuse a folder with another pooling."""
    assert layout.module is not None
    file = layout.module / "config.json"
    config: Mapping[str, Any] = read_json(file, _Settings) if file.exists() else {}
    for name, value in POOLING.items():
        if config.get(name, value) != value:
            raise QontextError(
                f"the encoder's {name} {config[name]!r} is not supported, only {value!r}", place=layout.module
            )
