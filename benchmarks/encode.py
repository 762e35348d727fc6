"""The speed of encoding passages of mixed length, against what else a CPU user could run.

    python benchmarks/encode.py MODEL PASSAGES [--name MiniLM] [--texts 600] [--repeats 3] [--out benchmarks/encode.json]
    python benchmarks/encode.py MODEL PASSAGES --python VENV/bin/python --labeled DATA

The same model, texts and processor. Each side (`encode_sides.py`) is a process of its own, stopped while others compute.
Repetitions are interleaved, one of each in turn, and medians compared; the first of each is a warm-up. The baseline is
sentence-transformers' own `encode`. With `--python`, an interpreter that has the packages

    pip install "sentence-transformers[onnx,openvino]" fastembed

runs the other sides: sentence-transformers in fp32, in bf16, and with ONNX and OpenVINO in fp32 and int8, and fastembed with
the same ONNX files. A side whose packages are missing or fail is listed as failed.

The vectors are compared, too; with `--labeled`, a set in BEIR's layout, also nDCG@10 of exact search on it (without
prompts).
`--cpu-time` counts processor time on one core, which stays fair on a machine that others use.
The file keeps the results of models of other names.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from encode_sides import SIDES

from qontext import Hit, Run, evaluate
from qontext.data.collection import load_collection, read_passages
from qontext.frame import machine
from qontext.models.precision import has_bf16, resolve_device
from qontext.models.retriever import Retriever

BASE = "sentence_transformers"
CALIBRATED = 300


class Side:
    """A process that encodes. It is stopped unless it is asked for something, so that its threads do not spin."""

    def __init__(self, name: str, model: str, python: str, cache: Path, one_core: bool) -> None:
        script = str(Path(__file__).with_name("encode_sides.py"))
        core = {min(os.sched_getaffinity(0))}
        self.name, self.folder = name, cache
        self.process = subprocess.Popen(
            [python, script, name, model, str(cache)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=(lambda: os.sched_setaffinity(0, core)) if one_core else None,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **({"OMP_NUM_THREADS": "1"} if one_core else {})},
        )
        self.about = self._answer()
        self.failed = self.about.get("failed")

    def encode(self, texts: Path) -> tuple[dict[str, float], Any]:
        """The seconds of both clocks, and the vectors."""
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        out = self.folder / f"{self.name}.npy"
        self.process.stdin.write(json.dumps({"texts": str(texts), "out": str(out)}) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        self.failed = answer.get("failed")
        vectors = None if self.failed else np.load(out, allow_pickle=False)
        if vectors is not None and not np.isfinite(vectors).all():
            self.failed = "its vectors are not numbers"
        return answer, vectors

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            return {"failed": f"the process ended with code {self.process.wait()}"}
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a folder in sentence-transformers' layout")
    parser.add_argument("passages")
    parser.add_argument("--name", help="the model's in the results; default: its folder's")
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, help="default: all with --python, else two packages"
    )
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the other sides")
    parser.add_argument("--labeled", help="a labeled set in BEIR's layout, for nDCG@10")
    parser.add_argument("--split", default="test")
    parser.add_argument("--cache", type=Path, help="folder for converted models, to keep them")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/encode.json"))
    parser.add_argument("--cpu-time", action="store_true")
    settings = parser.parse_args()
    passages = [passage.content for passage in read_passages(settings.passages)]
    texts = passages[:: len(passages) // settings.texts][: settings.texts]
    bf16 = has_bf16(resolve_device("cpu"))
    plain = [BASE, f"{BASE}_bf16", "qontext_fp32", "qontext_bf16"]
    names = settings.sides or (list(SIDES) if settings.python != sys.executable else plain)
    names = [name for name in names if bf16 or not name.endswith("bf16")]
    with tempfile.TemporaryDirectory() as temporary:
        cache = settings.cache or Path(temporary)
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "texts.json").write_text(json.dumps(texts))
        # Other texts than those that are timed.
        (cache / "calibration.json").write_text(
            json.dumps(passages[1 :: max(1, len(passages) // CALIBRATED)][:CALIBRATED])
        )
        sides = [
            Side(name, settings.model, sys.executable if name.startswith("qontext") else settings.python, cache,
                 settings.cpu_time)
            for name in names
        ]  # fmt: skip
        try:
            result = measure([side for side in sides if not side.failed], cache, texts, settings)
        finally:
            for side in sides:
                side.close()
    result["failed"] = {side.name: side.failed for side in sides if side.failed}
    result["bf16"] = "measured" if bf16 else "not measured: this processor has no bf16 units"
    done = json.loads(settings.out.read_text()) if settings.out.exists() else {"models": {}}
    done["models"][settings.name or Path(settings.model).name] = result
    settings.out.write_text(json.dumps(done, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def measure(sides: list[Side], cache: Path, texts: list[str], settings: argparse.Namespace) -> dict[str, Any]:
    clock = "cpu" if settings.cpu_time else "wall"
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    vectors: dict[str, Any] = {}
    for repeat in range(settings.repeats + 1):
        for side in [side for side in sides if not side.failed]:
            times, vectors[side.name] = side.encode(cache / "texts.json")
            if repeat and not side.failed:
                seconds[side.name].append(times[clock])
    sides = [side for side in sides if not side.failed]
    vectors = {side.name: vectors[side.name] for side in sides}
    seconds = {side.name: seconds[side.name] for side in sides}
    lengths = [len(ids) for ids in Retriever(settings.model, device="cpu").tokenize(texts, "passage")]
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    first = BASE if BASE in medians else next(iter(medians))
    result: dict[str, Any] = {
        "what": "encoding passages of mixed length; medians of interleaved repetitions, a process for each side",
        "baseline": f"sentence-transformers {version(sides, first)} encode, its defaults (batch 32), fp32",
        "texts": len(texts),
        "tokens": {"total": sum(lengths), "shortest": min(lengths), "longest": max(lengths)},
        "seconds": {name: [round(t, 3) for t in times] for name, times in seconds.items()},
        "median_seconds": {name: round(t, 3) for name, t in medians.items()},
        "tokens_per_second": {name: round(sum(lengths) / t) for name, t in medians.items()},
        "speedup": {name: round(medians[first] / t, 3) for name, t in medians.items() if name != first},
        "least_cosine": {
            name: round(float((unit(vectors[first]) * unit(rows)).sum(1).min()), 7)
            for name, rows in vectors.items()
        },
    }
    if settings.labeled:
        result["ndcg_at_10"] = {"set": Path(settings.labeled).name, "split": settings.split}
        result["ndcg_at_10"] |= {side.name: quality(side, cache, settings) for side in sides}
    return result | {
        "clock": "processor time on one core" if settings.cpu_time else "wall",
        "threads": 1 if settings.cpu_time else torch.get_num_threads(),
        "machine": machine.describe(),
        "versions": {side.name: side.about["versions"] for side in sides},
    }


def version(sides: list[Side], name: str) -> str:
    about = next(side.about for side in sides if side.name == name)
    return str(about["versions"].get("sentence-transformers", "?"))


def unit(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def quality(side: Side, cache: Path, settings: argparse.Namespace) -> float:
    """nDCG@10 of exact search by cosine."""
    collection = load_collection(settings.labeled)
    passages, queries = list(collection.passages()), collection.queries(settings.split)
    vectors = {}
    for kind, texts in (("passages", [p.content for p in passages]), ("queries", list(queries.values()))):
        file = cache / f"{kind}.json"
        file.write_text(json.dumps(texts))
        vectors[kind] = unit(side.encode(file)[1])
    scores_QP = vectors["queries"] @ vectors["passages"].T
    best_QK = np.argsort(-scores_QP, axis=1, kind="stable")[:, :100]
    hits = [
        Hit(query, passages[number].id, float(scores_QP[row, number]))
        for row, query in enumerate(queries)
        for number in best_QK[row]
    ]
    measured = evaluate(Run.of(hits), collection.qrels(settings.split), "nDCG@10")
    return round(measured.means["nDCG@10"], 4)


if __name__ == "__main__":
    main()
