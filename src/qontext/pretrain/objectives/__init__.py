"""The pre-training methods, one file each: an equation, its options, then code in the same order.

A method is a subclass of `Objective` with its `Options`, a `layout` (which rows it reads, how they are masked) and a
`forward` that returns named losses. One file, one line in `METHODS`, one test, one recipe.
"""

from __future__ import annotations

from qontext.frame.kinds import Kind, Kinds

METHODS = Kinds(
    "method",
    "qontext.objectives",
    "qontext.pretrain.objectives.base:Objective",
    {
        "mlm": Kind("qontext.pretrain.objectives.mlm:Mlm", "the baseline: BERT's masked language model"),
        "condenser": Kind(
            "qontext.pretrain.objectives.condenser:Condenser", "a head predicts from [CLS] and early layers"
        ),
        "cocondenser": Kind(
            "qontext.pretrain.objectives.cocondenser:CoCondenser",
            "condenser and a contrastive loss",
        ),
        "cot-mae": Kind(
            "qontext.pretrain.objectives.cot_mae:CotMae", "a decoder reconstructs the context from [CLS]"
        ),
        "retromae": Kind(
            "qontext.pretrain.objectives.retromae:RetroMae", "a decoder reconstructs the text from [CLS]"
        ),
        "dupmae": Kind(
            "qontext.pretrain.objectives.dupmae:DupMae",
            "retromae, and the tokens predict the text's words together",
        ),
        "seed": Kind(
            "qontext.pretrain.objectives.seed:Seed",
            "a weak autoregressive decoder reconstructs the text from [CLS]",
        ),
        "simlm": Kind(
            "qontext.pretrain.objectives.simlm:SimLm",
            "encoder and decoder restore replaced tokens",
        ),
        "costa": Kind("qontext.pretrain.objectives.costa:Costa", "[CLS] is close to the text's spans"),
        "cot-lm": Kind(
            "qontext.baselines.cot_lm:CotLm",
            "for decoders: the passage's vector, then its context token by token",
        ),
        "bow": Kind(
            "qontext.pretrain.objectives.bow:Bow",
            "[CLS] predicts the words of the text, of its context, or both",
        ),
    },
)
