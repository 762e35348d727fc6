"""Pre-training speed against the plain way (`pretrain_baseline`), on the same model, pairs and number format.

    python benchmarks/pretrain.py --data DATA/squad_pool --tokenizer FOLDER

Passages of at most 144 tokens and real questions of about 12. Steps of both are taken in turn, each side in a process of
its own, since training decides how its process keeps memory; the median step is reported. Batches are prepared within
the step, not beside it, for both. Data preparation is timed on its own, too. Writes pretrain.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pretrain_baseline import BaselineCoCondenser, BaselineCotMae, Collator

from qontext import api
from qontext.contexts import Context, Sources, match_queries
from qontext.corpus.store import open_store
from qontext.data import records
from qontext.data.collection import load_collection
from qontext.frame import log, machine
from qontext.models.batching import grid_for
from qontext.models.encoder import load_encoder
from qontext.models.precision import autocast, has_bf16
from qontext.pretrain.batches import BatchPlan
from qontext.pretrain.config import PretrainConfig
from qontext.pretrain.masking import Vocabulary
from qontext.training.distributed import join
from qontext.training.optimizer import Optimizer
from qontext.training.step import Stepper

MAX_TOKENS = 144


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", required=True, help="a labeled set in BEIR's layout; its train split is used"
    )
    parser.add_argument("--tokenizer", required=True, help="a model folder whose tokenizer is used")
    parser.add_argument("--presets", nargs="+", default=["mini", "small"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=7)
    options = parser.parse_args()
    log.show(log.SILENT)
    with tempfile.TemporaryDirectory() as folder:
        sources, texts = read(Path(folder), options)
        formats = ["fp32", *(["bf16"] if has_bf16(torch.device("cpu")) else [])]
        rows = [
            compare(name, preset, form, sources, texts, options)
            for preset in options.presets
            for name in ("cocondenser", "cot-mae")
            for form in formats
        ]
    for row in rows:
        for side, name in (("ours", "ratio to ours in fp32"), ("plain", "ratio to the plain way in fp32")):
            like = next(r for r in rows if (r["method"], r["preset"]) == (row["method"], row["preset"]))
            row[name] = round(row["ours pairs/s"] / like[f"{side} pairs/s"], 2)
    result: dict[str, Any] = {
        "what": "pairs per second of pre-training with queries as contexts, ours against the plain way",
        "baseline": "everything padded to 144 tokens, logits at all positions, collation in Python (pretrain_baseline.py)",
        "setting": {"batch": options.batch, "steps": options.steps, "data": Path(options.data).name},
        "machine": machine.describe(),
        "rows": rows,
    }
    if len(formats) == 1:
        result["not measured"] = (
            "bf16: this processor has no bf16 units, and emulating them is slower than fp32"
        )
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(rows, indent=2))


def read(folder: Path, options: argparse.Namespace) -> tuple[Sources, tuple[list[Any], list[Any]]]:
    """Token stores of the judged passages and their questions, and the same tokens as lists."""
    collection = load_collection(options.data)
    questions = collection.queries("train")
    relevant: dict[str, list[str]] = {}
    for query, passages in collection.qrels("train").items():
        for passage in passages:
            relevant.setdefault(passage, []).append(questions[query])
    kept = [p for p in collection.passages() if p.id in relevant]
    with (folder / "corpus.jsonl").open("w") as file:
        for p in kept:
            file.write(json.dumps({"_id": p.id, "title": p.title, "text": p.text}) + "\n")
    rows = [{"passage": p.id, "query": q, "number": n} for p in kept for n, q in enumerate(relevant[p.id])]
    records.write_table(folder / "queries.parquet", records.table_of(rows, records.QUERIES))
    passages = api.split(folder / "corpus.jsonl", keep=True, out=folder / "passages", workers=1)
    stores = [
        open_store(api.tokens(source, tokenizer=options.tokenizer, out=folder / name, workers=1).path)
        for source, name in ((passages, "tokens"), (folder / "queries.parquet", "query-tokens"))
    ]
    sources = Sources(stores[0], MAX_TOKENS - 2, stores[1], match_queries(stores[0], stores[1]))
    lists = [[s.ids[a:b].tolist() for a, b in zip(s.offsets, s.offsets[1:])] for s in stores]
    return sources, (lists[0], lists[1])


def compare(
    name: str,
    preset: str,
    form: str,
    sources: Sources,
    texts: tuple[list[Any], list[Any]],
    options: argparse.Namespace,
) -> dict[str, Any]:
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[form]
    group = join("cpu")
    settings = {
        "passages": "p",
        "method": name,
        "queries": "q",
        "encoder": preset,
        "batch_size": options.batch,
    }
    config = PretrainConfig.make(settings, where="benchmark")
    encoder = load_encoder(preset, tokenizer=options.tokenizer)
    ours = config.objective(encoder).train()
    words = Vocabulary.of(encoder.tokenizer)
    anchors = np.flatnonzero(sources.query_counts > 0)
    plan = BatchPlan(
        sources,
        config.layout(),
        Context("query", sources),
        words,
        anchors,
        None,
        options.batch,
        8192,
        42,
        grid=grid_for(group.device, dtype),
    )
    optimizer = Optimizer(ours, config, 1000, dtype, group.device)
    run = Stepper(ours, optimizer, group, dtype, cache="auto")

    first = sources.queries.groups[sources.query_group]  # type: ignore[union-attr]
    plain, at_plain = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=plain_steps,
        args=(at_plain, name, preset, form, options.tokenizer, texts, anchors, first, options.batch),
    )
    child.start()
    times: dict[str, list[float]] = {"ours": [], "plain": [], "data": []}
    for step in range(options.steps + 1):
        started = time.perf_counter()
        batch = plan(step)
        prepared = time.perf_counter()
        run.step(step, batch)
        middle = time.perf_counter()
        plain.send(step)
        took = plain.recv()
        if step:  # the first is a warm-up
            times["data"].append(prepared - started)
            times["ours"].append(middle - started)
            times["plain"].append(took)
    plain.send(None)
    child.join()
    median = {key: statistics.median(values) for key, values in times.items()}
    return {
        "method": name,
        "preset": preset,
        "format": form,
        "ours pairs/s": round(options.batch / median["ours"], 2),
        "plain pairs/s": round(options.batch / median["plain"], 2),
        "ratio": round(median["plain"] / median["ours"], 2),
        "ratios of single steps": [round(p / o, 2) for p, o in zip(times["plain"], times["ours"])],
        "data preparation share": round(median["data"] / median["ours"], 4),
    }


def plain_steps(
    steps: Any,
    name: str,
    preset: str,
    form: str,
    tokenizer: str,
    texts: Any,
    anchors: Any,
    first: Any,
    batch: int,
) -> None:
    """Takes the plain way's step for each number that is received, and sends the seconds that it took."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[form]
    encoder = load_encoder(preset, tokenizer=tokenizer)
    model = {"cocondenser": BaselineCoCondenser, "cot-mae": BaselineCotMae}[name](encoder.model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    collate = Collator(encoder.tokenizer, MAX_TOKENS)
    while (step := steps.recv()) is not None:
        started = time.perf_counter()
        chosen = anchors[(step * batch + np.arange(batch)) % len(anchors)]
        pairs = [(texts[0][p], texts[1][q]) for p, q in zip(chosen, first[chosen])]
        with autocast(torch.device("cpu"), dtype):
            loss = model(pairs, collate)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        steps.send(time.perf_counter() - started)


if __name__ == "__main__":
    main()
