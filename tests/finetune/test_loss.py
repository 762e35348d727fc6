"""The retriever's losses against small cases that are worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from qontext.finetune.batches import LabelKeys
from qontext.finetune.bi_encoder import BiEncoder
from qontext.finetune.losses import LOSSES
from qontext.finetune.losses.base import Loss
from qontext.models.representations.vector import Vector

NAN = math.nan


class Bare(torch.nn.Module):
    """An encoder that is not called."""


def opened(name: str, **options: Any) -> Loss:
    kind: Loss = LOSSES.load(name)(LOSSES.options(name)(**options))
    return kind


def loss(
    kind: str, vectors: torch.Tensor, keys: LabelKeys, rows: slice = slice(None), tau: float = 1.0
) -> torch.Tensor:
    model = BiEncoder(Bare(), Vector(), tau, opened(kind))  # type: ignore[arg-type]
    (value,) = model.contrast(vectors, keys, rows).values()
    return value


def keys(*rows: tuple[bool, int, bool, int, float, list[int]]) -> LabelKeys:
    return LabelKeys(*(torch.tensor(column) for column in zip(*rows)))


#                  vectors        is query, query, positive, text, teacher, known
QUERY_0 = ([1.0, 0.0], (True, 0, False, -1, NAN, [10, 11]))
QUERY_1 = ([0.0, 1.0], (True, 1, False, -1, NAN, [20, -1]))
POSITIVE_0 = ([2.0, 1.0], (False, 0, True, 10, 2.0, [-1, -1]))
NEGATIVE_0 = ([1.0, 3.0], (False, 0, False, 15, 0.5, [-1, -1]))
POSITIVE_1 = ([0.5, 1.5], (False, 1, True, 20, 1.0, [-1, -1]))
NEGATIVE_1 = ([3.0, 0.5], (False, 1, False, 11, -1.0, [-1, -1]))  # another positive of query 0
RANDOM_1 = ([0.0, 0.0], (False, 1, False, 20, NAN, [-1, -1]))  # says what query 1's positive says


def batch(*rows: Any) -> tuple[torch.Tensor, LabelKeys]:
    return torch.tensor([vector for vector, _ in rows], requires_grad=True), keys(*(key for _, key in rows))


BATCH = (QUERY_0, POSITIVE_0, NEGATIVE_0, QUERY_1, POSITIVE_1, NEGATIVE_1, RANDOM_1)


def nll(first: float, *others: float) -> float:
    return -math.log(math.exp(first) / sum(map(math.exp, (first, *others))))


def test_infonce_leaves_out_false_negatives() -> None:
    # Query 0 · (positive 2, negative 1, positive of 1: 0.5, [other positive 3], random 0);
    # query 1 · (positive 1.5, the others: 1, 3, 0.5, [a copy of its positive 0]).
    expected = (nll(2, 1, 0.5, 0) + nll(1.5, 1, 3, 0.5)) / 2
    assert loss("contrastive", *batch(*BATCH)).item() == pytest.approx(expected, rel=1e-6)
    halved = (nll(1, 0.5, 0.25, 0) + nll(0.75, 0.5, 1.5, 0.25)) / 2
    assert loss("contrastive", *batch(*BATCH), tau=2.0).item() == pytest.approx(halved, rel=1e-6)


def test_blocks_of_rows_in_any_order_add_up() -> None:
    whole = loss("contrastive", *batch(*BATCH)).item()
    shuffled = (RANDOM_1, POSITIVE_1, QUERY_1, NEGATIVE_0, POSITIVE_0, NEGATIVE_1, QUERY_0)
    vectors, known = batch(*shuffled)
    parts = [loss("contrastive", vectors, known, slice(a, b)) for a, b in ((0, 2), (2, 3), (3, 6), (6, 7))]
    assert parts[0].item() == 0.0
    assert sum(parts).item() == pytest.approx(whole, rel=1e-6)  # type: ignore[union-attr]


def test_kl_puts_no_weight_on_what_was_not_scored() -> None:
    def kl(teacher: list[float], own: list[float], others: list[float]) -> float:
        target = [math.exp(t) / sum(map(math.exp, teacher)) for t in teacher]
        total = sum(map(math.exp, [*own, *others]))
        return sum(t * (math.log(t) - math.log(math.exp(s) / total)) for t, s in zip(target, own))

    expected = (kl([2.0, 0.5], [2.0, 1.0], [0.5, 0.0]) + kl([1.0, -1.0], [1.5, 0.5], [1.0, 3.0])) / 2
    assert loss("kl", *batch(*BATCH)).item() == pytest.approx(expected, rel=1e-6)


def test_kl_over_the_querys_own_passages_alone() -> None:
    def kl(teacher: list[float], own: list[float]) -> float:
        target, student = ([math.exp(x) / sum(map(math.exp, xs)) for x in xs] for xs in (teacher, own))
        return sum(t * math.log(t / s) for t, s in zip(target, student))

    expected = (kl([2.0, 0.5], [2.0, 1.0]) + kl([1.0, -1.0], [1.5, 0.5])) / 2
    vectors, known = batch(*BATCH)
    vectors.requires_grad_()
    model = BiEncoder(Bare(), Vector(), 1.0, opened("kl", student_softmax="own"))  # type: ignore[arg-type]
    value = model.contrast(vectors, known, slice(None))["kl"]
    value.backward()
    assert value.item() == pytest.approx(expected, rel=1e-5)
    assert vectors.grad is not None and torch.isfinite(vectors.grad).all()


def test_margin_mse_compares_differences_to_the_positive() -> None:
    # Query 0: 2 - 1 against 2 - 0.5; query 1: 1.5 - 0.5 against 1 - -1; what has no score is left out.
    expected = ((1.0 - 1.5) ** 2 + (1.0 - 2.0) ** 2) / 2
    assert loss("margin-mse", *batch(*BATCH)).item() == pytest.approx(expected, rel=1e-6)


def test_margin_mse_is_a_mean_over_a_querys_negatives() -> None:
    more = ([1.0, 1.0], (False, 0, False, 16, -1.0, [-1, -1]))
    # Margins of query 0: 1 and 1 against 1.5 and 3.
    value = loss("margin-mse", *batch(QUERY_0, POSITIVE_0, NEGATIVE_0, more))
    assert value.item() == pytest.approx((0.5**2 + 2.0**2) / 2, rel=1e-6)


def test_rank_consistency_reads_only_the_teachers_order() -> None:
    # Query 0 scores 2 and 1 as the teacher orders them. Another negative scores 4, and the teacher prefers it to the first.
    more = ([4.0, 0.0], (False, 0, False, 16, 1.0, [-1, -1]))
    # Pairs in the teacher's order: (2, 4), (2, 1), (4, 1): one is wrong, by 2. Query 1: (1.5, 0.5).
    rows = (QUERY_0, POSITIVE_0, NEGATIVE_0, more, QUERY_1, POSITIVE_1, NEGATIVE_1, RANDOM_1)
    assert loss("rank", *batch(*rows)).item() == pytest.approx((2 / 3 + 0) / 2, rel=1e-6)
    assert loss("rank", *batch(*rows), tau=2.0).item() == pytest.approx((1 / 3 + 0) / 2, rel=1e-6)


def test_rank_consistency_compares_no_ties_and_no_copies_of_the_positive() -> None:
    tie = ([9.0, 9.0], (False, 0, False, 16, 2.0, [-1, -1]))
    copy = ([9.0, 9.0], (False, 0, False, 10, -9.0, [-1, -1]))
    assert loss("rank", *batch(QUERY_0, POSITIVE_0, tie)).item() == 0.0
    assert loss("rank", *batch(QUERY_0, POSITIVE_0, NEGATIVE_0, copy)).item() == 0.0


@pytest.mark.parametrize("kind", ["contrastive", "kl", "margin-mse", "rank"])
def test_the_gradient_is_that_of_the_loss(kind: str) -> None:
    vectors, known = batch(*BATCH)
    double = vectors.detach().double().requires_grad_()
    exact = LabelKeys(
        *(value.double() if value.is_floating_point() else value for value in vars(known).values())
    )
    assert torch.autograd.gradcheck(lambda v: loss(kind, v, exact), double)


def losses(
    kind: Loss, vectors: torch.Tensor, known: LabelKeys, representation: Any = None
) -> dict[str, float]:
    model = BiEncoder(Bare(), representation or Vector(), 1.0, kind)  # type: ignore[arg-type]
    return {name: value.item() for name, value in model.contrast(vectors, known, slice(None)).items()}


def test_pair_keeps_the_positive_closer_to_its_query_than_to_other_passages() -> None:
    values = losses(opened("pair", passage_weight=0.25), *batch(*BATCH))
    # Positive 0 = (2, 1) with query 0: 2; with (1, 3): 5; (0.5, 1.5): 2.5; (0, 0): 0. Positive 1 = (0.5, 1.5) with query 1:
    # 1.5; with (2, 1): 2.5; (1, 3): 5; (3, 0.5): 2.25. False negatives are left out, as in InfoNCE.
    centered = (nll(2, 5, 2.5, 0) + nll(1.5, 2.5, 5, 2.25)) / 2
    infonce = loss("contrastive", *batch(*BATCH)).item()
    assert values == pytest.approx({"contrastive": 0.75 * infonce, "passages": 0.25 * centered}, rel=1e-6)


def test_infonce_beside_a_teacher_has_its_own_weight_and_temperature() -> None:
    options = {"teacher_temperature": 0.5, "contrastive_weight": 0.1, "contrastive_temperature": 2.0}
    values = losses(opened("kl", **options), *batch(*BATCH))
    vectors, known = batch(*BATCH)
    sharper = LabelKeys(**{**vars(known), "teacher": known.teacher * 2})
    expected = {
        "kl": loss("kl", vectors, sharper).item(),
        "contrastive": 0.1 * loss("contrastive", vectors, known, tau=2.0).item(),
    }
    assert values == pytest.approx(expected, rel=1e-6)


def test_a_teachers_probabilities_instead_of_its_logits() -> None:
    vectors, known = batch(*BATCH)
    values = losses(opened("kl", teacher_scores="probabilities", teacher_temperature=0.3), vectors, known)
    chances = LabelKeys(**{**vars(known), "teacher": 1 / (1 + (-known.teacher).exp()) / 0.3})
    assert values == pytest.approx({"kl": loss("kl", vectors, chances).item()}, rel=1e-6)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("kind", ["contrastive", "kl", "margin-mse", "rank"])
def test_matryoshka_is_the_mean_over_cut_vectors(kind: str, similarity: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    _, known = batch(*BATCH)
    vectors = torch.randn(len(BATCH), 8, generator=generator)
    if similarity == "cosine":
        vectors = torch.nn.functional.normalize(vectors, dim=1)
    each = []
    for width in (2, 5, 8):
        part = vectors[:, :width]
        part = torch.nn.functional.normalize(part, dim=1) if similarity == "cosine" else part
        each.append(loss(kind, part, known).item())
    (value,) = losses(opened(kind), vectors, known, Vector("cls", similarity, (2, 5))).values()
    assert value == pytest.approx(sum(each) / 3, rel=1e-5)
