"""The tiny inputs of the commands of `digests.py`."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

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
verb = "retrieve"
bm25 = true
data = "labeled"
split = "dev"

[evaluate]
run = "@search"
qrels = "labeled"
split = "dev"
"""


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
