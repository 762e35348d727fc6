"""The time of mining from end to end: index the passages, search all training queries, draw negatives.

    python benchmarks/bm25_mining.py FOLDER [--repeats 3] [--out benchmarks/bm25_mining.json]

FOLDER is a labeled folder with a train split. The time is that of the two commands, reading and writing of
files included. Each repetition starts from nothing; numba's compiled code is on disk from the warm-up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from qontext import api
from qontext.frame import log, machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/bm25_mining.json"))
    settings = parser.parse_args()
    log.show(log.SILENT)
    qrels = next((settings.folder / "qrels").glob("train.tsv*"))
    times: dict[str, list[float]] = {"search": [], "mine": [], "both": []}
    summaries: dict[str, Any] = {}
    for repeat in range(settings.repeats + 1):
        with tempfile.TemporaryDirectory() as scratch:
            marks = [time.perf_counter()]
            run = api.retrieve(
                bm25=True, data=settings.folder, split="train", k=200, out=Path(scratch) / "run"
            )
            marks.append(time.perf_counter())
            groups = api.mine(run, qrels, data=settings.folder, out=Path(scratch) / "groups")
            marks.append(time.perf_counter())
        if repeat:
            times["search"].append(marks[1] - marks[0])
            times["mine"].append(marks[2] - marks[1])
            times["both"].append(marks[2] - marks[0])
        summaries = {"search": run.summary, "mine": groups.summary}
    result = {
        "what": "BM25 search (k 200) over all training queries and mining (30 of 200), end to end",
        "baseline": "none: the target is seconds for 10,000 queries over 25,000 passages",
        "queries": summaries["mine"]["queries"],
        "results": summaries["search"]["results"],
        "negatives": summaries["mine"]["negatives"],
        "seconds": {name: [round(t, 2) for t in values] for name, values in times.items()},
        "median_seconds": {name: round(statistics.median(values), 2) for name, values in times.items()},
        "machine": machine.describe(),
    }
    settings.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
