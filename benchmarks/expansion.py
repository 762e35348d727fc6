"""The gain of BM25 from passages to which words of their queries are appended.

    python benchmarks/expansion.py DATA [--sets fairytaleqa …] [--split dev] [--per-passage 5]

DATA holds labeled sets in BEIR's layout, one per folder. The queries of every passage are keyphrases. Writes
expansion.json beside this file: nDCG@10 on the real questions of the split, and p against the passages as they are
(paired randomization).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from qontext import api
from qontext.evaluation.comparison import randomization_test
from qontext.evaluation.gather import per_query
from qontext.frame import artifacts, log, machine

MEASURE = "nDCG@10"
WORDS = (None, "all", "seen", "new")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", nargs="+", default=["fairytaleqa", "medquad", "squad_pool"])
    parser.add_argument("--split", default="dev")
    parser.add_argument("--per-passage", type=int, default=5)
    options = parser.parse_args()
    log.show(log.SILENT)
    rows = []
    for name in options.sets:
        with tempfile.TemporaryDirectory() as folder:
            rows += measured(options.data / name, Path(folder), options)
        print(*rows[-len(WORDS) :], sep="\n", flush=True)
    result = {
        "generator": "keyphrase",
        "per_passage": options.per_passage,
        "split": options.split,
        "rows": rows,
        "machine": machine.describe(),
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def measured(data: Path, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    keyphrases = {"generator": "keyphrase", "per_passage": options.per_passage}
    queries = api.generate(data, **keyphrases, out=folder / "queries")
    rows: list[dict[str, Any]] = []
    baseline: Any = None
    for words in WORDS:
        passages: Any = data
        if words is not None:
            passages = api.expand(queries, passages=data, words=words, out=folder / words)
        index = api.index(passages, backend="bm25", out=folder / f"index {words}")
        run = folder / f"{words}.trec"
        api.search(index, data=data, split=options.split, k=100, out=run)
        scores = folder / f"scores {words}"
        api.evaluate(run, data, split=options.split, measures=MEASURE, out=scores)
        values = per_query(artifacts.open_artifact(scores))[1][MEASURE]
        baseline = values if baseline is None else baseline
        p = None if words is None else round(randomization_test(values - baseline), 4)
        row = {"set": data.name, "words": words or "none", "questions": len(values)}
        rows.append({**row, MEASURE: round(float(np.mean(values)), 4), "p": p})
    return rows


if __name__ == "__main__":
    main()
