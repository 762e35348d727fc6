"""A folder with everything that examples in help and documentation name, tiny, and commands run in copies of it.

An example is run as it is written, in a copy of the workspace without what it writes, with three changes so that it
takes seconds: the flags of `SMALLER` are appended, models of the hub are those of `HUB`, found in a cache that is filled
here, and of the documentation of all packages only a part is read (`SOURCES`).
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.examples.collect import Example
from tests.tiny import CHAT, WORDS, Server, save_llama, write_inputs, write_lines

from qontext.data import records

TRAINING = "--steps 2 --batch-size 4 --precision fp32 --device cpu"
COMPUTING = "--precision fp32 --device cpu"
SMALLER = {
    "generate (?!.*--generator (keyphrase|llm|file|title|lead|span|terms))": "--device cpu --max-new-tokens 4",
    "generate .*--generator terms": COMPUTING,
    "train-generator": "--preset tiny --vocabulary 200 --steps 2 --batch-size 4 --max-passage-tokens 24 --device cpu",
    "pretrain": f"{TRAINING} --max-tokens 40",
    "finetune": f"{TRAINING} --passages-per-query 3",
    "train-reranker": f"{TRAINING} --candidates 3",
    "filter .*--re(triever|ranker)": "--device cpu",
    "(encode|rerank)": COMPUTING,
    "retrieve (?!--bm25)": "--device cpu",
    "search (handbook|docs/)": "--no-vectors",
    "adapt": "--encoder encoder --budget 1m --yes",
    "run recipe.toml .*pretrain": "--set pretrain.steps=2",
    "run (?!recipe.toml)": "--dry-run",
    "serve": "--precision fp32 --device cpu --port 0",
    "annotate": "--port 0",
}
"""Commands that begin like this → flags that make them fast."""

HUB = {
    "bert-base-uncased": "encoder",
    "google/t5-v1_1-small": "generator",
    "google/t5-v1_1-base": "generator",
    "doc2query/all-with_prefix-t5-base-v1": "generator",
    "sentence-transformers/all-MiniLM-L6-v2": "retriever",
}
"""Model on the hub → what in the workspace stands for it."""

SOURCES = {"pydocs:": "pydocs:json,email", "pydocs:numpy,torch": "pydocs:json,email"}
"""Source → a part of it."""

SPLITS = {"train": range(20), "dev": range(20, 25), "test": range(25, 30)}
TRAIN = "--split train --k 20"
MADE = {
    "passages": "split docs.jsonl --max-tokens 40",
    "tokenizer": "train-tokenizer passages --vocabulary 300",
    "tokens": "tokens passages --tokenizer tokenizer",
    "queries": "generate passages --generator keyphrase --per-passage 2",
    "filtered": "filter queries --passages passages",
    "encoder": "pretrain passages --queries queries --encoder tiny --tokenizer tokenizer",
    "generator": "train-generator data",
    "question-model": "train-generator data --model language-model",
    "weights": "train-generator data --learns terms --model encoder",
    "title-writer": "train-generator data --learns titles",
    "titles": "generate data --of queries --model title-writer --per-passage 1",
    "bm25-train.trec": f"retrieve --bm25 --data data {TRAIN}",
    "groups": "mine bm25-train.trec data --data data",
    "retriever": "finetune groups --passages data --encoder encoder",
    "reranker": "train-reranker groups --passages data --encoder encoder",
    "vectors": "encode data --encoder retriever",
    "late-retriever": "finetune groups --passages data --encoder encoder --representation tokens",
    "token-vectors": "encode data --encoder late-retriever",
    "index": "index vectors --backend faiss-hnsw",
    "bm25.trec": "retrieve --bm25 --data data --split test",
    "dense.trec": "retrieve vectors --data data --split test",
    "dense-train.trec": f"retrieve vectors --data data {TRAIN}",
    "dev-bm25.trec": "retrieve --bm25 --data data --split dev",
    "dev-dense.trec": "retrieve vectors --data data --split dev",
    "run.trec": "fuse bm25.trec dense.trec",
    "tuned": "fuse dev-bm25.trec dev-dense.trec --method minmax --tune data/qrels/dev.tsv",
    "teacher": "rerank groups --reranker reranker --data data",
    "scores": "evaluate run.trec data",
    "bm25-scores": "evaluate bm25.trec data",
    "dense-scores": "evaluate dense.trec data",
    "nq.trec": "retrieve --bm25 --passages passages --queries nq-test.qa.csv",
    "generated-bm25.trec": "retrieve --bm25 --passages passages --queries queries --k 20",
    **{
        f"runs/{name}-seed{seed}/search": f"retrieve --bm25 --data data --split test --b 0.{seed}"
        for name in ("base", "ours")
        for seed in (1, 2)
    },
    "runs/recipe": "run recipe.toml",
    "runs/mine": "adapt docs.jsonl",
}
"""Name in the examples → the command that makes it, without --out and the flags of `SMALLER`; in an order that works."""

SAME = {"hybrid.trec": "run.trec", "reranker-1": "reranker", "reranker-2": "reranker"}
"""Name in the examples → what serves as it."""

RECIPE = """
[recipe]
title = "Pre-train, fine-tune, search and evaluate"

[split]
source = "docs.jsonl"
max_tokens = 40

[generate]
passages = "@split"
generator = "keyphrase"
per_passage = 2

[pretrain]
passages = "@split"
queries = "@generate"
encoder = "tiny"
tokenizer = "tokenizer"
context = "query"
steps = 2
batch_size = 4
max_tokens = 40
precision = "fp32"
device = "cpu"

[finetune]
groups = "data"
encoder = "@pretrain"
steps = 2
batch_size = 4
precision = "fp32"
device = "cpu"

[encode]
texts = "data"
encoder = "@finetune"
precision = "fp32"
device = "cpu"

[search]
verb = "retrieve"
index = "@encode"
data = "data"
split = "test"
precision = "fp32"
device = "cpu"

[evaluate]
run = "@search"
qrels = "data"
"""


class Workspace:
    """The folder, and the server that runs commands."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder = folder / "workspace"
        self.cache = folder / "hub"
        cache = str(folder / "cache")
        environment = {"HF_HUB_CACHE": str(self.cache), "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": cache}
        self.server = Server(server, 0, environment=environment)

    def make(self) -> None:
        """The inputs, then what commands make of them."""
        self.folder.mkdir()
        write_inputs(self.folder, "data", SPLITS)
        _write_other_formats(self.folder)
        (self.folder / "recipe.toml").write_text(RECIPE)
        save_llama(self.folder / "language-model", WORDS, CHAT)
        self._publish("HuggingFaceTB/SmolLM2-135M-Instruct", "language-model")
        for name, command in MADE.items():
            self.run(Example(f"qontext {command} --out {name}"), self.folder)
            for model, folder in HUB.items():
                if folder == name:
                    self._publish(model, name)
        for name, served in SAME.items():
            copy = shutil.copytree if (self.folder / served).is_dir() else shutil.copy
            copy(self.folder / served, self.folder / name)
        ids = records.read_table(self.folder / "passages", records.PASSAGES, columns=["id"])
        predicted = [{"id": id, "queries": ["a query"]} for part in ids for id in part["id"].to_pylist()]
        _write_compressed(self.folder / "predicted.jsonl.gz", predicted)

    def copy(self, folder: Path) -> Path:
        """A copy that shares the files; none is changed in place."""
        return Path(shutil.copytree(self.folder, folder, copy_function=os.link))

    def run(self, example: Example, folder: Path) -> str:
        """Run the example in the folder, without what it writes, and return what it said.

        One that made a part of the workspace has run.
        """
        line = " ".join(example.argv)
        if folder != self.folder and any(line == f"{command} --out {name}" for name, command in MADE.items()):
            return ""
        for value in re.findall(
            r"\binputs\.\w+=(\S+)", line
        ):  # a dry run takes an unknown name for one of the hub's
            assert (folder / value).exists(), f"{example.text}: the workspace has no {value}"
        for name in () if example.argv[0] == "adapt" else example.outputs:  # adapt updates what it wrote
            _remove(folder / name)
        argv = [SOURCES.get(word, word) for word in example.argv]
        smaller = " ".join(flags for pattern, flags in SMALLER.items() if re.match(pattern, line))
        return self._finish({"argv": [*argv, *smaller.split()]}, folder, example.ranks)

    def execute(self, code: str, folder: Path) -> str:
        """Run Python code in the folder, without what it writes."""
        for name in re.findall(r'\bout="([^"]+)"', code):
            _remove(folder / name)
        return self._finish({"code": code}, folder)

    def _finish(self, order: dict[str, object], folder: Path, ranks: int = 1) -> str:
        running = self.server.launch({**order, "cwd": str(folder)}, self.server.folder / "said", ranks)
        codes = running.wait()
        assert codes == {0}, f"{order}\n{running.text()}"
        return running.text()

    def _publish(self, model: str, name: str) -> None:
        """Make the folder what the hub's cache has of the model."""
        entry = self.cache / f"models--{model.replace('/', '--')}"
        (entry / "refs").mkdir(parents=True)
        (entry / "refs" / "main").write_text("0" * 40)
        shutil.copytree(self.folder / name, entry / "snapshots" / ("0" * 40))


def _write_other_formats(folder: Path) -> None:
    """The documents as .gz and TSV and as a folder, labels, queries and negatives from elsewhere, a benchmark."""
    documents = [json.loads(line) for line in (folder / "docs.jsonl").read_text().splitlines()]
    (folder / "docs.jsonl.gz").write_bytes(gzip.compress((folder / "docs.jsonl").read_bytes()))
    (folder / "docs.tsv").write_text(
        "".join(f"{d['_id']}\thttp://localhost/\t{d['title']}\t{d['text']}\n" for d in documents)
    )
    (folder / "my_search.py").write_text("import sys; sys.stdin.read()\n")
    (folder / "handbook").mkdir()
    for document in documents:
        (folder / "handbook" / f"{document['_id']}.txt").write_text(document["text"])
    (folder / "handbook" / "guide").mkdir()
    (folder / "handbook" / "guide" / "mill.html").write_text(
        "<h1>The mill</h1><h2>Flour</h2><p>It grinds flour."
    )
    shutil.copytree(folder / "handbook", folder / "docs")
    labels = [{"query": f"which {d['title']}", "passage": d["_id"]} for d in documents]
    write_lines(folder / "labels.jsonl", labels)
    (folder / "questions.txt").write_text("".join(f"where is {d['title']}?\n" for d in documents))
    (folder / "nq-test.qa.csv").write_text(
        "where is the mill?\t['river']\nwhat is bread?\t['flour', 'oven']\n"
    )
    (folder / "queries.train.tsv").write_text("".join(f"{n}\tquery {n}\n" for n in range(9)))
    (folder / "qrels.train.tsv").write_text("".join(f"{n}\t0\t{n}\t1\n" for n in range(9)))
    (folder / "queries.dev.tsv").write_text("".join(f"{n}\tquery {n}\n" for n in range(9, 12)))
    (folder / "qrels.dev.tsv").write_text("".join(f"{n}\t0\t{n}\t1\n" for n in range(9, 12)))
    (folder / "queries.dev.small.tsv").write_text("9\tquery 9\n")
    (folder / "qrels.dev.small.tsv").write_text("9\t0\t9\t1\n")
    for name, column in (("collection.tsv", "text"), ("para.txt", "text"), ("para.title.txt", "title")):
        (folder / name).write_text("".join(f"{n}\t{column} {n}\n" for n in range(30)))
    negatives = [{"qid": n, "pos": [n], "neg": {"bm25": [n + 10, n + 20]}} for n in range(9)]
    _write_compressed(folder / "msmarco-hard-negatives.jsonl.gz", negatives)
    shutil.copytree(folder / "data", folder / "beir-data" / "scifact")
    shutil.copytree(folder / "data", folder / "beir-data" / "nfcorpus")


def _write_compressed(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
