"""The time that the encoder in NumPy saves: `qontext search DIR QUESTION` with it, and with torch and transformers instead.

    make demo
    python benchmarks/light.py runs/demo "How do I mask values close to a number?"

DIR is what `qontext adapt` or the demo wrote. Every run is a process of its own, from its start to its end; the first of
each kind, which brings the files into memory, is not counted. Medians of `--rounds`, in turns. Adds the encoder's size to
light.json beside this file: seconds by the clock, and of the processor, which other work on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from qontext.frame import machine

FILE = Path(__file__).with_suffix(".json")
COMMAND = """
import sys
from qontext.models import light
from qontext.__main__ import main
if sys.argv.pop(1) == "torch":
    light.light_folder = lambda *given: None
main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("question")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    measured: dict[str, list[tuple[float, float]]] = {"numpy": [], "torch": []}
    for _ in range(options.rounds + 1):
        for kind, runs in measured.items():
            runs.append(seconds(kind, options.folder, options.question))
    config = json.loads((options.folder / "model" / "config.json").read_text("utf-8"))
    size = f"{config['num_hidden_layers']} layers, {config['hidden_size']} dimensions"
    old = json.loads(FILE.read_text("utf-8"))["encoders"] if FILE.exists() else {}
    row = {kind: dict(zip(("wall", "processor"), medians(runs[1:]))) for kind, runs in measured.items()}
    result = {
        "what": "seconds of qontext search DIR QUESTION, from start to end",
        "rounds": options.rounds,
        "machine": machine.describe(),
        "encoders": {**old, size: row},
    }
    FILE.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result, indent=1))


def seconds(kind: str, folder: Path, question: str) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    before, started = os.times(), time.perf_counter()
    command = [sys.executable, "-c", COMMAND, kind, "search", str(folder), question]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - started, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, used


def medians(runs: list[tuple[float, float]]) -> list[float]:
    return [round(statistics.median(column), 2) for column in zip(*runs)]


if __name__ == "__main__":
    main()
