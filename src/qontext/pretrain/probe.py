"""Does pre-training help? Retrieval by the [CLS] vectors as they are, on a small labelled set, while it runs.

A probe is cheap and relative: up to 200 queries against their relevant passages and 2,000 others. Its figures
show a trend; they are not comparable with those of the whole collection.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qontext.collection import load_collection
from qontext.engine.encoder import Encoder
from qontext.errors import QontextError

QUERIES, OTHERS, QUERY_TOKENS = 200, 2000, 64


class Probe:
    """The sample of a labelled set, tokenised once."""

    def __init__(self, folder: Path | str, split: str, encoder: Encoder, max_tokens: int) -> None:
        collection = load_collection(folder)
        judged = collection.qrels(split)
        texts = collection.queries(split)
        chosen = sorted(texts)[:: max(1, len(texts) // QUERIES)][:QUERIES]
        wanted = {p for q in chosen for p, grade in judged[q].items() if grade > 0}
        passages = list(collection.passages())
        step = max(1, len(passages) // OTHERS)
        pool = {
            p.id: f"{p.title} {p.text}".strip()
            for n, p in enumerate(passages)
            if p.id in wanted or n % step == 0
        }
        if not chosen or not wanted & pool.keys():
            raise QontextError("the probe finds no judged query whose passages are there", place=folder)
        place = {name: n for n, name in enumerate(pool)}
        self.relevant = [
            [place[p] for p, grade in judged[q].items() if grade > 0 and p in place] for q in chosen
        ]
        self.queries = self._tokens(encoder, [texts[q] for q in chosen], QUERY_TOKENS)
        self.passages = self._tokens(encoder, list(pool.values()), max_tokens)

    def measure(self, encoder: Encoder, device: torch.device) -> dict[str, float]:
        """MRR@10 and R@100 by dot product."""
        training = encoder.training
        encoder.eval()
        with torch.inference_mode():
            scores = _encode(encoder, self.queries, device) @ _encode(encoder, self.passages, device).T
        encoder.train(training)
        order = np.argsort(-scores.numpy(), axis=1, kind="stable")[:, :100]
        reciprocal, recall = [], []
        for row, relevant in zip(order, self.relevant):
            hits = np.isin(row, relevant)
            first = int(np.argmax(hits)) if hits[:10].any() else None
            reciprocal.append(0.0 if first is None else 1 / (first + 1))
            recall.append(hits.sum() / len(relevant) if relevant else 0.0)
        return {"MRR@10": round(float(np.mean(reciprocal)), 4), "R@100": round(float(np.mean(recall)), 4)}

    @staticmethod
    def _tokens(encoder: Encoder, texts: list[str], limit: int) -> list[list[int]]:
        found: Any = encoder.tokenizer(texts, truncation=True, max_length=limit)["input_ids"]
        return list(found)


def _encode(encoder: Encoder, texts: list[list[int]], device: torch.device, tokens: int = 16_384) -> Tensor:
    """[texts, H] the [CLS] vectors, computed in order of length."""
    vectors = torch.empty(len(texts), encoder.hidden_size)
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    while order:
        size = max(1, tokens // len(texts[order[min(len(order), 64) - 1]]))
        rows, order = order[:size], order[size:]
        padded = torch.full((len(rows), len(texts[rows[-1]])), encoder.tokenizer.pad_token_id)
        for n, row in enumerate(rows):
            padded[n, : len(texts[row])] = torch.tensor(texts[row])
        lengths = torch.tensor([len(texts[row]) for row in rows])
        mask = torch.arange(padded.shape[1]) < lengths[:, None]
        vectors[rows] = encoder(padded.to(device), mask.to(device))[0][:, 0].float().cpu()
    return vectors
