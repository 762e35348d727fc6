"""Pre-training on a GPU: passages per second, share of the peak, memory, for BERT-base at 144 tokens.

    python benchmarks/gpu.py [--peak-tflops 989] [--out benchmarks/gpu.json]

Random token ids of realistic lengths, so it needs no data and no network. The share of the peak counts what the
mathematics needs, not what is computed besides (padding, the gradient cache's first pass):

    FLOPs per token and layer, forward    24·H² + 4·T·H        (projections and FFN; attention over T tokens)
    FLOPs per predicted token, forward    2·H² + 2·H·V         (MLM head)
    training                              3 × forward          (backward is twice the forward)
    MFU                                   FLOPs per second / peak

Without a GPU it says so and measures nothing; `--device cpu --layers 2 --batch 16` shows that the script itself works.

No figures of it are here yet: there was no GPU at hand when it was written. The target is 40 % of the bf16 peak of an
H100 and 3,800 passages per second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from qontext.contexts import Context
from qontext.contexts.base import Sources
from qontext.corpus.store import TokenStore
from qontext.frame import log, machine
from qontext.models.encoder import Encoder
from qontext.models.precision import resolve_precision
from qontext.pretrain.batches import BatchPlan
from qontext.pretrain.config import PretrainConfig
from qontext.pretrain.masking import Vocabulary
from qontext.training.distributed import join
from qontext.training.optimizer import Optimizer
from qontext.training.prefetch import Prefetched
from qontext.training.step import Stepper

VOCABULARY, MAX_TOKENS = 30_522, 144


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--peak-tflops", type=float, default=989.0, help="dense bf16 peak of the GPU (H100 SXM: 989)"
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4096, help="pairs per step")
    parser.add_argument("--micro-tokens", type=int, default=65_536)
    parser.add_argument("--methods", nargs="+", default=["cot-mae", "cocondenser"])
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=12, help="BERT-base has 12")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("No GPU here: nothing measured.")
        return
    log.verbosity = -1
    rows = [measure(name, options) for name in options.methods]
    result = {"machine": machine.describe(), "peak TFLOP/s": options.peak_tflops, "rows": rows}
    if options.device == "cuda":
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    from transformers import BertConfig, BertForMaskedLM

    group = join(options.device)
    on_gpu = group.device.type == "cuda"
    dtype = resolve_precision("auto", group.device)
    model = BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, num_hidden_layers=options.layers))
    encoder = Encoder(model, tokenizer=None)
    settings = {"passages": "p", "method": name, "queries": "q", "batch_size": options.batch}
    config = PretrainConfig.make(settings, where="benchmark")
    objective = config.objective(encoder).to(group.device).train()
    if on_gpu and not options.no_compile:
        objective.encoder.compile(dynamic=True)
    sources = random_sources(100_000)
    words = Vocabulary(VOCABULARY, mask=103, cls=101, sep=102, pad=0, special=(0, 100, 101, 102, 103))
    layout = config.layout()
    anchors = np.arange(len(sources.passages))
    plan = BatchPlan(
        sources,
        layout,
        Context("query", sources),
        words,
        anchors,
        None,
        options.batch,
        options.micro_tokens,
        42,
    )
    optimizer = Optimizer(objective, config, 10_000, dtype, group.device)
    run = Stepper(objective, optimizer, group, dtype, cache="auto")
    times, flops = [], []
    with Prefetched(lambda step: plan(step).pin() if on_gpu else plan(step), 0, options.steps + 3) as batches:
        started = time.perf_counter()
        for step, batch in batches:
            run.step(step, batch)
            if on_gpu:
                torch.cuda.synchronize()
            now = time.perf_counter()
            if step >= 3:
                times.append(now - started)
                flops.append(needed_flops(batch, encoder, 1 if name == "cot-mae" else 2))
            started = now
    seconds = statistics.median(times)
    rate = statistics.median(f / t for f, t in zip(flops, times))
    return {
        "method": f"query-as-context {name}",
        "format": str(dtype).removeprefix("torch."),
        "pairs per step": options.batch,
        "passages/s": round(options.batch / seconds, 1),
        "TFLOP/s": round(rate / 1e12, 1),
        "MFU": round(rate / 1e12 / options.peak_tflops, 4),
        "peak memory GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2) if on_gpu else None,
        "seconds per step": [round(t, 3) for t in times],
    }


def needed_flops(batch: Any, encoder: Encoder, predictions: int) -> float:
    """What this module's head counts, over the real tokens of a batch (head or decoder: 2 layers)."""
    h, total = encoder.hidden_size, 0.0
    for one in batch.micro:
        for text, layers in ((one.encoder, encoder.num_layers + (0 if one.decoder else 2)), (one.decoder, 2)):
            if text is not None:
                lengths = text.mask.sum(1).double()
                total += layers * float((24 * h * h * lengths + 4 * h * lengths**2).sum())
                total += predictions * len(text.labels) * (2 * h * h + 2 * h * VOCABULARY)
    return 3 * total


def random_sources(passages: int) -> Sources:
    """Passages of 40 to 142 tokens and one query of 6 to 20 for each."""
    dice = np.random.default_rng(0)

    def store(low: int, high: int) -> TokenStore:
        offsets = np.concatenate([[0], np.cumsum(dice.integers(low, high, passages))])
        total = int(offsets[-1])
        ids = dice.integers(1000, VOCABULARY, total).astype(np.uint16)
        starts = dice.random(total) < 0.8
        names = pa.array([str(n) for n in range(passages)])
        return TokenStore(ids, starts, offsets[:-1], offsets, np.arange(passages + 1), names)

    return Sources(store(100, MAX_TOKENS - 1), MAX_TOKENS - 2, store(6, 21), np.arange(passages))


if __name__ == "__main__":
    main()
