r"""Checks and measurements on a GPU: training of BERT-base at 144 tokens, encoding, exact search.

    python benchmarks/gpu.py [--peak-tflops 989] [--model FOLDER] [--out benchmarks/gpu.json]

First the checks of `gpu_checks`: losses as on a CPU, the gradient cache as plain, a resumed training as a whole one. Then,
per method, passages per second, share of the peak and memory: in fp32 and bf16, compiled or not, with and without the
gradient cache; rows packed without padding (variable-length attention) against rectangles; encoding with the model
`--model` against sentence-transformers, both in bf16; exact search, also against faiss if its GPU version is installed.

Training reads random token ids of realistic lengths, so it needs no data and no network. The share of the peak counts
what the mathematics needs, not what is computed besides (padding, the gradient cache's first pass):

    FLOPs per token and layer, forward    24·H² + 4·T·H        (projections and FFN; attention over T tokens)
    FLOPs per predicted token, forward    2·H² + 2·H·V         (MLM head)
    training                              3 × forward          (backward is twice the forward)
    MFU                                   FLOPs per second / peak

Without a GPU it says so and measures nothing. This shows that the script itself works:

    python benchmarks/gpu.py --device cpu --layers 2 --hidden 64 --batch 16 --steps 2 --passages 200 --vectors 5000 \
        --no-compile

There are no figures from a GPU: none was available. The targets are 40 % of the bf16 peak of an H100 and 3,800 passages
per second for CoT-MAE with queries as contexts, a gradient cache that costs at most 1.4 times the time, and encoding 1.5
times as fast as sentence-transformers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from gpu_checks import all_checks
from gpu_parts import encoding, packing, searching
from gpu_training import Setting, measure, setting_of

from qontext.frame import log, machine


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peak-tflops", type=float, default=989.0, help="dense bf16 peak of the GPU (H100 SXM: 989)"
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4096, help="pairs per step")
    parser.add_argument("--micro-tokens", type=int, default=65_536)
    parser.add_argument("--methods", nargs="+", default=["cot-mae", "cocondenser"])
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=12, help="BERT-base has 12")
    parser.add_argument("--hidden", type=int, default=768, help="BERT-base has 768; a multiple of 64")
    parser.add_argument("--model", help="a folder in sentence-transformers' layout, to encode with")
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("There is no GPU: nothing was measured.")
        return
    log.show(log.SILENT)
    setting = setting_of(options)
    result: dict[str, Any] = {
        "machine": machine.describe(),
        "peak TFLOP/s": options.peak_tflops,
        "checks": all_checks(setting),
        "training": trainings(setting),
        "packing": packing(setting),
        "encoding": encoding(options) if options.model else "not measured: no --model",
        "search": searching(options.vectors, setting.device),
    }
    if setting.on_gpu:  # figures of a CPU are only a test of this script
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    if failed := [check for check in result["checks"] if not check["passed"]]:
        raise SystemExit(f"{len(failed)} of {len(result['checks'])} checks failed")


def trainings(setting: Setting) -> list[dict[str, Any]]:
    """Both formats, compiled or not; and with the gradient cache against plain in micro-batches that are kept."""
    rows = []
    for method in setting.methods:
        for form in ("fp32", "bf16"):
            for compiled in (False, True) if setting.compiles else (False,):
                rows.append(measure(method, form, setting, compiled=compiled))
        rows += [measure(method, "bf16", setting, compiled=False, cache=cache) for cache in ("off", "on")]
        rows[-1]["time of the gradient cache"] = round(rows[-2]["steps/s"] / rows[-1]["steps/s"], 3)
    return rows


if __name__ == "__main__":
    main()
