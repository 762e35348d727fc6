"""Pre-training speed with queries as contexts against passages as contexts, for the same method, model and passages.

    python benchmarks/contexts.py --data DATA/squad_pool --tokenizer FOLDER

Passages of at most 144 tokens, real questions of about 12. The arms take their steps in turn, and the median step is
reported. A pair with a query has fewer tokens than one with a passage, and CoT-MAE encodes only one text of it. Writes
contexts.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretrain import read
from qontext.contexts import Context, Sources
from qontext.frame import log, machine
from qontext.models.batching import grid_for
from qontext.models.encoder import load_encoder
from qontext.models.precision import has_bf16
from qontext.pretrain.batches import BatchPlan
from qontext.pretrain.config import PretrainConfig
from qontext.pretrain.masking import Vocabulary
from qontext.training.distributed import join
from qontext.training.optimizer import Optimizer
from qontext.training.step import Stepper

ARMS: tuple[dict[str, Any], ...] = (
    {"method": "cocondenser", "context": "rand"},
    {"method": "cocondenser", "context": "query"},
    {"method": "cot-mae", "context": "near+olap+rand"},
    {"method": "cot-mae", "context": "query"},
    {"method": "cot-mae", "context": "query", "decoder": "autoregressive"},
)
"""The papers' arms; the first of each method is its baseline."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", required=True, help="a labeled set in BEIR's layout; its train split is used"
    )
    parser.add_argument("--tokenizer", required=True, help="a model folder whose tokenizer is used")
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=7)
    options = parser.parse_args()
    log.show(log.SILENT)
    dtype = torch.bfloat16 if has_bf16(torch.device("cpu")) else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        sources, _ = read(Path(folder), options)
        arms = [prepare(arm, sources, options, dtype) for arm in ARMS]
        times: list[list[float]] = [[] for _ in arms]
        for number in range(options.steps + 1):
            for took, step in zip(times, arms):
                started = time.perf_counter()
                step(number)
                took.append(time.perf_counter() - started)
    # The first step is a warm-up.
    speeds = [options.batch / statistics.median(took[1:]) for took in times]
    rows = [
        {
            **arm,
            "pairs/s": round(speed, 2),
            "ratio to passages": round(
                speed / next(s for a, s in zip(ARMS, speeds) if a["method"] == arm["method"]), 2
            ),
        }
        for arm, speed in zip(ARMS, speeds)
    ]
    result = {
        "what": "pairs per second of pre-training by the kind of context",
        "setting": {
            "preset": options.preset, "batch": options.batch, "steps": options.steps,
            "data": Path(options.data).name, "format": str(dtype).removeprefix("torch."),
        },
        "machine": machine.describe(),
        "rows": rows,
    }  # fmt: skip
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(rows, indent=2))


def prepare(
    arm: dict[str, Any], sources: Sources, options: argparse.Namespace, dtype: torch.dtype
) -> Callable[[int], None]:
    """A function that takes a step of this arm: its batch and its training."""
    group = join("cpu")
    arguments = {
        "passages": "p",
        "queries": "q",
        "encoder": options.preset,
        "batch_size": options.batch,
        **arm,
    }
    config = PretrainConfig.make(arguments, where="benchmark")
    encoder = load_encoder(options.preset, tokenizer=options.tokenizer)
    objective = config.objective(encoder).train()
    plan = BatchPlan(
        sources,
        config.layout(),
        Context(config.context_name(), sources),
        Vocabulary.of(encoder.tokenizer),
        np.flatnonzero(sources.query_counts > 0),
        None,
        options.batch,
        8192,
        42,
        grid=grid_for(group.device, dtype),
    )
    run = Stepper(
        objective, Optimizer(objective, config, 1000, dtype, group.device), group, dtype, cache="auto"
    )
    return lambda step: run.step(step, plan(step))


if __name__ == "__main__":
    main()
