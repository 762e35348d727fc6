"""Valid commands: small inputs, and for every verb command lines that succeed on them.

`@name` in a setting stands for the input of that name. Inputs that verbs write are made by the verbs themselves, so
that making them is the first test of the commands.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Settings = dict[str, Any]
TRAINING = {"steps": 1, "batch_size": 4, "device": "cpu", "precision": "fp32"}
PYDOCS = "pydocs:json"
ADAPT = {"documents": "@docs.jsonl", "encoder": "@encoder", "out": "OUT", "dry_run": True}

MADE: dict[str, tuple[str, Settings]] = {
    "passages": ("split", {"source": "@set/corpus.jsonl", "keep": True, "workers": 1}),
    "adapted/index/passages": ("split", {"source": "@docs.jsonl", "workers": 1}),
    "short": ("split", {"source": "@docs.jsonl", "max_tokens": 16, "workers": 1}),
    "tokenizer": ("train-tokenizer", {"passages": "@passages", "vocabulary": 200}),
    "tokens": ("tokens", {"texts": "@passages", "tokenizer": "@tokenizer", "workers": 1}),
    "queries": ("generate", {"passages": "@passages", "generator": "keyphrase", "per_passage": 2}),
    "short-queries": ("generate", {"passages": "@short", "generator": "keyphrase", "per_passage": 2}),
    "encoder": (
        "pretrain",
        {"passages": "@short", "encoder": "tiny", "tokenizer": "@tokenizer", "max_tokens": 24, **TRAINING},
    ),
    "groups": ("mine", {"run": "@ranks.trec", "qrels": "@set", "data": "@set", "per_query": 2}),
    "reranker": (
        "train-reranker",
        {"groups": "@groups", "passages": "@set", "encoder": "@encoder", "candidates": 2, "max_length": 24, **TRAINING},
    ),
    "vectors": ("encode", {"texts": "@passages", "encoder": "@encoder", "device": "cpu", "precision": "fp32"}),
    "hnsw": ("index", {"source": "@vectors", "backend": "faiss-hnsw"}),
    "colbert": (
        "finetune",
        {
            "groups": "@groups", "passages": "@set", "encoder": "@encoder", "passages_per_query": 2,
            "representation": "tokens", **TRAINING,
        },
    ),
    "multi": ("encode", {"texts": "@set", "encoder": "@colbert", "device": "cpu", "precision": "fp32"}),
    "residual": ("index", {"source": "@multi", "backend": "residual", "centroids": 8}),
    "bm25": ("index", {"source": "@passages", "backend": "bm25"}),
    "run": ("retrieve", {"index": "@bm25", "data": "@set", "k": 5}),
    "scores": ("evaluate", {"run": "@run", "qrels": "@set"}),
    "scores-of-ranks": ("evaluate", {"run": "@ranks.trec", "qrels": "@set"}),
    "t5": (
        "train-generator",
        {"data": ["@set"], "preset": "tiny", "vocabulary": 64, "steps": 1, "batch_size": 2, "device": "cpu"},
    ),
}  # fmt: skip
"""Inputs that verbs write, in an order in which they can be made."""

COMMANDS: dict[str, Settings] = {
    "split": {"source": "@docs.jsonl", "max_tokens": 30, "workers": 1},
    "split:tsv": {"source": "@docs.tsv", "workers": 1},
    "split:parquet": {"source": "@docs.parquet", "workers": 1},
    "split:folder": {"source": "@text", "workers": 1},
    "split:skip": {"source": "@docs.jsonl", "on_error": "skip", "workers": 1},
    "docset": {"source": PYDOCS, "passages": 10, "queries": 5},
    "collect": {"passages": "@docs.tsv", "queries": ["@queries.tsv"], "test": "@set/qrels/test.tsv"},
    "train-tokenizer": MADE["tokenizer"][1],
    "tokens": MADE["tokens"][1],
    "tokens:queries": {"texts": "@queries", "tokenizer": "@tokenizer", "workers": 1},
    "generate": MADE["queries"][1],
    "generate:file": {"passages": "@passages", "generator": "file", "queries": "@written.jsonl"},
    "generate:t5": {
        "passages": "@passages", "generator": "t5", "model": "@t5", "max_new_tokens": 2, "per_passage": 1,
        "device": "cpu",
    },
    "generate:like": {**MADE["queries"][1], "like": "@queries.tsv"},
    "train-generator": MADE["t5"][1],
    "filter": {"queries": "@queries", "passages": "@passages"},
    "filter:dense": {"queries": "@queries", "passages": "@passages", "retriever": "@encoder", "device": "cpu"},
    "filter:reranker": {
        "queries": "@queries", "passages": "@passages", "by": "reranker", "reranker": "@reranker", "device": "cpu",
    },
    "expand": {"queries": "@queries", "passages": "@passages"},
    "holdout": {"passages": "@passages", "queries": "@queries", "labels": "@set"},
    "holdout:asked": {
        "passages": "@passages", "queries": "@queries", "asked": "@queries.tsv", "answers": "@ranks.trec",
    },
    "pretrain": MADE["encoder"][1],
    "pretrain:query": {
        "passages": "@passages", "queries": "@queries", "context": "query", "encoder": "@encoder", "max_tokens": 24,
        **TRAINING,
    },
    "pretrain:bow": {
        "passages": "@passages", "queries": "@queries", "method": "bow", "target": "both", "encoder": "@encoder",
        "contrastive_weight": 0.5, "max_tokens": 24, **TRAINING,
    },
    "pretrain:simlm": {
        "passages": "@passages", "method": "simlm", "generator": "@encoder", "encoder": "@encoder", "max_tokens": 24,
        **TRAINING,
    },
    "pretrain:costa": {
        "passages": "@passages", "method": "costa", "encoder": "@encoder", "spans": 2, "max_tokens": 24, **TRAINING,
    },
    "mine": MADE["groups"][1],
    "mine:files": {
        "run": "@ranks.trec", "also": ["@run"], "qrels": "@set/qrels/train.tsv", "queries": "@set/queries.jsonl",
        "passages": "@passages", "scores": "@ranks.trec", "margin": 0.1, "random": 1,
    },
    "finetune": {
        "groups": "@groups", "passages": "@set", "encoder": "@encoder", "passages_per_query": 2, **TRAINING,
    },
    "finetune:teacher": {
        "groups": "@groups", "passages": "@passages", "encoder": "@encoder", "passages_per_query": 2,
        "teacher": "@ranks.trec", "loss": "kl", "dev": "@set", **TRAINING,
    },
    "finetune:clusters": {
        "groups": "@groups", "passages": "@passages", "encoder": "@encoder", "passages_per_query": 2, "clusters": 2,
        "teacher": "@ranks.trec", "loss": "kl", "dimensions": [8], "contrastive_weight": 0.1, **TRAINING,
    },
    "finetune:rank": {
        "groups": "@groups", "passages": "@passages", "encoder": "@encoder", "passages_per_query": 2,
        "teacher": "@ranks.trec", "loss": "rank", **TRAINING,
    },
    "train-reranker": MADE["reranker"][1],
    "encode": MADE["vectors"][1],
    "index": MADE["hnsw"][1],
    "index:bm25": MADE["bm25"][1],
    "index:residual": MADE["residual"][1],
    "index:faiss": {"source": "@vectors", "backend": "faiss"},
    "search": {"directory": "@bm25", "question": "stone", "k": 5},
    "retrieve": {"index": "@vectors", "data": "@set", "k": 5, "device": "cpu", "precision": "fp32"},
    "retrieve:hnsw": {"index": "@hnsw", "queries": "@set/queries.jsonl", "k": 5, "device": "cpu", "precision": "fp32"},
    "retrieve:residual": {"index": "@residual", "data": "@set", "k": 5, "device": "cpu", "precision": "fp32"},
    "retrieve:bm25": {"index": "@bm25", "data": "@set", "split": "test", "k": 5},
    "retrieve:words": {"bm25": True, "passages": "@docs.tsv", "queries": "@queries.tsv", "k": 5},
    "retrieve:system": {"system": r"sed -E 's/.*: .([^,]*).,.*/\1 Q0 d1 1 1 mine/'", "data": "@set", "k": 5},
    "export": {"source": "@vectors"},
    "push": {"directory": "@encoder", "repository": "someone/encoder", "scores": ["@scores"], "dry_run": True},
    "fuse": {"runs": ["@ranks.trec", "@run"], "k": 5},
    "fuse:tuned": {"runs": ["@ranks.trec", "@run"], "tune": "@set/qrels/test.tsv"},
    "rerank": {"run": "@ranks.trec", "reranker": ["@reranker"], "data": "@set", "k": 2, "device": "cpu"},
    "evaluate": MADE["scores-of-ranks"][1],
    "evaluate:file": {"run": "@ranks.trec", "qrels": "@set/qrels/test.tsv", "measures": "nDCG@10"},
    "compare": {"runs": ["@ranks.trec", "@run"], "qrels": "@set", "data": "@set"},
    "report": {"runs": ["@scores", "@scores-of-ranks"], "data": "@set"},
    "adapt": ADAPT,
    "adapt:labels": {**ADAPT, "labels": "@set"},
    "adapt:questions": {**ADAPT, "questions": "@queries.tsv"},
    "adapt:reranker": {**ADAPT, "reranker": "@reranker"},
    "adapt:also": {**ADAPT, "also": ["mine=sh -c 'echo d1 # $QONTEXT_QUESTION'"]},
    "refresh": {"out": "OUT", "source": ["@docs.jsonl"], "words": True},
    "run": {"recipe": "@recipe.toml", "out": "OUT"},
    "recipes": {},
    "demo": {"source": PYDOCS, "passages": 10, "budget": "1s", "out": "OUT"},
    "serve": {"directories": ["@vectors"], "port": 0, "dry_run": True, "device": "cpu", "precision": "fp32"},
    "serve:bm25": {"directories": ["@bm25"], "data": "@set", "port": 0, "dry_run": True},
    "annotate": {
        "source": "@short", "pairs": "contexts", "queries": "@short-queries", "out": "OUT", "documents": 5, "export": True,
    },
    "show": {"directory": "@passages"},
    "show:verify": {"directory": "@passages", "verify": True},
}  # fmt: skip
"""Verb, or verb:variant → settings. `OUT` is the directory to write, for commands that take it as a setting."""

LONG = {"demo"}
"""Verbs whose valid command takes minutes: only refusals are tried. `tests/test_demo.py` runs it."""

WORDS = (
    ["river", "stone", "bridge", "water", "boat", "mill", "flour", "bread", "oven", "fire", "leaf", "sail"],
    ["winter", "harbor", "ferry", "pilot", "gravel", "lamp", "keeper", "storm", "engine", "garden", "bell"],
)


def write_inputs(folder: Path) -> None:
    """Inputs that no verb makes: documents in several formats, a labeled set, a run, generated queries, a recipe."""
    documents = [(f"d{n}", f"Report {n}", _text(n)) for n in range(12)]
    rows = [{"_id": id, "title": title, "text": text} for id, title, text in documents]
    _lines(folder / "docs.jsonl", rows)
    _lines(folder / "set" / "corpus.jsonl", rows)
    (folder / "docs.tsv").write_text("".join(f"{id}\t{text}\n" for id, _, text in documents))
    pq.write_table(pa.Table.from_pylist(rows), folder / "docs.parquet")
    (folder / "text").mkdir()
    for id, title, text in documents[:3]:
        (folder / "text" / f"{id}.txt").write_text(f"{title}\n\n{text}\n")
    queries = [(f"q{n}", " ".join(_text(n).split()[:3])) for n in range(12)]
    _lines(folder / "set" / "queries.jsonl", [{"_id": id, "text": text} for id, text in queries])
    (folder / "queries.tsv").write_text("".join(f"{id}\t{text}\n" for id, text in queries))
    (folder / "set" / "qrels").mkdir()
    for split, numbers in {"train": range(4), "dev": range(4, 8), "test": range(8, 12)}.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in numbers)]
        (folder / "set" / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    hits = [(n, (n + step) % 12, step + 1) for n in range(12) for step in range(5)]
    (folder / "ranks.trec").write_text("".join(f"q{n} Q0 d{p} {r} {9.5 - r} mine\n" for n, p, r in hits))
    _lines(folder / "written.jsonl", [{"id": id, "queries": [text.split()[0]]} for id, _, text in documents])
    data = json.dumps(str(folder / "set"))
    (folder / "recipe.toml").write_text(RECIPE.replace("DATA", data))
    (folder / "adapted" / "steps").mkdir(parents=True)
    (folder / "adapted" / "steps" / "recipe.toml").write_text("# What was run.\n")
    about = {"format": 1, "index": "index", "system": "bm25", "weights": [0.7, 0.3], "read_tokens": 256}
    (folder / "adapted" / "adapted.json").write_text(json.dumps(about))


RECIPE = """\
[recipe]
title = "BM25"

[inputs]
data = DATA

[search]
verb = "retrieve"
data = "$data"
bm25 = true
k = 5

[evaluate]
run = "@search"
qrels = "$data"
"""


def _text(number: int) -> str:
    first, second = (words[number % len(words) :] + words for words in WORDS)
    return " ".join(f"The {a} of {b} {number} is old." for a, b in list(zip(first, second))[:6])


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
