"""The time to number the ids of many vectors, to open these, and to make strings of the ids of some results;
and how much memory a search takes.

    python benchmarks/opening.py [--sizes 3000000 10000000] [--work FOLDER]

Synthetic vectors of 8 dimensions in parts of 16,384, as `qontext encode` writes them, whose ids are in random order. Each
time is the median of three, in a process of its own for each size. The memory is what another process holds besides files
that are mapped, looked at every 5 ms: before it opens the vectors, and at most until 1,024 queries are searched and the ids
of their 100 best are read.
Writes opening.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from qontext.data import records
from qontext.frame import artifacts, machine
from qontext.retrieve.encode import BLOCK
from qontext.retrieve.encoded.vectors import open_vectors, write_numbers
from qontext.retrieve.index.exact import ExactIndex

RESULTS, QUERIES, DIMENSIONS = 100, 1_024, 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=[3_000_000, 10_000_000])
    parser.add_argument("--work", type=Path, help="a folder for what is written; default: a temporary one")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--search", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.search or options.only:
        print(json.dumps(search(options.search) if options.search else measure(options.only, options.work)))
        return
    rows = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            command = [sys.executable, __file__, "--only", str(size), "--work", folder]
            rows.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
            print(rows[-1], flush=True)
    result = {"parts_of": BLOCK, "results": RESULTS, "machine": machine.describe(), "rows": rows}
    (Path(__file__).parent / "opening.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def measure(size: int, folder: Path) -> dict[str, Any]:
    path = folder / "vectors"
    numbering = write(size, path)
    numbers = np.sort(np.random.default_rng(1).choice(size, RESULTS, replace=False))
    opening = timed(lambda: len(open_vectors(path)))
    naming = timed(lambda: open_vectors(path).names(numbers)) - opening
    command = [sys.executable, __file__, "--search", str(path)]
    before, most = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    shutil.rmtree(path)
    return {
        "vectors": size,
        "parts": -(-size // BLOCK),
        "numbering_seconds": round(numbering, 2),
        "opening_seconds": round(opening, 3),
        "naming_seconds": round(naming, 3),
        "memory_before_mib": before,
        "memory_searching_mib": most,
    }


def search(path: Path) -> tuple[int, int]:
    """MiB that are held before the vectors are opened, and at most until the results have names."""
    before = held_mib()
    held, ended = [before], threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            held.append(held_mib())

    watching = threading.Thread(target=watch)
    watching.start()
    index = ExactIndex(open_vectors(path), device="cpu")
    queries = np.random.default_rng(2).standard_normal((QUERIES, DIMENSIONS), np.float32)
    numbers, _ = index.search(queries, RESULTS)
    names = index.names(np.unique(numbers))
    assert len(names) and None not in names
    ended.set()
    watching.join()
    return before, max(held)


def held_mib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) >> 10


def timed(call: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def write(size: int, path: Path) -> float:
    """The vectors; returns the seconds of numbering their ids."""
    claim = {
        "verb": "encode",
        "format": 1,
        "config": {"kind": "passage"},
        "inputs": {"encoder": {"path": "none", "digest": "none"}},
        "key": "synthetic",
    }
    work = artifacts.begin(path, claim)
    order = np.random.default_rng(0).permutation(size)
    rng = np.random.default_rng(3)
    files = []
    for number, first in enumerate(range(0, size, BLOCK)):
        ids = [f"passage-{place:09d}" for place in order[first : first + BLOCK].tolist()]
        files.append(f"ids-{number:05d}.parquet")
        with work.write(files[-1]) as file:
            records.write_table(file, pa.table({"id": ids}))
        vectors = rng.standard_normal((len(ids), DIMENSIONS), np.float32).astype(np.float16)
        with work.write(f"vectors-{number:05d}.npy") as file, file.open("wb") as out:
            np.save(out, vectors, allow_pickle=False)
    started = time.perf_counter()
    write_numbers(work, files, "synthetic")
    seconds = time.perf_counter() - started
    artifacts.finish(work, claim, {}, 0.0)
    return seconds


if __name__ == "__main__":
    main()
