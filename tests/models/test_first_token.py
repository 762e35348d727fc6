"""The last layer for the first token alone is the whole layer's first row: outputs, gradients, and dropout's masks."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from qontext.models.attention import LAYERS, compute_first_token_alone
from qontext.models.encoder import Encoder, load_encoder
from qontext.training.dropout import drawn_for, use_cheap_dropout

from .conftest import KINDS, save_checkpoint

LENGTHS = torch.tensor([9, 4, 7])
MASK = torch.arange(9) < LENGTHS[:, None]
KEYS = np.arange(1, 4, dtype=np.uint64)


def pair(kind: str, folder: Path, attention: str = "sdpa", dropout: float = 0.0) -> tuple[Encoder, Encoder]:
    """An encoder as it is, and one that computes the first token alone."""
    save_checkpoint(kind, folder / "encoder")
    whole = load_encoder(str(folder / "encoder"), attention=attention, dropout=dropout).train()
    use_cheap_dropout(whole)
    alone = copy.deepcopy(whole)
    compute_first_token_alone(alone.backbone)
    return whole, alone


def first_and_gradient(encoder: Encoder, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    ids = torch.randint(5, 150, (3, 9), generator=torch.Generator().manual_seed(1))
    if mask is not None:
        ids = ids.masked_fill(~mask, encoder.tokenizer.pad_token_id)
    with drawn_for(KEYS):
        (last_NTH,) = encoder(ids, mask)
    last_NTH[:, 0].square().sum().backward()
    table = encoder.backbone.get_input_embeddings().weight
    return last_NTH[:, 0], table.grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padded", [True, False])
def test_it_is_the_first_row_of_the_whole_layer(kind: str, padded: bool, tmp_path: Path) -> None:
    whole, alone = pair(kind, tmp_path, dropout=0.1)
    mask = MASK if padded else None
    for ours, theirs in zip(first_and_gradient(alone, mask), first_and_gradient(whole, mask), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_only_the_first_row_is_computed(tmp_path: Path) -> None:
    for kind in KINDS:
        whole, alone = pair(kind, tmp_path / kind)
        layer = type(whole._layers[-1]).__name__
        (last_NTH,) = alone(torch.full((2, 6), 7), None)
        assert last_NTH.shape[1] == (1 if layer in LAYERS else 6)


def test_other_kinds_of_attention_give_the_same(tmp_path: Path) -> None:
    whole, alone = pair("bert", tmp_path, attention="eager")
    assert torch.equal(*(first_and_gradient(encoder, MASK)[0] for encoder in (whole, alone)))
