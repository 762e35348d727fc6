"""A loss of your own: train with it, and compare it with the contrastive loss on the same groups.

    python examples/own_loss.py data --encoder sentence-transformers/all-MiniLM-L6-v2 --out runs/own-loss

`data` is a labeled set in BEIR's layout with the splits train and test. On the command line, where the folder of this file
is the current one: qontext finetune groups --passages data --loss own_loss:AdditiveMargin --margin 0.2 --out retriever
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from qontext import api
from qontext.finetune.losses.base import Loss, ScoredBatch
from qontext.frame.config import Options


class AdditiveMarginOptions(Options):
    margin: float = Field(0.2, ge=0)
    """Margin m, in units of the similarity."""


class AdditiveMargin(Loss):
    """InfoNCE whose positive has to be ahead by a margin (Yang et al. 2019):

    L = -log  exp((s(q, p⁺) - m) / τ) / (exp((s(q, p⁺) - m) / τ) + Σ_p⁻ exp(s(q, p⁻) / τ))
    """

    Options = AdditiveMarginOptions

    def __call__(self, batch: ScoredBatch) -> dict[str, Tensor]:
        """The sum over the queries; the training divides it by their number."""
        margin_QP = self.options.margin / batch.temperature * batch.is_positive_QP
        scores_QP = batch.scores() - margin_QP
        return {"additive-margin": F.cross_entropy(scores_QP, batch.positive_Q, reduction="sum")}


def main(arguments: Sequence[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--margin", type=float, default=0.2)
    chosen = parser.parse_args(arguments)
    data, out = chosen.data, chosen.out
    sys.path.insert(0, str(Path(__file__).parent))  # where own_loss is found

    bm25 = api.retrieve(bm25=True, data=data, split="train", k=100, out=out / "bm25")
    groups = api.mine(bm25, data, data=data, split="train", per_query=8, out=out / "groups")
    runs = []
    for name, loss in (
        ("contrastive", {"loss": "contrastive"}),
        ("margin", {"loss": "own_loss:AdditiveMargin", "margin": chosen.margin}),
    ):
        retriever = api.finetune(
            groups,
            passages=data,
            encoder=chosen.encoder,
            steps=chosen.steps,
            batch_size=chosen.batch_size,
            passages_per_query=4,
            out=out / f"{name}-retriever",
            **loss,
        )
        vectors = api.encode(data, encoder=retriever, out=out / f"{name}-vectors")
        run = api.retrieve(vectors, data=data, split="test", k=100, out=out / f"{name}-run")
        runs.append(f"{name}={run.path}")
    comparison = api.compare(runs, qrels=data)
    print(comparison)
    return comparison


if __name__ == "__main__":
    main()
