"""The gain of comparing tokens by their bits over BM25 with the vectors of an encoder that was not trained for it.

    python benchmarks/tokens.py DATA --encoder FOLDER [--sets fairytaleqa:dev …] [--window 64]

Nothing is trained, and no weight is tuned: BM25 and the vectors of windows are fused with .7 and .3, the result and the
order by tokens with equal weights, as `adapt` does without labels. DATA holds labeled sets in BEIR's layout, one per
folder. Of large sets, the passages are those of the questions and others at random. Writes tokens.json beside this file:
nDCG@10 of each system, the p of the last difference (paired randomization), bytes for a passage, and milliseconds for the
100 best passages of a question.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from windows import MEASURE, sample

from qontext import api
from qontext.evaluation.comparison import randomization_test
from qontext.evaluation.gather import per_query
from qontext.frame import artifacts, log, machine


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--encoder", required=True)
    sets = ["fairytaleqa:dev", "medquad:dev", "squad_pool:dev", "cranfield:test"]
    parser.add_argument("--sets", nargs="+", default=sets)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--passages", type=int, default=2_500)
    parser.add_argument("--questions", type=int, default=400)
    options = parser.parse_args()
    log.show(log.SILENT)
    rows = []
    for text in options.sets:
        name, _, options.split = text.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            data = sample(options.data / name, Path(folder), options)
            rows.append({"set": name, "split": options.split, **measured(data, options)})
        print(rows[-1], flush=True)
    result = {
        "encoder": Path(options.encoder).name,
        "window": options.window,
        "rows": rows,
        "load": round(os.getloadavg()[0], 1),
        "threads": torch.get_num_threads(),
        "machine": machine.describe(),
    }
    (Path(__file__).parent / "tokens.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def measured(data: Path, options: argparse.Namespace) -> dict[str, Any]:
    reading = {"encoder": options.encoder, "max_length": 256}
    vectors = api.encode(data, **reading, window=options.window, tokens=True, out=data / "vectors")
    asking: dict[str, Any] = {"data": data, "split": options.split, "k": 100}
    fusing: dict[str, Any] = {"method": "zscore", "k": 100}
    words = api.search(bm25=True, **asking, out=data / "words")
    dense = api.search(vectors, **asking, out=data / "dense")
    both = api.fuse((words, dense), weights=(0.7, 0.3), **fusing, out=data / "both")
    started = time.perf_counter()
    tokens = api.rerank(both, tokens=vectors, data=data, k=100, out=data / "tokens")
    seconds = time.perf_counter() - started
    fused = api.fuse((both, tokens), weights=(0.5, 0.5), **fusing, out=data / "fused")
    runs = {"BM25": words, "vectors": dense, "both": both, "tokens": tokens, "fused": fused}
    values: dict[str, Any] = {}
    for name, run in runs.items():
        scored = api.evaluate(
            run, qrels=data, split=options.split, measures=MEASURE, out=data / f"score-{name}"
        )
        values[name] = per_query(artifacts.open_artifact(scored.path))[1][MEASURE]
    passages = vectors.summary["texts"]
    return {
        "passages": passages,
        "questions": len(values["BM25"]),
        **{name: round(float(np.mean(own)), 4) for name, own in values.items()},
        "p": round(randomization_test(values["fused"] - values["both"]), 4),
        "vector_bytes": round(4 * vectors.summary["dimension"] * vectors.summary["entries_per_text"]),
        "bit_bytes": round(vectors.summary["token_bytes"] * vectors.summary["tokens_per_text"]),
        "milliseconds": round(1000 * seconds / len(values["BM25"]), 1),
    }


if __name__ == "__main__":
    main()
