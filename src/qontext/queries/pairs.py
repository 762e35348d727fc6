"""Labelled (passage, query) pairs as batches of token ids, in an order that is a pure function of the step.

Shapes: N pairs in a batch, L passage tokens, Q query tokens, both padded to the longest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qontext import collection
from qontext.engine.randomness import permuted
from qontext.errors import QontextError

POOL = 16
"""Batches that are sorted by length together: little padding, and still well mixed."""


@dataclass(frozen=True)
class Pair:
    """A passage and a query that it answers."""

    title: str
    text: str
    query: str


def read_pairs(folders: Sequence[str], split: str) -> list[Pair]:
    """The positive judgements of a split of BEIR folders, in the order of the files."""
    found: list[Pair] = []
    for folder in folders:
        labelled = collection.load_collection(folder)
        qrels = labelled.qrels(split)
        queries = labelled.queries(split)
        wanted = {passage for judged in qrels.values() for passage, grade in judged.items() if grade > 0}
        passages = {p.id: p for p in labelled.passages() if p.id in wanted}
        collection.check_qrels(
            qrels, queries, passages.keys() | _unwanted(qrels, wanted), Path(folder) / "qrels"
        )
        found += [
            Pair(passages[id].title, passages[id].text, queries[query])
            for query, judged in qrels.items()
            for id, grade in judged.items()
            if grade > 0 and passages[id].text.strip()
        ]
    if not found:
        raise QontextError(f"the split {split!r} has no positive judgement", place=", ".join(folders))
    return found


def _unwanted(qrels: collection.Qrels, wanted: set[str]) -> set[str]:
    """Passages that are judged but not relevant to anything: they need not be there."""
    return {passage for judged in qrels.values() for passage in judged} - wanted


@dataclass(frozen=True)
class Encoded:
    """Pairs as token ids."""

    passages: list[list[int]]
    queries: list[list[int]]

    def __len__(self) -> int:
        return len(self.passages)

    def batch(self, rows: Sequence[int], pad: int, device: torch.device) -> dict[str, Tensor]:
        ids_NL = _pad([self.passages[i] for i in rows], pad)
        labels_NQ = _pad([self.queries[i] for i in rows], -100)
        return {
            "input_ids": ids_NL.to(device),
            "attention_mask": (ids_NL != pad).long().to(device),
            "labels": labels_NQ.to(device),
        }

    def rows_of(self, step: int, size: int, seed: int) -> list[int]:
        """Which pairs the batch of a step holds: every pair once per epoch, neighbours in length together."""
        steps = max(1, len(self) // size)
        epoch, at = divmod(step, steps)
        pool, place = divmod(at, POOL)
        first, last = pool * POOL, min(steps, pool * POOL + POOL)
        slots = np.arange(first * size, min(last * size, len(self)))
        rows = permuted(slots, len(self), seed, epoch)
        rows = rows[np.argsort([len(self.passages[i]) for i in rows.tolist()], kind="stable")]
        turn = int(permuted(np.array([place]), last - first, seed, epoch * 1_000_003 + pool)[0])
        chosen: list[int] = rows[turn * size : (turn + 1) * size].tolist()
        return chosen


def encode_pairs(tokenizer: Any, pairs: list[Pair], source: Any, max_passage: int, max_query: int) -> Encoded:
    """Tokenise; `source` makes the encoder's text of a pair."""
    passages = tokenizer([source(pair) for pair in pairs], truncation=True, max_length=max_passage)[
        "input_ids"
    ]
    queries = tokenizer([pair.query for pair in pairs], truncation=True, max_length=max_query)["input_ids"]
    # A decoder starts with a token of its own: one that the tokenizer puts in front is not asked for twice.
    start = tokenizer.cls_token_id
    return Encoded(passages, [ids[1:] if start is not None and ids[0] == start else ids for ids in queries])


def _pad(sequences: list[list[int]], value: int) -> Tensor:
    longest = max(map(len, sequences))
    return torch.tensor([ids + [value] * (longest - len(ids)) for ids in sequences])
