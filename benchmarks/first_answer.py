"""The time that a person waits: for the first answer of `qontext search DIR QUESTION`, and for the help of each command.

    make demo
    python benchmarks/first_answer.py runs/demo "How do I mask values close to a number?"

DIR is what `qontext adapt` or the demo wrote. Every run is a process of its own, from its start to its end; a first one,
which brings the files into memory, is not counted. Medians of `--rounds`. Writes first_answer.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from qontext.data.collection import read_passages
from qontext.frame import machine
from qontext.frame.stages import VERBS

QONTEXT = str(Path(sys.executable).with_name("qontext"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("question")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    answer = seconds(["search", str(options.folder), options.question], options.rounds)
    helps = {verb: seconds([verb, "--help"], options.rounds) for verb in VERBS}
    slowest = max(helps, key=lambda verb: helps[verb])
    result = {
        "what": "seconds from the start of a command to its end",
        "passages": passages(options.folder),
        "rounds": options.rounds,
        "machine": machine.describe(),
        "first_answer": answer,
        "slowest_help": {"verb": slowest, "seconds": helps[slowest]},
        "helps": helps,
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result, indent=1))


def seconds(arguments: Sequence[str], rounds: int) -> float:
    """The median time of a command."""
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        subprocess.run(
            [QONTEXT, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        times.append(time.perf_counter() - started)
    return round(statistics.median(times[1:]), 3)


def passages(folder: Path) -> int:
    return sum(1 for _ in read_passages(folder / "index" / "passages"))


if __name__ == "__main__":
    main()
