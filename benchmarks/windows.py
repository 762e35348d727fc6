"""The gain of a vector for each window of a passage over one vector for the whole passage.

    python benchmarks/windows.py DATA --encoder FOLDER [--sets fairytaleqa …] [--windows 32 64 128] [--split dev]

Nothing is trained. DATA holds labeled sets in BEIR's layout, one per folder. Of large sets, the passages are those of the
questions and others at random. Writes windows.json beside this file: nDCG@10 for each size, p against one vector (paired
randomization), vectors for each passage, and seconds of encoding.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qontext import api
from qontext.data.collection import read_passages, read_qrels, read_queries
from qontext.evaluation.comparison import randomization_test
from qontext.evaluation.gather import per_query
from qontext.frame import artifacts, log, machine

MEASURE = "nDCG@10"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--sets", nargs="+", default=["fairytaleqa", "medquad", "squad_pool"])
    parser.add_argument("--windows", nargs="+", type=int, default=[32, 64, 128])
    parser.add_argument("--split", default="dev")
    parser.add_argument("--passages", type=int, default=2_500)
    parser.add_argument("--questions", type=int, default=400)
    options = parser.parse_args()
    log.show(log.SILENT)
    rows = []
    for name in options.sets:
        with tempfile.TemporaryDirectory() as folder:
            data = sample(options.data / name, Path(folder), options)
            rows += [{"set": name, **row} for row in measured(data, options)]
        for row in rows[-len(options.windows) - 1 :]:
            print(row, flush=True)
    result = {
        "encoder": Path(options.encoder).name,
        "split": options.split,
        "rows": rows,
        "load": round(os.getloadavg()[0], 1),
        "threads": torch.get_num_threads(),
        "machine": machine.describe(),
    }
    (Path(__file__).parent / "windows.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def sample(source: Path, folder: Path, options: argparse.Namespace) -> Path:
    """Some questions of the split, their passages, and others up to the number of passages."""
    qrels, questions = read_qrels(source / "qrels" / f"{options.split}.tsv"), read_queries(source)
    dice = random.Random(1)
    chosen = sorted(query for query in qrels if query in questions)
    chosen = dice.sample(chosen, min(options.questions, len(chosen)))
    relevant = {passage for query in chosen for passage in qrels[query]}
    passages = {passage.id: passage for passage in read_passages(source)}
    others = sorted(passages.keys() - relevant)
    kept = relevant | {*dice.sample(others, max(0, min(len(others), options.passages - len(relevant))))}

    def write(name: str, rows: list[dict[str, str]]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    texts = [passages[id] for id in sorted(kept) if id in passages]
    write("corpus.jsonl", [{"_id": p.id, "title": p.title, "text": p.text} for p in texts])
    write("queries.jsonl", [{"_id": query, "text": questions[query]} for query in sorted(chosen)])
    (folder / "qrels").mkdir()
    lines = [f"{query}\t{id}\t{grade}\n" for query in chosen for id, grade in qrels[query].items()]
    (folder / "qrels" / f"{options.split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder


def measured(data: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    rows, baseline = [], None
    for window in (None, *options.windows):
        started = time.perf_counter()
        vectors = api.encode(
            data, encoder=options.encoder, max_length=256, window=window, out=data / f"vectors-{window}"
        )
        seconds = time.perf_counter() - started
        run = api.search(vectors, data=data, split=options.split, k=100, out=data / f"run-{window}")
        scored = api.evaluate(
            run, qrels=data, split=options.split, measures=MEASURE, out=data / f"score-{window}"
        )
        values = per_query(artifacts.open_artifact(scored.path))[1][MEASURE]
        baseline = values if baseline is None else baseline
        rows.append(
            {
                "window": window,
                "passages": vectors.summary["texts"],
                "questions": len(values),
                "vectors_per_passage": vectors.summary["entries_per_text"] if window else 1,
                MEASURE: round(float(np.mean(values)), 4),
                "p": None if window is None else round(randomization_test(values - baseline), 4),
                "seconds": round(seconds, 1),
            }
        )
    return rows


if __name__ == "__main__":
    main()
