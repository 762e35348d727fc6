"""The hours of a recipe's pre-training and generation on an H100: an estimate from stated rates, not a measurement.

    FLOPs per token  = 2 · P + 4 · L · T · H         forward, of BERT-base and T5-base: P = 12 · L · H², L = 12, H = 768
    pre-training     = 3 · steps · tokens per step   forward and backward of the encoder; 4 with the gradient cache
    generation       = passages · (T + 4/3 · queries · Q) forward; the decoder has a third more weights
    hours            = FLOPs / (40 % of 989 TFLOP/s, the H100's bf16 peak) / 3600

T is the length of a passage, which is taken to be full; Q = 16 tokens of a query; 10 passages per document of MS MARCO's 3.2
million, or the 8.8 million passages of its collection. Heads, decoders of pre-training, and the memory traffic that bounds
decoding are left out: these are lower bounds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qontext.workflow.recipe import Recipe

LAYERS, WIDTH = 12, 768
PEAK, SHARE = 989e12, 0.4
QUERY_TOKENS, LENGTH = 16, 144
OF_DOCUMENTS, OF_COLLECTION = 32_000_000, 8_800_000


def estimated_hours(recipe: Recipe) -> dict[str, float]:
    """Step → hours on one H100, of pre-trainings with a number of steps and of generation by T5."""
    hours = {}
    for step in recipe.steps:
        flops = 0.0
        if step.stage.verb == "pretrain" and step.settings.get("steps"):
            flops = _pretraining(step.configure(Path("runs")))
        elif step.stage.verb == "generate" and step.settings.get("generator") == "t5":
            tokens = LENGTH + 4 / 3 * QUERY_TOKENS * int(step.settings["per_passage"])
            passages = OF_DOCUMENTS if step.settings["passages"] == "@split" else OF_COLLECTION
            flops = passages * tokens * _per_token(LENGTH)
        if flops:
            hours[step.name] = round(flops / (PEAK * SHARE) / 3600, 1)
    return hours


def _per_token(length: int) -> float:
    return 2 * 12 * LAYERS * WIDTH**2 + 4 * LAYERS * length * WIDTH


def _pretraining(config: Any) -> float:
    length, tokens = config.max_tokens, config.max_tokens
    if config.layout().encode == "both":
        tokens += QUERY_TOKENS if config.context_name() == "query" else length
    passes = 4 if config.gradient_cache == "on" else 3
    return float(passes * config.steps * config.batch_size * tokens * _per_token(length))
