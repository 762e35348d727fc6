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
import random
import re
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
TRAINING = "--batch-size 4 --log-every 1 --checkpoint-minutes 0 --precision fp32 --device cpu"
PRETRAINING = f"--encoder tiny --tokenizer tokenizer --steps 3 --max-tokens 40 --workers 1 {TRAINING}"
FINETUNING = (
    "finetune mine --passages labeled --encoder pretrain-cot-mae --steps 3 --query-length 12 --passage-length 24 "
    f"--passages-per-query 3 {TRAINING}"
)
COMPUTING = "--precision fp32 --device cpu"

STAGES = {
    "split": "split docs.jsonl --max-tokens 40 --short-span-probability 0.2 --workers 1",
    "split-folder": "split folder --workers 1 --max-tokens 30",
    "split-workers": "split docs.jsonl --max-tokens 40 --short-span-probability 0.2 --workers 2",
    "docset": "docset pydocs:json,email --passages 20 --queries 5",
    "collect": "collect labeled --queries labeled/queries.jsonl --train labeled/qrels/train.tsv",
    "tokenizer": "train-tokenizer split --vocabulary 300",
    "tokens": "tokens split --tokenizer tokenizer --workers 1",
    "generate-keyphrase": "generate split --generator keyphrase --part-passages 16",
    "generate-title": "generate split --generator title",
    "generate-lead": "generate split --generator lead",
    "generate-span": "generate split --generator span",
    "generate-file": "generate split --generator file --queries written.jsonl",
    "train-t5": "train-generator labeled --preset tiny --vocabulary 200 --batch-size 8 --steps 4 --dev-every 2 "
    f"--max-passage-tokens 24 {COMPUTING}",
    "generate-t5": f"generate split --model train-t5 --max-new-tokens 6 {COMPUTING}",
    "train-causal": "train-generator labeled --model llama --batch-size 8 --steps 3 --dev-every 2 "
    f"--max-passage-tokens 24 --max-query-tokens 8 {COMPUTING}",
    "generate-causal": "generate split --generator causal --model train-causal --max-new-tokens 4 --max-passage-tokens 24 "
    f"--per-passage 1 {COMPUTING}",
    "filter-overlap": "filter generate-keyphrase --passages split --by overlap",
    "filter-retrieval": "filter generate-keyphrase --passages split --by retrieval",
    "filter-mutual": "filter generate-keyphrase --passages split --by mutual --top 3",
    "relevance": "relevance generate-keyphrase --passages split",
    "expand": "expand filter-mutual --passages split",
    "expand-seen": "expand generate-keyphrase --passages split --words seen",
    "holdout": "holdout split generate-keyphrase --share 0.3",
    "pretrain-mlm": f"pretrain split --method mlm {PRETRAINING}",
    "pretrain-condenser": f"pretrain split --method condenser {PRETRAINING}",
    "pretrain-cocondenser": "pretrain split --method cocondenser --queries generate-keyphrase --condenser-steps 1 "
    f"--context query+rand {PRETRAINING}",
    "pretrain-cot-mae": f"pretrain split --method cot-mae --queries generate-keyphrase --context query {PRETRAINING}",
    "pretrain-cot-mae-near": "pretrain split --method cot-mae --context near+olap+rand --contrastive-weight 0.5 "
    f"--micro-tokens 90 {PRETRAINING}",
    "pretrain-retromae": f"pretrain split --method retromae {PRETRAINING}",
    "pretrain-dupmae": f"pretrain split --method dupmae {PRETRAINING}",
    "pretrain-seed": f"pretrain split --method seed {PRETRAINING}",
    "pretrain-simlm": f"pretrain split --method simlm --generator pretrain-mlm {PRETRAINING}",
    "pretrain-bow": f"pretrain split --method bow --target both --queries generate-keyphrase --context query "
    f"--contrastive-weight 0.5 {PRETRAINING}",
    "filter-dense": "filter generate-keyphrase --passages split --by retrieval --retriever pretrain-cot-mae --device cpu",
    "bm25.trec": "search --bm25 --data labeled --split train --k 20",
    "words": "search --bm25 --data labeled --split dev --k 20",
    "mine": "mine bm25.trec labeled/qrels/train.tsv --data labeled --depth 20 --per-query 3",
    "finetune": f"{FINETUNING} --dev labeled --dev-every 2",
    "finetune-cache": f"{FINETUNING} --gradient-cache on --micro-tokens 60",
    "finetune-untied": f"{FINETUNING} --untied",
    "finetune-cosine": f"{FINETUNING} --similarity cosine --pooling mean --dimensions 8",
    "finetune-pair": f"{FINETUNING} --loss pair",
    "finetune-clusters": f"{FINETUNING} --clusters 2",
    "finetune-sparse": f"{FINETUNING} --representation sparse",
    "finetune-tokens": f"{FINETUNING} --representation tokens",
    "finetune-first-tokens": f"{FINETUNING} --representation first-tokens",
    "finetune-matches": f"{FINETUNING} --representation matches",
    "train-reranker": "train-reranker mine --passages labeled --encoder pretrain-cot-mae --steps 3 --candidates 3 "
    f"--max-length 24 {TRAINING}",
    "teacher": "rerank mine --reranker train-reranker --data labeled --device cpu --precision fp32",
    "finetune-kl": f"{FINETUNING} --loss kl --teacher teacher --contrastive-weight 0.2 --teacher-temperature 2",
    "finetune-margin": f"{FINETUNING} --loss margin-mse --teacher teacher --margin-bins 2",
    "finetune-batch-teacher": f"{FINETUNING} --batch-teacher finetune-tokens",
    "filter-reranker": "filter generate-keyphrase --passages split --by reranker --reranker train-reranker --device cpu",
    "encode": f"encode labeled --encoder finetune {COMPUTING}",
    "encode-queries": f"encode labeled --encoder finetune-untied --kind query {COMPUTING}",
    "encode-windows": f"encode labeled --encoder finetune --window 16 {COMPUTING}",
    "encode-bits": f"encode labeled --encoder finetune --window 16 --tokens {COMPUTING}",
    "encode-sparse": f"encode labeled --encoder finetune-sparse {COMPUTING}",
    "encode-tokens": f"encode labeled --encoder finetune-tokens {COMPUTING}",
    "encode-first-tokens": f"encode labeled --encoder finetune-first-tokens {COMPUTING}",
    "encode-matches": f"encode labeled --encoder finetune-matches {COMPUTING}",
    "index-bm25": "index labeled --backend bm25",
    "index-hnsw": "index encode --backend faiss-hnsw",
    "index-int8": "index encode --backend int8",
    "index-binary": "index encode --backend binary",
    "export": "export encode",
    "search": f"search encode --data labeled --split dev --k 20 {COMPUTING}",
    **{
        f"search-{name}": f"search {name} --data labeled --split dev --k 20 {COMPUTING}"
        for name in (
            "index-hnsw", "index-int8", "index-binary", "encode-windows", "encode-sparse", "encode-tokens",
            "encode-first-tokens", "encode-matches",
        )
    },
    "search-index-bm25": "search index-bm25 --data labeled --split dev --k 20",
    "search-where": f"search encode --data labeled --split dev --k 20 --where lang=de {COMPUTING}",
    "search.trec": f"search encode --data labeled --split dev --k 20 --limit 5 {COMPUTING}",
    "fuse": "fuse search words",
    "fuse-zscore": "fuse search words --method zscore --tune labeled/qrels/dev.tsv --steps 4",
    "rerank": f"rerank search --reranker train-reranker --data labeled {COMPUTING}",
    "rerank-tokens": f"rerank search --tokens encode-bits --data labeled {COMPUTING}",
    "evaluate": "evaluate rerank labeled --split dev",
    "evaluate-words": "evaluate words labeled --split dev",
    "report": "report evaluate evaluate-words --data labeled",
    "beir": "beir bm25 --sets labeled --data-root . --split dev",
    "run": "run recipe.toml",
    "sweep": "sweep recipe.toml --grid search.b=0,1",
    "adapted": "adapt docs.jsonl --encoder pretrain-cot-mae --budget 10m --yes",
    "search-adapted": "search adapted --data labeled --split dev --k 20",
}  # fmt: skip
"""Name of the output → the command that writes it; in this order, so that later ones read what earlier ones wrote."""

EARLIER = {
    "--loss pair": "--passage-weight 0.1",
    "--loss kl": "--distill kl",
    "--loss margin-mse": "--distill margin-mse",
}
"""Options → what they were called in the first version that was recorded; tried if a command is refused."""

OTHERS = {
    "search adapted question": "search adapted|river mill bread|--json",
    "search encode question": "search encode|river mill bread|--k|3|--json",
    "search bm25 question": "search index-bm25|river mill bread|--where|lang=de|--json",
    "compare": "compare search words --qrels labeled --split dev --permutations 200 --json",
    "adapt again": "adapt docs.jsonl --out adapted --encoder pretrain-cot-mae --budget 10m --json",
    "serve": "serve encode --port 0 --dry-run --device cpu --precision fp32 --json",
    "serve adapted": "serve adapted --port 0 --dry-run --device cpu --json",
    "annotate": "annotate split generate-keyphrase --out study --documents 5 --export --json",
    "recipes": "recipes --json",
    "show": "show finetune --json",
    "show verify": "show encode --verify --json",
    "show adapted": "show adapted --json",
    "clean": "clean adapted --dry-run --json",
    "demo": "demo folder --out demo --budget 1s --passages 10",
    "index few": "index encode --backend faiss-ivfpq --out refused",
    "rerank without bits": "rerank search --tokens encode --data labeled --out refused",
    "split nothing": "split absent.jsonl --out refused",
    "split without out": "split docs.jsonl",
    "search without out": "search encode --data labeled",
    "search without all": "search",
    "search question and bm25": "search --bm25|encode|what|--k|3",
    "search unknown": "search labeled --data labeled --out refused",
    "generate unknown": "generate split --generator nobody --out refused",
    "pretrain unknown setting": "pretrain split --method mlm --decoder-layers 2 --out refused",
    "finetune teacher": "finetune mine --passages labeled --margin-bins 2 --out refused",
    "run unknown": "run nowhere --out refused",
    "other result": "split docs.jsonl --max-tokens 50 --out split",
    "foreign": "split docs.jsonl --out folder",
    "evaluate without out": "evaluate words labeled --split dev --json",
    "evaluate other split": "evaluate words labeled --split test --out refused",
    "rerank bm25": "rerank words --reranker encode --data labeled --out refused",
}
"""Name → a command whose result or message is recorded; arguments are separated by | if one has spaces."""

WORDS = "river stone bridge water boat mill flour bread oven fire leaf sail".split()
RECIPE = """
[recipe]
title = "A training and a search"

[split]
source = "docs.jsonl"
max_tokens = 40
workers = 1

[pretrain]
passages = "@split"
method = "mlm"
encoder = "tiny"
tokenizer = "tokenizer"
steps = 2
batch_size = 4
max_tokens = 40
workers = 1
checkpoint_minutes = 0
precision = "fp32"
device = "cpu"

[search]
bm25 = true
data = "labeled"
split = "dev"

[evaluate]
run = "@search"
qrels = "labeled"
split = "dev"
"""
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


def write_inputs(folder: Path) -> None:
    """Documents as records and as files, a labeled set, queries by hand, a decoder-only model and a recipe."""
    dice = random.Random(0)

    def text(sentences: int) -> str:
        return " ".join(" ".join(dice.choices(WORDS, k=8)).capitalize() + "." for _ in range(sentences))

    languages = ("en", "de")
    documents = [
        {"_id": f"d{i}", "title": f"Chapter {i}", "text": text(14), "lang": languages[i % 2]}
        for i in range(30)
    ]
    write_lines(folder / "docs.jsonl", documents)
    labeled = folder / "labeled"
    (labeled / "qrels").mkdir(parents=True)
    passages = [
        {"_id": f"p{i}", "title": f"Chapter {i}", "text": text(2), "lang": languages[i % 2]}
        for i in range(60)
    ]
    write_lines(labeled / "corpus.jsonl", passages)
    queries = [{"_id": f"q{i}", "text": f"chapter {i} {WORDS[i % 12]}"} for i in range(30)]
    write_lines(labeled / "queries.jsonl", queries)
    for split, numbers in {"train": range(20), "dev": range(20, 30)}.items():
        rows = ["query-id\tcorpus-id\tscore", *(f"q{i}\tp{i}\t1" for i in numbers)]
        (labeled / "qrels" / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    write_lines(
        folder / "written.jsonl",
        [{"id": f"d{i}#0", "queries": [f"what is in chapter {i}?"]} for i in range(30)],
    )
    files = folder / "folder"
    files.mkdir()
    for i in range(12):
        (files / f"part{i}.md").write_text(f"# Part {i}\n\n{text(6)}\n\n## More of {WORDS[i]}\n\n{text(6)}\n")
    (files / "page.html").write_text(
        f"<html><title>Page</title><body><h1>Page</h1><p>{text(8)}</p></body></html>"
    )
    (files / "code.py").write_text(f'"""{text(3)}"""\n\ndef mill():\n    """{text(2)}"""\n')
    (folder / "recipe.toml").write_text(RECIPE)
    save_llama(folder / "llama", [row["text"] for row in passages])


def save_llama(folder: Path, texts: list[str]) -> None:
    """A random Llama of two layers with a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    wrap: Any = PreTrainedTokenizerFast
    tokenizer = wrap(tokenizer_object=raw, eos_token="<|end|>")
    torch.manual_seed(0)
    build: Any = LlamaConfig
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    model = LlamaForCausalLM(build(**sizes, **ends, vocab_size=len(tokenizer), max_position_embeddings=256))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
