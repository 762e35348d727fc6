"""The losses of a retriever, one file each: an equation, its paper, its options, then code in the same order.

A loss is a subclass of `Loss` with its `Options` and a call that returns named sums. One file, one line in `LOSSES`, one
test. `finetune --loss` chooses it.
"""

from __future__ import annotations

from qontext.frame.kinds import Kind, Kinds

LOSSES = Kinds(
    "loss",
    "qontext.losses",
    "qontext.finetune.losses.base:Loss",
    {
        "contrastive": Kind(
            "qontext.finetune.losses.contrastive:Contrastive",
            "InfoNCE: the positive against all passages of the batch",
        ),
        "pair": Kind(
            "qontext.finetune.losses.pair:PairLoss",
            "the same, with positives closer to queries than to other passages",
        ),
        "kl": Kind(
            "qontext.finetune.losses.kl:KlDivergence", "a teacher's distribution over a query's own passages"
        ),
        "margin-mse": Kind(
            "qontext.finetune.losses.margin_mse:MarginMse",
            "a teacher's score differences to the positive",
        ),
        "rank": Kind(
            "qontext.finetune.losses.rank:RankConsistency", "a teacher's order of a query's own passages"
        ),
    },
)
