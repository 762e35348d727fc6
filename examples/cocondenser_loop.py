"""coCondenser with queries as contexts, as one loop: data, masks, loss, step.

    python examples/cocondenser_loop.py pairs.jsonl --encoder condenser --out encoder

A line of pairs.jsonl is {"text": "a passage", "query": "a question that it answers"}.

    head   = Layers([ h^L[CLS] ; h^M[1..n] ])                    M: the middle layer
    L_co,i = -log  exp<h_i, h_i'> / Σ_{k ≠ i} exp<h_i, h_k>      h: the last layer's [CLS]; k over the batch's 2n texts
    L      = CE(φ(head), x) + CE(φ(h^L), x) + mean of L_co       the first two over the masked tokens of all texts

The loss is that of `qontext pretrain --method cocondenser` with queries, whose batches leave out negatives that are word for
word the text or its partner. What is missing here: token stores, batches packed by
length, gradient accumulation, several processes, exact resume, and every check of the input.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoTokenizer, get_linear_schedule_with_warmup
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.bert.modeling_bert import BertLayer

IGNORED = -100
"""The label of a token that is not predicted."""


def read_pairs(path: str) -> list[tuple[str, str]]:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return [(row["text"], row["query"]) for row in rows]


def batches(pairs: list[tuple[str, str]], size: int, rng: random.Random) -> Iterator[list[tuple[str, str]]]:
    """Shuffled batches without end; an incomplete one is left out."""
    while True:
        rng.shuffle(pairs)
        for start in range(0, len(pairs) - size + 1, size):
            yield pairs[start : start + size]


def masked(
    texts: list[str], tokenizer: Any, rate: float, length: int, rng: random.Random
) -> dict[str, Tensor]:
    """Padded token ids [N, T] with whole words masked, and the labels: the ids before masking, or IGNORED."""
    rows = tokenizer(list(texts), truncation=True, max_length=length)
    padded = tokenizer.pad(rows, return_tensors="pt")
    ids, labels = padded["input_ids"], torch.full_like(padded["input_ids"], IGNORED)
    for n in range(len(texts)):
        words: dict[int, list[int]] = {}
        for place, word in enumerate(rows.word_ids(n)):
            if word is not None:
                words.setdefault(word, []).append(place)
        budget, taken = max(1.0, rate * sum(map(len, words.values()))), 0
        for places in rng.sample(list(words.values()), len(words)):
            if taken and taken + len(places) > budget:
                continue
            taken += len(places)
            for place in places:
                labels[n, place] = ids[n, place]
                dice = rng.random()
                if dice < 0.8:
                    ids[n, place] = tokenizer.mask_token_id
                elif dice < 0.9:
                    ids[n, place] = rng.randrange(len(tokenizer))
    return {"ids": ids, "mask": padded["attention_mask"].bool(), "labels": labels}


class Head(nn.Module):
    """A few layers like the encoder's, newly initialized."""

    def __init__(self, config: Any, layers: int) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(BertLayer(config) for _ in range(layers))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=config.initializer_range)
                nn.init.zeros_(module.bias)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        seen = create_bidirectional_mask(self.config, inputs_embeds=hidden, attention_mask=mask)
        for layer in self.layers:
            hidden = layer(hidden, seen)
        return hidden


def predicted(model: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    """CE(φ(h), label), the mean over the masked tokens."""
    places = labels != IGNORED
    return F.cross_entropy(model.cls(hidden[places]), labels[places])


def loss_of(model: Any, head: nn.Module, texts: dict[str, Tensor]) -> Tensor:
    """`texts` has the passages, then their queries in the same order."""
    layers = model.bert(
        input_ids=texts["ids"], attention_mask=texts["mask"], output_hidden_states=True
    ).hidden_states
    last, middle = layers[-1], layers[max(1, (len(layers) - 1) // 2)]
    decoded = head(torch.cat([last[:, :1], middle[:, 1:]], dim=1), texts["mask"])
    similarity = last[:, 0] @ last[:, 0].T
    count = len(similarity)
    similarity = similarity.masked_fill(torch.eye(count, dtype=torch.bool), -torch.inf)
    partner = (torch.arange(count) + count // 2) % count
    contrastive = F.cross_entropy(similarity, partner)
    return predicted(model, decoded, texts["labels"]) + predicted(model, last, texts["labels"]) + contrastive


def train(options: argparse.Namespace) -> list[float]:
    """Train, save the encoder, and return the losses."""
    rng = random.Random(options.seed)
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.encoder)
    model = AutoModelForMaskedLM.from_pretrained(options.encoder, dtype=torch.float32).train()
    head = Head(model.config, options.head_layers).train()
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=options.lr, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, options.steps // 10, options.steps)
    stream = batches(read_pairs(options.pairs), options.batch_size, rng)
    losses = []
    for step in range(1, options.steps + 1):
        texts, queries = zip(*next(stream))
        both = masked([*texts, *queries], tokenizer, 0.15, options.max_tokens, rng)
        loss = loss_of(model, head, both)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % options.log_every == 0:
            print(
                f"step {step:,} of {options.steps:,}, loss {sum(losses[-options.log_every :]) / options.log_every:.3f}"
            )
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    return losses


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs")
    parser.add_argument("--encoder", required=True, help="a BERT with its MLM head: a folder or a Hub name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=144)
    parser.add_argument("--head-layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=42)
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
