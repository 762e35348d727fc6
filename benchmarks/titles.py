"""The effect of the titles of passages on `adapt`: in what it trains on, and in what it searches.

    python benchmarks/titles.py DATA/fairytaleqa DATA/medquad DATA/scifact --encoder FOLDER

From one start, the same steps on the same pairs of a passage and one of its keyphrases, as `adapt` trains: contrastive with
mean pooling and cosines. The passage is read by each rule of `--title`, in training and in search alike; `leave, prepend`
trains without titles and searches with them. Keyphrases are those of the passage with its title in all arms. A set's
passages are those of the judgments of its test split and others in equal distances; labels are only measured with.
Differences are against the same start untrained and against `prepend`, paired over questions. A finished arm is not run
again. Writes titles.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from qontext import api
from qontext.data.collection import load_collection, passage_row
from qontext.data.lines import write_jsonl
from qontext.evaluation.comparison import difference
from qontext.evaluation.gather import per_query
from qontext.frame import artifacts, log, machine

OUT = Path(__file__).with_suffix(".json")
ARMS = {
    "prepend": ("prepend",),
    "leave": ("prepend", "leave"),
    "sep": ("sep",),
}
"""Titles that training reads → titles that search reads."""
TOKENS = 128
MEASURES = "nDCG@10 MRR@10 R@100"
MAIN = "nDCG@10"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+", help="labeled sets in BEIR's layout, with a test split")
    parser.add_argument("--encoder", required=True, help="where the training starts")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--passages", type=int, default=1_000, help="passages of a set")
    parser.add_argument("--questions", type=int, default=300, help="questions of a set")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    log.show(log.SILENT)
    settings = {name: getattr(options, name) for name in ("steps", "batch", "passages", "questions", "seed")}
    settings["tokens"] = TOKENS
    done = json.loads(OUT.read_text()) if OUT.exists() else {"settings": settings, "rows": []}
    if done["settings"] != settings:
        raise SystemExit(f"{OUT} has other settings: {done['settings']}")
    for name in options.sets:
        for trained, searched in {"none": ("prepend", "leave", "sep"), **ARMS}.items():
            recorded = {row["trained"] for row in done["rows"] if row["set"] == Path(name).name}
            if trained in recorded:
                continue
            with tempfile.TemporaryDirectory() as folder:
                for row in measured(Path(folder), name, trained, searched, options):
                    done["rows"].append({"set": Path(name).name, "trained": trained, **row})
            done["machine"] = machine.describe()
            OUT.write_text(dumped(compared(done)), "utf-8")
            print(done["rows"][-1]["scores"], flush=True)


def measured(
    folder: Path, name: str, trained: str, searched: tuple[str, ...], options: Any
) -> list[dict[str, Any]]:
    """A row for each rule of search, all with the encoder that was trained by one rule; `none`: with the start."""
    sample = write_sample(folder / "data", name, options)
    encoder, seconds = options.encoder, 0.0
    if trained != "none":
        passages = api.split(folder / "data" / "corpus.jsonl", keep=True, out=folder / "split")
        queries = api.generate(passages, generator="keyphrase", out=folder / "queries")
        began = time.monotonic()
        encoder = api.pretrain(
            passages,
            queries=queries,
            encoder=options.encoder,
            method="cocondenser",
            title=trained,
            vector="mean",
            similarity="cosine",
            temperature=0.05,
            head_weight=0.0,
            late_mlm_weight=0.0,
            lr=5e-5,
            dropout=0.0,
            max_tokens=TOKENS,
            batch_size=options.batch,
            steps=options.steps,
            seed=options.seed,
            out=folder / "encoder",
        )
        seconds = time.monotonic() - began
    rows = []
    for rule in searched:
        vectors = api.encode(
            folder / "data", encoder=encoder, title=rule, max_length=TOKENS, out=folder / f"vectors-{rule}"
        )
        run = api.search(vectors, data=folder / "data", split="test", k=100, out=folder / f"run-{rule}")
        scores = api.evaluate(
            run, folder / "data", split="test", measures=MEASURES, out=folder / f"scores-{rule}"
        )
        _, values = per_query(artifacts.open_artifact(scores.path))
        means = {measure: round(float(column.mean()), 4) for measure, column in values.items()}
        row = {"searched": rule, **sample, "seconds": round(seconds, 1), "scores": means}
        rows.append(row | {"values": [round(float(value), 4) for value in values[MAIN]]})
    return rows


def compared(done: dict[str, Any]) -> dict[str, Any]:
    """Every row with its differences from the start and from `prepend`, both of the same set."""
    of = {(row["set"], row["trained"], row["searched"]): np.array(row["values"]) for row in done["rows"]}
    for row in done["rows"]:
        baselines = {"start": ("none", "prepend"), "prepend": ("prepend", "prepend")}
        for name, key in baselines.items():
            if key != (row["trained"], row["searched"]) and (row["set"], *key) in of:
                d = difference(of[row["set"], *key], np.array(row["values"]))
                row[f"against {name}"] = {
                    field: round(getattr(d, field), 4) for field in ("mean", "low", "high", "p")
                }
    return done


def dumped(done: dict[str, Any]) -> str:
    """As JSON, with a line for each row."""
    head = json.dumps({name: value for name, value in done.items() if name != "rows"}, indent=1)
    rows = ",\n".join(f"  {json.dumps(row)}" for row in done["rows"])
    return f'{head[:-2]},\n "rows": [\n{rows}\n ]\n}}\n'


def write_sample(out: Path, name: str, options: Any) -> dict[str, int]:
    """A part of the set: questions of its test split, the passages that answer them, and others."""
    whole = load_collection(name)
    qrels, texts = whole.qrels("test"), whole.queries("test")
    ids = sorted(qrels)[:: max(1, len(qrels) // options.questions)][: options.questions]
    relevant = {passage for query in ids for passage, grade in qrels[query].items() if grade > 0}
    passages = list(whole.passages())
    others = [p for p in passages if p.id not in relevant]
    count = max(0, options.passages - len(relevant))
    others = others[:: max(1, len(others) // max(1, count))][:count]
    kept = relevant | {p.id for p in others}
    (out / "qrels").mkdir(parents=True)
    own = [p for p in passages if p.id in kept]
    write_jsonl(out / "corpus.jsonl", map(passage_row, own))
    write_jsonl(out / "queries.jsonl", ({"_id": query, "text": texts[query]} for query in ids))
    lines = [f"{q}\t{p}\t{g}" for q in ids for p, g in qrels[q].items() if p in kept]
    (out / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return {"passages": len(own), "questions": len(ids), "titled": sum(bool(p.title) for p in own)}


if __name__ == "__main__":
    main()
