"""How well do the vectors retrieve, while they are being trained? A small labelled set, measured quickly.

A probe is cheap and relative: some of the queries against their relevant passages and about 2,000 others. Its
figures show a trend and tell two states of one encoder apart; they are not those of the whole collection.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qontext.collection import load_collection
from qontext.errors import QontextError

OTHERS = 2000
Vectors = Callable[[Tensor, Tensor], Tensor]
"""Tokens [N, T] and mask [N, T] → vectors [N, H]."""


class Probe:
    """The sample of a labelled set, tokenised once."""

    def __init__(
        self,
        folder: Path | str,
        split: str,
        tokenizer: Any,
        max_tokens: int,
        *,
        queries: int = 200,
        query_tokens: int = 64,
    ) -> None:
        collection = load_collection(folder)
        judged = collection.qrels(split)
        texts = collection.queries(split)
        chosen = sorted(texts)[:: max(1, len(texts) // queries)][:queries]
        wanted = {p for q in chosen for p, grade in judged[q].items() if grade > 0}
        passages = list(collection.passages())
        step = max(1, len(passages) // OTHERS)
        pool = {p.id: p.content for n, p in enumerate(passages) if p.id in wanted or n % step == 0}
        if not chosen or not wanted & pool.keys():
            raise QontextError("the probe finds no judged query whose passages are there", place=folder)
        place = {name: n for n, name in enumerate(pool)}
        self.relevant = [
            [place[p] for p, grade in judged[q].items() if grade > 0 and p in place] for q in chosen
        ]
        self.pad_id = tokenizer.pad_token_id
        self.queries = _tokens(tokenizer, [texts[q] for q in chosen], query_tokens)
        self.passages = _tokens(tokenizer, list(pool.values()), max_tokens)

    def measure(
        self, model: nn.Module, vectors: Vectors, device: torch.device, of_queries: Vectors | None = None
    ) -> dict[str, float]:
        """MRR@10 and R@100 by the dot product of what `vectors`, a way of `model`'s, gives.

        `of_queries` gives the queries' vectors, where they are made in another way.
        """
        training = model.training
        model.eval()
        with torch.inference_mode():
            queries = self._encode(of_queries or vectors, self.queries, device)
            passages = self._encode(vectors, self.passages, device)
        model.train(training)
        order = np.argsort(-(queries @ passages.T).numpy(), axis=1, kind="stable")[:, :100]
        reciprocal, recall = [], []
        for row, relevant in zip(order, self.relevant):
            hits = np.isin(row, relevant)
            first = int(np.argmax(hits)) if hits[:10].any() else None
            reciprocal.append(0.0 if first is None else 1 / (first + 1))
            recall.append(hits.sum() / len(relevant) if relevant else 0.0)
        return {"MRR@10": round(float(np.mean(reciprocal)), 4), "R@100": round(float(np.mean(recall)), 4)}

    def _encode(
        self, vectors: Vectors, texts: list[list[int]], device: torch.device, tokens: int = 16_384
    ) -> Tensor:
        """[texts, H] computed in order of length."""
        order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
        parts, places = [], []
        while order:
            size = max(1, tokens // len(texts[order[min(len(order), 64) - 1]]))
            rows, order = order[:size], order[size:]
            padded = torch.full((len(rows), len(texts[rows[-1]])), self.pad_id)
            for n, row in enumerate(rows):
                padded[n, : len(texts[row])] = torch.tensor(texts[row])
            lengths = torch.tensor([len(texts[row]) for row in rows])
            mask = torch.arange(padded.shape[1]) < lengths[:, None]
            parts.append(vectors(padded.to(device), mask.to(device)).float().cpu())
            places += rows
        return torch.cat(parts)[torch.tensor(places).argsort()]


def _tokens(tokenizer: Any, texts: list[str], limit: int) -> list[list[int]]:
    found: Any = tokenizer(texts, truncation=True, max_length=limit)["input_ids"]
    return list(found)
