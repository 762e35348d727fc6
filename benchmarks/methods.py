"""The cost of a pre-training step of every method, relative to masked language modeling on the same passages.

    python benchmarks/methods.py --data DATA/squad_pool --tokenizer FOLDER
    python benchmarks/methods.py --data DATA/squad_pool --tokenizer FOLDER --device cuda --presets base --batch 256

A step reads the same passages for every method; their contexts and queries come in addition, as the method reads them. Steps
of all methods are taken in turn, and the median is reported. Batches are prepared within the step. Writes methods.json
beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretrain import MAX_TOKENS, read
from qontext.contexts import Context, Sources
from qontext.frame import log, machine
from qontext.models.batching import grid_for
from qontext.models.encoder import load_encoder
from qontext.models.precision import resolve_precision
from qontext.pretrain.batches import BatchPlan
from qontext.pretrain.config import PretrainConfig
from qontext.pretrain.masking import Vocabulary
from qontext.training.distributed import join
from qontext.training.optimizer import Optimizer
from qontext.training.step import Stepper

QUERIES = {"context": "query", "queries": "q"}
CASES: dict[str, dict[str, Any]] = {
    "mlm": {"method": "mlm"},
    "condenser": {"method": "condenser"},
    "cocondenser, passages": {"method": "cocondenser", "context": "rand"},
    "cocondenser, queries": {"method": "cocondenser", **QUERIES},
    "cot-mae, passages": {"method": "cot-mae", "context": "near+olap+rand"},
    "cot-mae, queries": {"method": "cot-mae", **QUERIES},
    "cot-mae, queries, autoregressive": {"method": "cot-mae", "decoder": "autoregressive", **QUERIES},
    "retromae": {"method": "retromae"},
    "dupmae": {"method": "dupmae"},
    "seed": {"method": "seed"},
    "costa": {"method": "costa"},
    "simlm": {"method": "simlm", "generator": "GENERATOR"},
    "bow": {"method": "bow"},
    "bow, queries": {"method": "bow", "target": "context", **QUERIES},
    "bow, queries, contrastive": {
        "method": "bow",
        "target": "context",
        "contrastive_weight": 1.0,
        **QUERIES,
    },
}
"""Label → settings."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", required=True, help="a labeled set in BEIR's layout; its train split is used"
    )
    parser.add_argument("--tokenizer", required=True, help="a model folder whose tokenizer is used")
    parser.add_argument("--presets", nargs="+", default=["mini"])
    parser.add_argument(
        "--generator", default="tiny", help="SimLM's generator: a preset, smaller than the encoder"
    )
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    log.show(log.SILENT)
    with tempfile.TemporaryDirectory() as folder:
        sources, _ = read(Path(folder), options)
        generator = Path(folder) / "generator"
        generator.mkdir()
        load_encoder(options.generator, tokenizer=options.tokenizer).save(generator, max_length=MAX_TOKENS)
        rows = [
            row for preset in options.presets for row in measure(preset, sources, str(generator), options)
        ]
    result = {
        "what": "seconds per pre-training step, and relative to mlm, on the same passages",
        "setting": {"batch": options.batch, "steps": options.steps, "data": Path(options.data).name},
        "machine": machine.describe(),
        "rows": rows,
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(rows, indent=2))


def measure(
    preset: str, sources: Sources, generator: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """The median step of every case, in turn; the first round is not counted."""
    runs = {name: start(preset, settings, sources, generator, options) for name, settings in CASES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for step in range(options.steps + 1):
        for name, (run, plan) in runs.items():
            begin = time.perf_counter()
            run.step(step, plan(step))
            if options.device != "cpu":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    return [
        {
            "method": name,
            "preset": preset,
            "seconds": round(median, 4),
            "relative": round(median / medians["mlm"], 2),
        }
        for name, median in medians.items()
    ]


def start(
    preset: str, settings: dict[str, Any], sources: Sources, generator: str, options: argparse.Namespace
) -> tuple[Stepper, BatchPlan]:
    """A training of the case, and its batches."""
    own = {name: generator if value == "GENERATOR" else value for name, value in settings.items()}
    fixed = {"passages": "p", "encoder": preset, "batch_size": options.batch, "device": options.device}
    config = PretrainConfig.make({**fixed, **own}, where="benchmark")
    group = join(options.device)
    dtype = resolve_precision("auto", group.device)
    encoder = load_encoder(preset, tokenizer=options.tokenizer)
    objective = config.objective(encoder).train().to(group.device)
    layout = config.layout()
    context = Context(config.context_name(), sources) if layout.needs_context else None
    words, anchors = Vocabulary.of(encoder.tokenizer), np.flatnonzero(sources.query_counts > 0)
    budget, grid = config.token_budget(group.device), grid_for(group.device, dtype)
    plan = BatchPlan(
        sources, layout, context, words, anchors, None, options.batch, budget, config.seed, grid=grid
    )
    optimizer = Optimizer(objective, config, 1_000, dtype, group.device)
    return Stepper(objective, optimizer, group, dtype, cache="auto"), plan


if __name__ == "__main__":
    main()
