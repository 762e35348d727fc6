"""Inputs that may not be read and places that may not be written: a sentence with the name, from every verb.

Permissions do not bind root, so a process of root gives up that privilege first.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import json, sys
from pathlib import Path
from typer.testing import CliRunner
from qontext.cli import app
said = []
for locked, commands in json.loads(sys.argv[1]).items():
    mode = Path(locked).stat().st_mode
    Path(locked).chmod(0 if mode & 0o200 else mode)
    for line in commands:
        done = CliRunner().invoke(app, line.replace("made", f"made{len(said)}").split())
        said.append([locked, line, done.exit_code, done.stderr])
    Path(locked).chmod(mode)
print(json.dumps(said))
"""

LOCKED = {
    "docs.jsonl": [
        "split docs.jsonl --out made",
        "adapt docs.jsonl --out made",
        "encode docs.jsonl --encoder encoder --out made",
    ],
    "passages/part-00000.parquet": [
        "tokens passages --tokenizer encoder --workers 1 --out made",
        "train-tokenizer passages --out made",
        "generate passages --generator keyphrase --out made",
        "encode passages --encoder encoder --out made",
        "index passages --backend bm25 --out made",
    ],
    "passages/meta.json": [
        "show passages",
        "index passages --backend bm25 --out made",
        "show .",
    ],
    "passages": [
        "split passages --out made",
        "encode passages --encoder encoder --out made",
        "show passages",
    ],
    "vectors/vectors-00000.npy": [
        "search vectors --data data --out made",
        "index vectors --backend faiss-hnsw --out made",
    ],
    "vectors/ids-00000.parquet": [
        "search vectors --data data --out made",
    ],
    "hnsw/index.faiss": [
        "search hnsw --data data --out made",
    ],
    "bm25/bm25": [
        "search bm25 --data data --out made",
    ],
    "bm25/bm25/data.csc.index.npy": [
        "search bm25 --data data --out made",
    ],
    "tokens/ids.npy": [
        "pretrain tokens --encoder encoder --method condenser --max-tokens 32 --batch-size 4 --out made",
    ],
    "data": [
        "search bm25 --data data --out made",
        "finetune data --encoder encoder --out made",
        "evaluate run data",
    ],
    "data/qrels": [
        "search bm25 --data data --split test --out made",
        "evaluate run data",
        "train-reranker data --encoder encoder --out made",
    ],
    "data/qrels/test.tsv": [
        "evaluate run data",
        "fuse run run2 --tune data/qrels/test.tsv --out made",
        "mine run data/qrels/test.tsv --out made",
    ],
    "data/queries.jsonl": [
        "search bm25 --data data --out made",
        "rerank run --data data --reranker encoder --out made",
    ],
    "run/run.trec": [
        "evaluate run data",
        "compare run run2 --qrels data",
        "fuse run run2 --out made",
    ],
    "encoder": [
        "encode data --encoder encoder --out made",
        "pretrain passages --encoder encoder --out made",
    ],
    "encoder/config.json": [
        "encode data --encoder encoder --out made",
        "rerank run --data data --reranker encoder --out made",
    ],
    "encoder/model.safetensors": [
        "encode data --encoder encoder --out made",
        "finetune data --encoder encoder --out made",
    ],
    "encoder/tokenizer.json": [
        "tokens passages --tokenizer encoder --out made",
        "split docs.jsonl --tokenizer encoder --out made",
    ],
    "scores/curves.json": [
        "report scores --out made",
    ],
    "scores/meta.json": [
        "report scores --out made",
        "report . --out made",
    ],
    "recipe.toml": [
        "run recipe.toml --out made",
    ],
    "queries.parquet": [
        "filter queries.parquet --passages passages --out made",
        "expand queries.parquet --passages passages --out made",
        "holdout passages queries.parquet --out made",
        "train-generator queries.parquet --out made",
    ],
}
"""Files that may not be read, and the commands that want to read it."""

WRITING = [
    "split docs.jsonl --keep --out locked/made",
    "tokens passages --tokenizer encoder --out locked/made",
    "train-tokenizer passages --out locked/made",
    "encode data --encoder encoder --out locked/made",
    "index passages --backend bm25 --out locked/made",
    "search bm25 --data data --out locked/made",
    "search bm25 --data data --out locked/run.trec",
    "fuse run run2 --out locked/made",
    "evaluate run data --out locked/made",
    "report scores --out locked/made",
    "mine run data/qrels/test.tsv --out locked/made",
    "run recipe.toml --out locked/made",
    "generate passages --generator keyphrase --out locked/made",
    "adapt docs.jsonl --out locked/made",
    "pretrain passages --encoder encoder --out locked/made",
    "finetune data --encoder encoder --out locked/made",
    "docset pydocs: --out locked/made",
    "demo --out locked/made",
]


def without_privilege() -> list[str]:
    """The prefix of a command, so that permissions bind it."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may read everything, and there is no setpriv to give that up")
    prefix = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("root may read everything, and may not give that up here")
    return prefix


@pytest.fixture
def place(copy: Path) -> Path:
    shutil.copy("data/corpus.jsonl", "docs.jsonl")
    Path("recipe.toml").write_text('[split]\nsource = "docs.jsonl"\n')
    from qontext import api

    generated = api.generate("passages", generator="keyphrase", per_passage=1, out="generated")
    shutil.copy(generated.path / "part-00000.parquet", "queries.parquet")
    return copy


def run(commands: dict[str, list[str]]) -> list[tuple[str, str, int, str]]:
    """(what is locked, command, exit code, message) of each."""
    start = [*without_privilege(), sys.executable, "-c", RUN, json.dumps(commands)]
    done = subprocess.run(start, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results: list[tuple[str, str, int, str]] = json.loads(done.stdout.splitlines()[-1])
    return results


def test_what_may_not_be_read_is_told(place: Path) -> None:
    wrong = []
    for locked, command, code, message in run(LOCKED):
        names_it = locked.split("/")[0] in message and "permission denied" in message.lower()
        if code != 2 or "error: " not in message or not names_it:
            wrong.append((locked, command, code, message))
    assert not wrong, wrong[0]


def test_where_nothing_may_be_written_is_told(place: Path) -> None:
    (place / "locked").mkdir(mode=0o555)
    wrong = []
    for _, command, code, message in run({"locked": WRITING}):
        if (
            code != 2
            or "error: " not in message
            or "locked" not in message
            or "permission denied" not in message
        ):
            wrong.append((command, code, message))
    assert not wrong, wrong[0]
