"""How long it takes to notice that nothing changed in a folder of documents, and to index what did.

python benchmarks/refresh.py [files] > benchmarks/refresh.json
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from qontext import api
from qontext.corpus.sources import stamp
from qontext.corpus.sources.several import digest_of
from qontext.frame.machine import describe

PER_FOLDER = 80


def timed(action: Callable[[], object], times: int = 7) -> dict[str, float]:
    """The shortest of several runs, and its seconds of the processor, which other work on the machine does not change."""
    runs = []
    for _ in range(times):
        started, used = time.perf_counter(), time.process_time()
        action()
        runs.append((time.perf_counter() - started, time.process_time() - used))
    seconds, cpu = min(runs)
    return {
        "seconds": round(seconds, 4),
        "cpu_seconds": round(min(c for _, c in runs) if times > 1 else cpu, 4),
    }


def main(files: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        docs, out = Path(folder) / "docs", Path(folder) / "out"
        for number in range(files):
            file = docs / f"part-{number // PER_FOLDER}" / f"note-{number}.md"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(
                f"# Note {number}\n\n" + f"The mill number {number} grinds flour by the river. " * 20
            )
        first = timed(lambda: api.refresh(out, source=[docs], words=True), 1)
        result = {
            "files": files,
            "first_index_of_words": first,
            "stamps": timed(lambda: stamp(str(docs))),
            "hashes": timed(lambda: digest_of(str(docs)), 3),
            "refresh_without_changes": timed(lambda: api.refresh(out, words=True)),
        }
        (docs / "part-0" / "note-0.md").write_text("# Note 0\n\nThe oven bakes bread.")
        result["refresh_with_one_change"] = timed(lambda: api.refresh(out, words=True), 1)
        print(json.dumps({**result, "machine": describe()}, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8_000)
