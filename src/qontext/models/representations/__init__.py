"""Representations of texts: one vector, weights of words, or a vector for each token. One file each, with its equation.

A representation is a subclass of `Representation` with its `Options`. `finetune --representation` chooses it; the modules
of the model folder record it (`models/folder.py`), so that `encode` and `search` know it.
"""

from __future__ import annotations

from qontext.frame.kinds import Kind, Kinds

REPRESENTATIONS = Kinds(
    "representation",
    "qontext.representations",
    "qontext.models.representations.base:Representation",
    {
        "vector": Kind("qontext.models.representations.vector:Vector", "one vector"),
        "sparse": Kind("qontext.models.representations.sparse:Sparse", "weights of words, as SPLADE"),
        "tokens": Kind("qontext.models.representations.tokens:Tokens", "a vector for each token, as ColBERT"),
        "first-tokens": Kind(
            "qontext.baselines.me_bert:FirstTokens", "some vectors of a passage, as ME-BERT"
        ),
        "matches": Kind(
            "qontext.baselines.coil:Matches",
            "vectors or weights of a text's own tokens, as COIL and uniCOIL",
        ),
    },
)
