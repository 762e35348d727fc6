"""How fast passages of mixed length are encoded, against sentence-transformers' own `encode`.

    python benchmarks/encode.py MODEL PASSAGES [--texts 600] [--repeats 3] [--out benchmarks/encode.json]

The same model, texts and processor; both sort by length. Repetitions are interleaved, one of each in turn, and
medians compared; the first of each is a warm-up.
The vectors are compared, too. `--cpu-time` counts the processor time of a single thread, which stays fair on a
machine that others use.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, __version__

from qontext.data.collection import read_passages
from qontext.frame import machine
from qontext.models.precision import has_bf16, resolve_device
from qontext.models.retriever import Retriever


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("passages")
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/encode.json"))
    parser.add_argument("--cpu-time", action="store_true")
    settings = parser.parse_args()
    clock = time.process_time if settings.cpu_time else time.perf_counter
    if settings.cpu_time:
        torch.set_num_threads(1)
    texts = [passage.content for passage in read_passages(settings.passages)]
    texts = texts[:: len(texts) // settings.texts][: settings.texts]
    device = resolve_device()
    theirs = SentenceTransformer(settings.model, device=str(device))
    ours = Retriever(settings.model, device=str(device), precision="fp32")
    contestants: dict[str, Callable[[], Any]] = {
        "sentence_transformers": lambda: theirs.encode(texts, show_progress_bar=False),
        "qontext_fp32": lambda: ours.encode(texts, "passage"),
    }
    if has_bf16(device):
        low = Retriever(settings.model, device=str(device), precision="bf16")
        contestants["qontext_bf16"] = lambda: low.encode(texts, "passage")
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    vectors: dict[str, Any] = {}
    for repeat in range(settings.repeats + 1):
        for name, encode in contestants.items():
            started = clock()
            vectors[name] = encode()
            if repeat:
                seconds[name].append(clock() - started)
    lengths = [len(ids) for ids in ours.tokenize(texts, "passage")]
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    base = vectors["sentence_transformers"]
    unit = base / np.linalg.norm(base, axis=1, keepdims=True)
    result = {
        "what": "encoding passages of mixed length; medians of interleaved repetitions",
        "baseline": f"sentence-transformers {__version__} encode, its defaults (batch 32), fp32",
        "texts": len(texts),
        "tokens": {"total": sum(lengths), "shortest": min(lengths), "longest": max(lengths)},
        "seconds": {name: [round(t, 3) for t in times] for name, times in seconds.items()},
        "median_seconds": {name: round(t, 3) for name, t in medians.items()},
        "tokens_per_second": {name: round(sum(lengths) / t) for name, t in medians.items()},
        "speedup": {
            name: round(medians["sentence_transformers"] / t, 3)
            for name, t in medians.items()
            if name != "sentence_transformers"
        },
        "least_cosine": {
            name: round(float((unit * v / np.linalg.norm(v, axis=1, keepdims=True)).sum(1).min()), 7)
            for name, v in vectors.items()
        },
        "bf16": "measured" if has_bf16(device) else "not measured: this processor has no bf16 units",
        "clock": "processor time of one thread" if settings.cpu_time else "wall",
        "threads": torch.get_num_threads(),
        "machine": machine.describe(),
    }
    settings.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
