"""The speed of exact search, against faiss-cpu's `IndexFlatIP`, with the same results.

    python benchmarks/search.py [--sizes 100000 500000 1000000] [--queries 1024] [--dimensions 384] [--k 100] [--repeats 5]

Random unit vectors, all in memory for faiss and memory-mapped from disk for ours. Repetitions are interleaved, one
of each in turn, and medians compared; the first of each is a warm-up.
`--cpu-time` counts the processor time of a single thread, which stays fair on a machine that others use.
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

import faiss
import numpy as np
import pyarrow as pa
import torch

from qontext.data import records
from qontext.frame import artifacts, machine
from qontext.models.precision import has_bf16, resolve_device
from qontext.retrieve.index.exact import ExactIndex
from qontext.retrieve.stored import Encoded, open_vectors, write_numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("queries", 1_024),
        ("dimensions", 384),
        ("k", 100),
        ("repeats", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 500_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/search.json"))
    parser.add_argument("--cpu-time", action="store_true")
    settings = parser.parse_args()
    clock = time.process_time if settings.cpu_time else time.perf_counter
    if settings.cpu_time:
        torch.set_num_threads(1)
        faiss.omp_set_num_threads(1)
    sizes = [measure(size, settings, clock) for size in settings.sizes]
    result = {
        "what": "exact inner-product search; medians of interleaved repetitions",
        "baseline": f"faiss-cpu {faiss.__version__} IndexFlatIP, {faiss.omp_get_max_threads()} threads, fp32",
        **{name: getattr(settings, name) for name in ("queries", "dimensions", "k")},
        "sizes": sizes,
        "bf16": "measured"
        if has_bf16(resolve_device())
        else "not measured: this processor has no bf16 units",
        "clock": "processor time of one thread" if settings.cpu_time else "wall",
        "threads": torch.get_num_threads(),
        "machine": machine.describe(),
    }
    settings.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def measure(size: int, settings: argparse.Namespace, clock: Callable[[], float]) -> dict[str, Any]:
    """The times of searching this number of vectors."""
    rng = np.random.default_rng(0)
    passages, queries = (_unit(rng, n, settings.dimensions) for n in (size, settings.queries))
    flat = faiss.IndexFlatIP(settings.dimensions)
    flat.add(passages)
    with tempfile.TemporaryDirectory() as folder:
        vectors = _stored(passages, Path(folder) / "vectors")
        contestants: dict[str, Callable[[], Any]] = {
            "faiss_flat": lambda: flat.search(queries, settings.k)[::-1],
            "qontext_fp32": lambda: ExactIndex(vectors).search(queries, settings.k),
        }
        if has_bf16(resolve_device()):
            low = ExactIndex(vectors, scoring=torch.bfloat16)
            contestants["qontext_bf16"] = lambda: low.search(queries, settings.k)
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        results: dict[str, Any] = {}
        for repeat in range(settings.repeats + 1):
            for name, search in contestants.items():
                started = clock()
                results[name] = search()
                if repeat:
                    seconds[name].append(clock() - started)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "passages": size,
        "seconds": {name: [round(t, 3) for t in times] for name, times in seconds.items()},
        "median_seconds": {name: round(t, 3) for name, t in medians.items()},
        "speedup": {n: round(medians["faiss_flat"] / t, 3) for n, t in medians.items() if n != "faiss_flat"},
        "same_top_k": {
            name: float(np.mean([set(a) == set(b) for a, b in zip(numbers, results["faiss_flat"][0])]))
            for name, (numbers, _) in results.items()
        },
        "greatest_difference_of_scores": {
            name: float(np.abs(scores - results["faiss_flat"][1]).max())
            for name, (_, scores) in results.items()
        },
    }


def _unit(rng: np.random.Generator, rows: int, dimensions: int) -> Any:
    vectors = rng.standard_normal((rows, dimensions), np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _stored(array: Any, folder: Path) -> Encoded:
    claim = {
        "verb": "encode",
        "format": 1,
        "config": {"kind": "passage"},
        "inputs": {"encoder": {"path": "none", "digest": "none"}},
        "key": "benchmark",
    }
    work = artifacts.begin(folder, claim)
    for number, start in enumerate(range(0, len(array), 16_384)):
        rows = array[start : start + 16_384]
        with work.write(f"ids-{number:05d}.parquet") as path:
            records.write_table(path, pa.table({"id": [f"{start + i:09d}" for i in range(len(rows))]}))
        with work.write(f"vectors-{number:05d}.npy") as path, path.open("wb") as file:
            np.save(file, rows, allow_pickle=False)
    files = [path.name for path in sorted(folder.glob("ids-*"))]
    write_numbers(work, files, "benchmark")
    return open_vectors(artifacts.finish(work, claim, {}, 0.0).path)


if __name__ == "__main__":
    main()
