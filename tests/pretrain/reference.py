"""What the references of objectives are written with: one text at a time, unpadded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from qontext.pretrain.batches import Keys, MicroBatch
from qontext.pretrain.texts import Text
from qontext.training.batch import prepare
from qontext.training.dropout import drawn_for


class Alone:
    """A group of one process, on the CPU."""

    world, rank, device = 1, 0, torch.device("cpu")

    @staticmethod
    def gather(tensor: Tensor) -> Tensor:
        return tensor


def rows(text: Text) -> Iterator[tuple[Tensor, list[tuple[int, int]]]]:
    """Each row alone: its ids without padding, and (place, label) of what is to be predicted."""
    width = text.ids.shape[1]
    for n, (ids, mask) in enumerate(zip(text.ids, text.mask)):
        mine = text.positions // width == n
        yield ids[mask][None], list(zip((text.positions[mine] % width).tolist(), text.labels[mine].tolist()))


def cross_entropies(encoder: Any, hidden_1TH: Tensor, targets: list[tuple[int, int]]) -> list[Tensor]:
    """-log softmax(φ(h_place))[label], one place at a time."""
    return [
        -torch.log_softmax(encoder.mlm_logits(hidden_1TH[0, place][None])[0], -1)[label]
        for place, label in targets
    ]


def originals(text: Text) -> list[list[int]]:
    """Each row's ids before masking."""
    ids = text.ids.clone().view(-1)
    ids[text.positions] = text.labels
    return [row[mask].tolist() for row, mask in zip(ids.view_as(text.ids), text.mask)]


def mean(values: list[Any]) -> Tensor:
    return torch.stack(values).mean()


def losses_of(objective: Any, batch: Any) -> dict[str, Tensor]:
    """The sum that the loop would form: every micro-batch's losses, and the contrastive one."""
    micro, keys = prepare(batch, Alone)
    outputs = []
    for one in micro:
        with drawn_for(one.row_keys):
            outputs.append(objective(one))
    total: dict[str, Any] = {}
    for output in outputs:
        for name, loss in output.losses.items():
            total[name] = total.get(name, 0) + loss
    if objective.contrastive:
        vectors = torch.cat([output.vectors for output in outputs])
        total |= objective.contrast(vectors, keys, slice(0, len(vectors)))
    return total


Both = tuple[Any, Any, list[MicroBatch]]


def close(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].item() == pytest.approx(value.item(), rel=1e-5), name


def condenser_rows(objective: Any, encoder: Any, micro: list[MicroBatch], early: int) -> Iterator[Any]:
    """For each text: the cross entropies after the head, after the last layer, and h_x."""
    for one in micro:
        for ids, targets in rows(one.encoder):
            h_early, h_last = encoder(ids, None, layers=(early, -1))
            head = objective.head(torch.cat([h_last[:, :1], h_early[:, 1:]], dim=1), None)
            yield (
                cross_entropies(encoder, head, targets),
                cross_entropies(encoder, h_last, targets),
                h_last[0, 0],
            )


def contrastive_reference(
    vectors: list[Tensor], pair: list[int], skip: Callable[[int, int], bool], s: Any
) -> Tensor:
    """Equation 6, literally: -log exp(s_ij) / Σ_{k ≠ i} exp(s_ik), mean over all rows."""
    losses = []
    for i in range(len(vectors)):
        (j,) = [j for j in range(len(vectors)) if j != i and pair[j] == pair[i]]
        below = sum(
            math.exp(s(vectors[i], vectors[k]))
            for k in range(len(vectors))
            if k == j or (k != i and not skip(i, k))
        )
        losses.append(-math.log(math.exp(s(vectors[i], vectors[j])) / below))
    return torch.tensor(sum(losses) / len(losses))


def false_negatives(keys: Keys) -> Callable[[int, int], bool]:
    """True for rows i, k if k has the text of i or of its partner, or k's partner has the text of i."""
    pair, text = keys.pair.tolist(), keys.text.tolist()
    partner = {i: j for i in range(len(pair)) for j in range(len(pair)) if i != j and pair[i] == pair[j]}
    return lambda i, k: text[k] in (text[i], text[partner[i]]) or text[partner[k]] == text[i]


def contrastive_loss(batch: Any, vectors: list[Tensor], s: Any) -> Tensor:
    """Equation 6 over a batch, without false negatives."""
    return contrastive_reference(vectors, batch.keys.pair.tolist(), false_negatives(batch.keys), s)


def decoder_input(encoder: Any, ids: Tensor, context_ids: Tensor) -> tuple[Tensor, Tensor]:
    """h^L of the passage, and [h^L_A[CLS] ; E(B)[1..n]]."""
    last = encoder(ids, None)[0]
    return last, torch.cat([last[:, :1], encoder.embed(context_ids)[:, 1:]], dim=1)
