"""The speedup of two nodes of one core over one: `encode` on a Ray cluster of this machine.

    python benchmarks/scale.py ENCODER PASSAGES [--texts 2048] [--part 256] [--repeats 3] [--out benchmarks/scale.json]

Every node is a Ray node with one core, and its worker computes in one thread. Nodes are up before the clock starts;
loading the model is part of the time. The repetitions of one and of two nodes are interleaved, and all results must
have the digest of one process. The machine needs an idle core per node.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", RAY_USAGE_STATS_ENABLED="0")

import ray
from ray.cluster_utils import Cluster

from qontext import api
from qontext.data import records
from qontext.data.collection import read_passages
from qontext.frame import log, machine
from qontext.retrieve import encode

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encoder")
    parser.add_argument("passages")
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--part", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/scale.json"))
    settings = parser.parse_args()
    log.show(log.WARNING)
    encode.BLOCK = settings.part
    folder = Path(tempfile.mkdtemp(prefix="qontext-scale-"))
    try:
        write_passages(settings.passages, settings.texts, folder / "passages.parquet")
        result = measure(settings, folder)
    finally:
        shutil.rmtree(folder)
    settings.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def write_passages(source: str, count: int, path: Path) -> None:
    """Passages of mixed length, spread over the collection."""
    passages = list(read_passages(source))
    rows = [
        {
            "id": passage.id, "doc": passage.doc, "position": 0, "title": passage.title, "text": passage.text,
            "sentences": [0], "tokens": 0, "overlong": False,
        }
        for passage in passages[:: max(1, len(passages) // count)][:count]
    ]  # fmt: skip
    records.write_table(path, records.table_of(rows, records.PASSAGES))


def measure(settings: argparse.Namespace, folder: Path) -> dict[str, Any]:
    def run(name: str, on: str) -> tuple[float, str]:
        started = time.perf_counter()
        vectors = api.encode(
            folder / "passages.parquet",
            encoder=settings.encoder,
            precision="fp32",
            device="cpu",
            on=on,
            out=folder / name,
        )
        seconds = time.perf_counter() - started
        shutil.rmtree(folder / name)
        return seconds, vectors.digest

    _, digest = run("whole", "local")
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    try:
        cluster.add_node(**NODE)
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        for repeat in range(settings.repeats + 1):
            for nodes in seconds:
                second = cluster.add_node(**NODE) if nodes == 2 else None
                cluster.wait_for_nodes()
                took, its_digest = run(f"nodes-{nodes}-{repeat}", "ray")
                assert its_digest == digest, "the result depends on the nodes"
                if repeat:  # the first is a warm-up
                    seconds[nodes].append(took)
                if second is not None:
                    cluster.remove_node(second)
    finally:
        ray.shutdown()
        cluster.shutdown()
    medians = {nodes: statistics.median(times) for nodes, times in seconds.items()}
    return {
        "what": "encode on Ray nodes of one core each; medians of interleaved repetitions, model loading included",
        "ray": ray.__version__,
        "texts": settings.texts,
        "texts_per_part": settings.part,
        "seconds": {str(nodes): [round(t, 2) for t in times] for nodes, times in seconds.items()},
        "median_seconds": {str(nodes): round(t, 2) for nodes, t in medians.items()},
        "speedup": round(medians[1] / medians[2], 3),
        "machine": machine.describe(),
    }


if __name__ == "__main__":
    main()
