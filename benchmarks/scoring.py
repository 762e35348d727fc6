"""The gain of other ways of scoring passages over those of `adapt`, without any more training.

    python benchmarks/scoring.py DATA --encoder FOLDER --adapted FOLDER --cache FOLDER [--passes fairytaleqa:dev …]

`--adapted` is the folder `--work` of benchmarks/adapt.py, whose vectors, bits and generated queries are used: for each set
in it, with the original and with the adapted encoder, all similarities of the questions of its dev split and its passages
are computed once and kept in the cache. BM25, vectors of windows, and for every token of a question its best token in every
passage: every arm is then arithmetic on these arrays. The system to beat is what `adapt` recommends without labels: .7 BM25
and .3 windows, as standardized scores, and the best 100 of these with equal weights of that and of MaxSim of the bits.

The sets of `--passes` are small samples of DATA, labeled sets in BEIR's layout, one per folder, which are encoded in
several ways: windows and bits each from a forward pass of its own, as `encode` does, or both from one of them.

Writes scoring.json beside this file: nDCG@10 of each arm, and its difference from what it would replace with the p of the
paired randomization test, not corrected.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scoring_arms import Features, arms, one_pass
from scoring_similarities import WINDOW, by_passes, processor_seconds, stored

from qontext.evaluation.comparison import randomization_test
from qontext.frame import log, machine

OUT = Path(__file__).with_suffix(".json")
PASSES = ["fairytaleqa:dev", "cosqa:dev", "nfcorpus:dev"]
MEASURE = "nDCG@10"
Array = np.ndarray[Any, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--adapted", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--passes", nargs="*", default=PASSES)
    parser.add_argument(
        "--keyphrases", nargs="*", default=(), help="SET-start or SET-adapted: vectors of queries, too"
    )
    parser.add_argument("--passages", type=int, default=600, help="passages of a sample of --passes")
    parser.add_argument("--questions", type=int, default=250)
    options = parser.parse_args()
    log.show(log.SILENT)
    options.cache.mkdir(parents=True, exist_ok=True)

    def measured(file: Path, compute: Any, every: Any) -> tuple[dict[str, int], dict[str, Array]]:
        if not file.exists():
            np.savez(file, **compute())
        with np.load(file) as stored:
            own = Features({key: stored[key] for key in stored.files})
        scores = {arm: own.score(scored) for arm, scored in every(own)}
        print(file.stem, {arm: round(float(v.mean()), 4) for arm, v in scores.items()}, flush=True)
        return {"questions": len(own.words), "passages": own.words.shape[1]}, scores

    done: dict[str, Any] = {"scoring": {}, "passes": {}}
    for text in options.passes:
        name, _, split = text.partition(":")
        compute = partial(by_passes, options.data / name, split, options)
        done["passes"][name] = measured(options.cache / f"passes-{name}.npz", compute, one_pass)
    for which in ("start", "adapted"):
        for steps in sorted(options.adapted.glob("*/steps")):
            if not (steps / f"score-tokens-{'start-' * (which == 'start')}real-dev" / "meta.json").exists():
                continue
            name = f"{steps.parent.name}-{which}"
            source, keyphrases = options.data / steps.parent.name, name in options.keyphrases
            compute = partial(stored, source, steps, which, keyphrases=keyphrases)
            done["scoring"][name] = measured(options.cache / f"{name}.npz", compute, arms)
    name, _, split = options.passes[0].partition(":") if options.passes else ("", "", "")
    if name:
        timed = options.cache / f"seconds-{name}.json"
        done["seconds"] = {name: processor_seconds(options.data / name, split, options, timed)}
    result: dict[str, Any] = {"encoder": Path(options.encoder).name, "window": WINDOW}
    result["processor_seconds"] = done.pop("seconds", {})
    for part, sets in done.items():
        result[part] = {"sets": {name: sizes for name, (sizes, _) in sets.items()}}
        result[part]["arms"] = table({name: scores for name, (_, scores) in sets.items()})
    OUT.write_text(dumped({**result, "machine": machine.describe()}), "utf-8")


def table(values: dict[str, dict[str, Array]]) -> list[dict[str, Any]]:
    """A row for each arm: its means, its differences, and where it is significantly worse."""
    rows = []
    for arm in dict.fromkeys(arm for scores in values.values() for arm in scores):
        of = {name: scores[arm] for name, scores in values.items() if arm in scores}
        row: dict[str, Any] = {"arm": arm, MEASURE: {n: round(float(v.mean()), 4) for n, v in of.items()}}
        row["mean"] = round(float(np.mean([v.mean() for v in of.values()])), 4)
        if ":" in arm:
            deltas = {n: v - values[n][arm.partition(":")[0]] for n, v in of.items()}
            row["difference"] = {n: round(float(d.mean()), 4) for n, d in deltas.items()}
            row["p"] = {n: round(randomization_test(d), 4) for n, d in deltas.items()}
            row["mean_difference"] = round(float(np.mean([d.mean() for d in deltas.values()])), 4)
            row["worse"] = [n for n, d in deltas.items() if d.mean() < 0 and row["p"][n] < 0.05]
        rows.append(row)
    return rows


def dumped(result: dict[str, Any]) -> str:
    """As JSON, with a line for each arm."""
    rows = {
        json.dumps(f"{part} {n}"): json.dumps(row)
        for part in ("scoring", "passes")
        for n, row in enumerate(result[part]["arms"])
    }
    for part in ("scoring", "passes"):
        result[part]["arms"] = [f"{part} {n}" for n in range(len(result[part]["arms"]))]
    text = json.dumps(result, indent=1)
    for name, row in rows.items():
        text = text.replace(name, row, 1)
    return text + "\n"


if __name__ == "__main__":
    main()
