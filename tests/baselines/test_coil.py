"""Vectors of tokens that are compared where tokens are equal, as COIL and uniCOIL: by hand, then stored and searched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.finetune.test_run import apart

from qontext.baselines import coil
from qontext.baselines.coil import Matches, MatchesOptions
from qontext.frame.errors import QontextError
from qontext.models.encoder import Encoder, load_encoder
from qontext.models.packed import Packed
from qontext.models.representations.base import Lengths
from qontext.retrieve.index.sparse import MatchIndex

Finetune = Callable[..., Any]
LENGTHS = (7, 5, 3, 2)


def texts(encoder: Encoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of few different tokens between [CLS] and [SEP]."""
    cls, sep = encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id
    ids = torch.randint(10, 13, (4, 7), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = cls
    for row, n in enumerate(LENGTHS):
        ids[row, n - 1] = sep
    return ids, torch.arange(7) < torch.tensor(LENGTHS)[:, None]


def expected_scores(encoder: Encoder, model: Matches) -> tuple[torch.Tensor, int]:
    """[4, 4] from the equation, and the number of matches."""
    ids, _ = texts(encoder)
    hidden = [encoder(ids[row : row + 1, :n], None)[0][0] for row, n in enumerate(LENGTHS)]
    tokens, scores, found = [], torch.zeros(4, 4), 0
    for row, n in enumerate(LENGTHS):
        vectors = hidden[row] @ model.token.weight.T + model.token.bias
        vectors = vectors.relu() if model.options.token_relu else vectors
        tokens.append([(int(ids[row, t]), vectors[t]) for t in range(1, n - 1)])
    for q in range(4):
        for p in range(4):
            for token, vector in tokens[q]:
                products = [float(vector @ other) for same, other in tokens[p] if same == token]
                scores[q, p] += max(products) if products else 0.0
                found += bool(products)
            if model.cls is not None:
                whole = [hidden[n][0] @ model.cls.weight.T + model.cls.bias for n in (q, p)]
                scores[q, p] += float(whole[0] @ whole[1])
    return scores, found


SIZES = [
    MatchesOptions(token_dimensions=4, cls_dimensions=10),
    MatchesOptions(token_dimensions=4, cls_dimensions=0),
    MatchesOptions(token_dimensions=1, cls_dimensions=0, token_relu=True),
]


@pytest.mark.parametrize("sizes", SIZES, ids=("full", "tok", "weights"))
@pytest.mark.parametrize("block", [1, 1 << 24])
@torch.no_grad()
def test_scores_are_those_of_the_equation_in_training_and_in_search(
    start: Path, sizes: MatchesOptions, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coil, "PRODUCTS_PER_BLOCK", block)
    encoder = load_encoder(str(start)).eval()
    model = Matches(encoder, sizes, Lengths(12, 9))
    model.token.weight.mul_(20)  # scores of some size, of both signs
    expected, found = expected_scores(encoder, model)
    assert found > 10 and len(set(expected.flatten().tolist())) > 6
    model.fill_up()
    ids, mask = texts(encoder)
    represented = model(encoder, ids, mask, False)
    assert represented.shape == (4, 12 + model.pieces, 1 + sizes.token_dimensions)
    torch.testing.assert_close(model.similarity(represented, represented), expected, atol=1e-4, rtol=1e-4)
    packed = model.pack(represented)
    names = np.array(["a", "b", "c", "d"], object)
    parts = [
        (numbers, MatchIndex.of(names, packed.take(numbers), model.width(encoder)).parts[0][1])
        for numbers in (np.array([2, 0]), np.array([1, 3]))
    ]
    for index in (MatchIndex.of(names, packed, model.width(encoder)), MatchIndex(names, parts)):
        numbers, scores = index.search(packed, 4)
        for q in range(4):
            for number, score in zip(numbers[q], scores[q]):
                if number >= 0:
                    assert score == pytest.approx(expected[q, number].item(), rel=1e-3, abs=1e-4)
        if sizes.cls_dimensions:
            assert (numbers >= 0).all() and (scores[:, :-1] >= scores[:, 1:]).all()
        else:
            assert numbers[3].tolist() == [-1] * 4, "a query without a token has no results"
        only = np.array([False, True, False, True])
        assert set(index.search(packed, 4, only)[0].flatten().tolist()) <= {-1, 1, 3}


def test_passages_with_negative_scores_are_results_and_those_without_a_match_are_not() -> None:
    values = np.array([[1.0], [3.0], [2.0], [5.0]], np.float32)
    passages = Packed(np.array([0, 2, 3, 4]), values, np.array([7, 7, 7, 8], np.int32))
    index = MatchIndex.of(np.array(["a", "b", "c"], object), passages, 9)
    query = Packed(np.array([0, 2]), np.array([[-1.0], [-0.5]], np.float32), np.array([7, 7], np.int32))
    numbers, scores = index.search(query, 3)
    # Of -1 · 1 and -1 · 3 the greater one, and of -0.5 · 1 and -0.5 · 3.
    assert numbers.tolist() == [[0, 1, -1]] and scores[0, :2].tolist() == [-1.5, -3.0]


def test_training_continues_with_the_same_sizes(finetune: Finetune, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"token_dimensions": 4, "cls_dimensions": 6}
    first = finetune(tmp_path / "first", representation="matches", steps=2, **sizes)
    more: dict[str, Any] = {"representation": "matches", "encoder": str(first.path), "steps": 1, "lr": 1e-9}
    again = finetune(tmp_path / "again", **sizes, **more)
    assert apart(first.path / "1_Matches", again.path / "1_Matches") < 1e-6
    with pytest.raises(QontextError, match=r"the encoder was trained with .*token_dimensions=4"):
        finetune(tmp_path / "other", **{**sizes, "token_dimensions": 5}, **more)
