"""A cross-encoder that learns from lists: its batches, and the loss over each list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qontext.engine.distributed import Group
from qontext.engine.load import quiet, seeded
from qontext.engine.locate import locate
from qontext.engine.randomness import torch_seed
from qontext.engine.rectangles import cut_by_budget
from qontext.engine.tokenizer import check_tokenizer, load_tokenizer
from qontext.errors import QontextError
from qontext.finetune.batches import Turns
from qontext.finetune.examples import Examples
from qontext.retrieve.cross_encoder import encode_pairs, pad_pairs


@dataclass(frozen=True)
class Lists:
    """Some whole lists: a classifier's inputs [L·C, T], and which candidates are false negatives [L, C].

    A list's first candidate is its positive. `weight` is what a list counts in the batch's loss.
    """

    inputs: dict[str, Tensor]
    left_out: Tensor
    weight: float
    seed: int

    def to(self, device: torch.device) -> Lists:
        inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()}
        return Lists(inputs, self.left_out.to(device), self.weight, self.seed)


@dataclass(frozen=True)
class Batch:
    micro: list[Lists]
    passages: int


@dataclass(frozen=True)
class Output:
    """What the training loop reads: the loss; vectors there are none."""

    losses: dict[str, Tensor]
    vectors: None = None


@dataclass(frozen=True)
class ListPlan:
    """Everything a batch is a function of, besides the step. `texts` are the passages', by number."""

    examples: Examples
    texts: list[str]
    tokenizer: Any
    turns: Turns
    candidates: int
    max_length: int
    micro_tokens: int

    def __call__(self, step: int) -> Batch:
        numbers, epoch, _ = self.turns(step)
        pairs, wrong = [], []
        for n in numbers.tolist():
            shown, _ = self.examples.visit(n, epoch, self.candidates, self.turns.seed)
            pairs += [(self.examples.texts[n], self.texts[p]) for p in shown.tolist()]
            wrong.append(self.examples.says_known(n, shown))
        encodings = encode_pairs(self.tokenizer, pairs, self.max_length)
        left_out = torch.from_numpy(np.stack(wrong))
        left_out[:, 0] = False
        longest = np.array([len(e.ids) for e in encodings]).reshape(-1, self.candidates).max(1)
        cuts = cut_by_budget(longest, None, self.micro_tokens // self.candidates)
        micro = [
            Lists(
                pad_pairs(self.tokenizer, [e for row in rows for e in encodings[self._list(row)]]),
                left_out[torch.from_numpy(rows)],
                1.0 / self.turns.batch_size,
                torch_seed(self.turns.seed, "dropout", step, self.turns.rank, number),
            )
            for number, rows in enumerate(cuts)
        ]
        return Batch(micro, self.turns.batch_size * self.candidates)

    def _list(self, row: int) -> slice:
        return slice(row * self.candidates, (row + 1) * self.candidates)


class Listwise(nn.Module):
    """A sequence classifier with one logit, and the cross entropy of each list."""

    contrastive = False

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, lists: Lists) -> Output:
        logits_LC = self.model(**lists.inputs).logits.float().view(lists.left_out.shape)
        logits_LC = logits_LC.masked_fill(lists.left_out, -torch.inf)
        positive = torch.zeros(len(logits_LC), dtype=torch.long, device=logits_LC.device)
        return Output({"listwise": F.cross_entropy(logits_LC, positive, reduction="sum") * lists.weight})


def prepare(batch: Batch, group: Group) -> tuple[Sequence[Lists], None]:
    return [one.to(group.device) for one in batch.micro], None


def load_classifier(name: str, seed: int, dropout: float | None) -> tuple[Any, Any, int]:
    """A sequence classifier with one logit on the encoder, its tokenizer, and the longest pair that it reads.

    A head that the encoder does not bring is initialised from `seed`.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from qontext.engine.families import family_of

    directory = locate(name)
    try:
        settings = AutoConfig.from_pretrained(str(directory), trust_remote_code=False, num_labels=1)
        family = family_of(settings, str(directory))
        if dropout is not None:
            for rate in (*family.dropouts, "classifier_dropout"):
                setattr(settings, rate, dropout)
        with seeded(seed), quiet():
            model = AutoModelForSequenceClassification.from_pretrained(
                str(directory),
                config=settings,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
            )
    except QontextError:
        raise
    except Exception as error:  # the library raises whatever its parsers raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise QontextError(f"cannot load the encoder: {reason}", place=directory) from None
    tokenizer = load_tokenizer(directory)
    check_tokenizer(tokenizer, directory)
    return model, tokenizer, int(settings.max_position_embeddings) - family.reserved_positions(settings)
