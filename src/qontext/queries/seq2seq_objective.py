"""Training a sequence-to-sequence model to generate the queries that a passage answers.

    L = − Σ_t log P(q_t | q_<t, passage)        averaged over the tokens of all queries of a batch

Shapes: N pairs of a micro-batch, Q query tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy

from qontext.models.precision import autocast
from qontext.queries.pairs import PairPlan, PairRows
from qontext.training.batch import Output, TrainableModel


class QueryGeneration(TrainableModel):
    """`label_smoothing` is the share of the target distribution spread over all tokens, in training only."""

    def __init__(self, model: Any, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(self, rows: PairRows) -> Output:
        logits_NQV = self.model(input_ids=rows.ids, attention_mask=rows.mask, labels=rows.labels).logits
        loss = cross_entropy(
            logits_NQV.float().flatten(0, 1),
            rows.labels.flatten(),
            ignore_index=-100,
            reduction="sum",
            label_smoothing=self.label_smoothing if self.training else 0.0,
        )
        return Output({"query": loss * rows.weight})

    @torch.inference_mode()
    def loss(self, plan: PairPlan, device: torch.device, dtype: torch.dtype) -> float:
        """The mean over the tokens of all queries of `plan`."""
        training = self.training
        self.eval()
        with autocast(device, dtype):
            total = sum(self(rows.to(device)).losses["query"].item() for rows in plan.all())
        self.train(training)
        return float(total)
