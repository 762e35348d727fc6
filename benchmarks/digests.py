"""Digests of the outputs of every verb for tiny inputs: recorded before a change and compared after it.

    python benchmarks/digests.py record before.json       # PYTHONPATH=…/src records another checkout
    python benchmarks/digests.py compare before.json after.json

`record` runs every verb, and every method, loss, representation, generator, judge and index, in fp32 with one thread.
Per command it writes the hashes of the files, the settings and the summary in `meta.json`, and the logged losses; of others
the result of `--json`; of refused commands the message; and the help pages. Times, versions, paths and the
machine are left out. `compare` prints what differs and exits with 1 if anything does.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import json
import os
import re
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from digests_commands import EARLIER, OTHERS, STAGES
from digests_inputs import write_inputs

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "QONTEXT_AUTO_PRECISION": "fp32",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "COLUMNS": "100",
}
PACKAGE = str(Path(importlib.import_module("qontext").__file__ or "").parent)
PRELOADED = (
    "PIL.Image", "Stemmer", "bm25s", "faiss", "matplotlib.backends.backend_agg", "matplotlib.pyplot", "pandas",
    "pyarrow.compute", "pyarrow.parquet", "rich.progress", "rich.table", "safetensors.torch", "sentencex", "tokenizers",
    "torch", "transformers", "transformers.models.auto.tokenization_auto", "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama", "transformers.models.t5.modeling_t5", "typer.completion",
)  # fmt: skip
"""Libraries that functions import. Commands are forks of a process that has them."""

TIMES = re.compile(
    r"second|minute|_ms\b|^ms$|milli|time|speed|rate_|_rate|per_s|memory|bytes|started|finished|launch|^version$|machine|"
    r"^made$|latency|^cores$|^free|disk|budget_|steps_after|most_steps|^load$|^notes$|^limits$|^logs/|^README"
)
"""Keys whose values differ from run to run."""


def main() -> None:
    match sys.argv[1:]:
        case ["record", file]:
            record(Path(file))
        case ["compare", before, after]:
            sys.exit(compare(Path(before), Path(after)))
        case _:
            sys.exit(__doc__)


def record(file: Path) -> None:
    """Run all commands and write their digests to `file`."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # read when Python starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="qontext-digests-") as folder:
        root = Path(folder)
        os.environ.update({"XDG_CONFIG_HOME": f"{root}/.config", "XDG_CACHE_HOME": f"{root}/.cache"})
        os.environ.setdefault("HF_HOME", str(Path("~/.cache/huggingface").expanduser()))
        preload()
        write_inputs(root)
        digests: dict[str, Any] = {}
        for name, command in STAGES.items():
            code, output = fork([*command.split(), "--out", name], root)
            if code and (earlier := in_earlier_words(command)) != command:
                code, output = fork([*earlier.split(), "--out", name], root)
            digests[name] = (
                contents(root / name, root) if code == 0 else {"exit": code, "said": clean(output, root)}
            )
            print("." if code == 0 else f"\n{name}: {output}\n", end="", flush=True)
        for name, command in OTHERS.items():
            words = command.replace(" ", "|", 1).split("|") if "|" in command else command.split()
            code, output = fork(words, root)
            digests[name] = {"exit": code, "result": result(output, root)}
            print("." if code < 3 else f"\n{name}: {output}\n", end="", flush=True)
        for verb in importlib.import_module("qontext.frame.stages").VERBS:
            digests[f"help {verb}"] = {"text": short_hash(fork([verb, "--help-all"], root)[1].encode())}
    file.write_text(
        json.dumps(digests, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(f"\n{len(digests)} commands → {file}")


def in_earlier_words(command: str) -> str:
    for now, earlier in EARLIER.items():
        command = command.replace(now, earlier)
    return command


def compare(before: Path, after: Path) -> int:
    """Print a table of what differs; 1 if anything does."""
    old, new = (dict(flat(json.loads(path.read_text(encoding="utf-8")))) for path in (before, after))
    rows = [
        (name, old.get(name, "(absent)"), new.get(name, "(absent)"))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    for name, was, now in rows:
        print(f"{name}\n    - {str(was)[:300]}\n    + {str(now)[:300]}")
    verbs = {name.partition(" → ")[0] for name, _, _ in rows}
    print(f"{len(old)} values before, {len(new)} after; {len(rows)} differ, of {len(verbs)} commands.")
    return int(bool(rows))


def preload() -> None:
    """Import the package and its libraries, once for all commands."""
    import pkgutil

    package = importlib.import_module("qontext")
    for module in pkgutil.walk_packages(package.__path__, "qontext."):
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    print(f"Recording {package.__path__[0]}.")
    gc.collect()
    gc.freeze()


def fork(words: list[str], folder: Path) -> tuple[int, str]:
    """Run a command in a fork of this process: its exit code, and what it prints."""
    said = folder / ".said"
    sys.stdout.flush()
    if not (child := os.fork()):
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for handle in (1, 2):
            os.dup2(output, handle)
        os.chdir(folder)
        sys.argv = ["qontext", *words]
        code = 0
        try:
            importlib.import_module("qontext.__main__").main()
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
            code = 70
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, said.read_text(encoding="utf-8", errors="replace")


def contents(out: Path, root: Path) -> dict[str, Any]:
    """The digests of what a command wrote: per finished directory its parts, settings, summary and losses."""
    if out.is_file():
        return {"file": short_hash(out.read_bytes())}
    digests: dict[str, Any] = {}
    described = {path.parent for path in out.rglob("meta.json")}
    for folder in sorted(described):
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        parts = {name: part["hash"][:16] for name, part in meta["parts"].items() if not is_report(name)}
        digests[str(folder.relative_to(out))] = {
            "digest": meta["digest"] if meta["verb"] != "report" else "",
            "parts": parts,
            "settings": plain(meta["config"], root),
            "inputs": sorted(meta["inputs"]),
            "summary": plain(meta["summary"], root),
            **({"losses": losses} if (losses := logged(folder / "logs" / "metrics.jsonl")) else {}),
        }
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        name = str(path.relative_to(out))
        if not described & {*path.parents} and not is_report(name) and not name.startswith("."):
            digests[name] = file_digest(path, root)
    return digests


def is_report(name: str) -> bool:
    """True if a file tells times, paths or the machine."""
    return (
        "logs/" in name or name.endswith((".md", ".tex", ".html", ".png", ".log", ".lock")) or ".lock" in name
    )


def logged(metrics: Path) -> list[Any]:
    """The losses that a training logged, by step."""
    if not metrics.is_file():
        return []
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if not TIMES.search(key)} for line in lines]


def file_digest(path: Path, root: Path) -> Any:
    """The content of a JSON or TOML file without times; else a hash of the file, with paths made relative."""
    content = path.read_bytes()
    with contextlib.suppress(ValueError):
        if path.suffix in (".json", ".toml"):
            return plain((tomllib.loads if path.suffix == ".toml" else json.loads)(content.decode()), root)
    return short_hash(content.replace(str(root).encode(), b"ROOT"))


def result(output: str, root: Path) -> Any:
    """The JSON that a command printed; else its lines."""
    last = output.strip().rpartition("\n")[2]
    with contextlib.suppress(ValueError):
        return plain(json.loads(last), root)
    return clean(output, root)


def plain(value: Any, root: Path, key: str = "") -> Any:
    """The value without times, and with paths relative to `root`."""
    if isinstance(value, dict):
        return {name: plain(item, root, name) for name, item in value.items() if not TIMES.search(name)}
    if isinstance(value, list):
        return [plain(item, root, key) for item in value]
    return clean(value, root) if isinstance(value, str) else value


def clean(text: str, root: Path) -> str:
    """The text without the folder and with times blanked."""
    text = text.replace(str(root), "ROOT").replace(root.name, "ROOT").replace(PACKAGE, "PACKAGE")
    return re.sub(r"\d+(\.\d+)? ?(ms|s|min|seconds?|minutes?)\b", "TIME", text)


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables and lists of numbers by their full names."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from flat(item, f"{name} → {key}" if name else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, item in enumerate(value):
            yield from flat(item, f"{name} → {number}")
    else:
        yield name, value


def short_hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


if __name__ == "__main__":
    main()
