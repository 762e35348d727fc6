"""How long it takes to number the ids of many vectors, to open these, and to make strings of the ids of some results.

    python benchmarks/opening.py [--sizes 3000000 10000000] [--work FOLDER]

Synthetic vectors of 8 dimensions in parts of 16,384, as `qontext encode` writes them, whose ids are in random order. Each
figure is the median of three, in a process of its own for each size. Writes opening.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from qontext.data import records
from qontext.frame import artifacts, machine
from qontext.retrieve.encode import BLOCK
from qontext.retrieve.vectors import open_vectors, write_numbers

RESULTS = 100


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=[3_000_000, 10_000_000])
    parser.add_argument("--work", type=Path, help="a folder for what is written; default: a temporary one")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options.work)))
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
    shutil.rmtree(path)
    return {
        "vectors": size,
        "parts": -(-size // BLOCK),
        "numbering_seconds": round(numbering, 2),
        "opening_seconds": round(opening, 3),
        "naming_seconds": round(naming, 3),
    }


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
    vectors = np.zeros((BLOCK, 8), np.float16)
    files = []
    for number, first in enumerate(range(0, size, BLOCK)):
        ids = [f"passage-{place:09d}" for place in order[first : first + BLOCK].tolist()]
        files.append(f"ids-{number:05d}.parquet")
        with work.write(files[-1]) as file:
            records.write_table(file, pa.table({"id": ids}))
        with work.write(f"vectors-{number:05d}.npy") as file, file.open("wb") as out:
            np.save(out, vectors[: len(ids)], allow_pickle=False)
    started = time.perf_counter()
    write_numbers(work, files, "synthetic")
    seconds = time.perf_counter() - started
    artifacts.finish(work, claim, {}, 0.0)
    return seconds


if __name__ == "__main__":
    main()
