"""The plain way to pre-train, as a yardstick: what published training code does, written here for comparison.

Every text is padded to the maximum, a 10-token query too; vocabulary logits are computed at every position;
texts are collated one by one in Python; `.item()` after every step. The losses are the same as ours.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORED = -100


class Collator:
    """Whole-word masking and padding, text by text."""

    def __init__(self, tokenizer: Any, max_tokens: int, seed: int = 0) -> None:
        self.tokenizer, self.max_tokens, self.dice = tokenizer, max_tokens, random.Random(seed)
        self.continues = {i for token, i in tokenizer.get_vocab().items() if token.startswith("##")}

    def masked(self, ids: list[int], rate: float) -> tuple[list[int], list[int]]:
        words: list[list[int]] = []
        for place, token in enumerate(ids):
            if token in self.continues and words:
                words[-1].append(place)
            else:
                words.append([place])
        self.dice.shuffle(words)
        budget, chosen = max(1, round(len(ids) * rate)), set()
        for word in words:
            if len(chosen) + len(word) <= budget:
                chosen.update(word)
        labels = [token if place in chosen else IGNORED for place, token in enumerate(ids)]
        inputs = list(ids)
        for place in chosen:
            dice = self.dice.random()
            if dice < 0.8:
                inputs[place] = self.tokenizer.mask_token_id
            elif dice < 0.9:
                inputs[place] = self.dice.randrange(len(self.tokenizer))
        return inputs, labels

    def __call__(self, texts: list[list[int]], rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """ids, attention mask and labels, all [N, max_tokens]."""
        t, rows = self.tokenizer, []
        for ids in texts:
            inputs, labels = self.masked(ids[: self.max_tokens - 2], rate)
            inputs = [t.cls_token_id, *inputs, t.sep_token_id]
            padding = self.max_tokens - len(inputs)
            rows.append(
                (
                    inputs + [t.pad_token_id] * padding,
                    [1] * len(inputs) + [0] * padding,
                    [IGNORED, *labels, IGNORED] + [IGNORED] * padding,
                )
            )
        ids, mask, labels = (torch.tensor(column) for column in zip(*rows))
        return ids, mask, labels


def layers_like(model: Any, count: int) -> nn.ModuleList:
    from transformers.models.bert.modeling_bert import BertLayer

    return nn.ModuleList(BertLayer(model.config) for _ in range(count))


class Baseline(nn.Module):
    """A masked language model with a two-layer head on top."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.head = model, layers_like(model, 2)

    def dense_loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        logits = self.model.cls(hidden)
        return F.cross_entropy(
            logits.view(-1, logits.shape[-1]).float(), labels.view(-1), ignore_index=IGNORED
        )

    def through_head(self, hidden: Tensor, mask: Tensor) -> Tensor:
        extended = (1.0 - mask[:, None, None].to(hidden.dtype)) * torch.finfo(hidden.dtype).min
        for layer in self.head:
            hidden = layer(hidden, extended)
        return hidden


class BaselineCoCondenser(Baseline):
    def forward(self, pairs: list[tuple[list[int], list[int]]], collate: Collator) -> Tensor:
        ids, mask, labels = collate([text for pair in pairs for text in pair], 0.15)
        out = self.model(ids, attention_mask=mask, output_hidden_states=True).hidden_states
        early, last = out[len(out) // 2], out[-1]
        head = self.through_head(torch.cat([last[:, :1], early[:, 1:]], 1), mask)
        vectors = last[:, 0].float()
        scores = vectors @ vectors.T
        scores.fill_diagonal_(float("-inf"))
        partner = torch.arange(len(vectors)) ^ 1
        return (
            self.dense_loss(last, labels) + self.dense_loss(head, labels) + F.cross_entropy(scores, partner)
        )


class BaselineCotMae(Baseline):
    def forward(self, pairs: list[tuple[list[int], list[int]]], collate: Collator) -> Tensor:
        ids, mask, labels = collate([passage for passage, _ in pairs], 0.30)
        query_ids, query_mask, query_labels = collate([query for _, query in pairs], 0.45)
        last = self.model.bert(ids, attention_mask=mask).last_hidden_state
        inputs = torch.cat([last[:, :1], self.model.bert.embeddings(query_ids)[:, 1:]], 1)
        decoded = self.through_head(inputs, query_mask)
        return self.dense_loss(last, labels) + self.dense_loss(decoded, query_labels)
