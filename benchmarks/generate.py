"""Queries per second in fp32 and bf16 on a model of T5-base's shape with random weights, in one run.

    python benchmarks/generate.py --out benchmarks/generate.json

Random weights hardly ever end a query, so every query has the full length: the worst case, and the same
work for both. The formats take turns, and the best of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from qontext.frame import machine

WORDS = "the river of a stone tower holds many names and old maps show where water once ran under its walls"


def make_model(folder: Path) -> None:
    """T5-base's shape (12 + 12 layers, 768 wide), random, with a small tokenizer."""
    from transformers import T5Config, T5ForConditionalGeneration

    from qontext.queries.train_generator import train_tokenizer

    tokenizer = train_tokenizer([WORDS] * 5, 60)
    config = T5Config(
        vocab_size=32128,
        d_model=768,
        d_kv=64,
        d_ff=3072,
        num_layers=12,
        num_heads=12,
        decoder_start_token_id=0,
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32, help="of each query")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch

    from qontext.data.collection import Passage
    from qontext.frame import log
    from qontext.queries.generators import Task
    from qontext.queries.generators.t5 import T5, T5Options

    torch.set_num_threads(options.threads)
    log.show(log.SILENT)
    # About 110 tokens each, as passages of 144 tokens at most have on average.
    passages = [
        Passage(str(n), "", " ".join(WORDS[(n + i) % len(WORDS)] for i in range(60)), "")
        for n in range(options.passages)
    ]
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        make_model(Path(scratch) / "model")
        task = Task("-", 5, 42)
        same = {"model": f"{scratch}/model", "max_new_tokens": options.tokens}
        generators = {
            "transformers fp32": T5(T5Options(**same, device="cpu", precision="fp32"), task),
            "transformers bf16": T5(T5Options(**same, device="cpu", precision="bf16"), task),
        }
        for _ in range(options.rounds):
            for name, generator in generators.items():
                started = time.perf_counter()
                queries = sum(len(written) for _, written in generator(passages))
                seconds.setdefault(name, []).append(time.perf_counter() - started)
    rates = {name: round(queries / min(times), 3) for name, times in seconds.items()}
    result = {
        "what": "queries per second, T5-base shape, random weights",
        "passages": options.passages, "queries": queries, "tokens_per_query": options.tokens,
        "threads": options.threads, "seconds": {name: [round(t, 2) for t in times] for name, times in seconds.items()},
        "queries_per_second": rates,
        "times_fp32": {name: round(rate / rates["transformers fp32"], 2) for name, rate in rates.items()},
        "machine": machine.describe(),
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
