"""A quick evaluation of retrieval during training, on a small labeled set.

A probe searches with some of the queries among their relevant passages and about 2,000 others. Its measures
show a trend and compare states of one encoder; they differ from those of the whole collection.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qontext.data.collection import load_collection
from qontext.frame.errors import QontextError
from qontext.models.batching import Ints, pad, run_batches

OTHERS = 2000
Vectors = Callable[[Tensor, Tensor], Tensor]
"""Tokens [N, T] and mask [N, T] → vectors [N, H]; or of queries and passages, their similarity."""


class Probe:
    """The sample of a labeled set, tokenized once."""

    def __init__(
        self,
        folder: Path | str,
        split: str,
        tokenizer: Any,
        max_tokens: int,
        *,
        queries: int = 200,
        query_tokens: int = 64,
        prompts: tuple[str, str] = ("", ""),
        between: str | None = " ",
    ) -> None:
        collection = load_collection(folder)
        judged = collection.qrels(split)
        texts = collection.queries(split)
        ids = sorted(texts)[:: max(1, len(texts) // queries)][:queries]
        relevant = {p for q in ids for p, grade in judged[q].items() if grade > 0}
        passages = list(collection.passages())
        step = max(1, len(passages) // OTHERS)
        pool = {p.id: p.joined(between) for n, p in enumerate(passages) if p.id in relevant or n % step == 0}
        if not ids or not relevant & pool.keys():
            raise QontextError(
                "no judged query of the probe has its passages in the collection", place=folder
            )
        place = {name: n for n, name in enumerate(pool)}
        self.relevant = [
            [place[p] for p, grade in judged[q].items() if grade > 0 and p in place] for q in ids
        ]
        self.pad_id = tokenizer.pad_token_id
        of_query, of_passage = prompts
        self.queries = _tokens(tokenizer, [of_query + texts[q] for q in ids], query_tokens)
        self.passages = _tokens(tokenizer, [of_passage + text for text in pool.values()], max_tokens)

    def measure(
        self,
        model: nn.Module,
        vectors: Vectors,
        device: torch.device,
        of_queries: Vectors | None = None,
        similarity: Vectors = lambda queries, passages: queries @ passages.T,
    ) -> dict[str, float]:
        """MRR@10 and R@100 by the similarity of `vectors`, a method of `model`. `of_queries` computes the
        queries' vectors, if they differ.
        """
        training = model.training
        model.eval()
        queries = self._encode(of_queries or vectors, self.queries, device)
        passages = self._encode(vectors, self.passages, device)
        model.train(training)
        order = np.argsort(-similarity(queries, passages).numpy(), axis=1, kind="stable")[:, :100]
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
        """[texts, H] vectors, in the order of the texts."""
        parts: list[Tensor] = []
        places: list[Ints] = []

        def compute(rows: Ints) -> Tensor:
            ids, mask = (torch.from_numpy(a).to(device) for a in pad([texts[n] for n in rows], self.pad_id))
            return vectors(ids, mask).float()

        def store(rows: Ints, vectors: Tensor) -> None:
            parts.append(vectors.cpu())
            places.append(rows)

        lengths = np.array([len(text) for text in texts])
        run_batches(compute, store, lengths, tokens=tokens, device=device, most=1)
        return torch.cat(parts)[np.concatenate(places).argsort()]


def _tokens(tokenizer: Any, texts: list[str], limit: int) -> list[list[int]]:
    ids: Any = tokenizer(texts, truncation=True, max_length=limit)["input_ids"]
    return list(ids)
