"""Listwise training of a cross-encoder: batches, and the loss over each list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qontext.finetune.examples import Examples
from qontext.models.attention import compute_first_token_alone
from qontext.models.batching import pack_by_tokens
from qontext.models.cross_encoder import encode_pairs, pad_pairs
from qontext.models.encoder import UNLIMITED
from qontext.models.families import family_of, most_positions
from qontext.models.folder import locate
from qontext.models.load import load, read_config, require_weights, seeded
from qontext.models.precision import keep_fp32
from qontext.models.tokenizer import check_tokenizer, check_vocabulary, load_tokenizer
from qontext.training.batch import Batch, Output, Rows, TrainableModel
from qontext.training.randomness import EpochSampler, hashed


@dataclass(frozen=True)
class Lists(Rows):
    """Complete lists: a classifier's inputs [L·C, T], and which candidates are false negatives [L, C]. A
    list's first candidate is its positive. `weight` is the weight of a list in the batch's loss. `row_keys`
    has an entry for each pair [L·C].
    """

    inputs: dict[str, Tensor]
    left_out: Tensor
    weight: float


@dataclass(frozen=True)
class ListPlan:
    """Everything that determines a batch, besides the step. `texts` are the passages', by number."""

    examples: Examples
    texts: list[str]
    tokenizer: Any
    sampler: EpochSampler
    candidates: int
    max_length: int
    micro_tokens: int

    def __call__(self, step: int) -> Batch:
        return Batch(self.lists(step), self.sampler.batch_size * self.candidates)

    def lists(self, step: int) -> list[Lists]:
        """This rank's lists of a step, in micro-batches."""
        numbers, epoch, first = self.sampler(step)
        pairs, wrong = [], []
        for n in numbers.tolist():
            passages, _ = self.examples.visit(n, epoch, self.candidates, self.sampler.seed)
            pairs += [(self.examples.texts[n], self.texts[p]) for p in passages.tolist()]
            wrong.append(self.examples.is_known_positive(n, passages))
        encodings = encode_pairs(self.tokenizer, pairs, self.max_length)
        left_out = torch.from_numpy(np.stack(wrong))
        left_out[:, 0] = False
        longest = np.array([len(e.ids) for e in encodings]).reshape(-1, self.candidates).max(1)
        cuts = pack_by_tokens(longest, None, self.micro_tokens // self.candidates)
        place = first + np.arange(len(numbers))
        row_keys = hashed(self.sampler.seed, "dropout", step, place[:, None], np.arange(self.candidates))
        return [
            Lists(
                pad_pairs(self.tokenizer, [e for row in rows for e in encodings[self._list(row)]]),
                left_out[torch.from_numpy(rows)],
                1.0 / self.sampler.batch_size,
                row_keys=row_keys[rows].ravel(),
            )
            for rows in cuts
        ]

    def _list(self, row: int) -> slice:
        return slice(row * self.candidates, (row + 1) * self.candidates)


class Listwise(TrainableModel):
    """A sequence classifier with one logit, and the cross entropy of each list."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        compute_first_token_alone(model.base_model)

    def forward(self, rows: Lists) -> Output:
        logits_LC = self.logits(rows)
        positive = torch.zeros(len(logits_LC), dtype=torch.long, device=logits_LC.device)
        return Output({"listwise": F.cross_entropy(logits_LC, positive, reduction="sum") * rows.weight})

    def logits(self, rows: Lists) -> Tensor:
        """[L, C] of each candidate, -inf for false negatives."""
        logits_LC: Tensor = self.model(**rows.inputs).logits.float().view(rows.left_out.shape)
        return logits_LC.masked_fill(rows.left_out, -torch.inf)


@torch.inference_mode()
def mean_reciprocal_rank(model: Listwise, plan: ListPlan, count: int, device: torch.device) -> float:
    """MRR@10 of the positives in the first `count` lists, of one list a step; of equal scores, the positive is last."""
    training = model.training
    model.eval()
    reciprocal = []
    for step in range(count):
        for rows in plan.lists(step):
            logits_LC = model.logits(rows.to(device))
            ranks_L = (logits_LC[:, 1:] >= logits_LC[:, :1]).sum(1) + 1
            reciprocal += [1 / rank if rank <= 10 else 0.0 for rank in ranks_L.tolist()]
    model.train(training)
    return round(sum(reciprocal) / len(reciprocal), 4)


_HEAD_DROPOUTS = ("classifier_dropout", "classifier_dropout_prob", "pooler_dropout", "cls_dropout")
"""The configuration keys of the dropout rates of classifiers."""


def load_classifier(name: str, seed: int, dropout: float | None) -> tuple[Any, Any, int]:
    """A sequence classifier with one logit on the encoder, its tokenizer, and its maximum length. A missing
    head or pooler is initialized from `seed`; weights of the backbone must be there.
    """
    directory = locate(name).transformer
    settings = read_config(directory, num_labels=1)
    family = family_of(settings, str(directory))
    for rate in (*family.dropouts, *_HEAD_DROPOUTS) if dropout is not None else ():
        if hasattr(settings, rate):
            setattr(settings, rate, dropout)
    tokenizer = load_tokenizer(directory)
    check_tokenizer(tokenizer, directory, is_masked=family.auto == "AutoModelForMaskedLM")
    if family.auto == "AutoModelForCausalLM":  # the library finds the last token by the padding
        settings.get_text_config().pad_token_id = tokenizer.pad_token_id
    more: dict[str, Any] = {"config": settings, "ignore_mismatched_sizes": True}
    with seeded(seed):
        model, missing = load("AutoModelForSequenceClassification", directory, "encoder", **more)
    own, pooler = f"{model.base_model_prefix}.", f"{model.base_model_prefix}.pooler."
    require_weights({n for n in missing if n.startswith(own) and not n.startswith(pooler)}, directory)
    keep_fp32(model)
    check_vocabulary(tokenizer, model.get_input_embeddings().num_embeddings, directory)
    return model, tokenizer, min(most_positions(settings) or tokenizer.model_max_length, UNLIMITED)
