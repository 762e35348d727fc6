"""A method, and the batches and losses of given texts, without the verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from qontext.contexts import Context, Sources
from qontext.corpus.store import TokenStore, tokenize
from qontext.models.encoder import Encoder
from qontext.models.tokenizer import frame_of
from qontext.pretrain.batches import BatchPlan
from qontext.pretrain.masking import Vocabulary
from qontext.pretrain.objectives import METHODS
from qontext.pretrain.objectives.base import Common, Objective
from qontext.training.batch import Batch
from qontext.training.dropout import drawn_for


def load_method(name: str, encoder: Encoder, *, has_queries: bool = False, **options: Any) -> Objective:
    kind = METHODS.load(name)
    values = kind.Options.make(options, where="pretrain")
    kind.check_encoder(encoder, values)
    objective: Objective = kind(encoder, values, Common(42, encoder.pooling("cls"), "dot", has_queries))
    return objective.train()


def batch_of(
    method: Objective, texts: Sequence[str], contexts: Sequence[str] | None, max_tokens: int = 64
) -> Batch:
    """All texts, each with its context: its one query, or the other passage of its document."""
    has_queries = method.common.has_queries
    is_alone = has_queries or contexts is None
    documents = [[text] for text in texts] if is_alone else [*zip(texts, contexts or ())]
    sources = Sources(
        _store(method, documents),
        max_tokens - len(frame_of(method.encoder.tokenizer)),
        _store(method, [[query] for query in contexts]) if has_queries and contexts else None,
        np.arange(len(texts)),
    )
    name = None if contexts is None else "query" if has_queries else "rand"
    return BatchPlan(
        sources=sources,
        layout=method.layout(method.options, method.common),
        context=None if name is None else Context(name, sources),
        words=Vocabulary.of(method.encoder.tokenizer, method.encoder.prompts),
        anchors=sources.passages.groups[:-1],
        documents=None,
        batch_size=len(texts),
        micro_tokens=8_192,
        seed=42,
        predicts=method.encoder.predicts,
    )(0)


def loss_of(
    method: Objective, texts: Sequence[str], contexts: Sequence[str] | None, max_tokens: int = 64
) -> Tensor:
    batch = batch_of(method, texts, contexts, max_tokens)
    method.batch_rows = batch.rows
    outputs = []
    for rows in batch.micro:
        with drawn_for(rows.row_keys):
            outputs.append(method(rows))
    losses = [loss for output in outputs for loss in output.losses.values()]
    if method.contrastive:
        vectors = torch.cat([output.vectors for output in outputs]).float()
        losses += method.contrast(vectors, batch.keys, slice(None)).values()
    return torch.stack(losses).sum()


def _store(method: Objective, documents: Sequence[Sequence[str]]) -> TokenStore:
    texts = [(text, [0]) for document in documents for text in document]
    arrays = tokenize(texts, method.encoder.tokenizer.backend_tokenizer)
    offsets = np.cumsum([0, *arrays.pop("lengths")])
    groups, names = np.arange(0, len(texts) + 1, len(documents[0])), pa.array(map(str, range(len(texts))))
    return TokenStore(**arrays, offsets=offsets, groups=groups, names=names)
