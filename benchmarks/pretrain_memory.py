"""Peak memory of coCondenser with the gradient cache, as the batch grows.

    python benchmarks/pretrain_memory.py --data DATA/squad_pool --tokenizer FOLDER

Each batch size runs in a process of its own, for a step;
`ru_maxrss` is what the system saw at most. A batch of B spans is B / 2 pairs. Writes pretrain_memory.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from qontext import api
from qontext.frame import log, machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="a folder in BEIR's layout")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--spans", nargs="+", type=int, default=[512, 16_384])
    parser.add_argument(
        "--max-tokens", type=int, default=32, help="the peak does not depend on it, the time does"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    log.show(log.SILENT)
    if options.child:
        child(Path(options.child), options)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        api.split(options.data, keep=True, out=f"{folder}/passages", max_tokens=144)
        api.tokens(f"{folder}/passages", tokenizer=options.tokenizer, out=f"{folder}/tokens")
        for spans in options.spans:
            command = [
                sys.executable,
                __file__,
                "--data",
                "-",
                "--tokenizer",
                options.tokenizer,
                "--child",
                folder,
            ]
            command += [
                "--preset",
                options.preset,
                "--spans",
                str(spans),
                "--max-tokens",
                str(options.max_tokens),
            ]
            started = time.perf_counter()
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rows.append(
                {"spans": spans, "peak MiB": float(out), "seconds": round(time.perf_counter() - started, 1)}
            )
            print(rows[-1])
    ratio = round(rows[-1]["peak MiB"] / rows[0]["peak MiB"], 3)
    result = {
        "what": "peak resident memory of a step of coCondenser with the gradient cache",
        "setting": {
            "preset": options.preset,
            "max_tokens": options.max_tokens,
            "data": Path(options.data).name,
        },
        "machine": machine.describe(),
        "rows": rows,
        "largest over smallest": ratio,
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({"largest over smallest": ratio}))


def child(folder: Path, options: argparse.Namespace) -> None:
    (spans,) = options.spans
    api.pretrain(
        folder / "tokens",
        out=folder / f"out-{spans}",
        method="cocondenser",
        context="rand",
        encoder=options.preset,
        tokenizer=options.tokenizer,
        batch_size=spans // 2,
        max_tokens=options.max_tokens,
        gradient_cache="on",
        steps=1,
        log_every=1,
        precision="fp32",
    )
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main()
