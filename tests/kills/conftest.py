"""Every stage's command on a few documents, and what it writes when nothing disturbs it.

The commands are run in order, each once, and what one writes is what later ones read. Two servers start the processes:
the reference's has another hash seed than that of the runs that are disturbed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests import tiny
from tests.tiny import WORDS, Running

from qontext.frame import artifacts
from qontext.training.metrics import read

KILLS = int(os.environ.get("QONTEXT_KILLS", "1"))
"""The number of times that each command is killed. With the default, what resumes on a disk that was full stands for all."""

TRAINING = "--batch-size 4 --log-every 2 --checkpoint-minutes 0 --precision fp32 --device cpu"
LENGTHS = "--query-length 12 --passage-length 24 --passages-per-query 3"
COMMANDS = {
    "split": "split docs.jsonl --on-error skip --max-tokens 40 --short-span-probability 0.2 --workers 2",
    "docset": "docset pydocs:json,email --passages 60 --queries 20",
    "collect": "collect labeled --queries labeled/queries.jsonl --train labeled/qrels/train.tsv",
    "train-tokenizer": "train-tokenizer split --vocabulary 300",
    "tokens": "tokens split --tokenizer train-tokenizer --workers 2",
    "generate": "generate split --generator keyphrase --part-passages 8",
    "generate-like": "generate split --generator keyphrase --like asked.txt --part-passages 8",
    "train-generator": "train-generator labeled --preset tiny --vocabulary 200 --batch-size 8 --steps 8 --dev-every 2 "
    "--patience 9 --max-passage-tokens 24 --precision fp32 --device cpu",
    "generate-t5": "generate split --model train-generator --max-new-tokens 6 --part-passages 16 --precision fp32",
    "expand": "expand generate --passages split",
    "holdout": "holdout split generate --share 0.3",
    "search-asked": "retrieve --bm25 --passages split --queries asked.txt --k 20",
    "holdout-asked": "holdout split generate --asked asked.txt --answers search-asked --share 0.3",
    "pretrain": "pretrain split --method cocondenser --queries generate --encoder tiny --tokenizer train-tokenizer "
    f"--steps 7 --condenser-steps 3 --max-tokens 40 --workers 1 {TRAINING}",
    "pretrain-2": "pretrain split --method mlm --encoder tiny --tokenizer train-tokenizer --steps 7 --max-tokens 40 "
    f"--workers 1 {TRAINING}",
    "pretrain-share": "pretrain split --method mlm --encoder pretrain --initial-share 0.5 --steps 7 --max-tokens 40 "
    f"--workers 1 {TRAINING}",
    "filter": "filter generate --passages split --by retrieval --retriever pretrain",
    "search-bm25": "retrieve --bm25 --data labeled --split train --k 20",
    "mine": "mine search-bm25 labeled/qrels/train.tsv --data labeled --depth 20 --per-query 3",
    "finetune": f"finetune mine --passages labeled --encoder pretrain --steps 7 --dev labeled --dev-every 3 {LENGTHS} "
    f"{TRAINING}",
    "finetune-multi": "finetune mine --passages labeled --encoder pretrain --representation tokens --token-dimensions 16 "
    f"--steps 5 {LENGTHS} {TRAINING}",
    "train-reranker": f"train-reranker mine --passages labeled --encoder pretrain --steps 7 {TRAINING}",
    "encode": "encode labeled --encoder finetune --precision fp32",
    "encode-tokens": "encode labeled --encoder finetune --window 16 --tokens --precision fp32",
    "encode-multi": "encode labeled --encoder finetune-multi --precision fp32",
    "index-bm25": "index labeled --backend bm25",
    "index-hnsw": "index encode --backend faiss-hnsw",
    "index-milvus": "index encode --backend milvus",
    "index-residual": "index encode-multi --backend residual --centroids 16",
    "export": "export encode",
    "search": "retrieve encode --data labeled --split dev --k 20",
    "search-residual": "retrieve index-residual --data labeled --split dev --k 20 --precision fp32",
    "search-words": "retrieve --bm25 --data labeled --split dev --k 20",
    "fuse": "fuse search search-words",
    "fuse-tuned": "fuse search search-words --method minmax --tune labeled/qrels/dev.tsv",
    "rerank": "rerank search --reranker train-reranker --data labeled --precision fp32",
    "rerank-tokens": "rerank search --tokens encode-tokens --data labeled",
    "search-system": f'retrieve --system "{sys.executable} system.py p3 p5" --data labeled --split train',
    "evaluate": "evaluate rerank labeled --split dev",
    "report": "report evaluate --data labeled",
    "run": "run recipe.toml",
    "adapt": "adapt docs.jsonl --encoder pretrain --budget 10m",
    "adapt-asked": "adapt docs.jsonl --encoder pretrain --encoder pretrain-share --questions asked.txt "
    f'--reranker train-reranker --also "mine={sys.executable} system.py d3 d5" --budget 10m',
    "refresh": "refresh --source docs.jsonl --words",
}
ADAPTS = ("adapt", "adapt-asked")
"""What carries out a plan, which depends on the speed of the machine."""
RANKS = {"pretrain-2": 2}
"""Commands that several processes work on together, as torchrun starts them."""

UPDATE = "adapt changed.jsonl --encoder pretrain --budget 10m"
"""After `adapt`: one document is new, one is changed, one is gone."""

RECIPE = """
[recipe]
title = "Two trainings and a search"

[split]
source = "docs.jsonl"
on_error = "skip"
max_tokens = 40

[pretrain]
passages = "@split"
method = "mlm"
encoder = "tiny"
tokenizer = "train-tokenizer"
steps = 4
batch_size = 4
max_tokens = 40
checkpoint_minutes = 0
precision = "fp32"
device = "cpu"

[search]
verb = "retrieve"
bm25 = true
data = "labeled"
split = "dev"

[evaluate]
run = "@search"
qrels = "labeled"
split = "dev"
"""


SYSTEM = """
import json, sys
for line in sys.stdin:
    for rank, id in enumerate(sys.argv[1:], 1):
        print(json.loads(line)["id"], "Q0", id, rank, 1 / rank, "mine")
"""


def write_inputs(folder: Path) -> None:
    """The tiny inputs, but the last document has an id that is taken, which a resumed run must know."""
    tiny.write_inputs(folder, "labeled", {"train": range(20), "dev": range(20, 30)})
    documents = (folder / "docs.jsonl").read_text()
    (folder / "docs.jsonl").write_text(documents.replace('"d29"', '"d0"'))
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "system.py").write_text(SYSTEM)
    asked = (f"where in chapter {n} is the {WORDS[n % 12]}" for n in range(24))
    (folder / "asked.txt").write_text("".join(f"{question}\n" for question in asked))
    lines = (folder / "docs.jsonl").read_text().splitlines()
    new = lines[1].replace('"d1"', '"d99"').replace("Chapter 1", "Chapter 99")
    changed = [*lines[1:5], lines[5].replace("river", "harbor"), *lines[6:], new]
    (folder / "changed.jsonl").write_text("".join(line + "\n" for line in changed))


class Server(tiny.Server):
    def start(self, name: str, out: Path, *more: str, interrupt: Path | str = "") -> Running:
        """Start the command of this name, with as many processes as it has.

        It gets a SIGINT in the last step of the training that writes the directory `interrupt`.
        """
        where = [str(out)] if name == "refresh" else ["--out", str(out)]
        order = {"argv": [*shlex.split(COMMANDS[name]), *where, *more], "interrupt": str(interrupt)}
        return self.launch(order, self.folder / f"{name}.said", RANKS.get(name, 1))


@dataclass
class World:
    """A folder of inputs and reference results."""

    folder: Path
    reference: Server
    disturbed: Server
    seconds: dict[str, float] = field(default_factory=dict)

    def whole(self, name: str) -> Path:
        """The output of the command when it is left alone; made when it is first asked for, with what it reads."""
        for needed in self.needs(name):
            self.whole(needed)
        out = self.folder / name
        if name not in self.seconds:
            if name in ADAPTS:
                shutil.copytree(self.planned(name), out)
            self.seconds[name] = self.run(name, out)
        return out

    def planned(self, name: str = "adapt") -> Path:
        """A directory in which adapt has planned, so that it is the same plan that every run carries out."""
        plan = f"{name}-planned"
        out = self.folder / plan
        if plan not in self.seconds:
            self.seconds[plan] = self.run(name, out, "--dry-run")
        return out

    def updated(self) -> Path:
        """The directory of adapt after an update that was left alone."""
        out = self.folder / "updated"
        if "updated" not in self.seconds:
            shutil.copytree(self.whole("adapt"), out)
            started = time.monotonic()
            self.reference.run([*UPDATE.split(), "--out", str(out)], self.folder / "updated.said")
            self.seconds["updated"] = time.monotonic() - started
            vectors = artifacts.open_artifact(out / "index-2" / "vectors").summary
            assert vectors["reused"] > vectors["encoded_now"] > 0
        return out

    def run(self, name: str, out: Path, *more: str) -> float:
        """Run it undisturbed, and return how many seconds it took."""
        running = self.reference.start(name, out, *more)
        assert running.wait() == {0}, running.text()
        return time.monotonic() - running.since

    def needs(self, name: str) -> list[str]:
        words = {*COMMANDS[name].split()[1:], *(["train-tokenizer"] if name == "run" else [])}
        return [other for other in COMMANDS if other in words]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    for package in ("faiss", "milvus_lite", "sentence_transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = tmp_path_factory.mktemp("kills")
    write_inputs(folder)
    servers = [Server(folder, seed) for seed in (1, 2)]
    yield World(folder, *servers)
    for server in servers:
        server.close()


def results(out: Path) -> dict[str, str]:
    """The hashes of all parts in the directory that tell what was made, not how it went, as logs and model cards do.

    Of these only the steps in which something was logged, and what a training measured to decide when to stop.
    """
    recorded = {}
    for meta in sorted(out.rglob(artifacts.META)):
        artifact = artifacts.open_artifact(meta.parent)
        assert artifact.verify() == []
        for name, part in artifact.meta["parts"].items():
            is_page = artifact.verb == "evaluate" and name.startswith(artifacts.DERIVED)  # with times
            if not name.startswith(artifacts.LOGS) and not is_page and Path(name).name != "README.md":
                recorded[f"{meta.parent.relative_to(out)}/{name}"] = part["hash"]
            if name == "logs/metrics.jsonl":
                logged = [(line["phase"], line["step"]) for line in read(meta.parent / name)]
                recorded[f"{meta.parent.relative_to(out)}/{name}"] = str(logged)
        measured = {name: artifact.summary.get(name) for name in ("dev", "history")}
        recorded[f"{meta.parent.relative_to(out)} measured"] = str(measured)
    assert recorded
    return recorded


def made_by_adapt(out: Path) -> dict[str, str]:
    """Its report tells how long everything took."""
    return {name: recorded for name, recorded in results(out).items() if not name.startswith("report/")}


def files(out: Path) -> list[str]:
    """All files but the locks, which stay."""
    names = (path.relative_to(out) for path in out.rglob("*") if path.is_file())
    return sorted(str(name) for name in names if not name.name.startswith(".lock"))
