"""The time to score a run of MS MARCO's size: 6,980 queries, 1,000 results each.

    python benchmarks/measures.py [--queries 6980] [--depth 1000] [--out benchmarks/measures.json]

Passage ids are drawn from 8.8 million, one to three passages per query are judged, four in five of them are
found. The same measures are computed by our kernels and by pytrec_eval through ir_measures, in the same
process, and compared; the library is timed on a share of the queries when all would take minutes (`--share`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qontext.data.runs import Run, read_run, write_run
from qontext.evaluation.comparison import difference
from qontext.evaluation.measures import measure, parse, recall_by_depth
from qontext.frame import machine

MEASURES = "MRR@10 Success@50 R@1000 nDCG@10 MAP"
PASSAGES = 8_841_823


def make_run(queries: int, depth: int, seed: int) -> tuple[Run, dict[str, dict[str, int]]]:
    """A run in descending score with the judgments that go with it."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, PASSAGES, (queries, depth + 8))
    rows = [np.unique(row)[:depth] for row in numbers]
    codes = np.concatenate([rng.permutation(row) for row in rows])
    ids, codes = np.unique(codes, return_inverse=True)
    names = np.array([str(i) for i in ids], dtype=object)
    counts = [len(row) for row in rows]
    scores = np.concatenate([-np.sort(-rng.normal(0, 1, n)) for n in counts])
    ends = np.cumsum(counts)
    qrels: dict[str, dict[str, int]] = {}
    for q, (end, n) in enumerate(zip(ends, counts)):
        # Relevant passages stand rather high: ranks follow a geometric law.
        ranks = np.minimum(rng.geometric(0.05, size=1 + rng.poisson(0.07)) - 1, n - 1)
        grades = (
            {str(names[codes[end - n + rank]]): 1 for rank in ranks}
            if rng.random() < 0.8
            else {f"not-{q}": 1}
        )
        qrels[str(q)] = grades
    run = Run.from_codes(
        np.repeat(np.arange(queries), counts), [str(q) for q in range(queries)], codes, names, scores
    )
    return run, qrels


def timed(work: Callable[[], Any], *, repeats: int = 1) -> tuple[Any, float]:
    """The result and the best of several times."""
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - started)
    return result, best


def by_library(run: Run, qrels: dict[str, dict[str, int]], queries: int) -> dict[str, list[float]]:
    import ir_measures

    lists = {q: {hit.passage: hit.score for hit in run[q]} for q in run.queries[:queries]}
    judged = {q: qrels[q] for q in lists}
    parsed = [ir_measures.parse_measure(name) for name in MEASURES.split()]
    values: dict[str, dict[str, float]] = {str(m): {} for m in parsed}
    for metric in ir_measures.iter_calc(parsed, judged, lists):
        values[str(metric.measure)][metric.query_id] = metric.value
    return {name: [column[q] for q in lists] for name, column in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--queries", type=int, default=6980)
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument(
        "--share", type=float, default=0.25, help="part of the queries that the library is given"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()

    run, qrels = make_run(options.queries, options.depth, seed=0)
    parsed = parse(MEASURES)
    scores, kernel = timed(lambda: measure(run, qrels, parsed), repeats=3)
    _, by_depth = timed(lambda: recall_by_depth(run, qrels), repeats=3)
    part = max(1, round(options.share * options.queries))
    library_values, library = timed(lambda: by_library(run, qrels, part))
    library *= options.queries / part
    theirs = list(library_values.values())
    error = max(
        float(np.abs(scores.values[name][:part] - np.array(values)).max())
        for name, values in zip(MEASURES.split(), theirs)
    )
    mrr = scores.values["MRR@10"]
    shuffled = np.random.default_rng(1).permutation(mrr)
    _, testing = timed(lambda: difference(mrr, shuffled))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.trec"
        _, writing = timed(lambda: write_run(run, path))
        size = path.stat().st_size
        _, reading = timed(lambda: read_run(path))

    result = {
        "queries": options.queries,
        "results": run.size,
        "measures": MEASURES,
        "seconds": {
            "measures": round(kernel, 3),
            "recall_at_11_depths": round(by_depth, 3),
            "same_measures_by_pytrec_eval": round(library, 3),
            "randomisation_test_and_bootstrap_of_10000": round(testing, 3),
            "read_run": round(reading, 3),
            "write_run": round(writing, 3),
        },
        "library_timed_on_share": options.share,
        "times_faster_than_pytrec_eval": round(library / kernel, 1),
        "largest_difference_from_pytrec_eval": error,
        "run_file_mb": round(size / 1e6, 1),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "load_average": round(os.getloadavg()[0], 1),
        "machine": machine.describe(),
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
