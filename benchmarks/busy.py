"""The loss of a training where another program computes as well, and the gain of briefly spinning threads.

    python benchmarks/busy.py PASSAGES QUERIES --encoder MODEL [--steps 20] [--repeats 3] [--out benchmarks/busy.json]

Trains with as many threads as there are cores, alone and beside one busy process in a session of its own (Linux shares the
cores between sessions, whatever the priority within them). `library` is the wait of GNU's OpenMP where nothing is set.
Repetitions are interleaved. The machine needs to be idle otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from qontext.frame import machine

WAITS = {"library": "300000", "qontext": "1000"}
"""Rounds that a waiting thread spins before it sleeps (GOMP_SPINCOUNT)."""
TRAIN = """
import sys, time
from qontext import api
source, queries, encoder, steps, out = sys.argv[1:]
of = {"method": "cocondenser", "context": "query", "head_weight": 0.0, "late_mlm_weight": 0.0, "vector": "mean"}
times = []
for i, count in enumerate((1, 1, int(steps))):  # the first one imports, the second only loads
    begin = time.perf_counter()
    sized = {"steps": count, "batch_size": 32, "max_tokens": 128, "out": f"{out}/{i}"}
    api.pretrain(source, queries=queries, encoder=encoder, **sized, **of)
    times.append(time.perf_counter() - begin)
print(times[2] - times[1])
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("passages")
    parser.add_argument("queries")
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/busy.json"))
    given = parser.parse_args()
    seconds: dict[str, dict[str, list[float]]] = {
        place: {wait: [] for wait in WAITS} for place in ("alone", "beside")
    }
    for _ in range(given.repeats):
        for place, of in seconds.items():
            with beside() if place == "beside" else contextlib.nullcontext():
                for wait, taken in of.items():
                    taken.append(round(train(given, WAITS[wait]), 2))
    medians = {place: {wait: statistics.median(s) for wait, s in of.items()} for place, of in seconds.items()}
    result = {
        "what": f"{given.steps - 1} steps of 32 pairs of 128 tokens, alone and beside a busy process; seconds",
        "spins": WAITS,
        "seconds": seconds,
        "median_seconds": medians,
        "ratio": {place: round(of["library"] / of["qontext"], 2) for place, of in medians.items()},
        "machine": machine.describe(),
    }
    given.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


@contextlib.contextmanager
def beside() -> Iterator[None]:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def train(given: argparse.Namespace, spins: str) -> float:
    """Seconds of all steps but the first, without loading."""
    folder = tempfile.mkdtemp(prefix="qontext-busy-")
    arguments = [given.passages, given.queries, given.encoder, str(given.steps), folder]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRAIN, *arguments],
            env=environment | {"GOMP_SPINCOUNT": spins},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    finally:
        shutil.rmtree(folder)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
