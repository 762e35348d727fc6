"""A vector for each token, compared token by token: late interaction (ColBERT).

    e_t(x)  = W h_t / |W h_t|                       W: hidden size → 128
    s(q, p) = Σ_{i in q} max_{j in p} <e_i, e_j>    MaxSim

A query is filled up with [MASK] to a fixed length: these places attend to the query, no other place attends to them, and
their vectors count as terms that the query lacks. Vectors of a passage's punctuation are left out. [CLS] is followed by a
marker, one for queries and one for passages, if the vocabulary has BERT's unused entries. Khattab and Zaharia 2020.

An absent vector is 0, here and in training, where all texts are filled up to one length.

Shapes: N texts, T tokens, H hidden size, D dimensions, Q queries, I tokens of a query, P passages, J tokens of a passage.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Annotated, Any, NotRequired, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from safetensors.torch import save_file
from tokenizers import AddedToken
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import TypedDict

from qontext.frame.config import Options
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.models.encoder import Encoder
from qontext.models.folder import FolderLayout, TextKind
from qontext.models.load import seeded
from qontext.models.packed import Packed
from qontext.models.pooling import read_dense
from qontext.models.precision import Fp32Linear
from qontext.models.representations.base import SEED, Lengths, Representation
from qontext.models.save import Card, ModuleFolder, write_modules

PRODUCTS_PER_BLOCK = 1 << 24
"""Products of token vectors that are computed at once: 64 MiB."""
MARKERS: dict[TextKind, str] = {"query": "[unused0]", "passage": "[unused1]"}
_EACH = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}


class _Expansion(TypedDict):
    strategy: str
    attend: NotRequired[bool]
    length: Annotated[int, Field(ge=3)]


class _Settings(TypedDict, total=False):
    """The fields read from sentence_bert_config.json."""

    document_length: Annotated[int, Field(ge=3)] | None
    query_expansion: _Expansion | None


class _Mask(TypedDict):
    """The fields read from the config.json of what leaves out vectors."""

    skiplist_words: list[str]


class TokensOptions(Options):
    token_dimensions: int = Field(128, ge=1, le=100_000)
    """Dimensions of a token's vector."""


class Tokens(Representation):
    Options = TokensOptions
    module = "MultiVectorMask"
    stored = "tokens"
    index = "qontext.retrieve.index.exact:TokenIndex"
    card = Card(
        "Late-interaction retriever",
        "Queries and passages as a vector for each token (ColBERT), compared by MaxSim.",
        "MultiVectorEncoder",
    )
    is_skipped_V: Tensor

    def __init__(self, encoder: Encoder, weight_DH: Tensor, skipped: list[str], lengths: Lengths) -> None:
        super().__init__()
        self.linear = Fp32Linear(weight_DH.shape[1], len(weight_DH), bias=False)
        self.linear.weight = torch.nn.Parameter(weight_DH.clone())
        self.skipped, self.lengths = skipped, lengths
        self.has_markers = encoder.tokenizer.tokenize(MARKERS["query"]) == [MARKERS["query"]]
        self.mask_id = encoder.tokenizer.mask_token_id
        self.even: int | None = None
        """The number of vectors to which every text is filled up, if there is one."""
        vocabulary = encoder.tokenizer.get_vocab()
        is_skipped_V = torch.zeros(encoder.vocab_size, dtype=torch.bool)
        is_skipped_V[[vocabulary[word] for word in skipped if word in vocabulary]] = True
        self.register_buffer("is_skipped_V", is_skipped_V, persistent=False)

    @classmethod
    def new(
        cls, encoder: Encoder, layout: FolderLayout, options: Any, lengths: Lengths, seed: int = SEED
    ) -> Self:
        size = options.token_dimensions
        if layout.representation == "tokens":
            weight_DH = _projection(layout)
        else:
            with seeded(seed):
                weight_DH = torch.nn.Linear(encoder.hidden_size, size, bias=False).weight.detach()
        if len(weight_DH) != size:
            raise QontextError(
                f"token_dimensions = {size}, but the encoder's token vectors have {len(weight_DH)}",
                place=layout.transformer,
            )
        if set(MARKERS.values()) <= encoder.tokenizer.get_vocab().keys():
            markers = [AddedToken(word, special=True, normalized=False) for word in MARKERS.values()]
            encoder.tokenizer.add_tokens(markers, special_tokens=True)
        representation = cls(encoder, weight_DH, list(string.punctuation), lengths)
        if not representation.has_markers:
            representation.lengths = lengths.with_prompts(encoder)
        representation.fill_up()
        return representation

    @classmethod
    def load(cls, encoder: Encoder, layout: FolderLayout) -> Self:
        settings = read_json(layout.transformer / "sentence_bert_config.json", _Settings)
        expansion = settings.get("query_expansion")
        if not expansion or expansion["strategy"] != "fixed" or expansion.get("attend"):
            raise QontextError(
                f"the encoder's query expansion {expansion} is not supported, only a fixed length without attention",
                place=layout.transformer,
            )
        longest = settings.get("document_length") or encoder.max_length
        assert layout.module is not None
        skipped = read_json(layout.module / "config.json", _Mask)["skiplist_words"]
        return cls(encoder, _projection(layout), skipped, Lengths(expansion["length"], longest))

    def fill_up(self) -> None:
        self.even = max(self.lengths)

    def forward(self, encoder: Encoder, ids_NT: Tensor, mask_NT: Tensor, are_queries: bool) -> Tensor:
        if are_queries:
            more = self.lengths.query - ids_NT.shape[1]  # negative: nothing but padding is cut off
            ids_NT, mask_NT = pad(ids_NT, (0, more)), pad(mask_NT, (0, more))
            ids_NT = ids_NT.where(mask_NT, self.mask_id)
            present_NT = torch.ones_like(mask_NT)
        else:
            present_NT = mask_NT & ~self.is_skipped_V[ids_NT]
        (last_NTH,) = encoder(ids_NT, mask_NT)
        vectors_NTD = F.normalize(self.linear(last_NTH), dim=-1) * present_NT[..., None]
        if self.even is None:
            return vectors_NTD
        return pad(vectors_NTD, (0, 0, 0, self.even - vectors_NTD.shape[1]))

    def similarity(self, queries_QID: Tensor, passages_PJD: Tensor) -> Tensor:
        return max_similarity(queries_QID, passages_PJD)

    def pack(self, texts_NTD: Tensor) -> Packed:
        return present(texts_NTD)

    def width(self, encoder: Encoder) -> int:
        return self.linear.out_features

    def longest(self, kind: TextKind) -> int | None:
        return self.lengths.query if kind == "query" else self.lengths.passage

    def prompts(self) -> dict[TextKind, str]:
        return MARKERS if self.has_markers else {}

    def save(self, encoder: Encoder, folder: Path, lengths: Lengths, *, max_length: int) -> None:
        encoder.save_weights(folder, max_length=max_length, mlm_head=False)
        dense: dict[str, Any] = {
            "in_features": self.linear.in_features,
            "out_features": len(self.linear.weight),
        }
        dense |= {"bias": False, "activation_function": "torch.nn.modules.linear.Identity", **_EACH}
        skipped = {
            "skiplist_words": self.skipped,
            "skiplist_tasks": ["document"],
            "keep_only_token_ids": None,
        }
        modules = [
            ModuleFolder("base.modules.transformer.Transformer", ""),
            ModuleFolder("base.modules.dense.Dense", "1_Dense", dense),
            ModuleFolder(
                "multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask", "2_MultiVectorMask", skipped
            ),
            ModuleFolder("base.modules.normalize.Normalize", "3_Normalize", _EACH),
        ]
        write_modules(
            folder,
            "MultiVectorEncoder",
            modules,
            max_length=max_length,
            similarity="maxsim",
            prompts=self.saved_prompts(encoder),
            transformer={
                "document_length": lengths.passage,
                "query_expansion": {"strategy": "fixed", "attend": False, "length": lengths.query},
            },
        )
        weight = self.linear.weight.detach().cpu().contiguous()
        save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")


def _projection(layout: FolderLayout) -> Tensor:
    """W [D, H] of a folder."""
    layers = [read_dense(path) for path in layout.dense]
    if len(layers) != 1 or type(layers[0][1]) is not torch.nn.Identity or layers[0][0].bias is not None:
        raise QontextError(
            "expected one linear layer without bias after the encoder's tokens", place=layout.transformer
        )
    weight: Tensor = layers[0][0].weight.detach()
    return weight


def present(texts_NTD: Tensor) -> Packed:
    """The vectors that are not zeros."""
    vectors = texts_NTD.cpu().numpy()
    is_present = vectors.any(-1)
    return Packed(np.concatenate([[0], is_present.sum(1).cumsum()]), vectors[is_present])


def max_similarity(queries_QID: Tensor, passages_PJD: Tensor) -> Tensor:
    """[Q, P] MaxSim, in blocks of queries; a vector of zeros is absent."""
    passages, length, _ = passages_PJD.shape
    absent_PJ = ~passages_PJD.any(-1)
    flat_ND = passages_PJD.flatten(0, 1)
    rows = max(1, PRODUCTS_PER_BLOCK // (queries_QID.shape[1] * len(flat_ND)))
    scores = []
    for some_QID in queries_QID.split(rows):
        products_KPJ = (some_QID.flatten(0, 1) @ flat_ND.T).unflatten(1, (passages, length))
        greatest_KP = products_KPJ.masked_fill(absent_PJ, -torch.inf).max(2).values
        scores.append(greatest_KP.unflatten(0, some_QID.shape[:2]).sum(1))
    return torch.cat(scores) if scores else queries_QID.new_empty(0, passages)
