"""Small inputs that several folders of tests share: documents, labeled sets, encoders; and a server that runs commands."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORDS = "river stone bridge water boat mill flour bread oven fire leaf sail".split()
CHAT = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
"""A chat template."""


def write_inputs(folder: Path, labeled: str, splits: Mapping[str, range]) -> None:
    """Thirty documents in docs.jsonl, and the labeled set `labeled`, whose query i is about passage i."""
    dice = random.Random(0)

    def text(sentences: int) -> str:
        return " ".join(" ".join(dice.choices(WORDS, k=8)).capitalize() + "." for _ in range(sentences))

    documents = [
        {"_id": f"d{i}", "title": f"Chapter {i}", "text": text(14), "lang": ("en", "de")[i % 2]}
        for i in range(30)
    ]
    write_lines(folder / "docs.jsonl", documents)
    passages = [
        {"_id": f"p{i}", "title": f"Chapter {i}", "text": text(2), "lang": ("en", "de")[i % 2]}
        for i in range(60)
    ]
    queries = [{"_id": f"q{i}", "text": f"chapter {i} {WORDS[i % 12]}"} for i in range(30)]
    qrels = {name: {f"q{i}": f"p{i}" for i in numbers} for name, numbers in splits.items()}
    write_collection(folder / labeled, passages, queries, qrels)


def write_collection(
    folder: Path,
    passages: list[dict[str, Any]],
    queries: list[dict[str, Any]],
    qrels: Mapping[str, Mapping[str, str]],
) -> Path:
    """A folder in BEIR's layout; `qrels` has, for each split, the relevant passage of each of its queries."""
    (folder / "qrels").mkdir(parents=True)
    write_lines(folder / "corpus.jsonl", passages)
    write_lines(folder / "queries.jsonl", queries)
    for split, relevant in qrels.items():
        lines = [
            "query-id\tcorpus-id\tscore",
            *(f"{query}\t{passage}\t1" for query, passage in relevant.items()),
        ]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def bert_config(**changes: Any) -> Any:
    """The configuration of a BERT of 2 layers and 16 dimensions."""
    from transformers import BertConfig

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertConfig(**{**sizes, **changes})


def save_bert(folder: Path, tokenizer: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A random BERT with the tokenizer of another model; with `num_labels`, a sequence classifier."""
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification, BertModel

    torch.manual_seed(seed)
    kind = BertForSequenceClassification if "num_labels" in changes else BertModel
    kind(bert_config(**changes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def save_sentence_bert(folder: Path, source: Path, **changes: Any) -> Path:
    """A random BERT in the layout of the sentence-transformers model `source`: its tokenizer, pooling and modules."""
    import torch
    from transformers import BertModel

    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("model.safetensors", "config.json", "*.md"))
    torch.manual_seed(0)
    BertModel(bert_config(**changes)).save_pretrained(folder)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


def save_llama(folder: Path, texts: list[str], chat_template: str | None = None, **changes: Any) -> str:
    """A random Llama of two layers with grouped heads, and a byte-level tokenizer that is trained on the texts."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|end|>", "<|turn|>"], initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(texts, trainer)
    wrap: Any = PreTrainedTokenizerFast  # untyped
    tokenizer = wrap(tokenizer_object=raw, eos_token="<|end|>")
    tokenizer.chat_template = chat_template
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 4096, "vocab_size": len(tokenizer)}
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None, "initializer_range": 0.2}
    build: Any = LlamaConfig
    model = LlamaForCausalLM(build(**{**sizes, **ends, **changes}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@dataclass
class Server:
    """Starts commands in `folder`; see server.py."""

    folder: Path
    hash_seed: int
    launcher: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.temporary = self.folder / f"tmp-{self.hash_seed}"
        self.temporary.mkdir(exist_ok=True)  # of an earlier one, where a fixture is set up again
        self.process = subprocess.Popen(
            [*self.launcher, sys.executable, "-m", "tests.server"],
            cwd=Path(__file__).parents[1],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "COLUMNS": "200",
                "PYTHONHASHSEED": str(self.hash_seed),
                "TMPDIR": str(self.temporary),
                **self.environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, order: dict[str, Any]) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def launch(self, order: dict[str, Any], output: Path, ranks: int = 1, **environment: str) -> Running:
        """Carry out the order in this many processes; what they say goes to the files `output`-RANK."""
        group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        started = Running(self)
        for rank in range(ranks):
            several = {} if ranks == 1 else {**group, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.outputs.append(output.with_name(f"{output.name}-{rank}"))
            started.outputs[-1].write_text("")  # it may be killed before it opens its own
            own = {"env": {**several, **environment}, "output": str(started.outputs[-1])}
            started.pids.append(self.ask({"cwd": str(self.folder), **order, **own}))
        started.since = time.monotonic()
        return started

    def run(self, argv: list[str], output: Path, ranks: int = 1, **environment: str) -> str:
        """Run a command, in several processes as torchrun starts them; it must succeed. What it says."""
        running = self.launch({"argv": argv}, output, ranks, **environment)
        codes = running.wait()
        assert codes == {0}, running.text()
        return running.text()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Running:
    """The processes of a command."""

    server: Server
    pids: list[int] = field(default_factory=list)
    outputs: list[Path] = field(default_factory=list)
    since: float = 0.0

    def send(self, number: signal.Signals) -> None:
        """To all of them: one that has ended waits for `wait`, so its id is still its own."""
        for pid in self.pids:
            os.kill(pid, number)

    def ended(self) -> bool:
        """True if one of them has."""
        return any(self.server.ask({"poll": pid}) for pid in self.pids)

    def kill_when(self, reached: Callable[[], object]) -> None:
        """Kill them as soon as `reached` is true; they must not have ended before."""
        while not reached() and not self.ended():
            time.sleep(0.01)
        self.send(signal.SIGKILL)
        assert self.wait() == {-signal.SIGKILL}, f"it ended before it was killed: {self.text()}"

    def wait(self) -> set[int]:
        """Their exit statuses."""
        return {self.server.ask({"wait": pid}) for pid in self.pids}

    def text(self) -> str:
        return "".join(path.read_text() for path in self.outputs)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def with_keys(batch: Any) -> Iterator[tuple[Any, Any]]:
    """The micro-batches of a batch, each with its own rows' keys."""
    first = 0
    for rows in batch.micro:
        yield rows, batch.keys[first : first + len(rows.row_keys)]
        first += len(rows.row_keys)
