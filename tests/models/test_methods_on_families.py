"""Every pre-training method runs on every architecture: finite losses, gradients where the method learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from qontext.contexts import Context, Sources
from qontext.corpus.store import TokenStore
from qontext.models.encoder import load_encoder
from qontext.pretrain.batches import BatchPlan
from qontext.pretrain.config import PretrainConfig
from qontext.pretrain.masking import Vocabulary
from qontext.pretrain.objectives import METHODS
from qontext.training.batch import prepare
from qontext.training.distributed import RankGroup
from qontext.training.dropout import drawn_for


def store(vocabulary: int, lengths: list[int], groups: list[int]) -> TokenStore:
    offsets = np.cumsum([0, *lengths])
    ids = np.random.default_rng(1).integers(20, vocabulary, offsets[-1])
    names = pa.array([str(n) for n in range(len(lengths))])
    return TokenStore(ids, np.ones(len(ids), bool), offsets[:-1], offsets, np.cumsum([0, *groups]), names)


FOR_ENCODERS = [name for name in METHODS.own if name != "cot-lm"]


@pytest.mark.parametrize("name", [*FOR_ENCODERS, "cot-mae autoregressive"])
def test_every_method_runs_on_every_architecture(checkpoint: tuple[Path, Any], name: str) -> None:
    folder, _ = checkpoint
    encoder = load_encoder(str(folder), dropout=0.0)
    name, _, decoder = name.partition(" ")
    settings = {"passages": "passages", "method": name, "batch_size": 4, "context": "rand", "dropout": 0.0}
    options = {
        "cot-mae": {"decoder": decoder or "mlm"},
        "cocondenser": {"temperature": 10.0},
        "simlm": {"generator": str(folder)},
        "bow": {"target": "both", "contrastive_weight": 0.1, "temperature": 10.0},
    }
    own = options.get(name, {})
    config = PretrainConfig.make({**settings, **own}, where="test")
    sources = Sources(store(len(encoder.tokenizer), [9, 14, 5, 20], [2, 2]), 30)
    layout = config.layout()
    words = Vocabulary.of(encoder.tokenizer)
    plan = BatchPlan(sources, layout, Context("rand", sources), words, np.arange(4), None, 4, 60, 42)
    objective = config.objective(encoder).train()
    micro, keys = prepare(plan(0), RankGroup(0, 1, torch.device("cpu")))
    outputs = []
    for one in micro:
        with drawn_for(one.row_keys):
            outputs.append(objective(one))
    losses = [loss for output in outputs for loss in output.losses.values()]
    if objective.contrastive:
        vectors = torch.cat([output.vectors for output in outputs])
        losses += objective.contrast(vectors, keys, slice(0, len(vectors))).values()
    torch.stack(losses).sum().backward()
    assert all(torch.isfinite(loss) and loss > 0 for loss in losses)
    trained = [*encoder.backbone.named_parameters(), *objective.head_parameters()]
    # no method uses a pooler; MPNet's and ModernBERT's shared parts may be untouched
    learned = [p for n, p in trained if p.ndim == 2 and "pooler" not in n]
    reached = sum(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in learned)
    assert reached >= 0.8 * len(learned)
    assert all(torch.isfinite(p.grad).all() for _, p in trained if p.grad is not None)
