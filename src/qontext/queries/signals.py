"""Signals of whether a text (a query, or another passage) belongs to a passage. Each is a number per pair.

- ``overlap``   the share of the text's content words, stemmed, that stand in the passage or its title
- ``rank``      where the passage stands when the text is searched for, by BM25 or by a dense retriever;
                0 if it is not within the depth (round trip)
- ``back_rank`` where the text stands among all texts when the passage is searched for (the way back)
- ``rerank``    what a cross-encoder gives the pair, as a probability

Shapes: N pairs, P passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from qontext.queries.words import READ_CHARACTERS, Array, content_words
from qontext.retrieve.bm25 import Bm25, stem

BATCH = 4096


class Searcher(Protocol):
    """A collection of texts that can be searched."""

    def top(self, texts: Sequence[str], k: int) -> tuple[Array, Array]:
        """[N, k] numbers of the best texts and their scores; scores of 0 or below mean no hit (BM25)."""
        ...


class Lexical:
    """BM25 over texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.index = Bm25.build(texts, [f"{n:09d}" for n in range(len(texts))])

    def top(self, texts: Sequence[str], k: int) -> tuple[Array, Array]:
        return self.index.top(texts, k)


class Dense:
    """Inner products of a retriever's vectors; `kind` says as what the indexed texts are encoded."""

    def __init__(self, retriever: Any, texts: Sequence[str], kind: str, asked: str) -> None:
        self.retriever, self.asked = retriever, asked
        self.vectors = retriever.encode(texts, kind)

    def top(self, texts: Sequence[str], k: int) -> tuple[Array, Array]:
        import torch

        asked = torch.from_numpy(self.retriever.encode(texts, self.asked))
        scores, numbers = (asked @ torch.from_numpy(self.vectors).T).topk(min(k, len(self.vectors)))
        # A dense score may be negative and still a hit; the offset keeps "no hit" apart.
        return numbers.numpy(), (scores - scores.min() + 1.0).numpy()


def overlap(texts: Sequence[str], passages: Sequence[str]) -> Array:
    """[N] between 0 and 1; a text without a content word has 0."""
    stems: dict[str, set[str]] = {}
    shares = np.zeros(len(texts), np.float32)
    for n, (text, passage) in enumerate(zip(texts, passages)):
        known = stems.get(passage)
        if known is None:
            stems.clear()  # pairs of one passage stand together
            known = stems[passage] = set(map(stem, content_words(passage[:READ_CHARACTERS])))
        wanted = {stem(word) for word in content_words(text[:READ_CHARACTERS])}
        shares[n] = len(wanted & known) / len(wanted) if wanted else 0.0
    return shares


def rank(
    texts: Sequence[str], wanted: Array, searcher: Searcher, depth: int, *, hide: Array | None = None
) -> Array:
    """[N] the place (from 1) of text number `wanted[n]` in the search for `texts[n]`; 0 beyond `depth`.

    `hide[n]` is a text that is left out of the n-th ranking, such as the one that is searched for.
    """
    ranks = np.zeros(len(texts), np.int32)
    for start in range(0, len(texts), BATCH):
        rows = slice(start, start + BATCH)
        numbers, scores = searcher.top(texts[rows], depth + (hide is not None))
        live = scores > 0
        if hide is not None:
            live &= numbers != hide[rows, None]
        place = np.cumsum(live, axis=1)
        here = live & (numbers == wanted[rows, None]) & (place <= depth)
        ranks[rows] = (place * here).max(axis=1)
    return ranks


def back_ranks(
    texts: Sequence[str], owner: Array, passages: Sequence[str], backward: Searcher, depth: int
) -> Array:
    """[N] the place of each text in the search for its own passage, among all texts; 0 beyond `depth`."""
    ranks = np.zeros(len(texts), np.int32)
    owners = np.unique(owner)
    for start in range(0, len(owners), BATCH):
        asked = owners[start : start + BATCH]
        numbers, scores = backward.top([passages[n][:READ_CHARACTERS] for n in asked.tolist()], depth)
        mine = (owner[numbers] == asked[:, None]) & (scores > 0)
        row, column = np.nonzero(mine)
        ranks[numbers[row, column]] = column + 1
    return ranks


class Reranker:
    """A cross-encoder: [query, passage] → probability that they belong together."""

    def __init__(self, name: str, device: str = "auto", max_length: int = 512) -> None:
        from safetensors import SafetensorError
        from transformers import AutoModelForSequenceClassification

        from qontext import hub
        from qontext.engine.load import quiet
        from qontext.engine.precision import resolve_device, resolve_precision
        from qontext.errors import QontextError
        from qontext.queries.seq2seq import load_tokenizer

        folder = hub.locate(name, "reranker", weights=True)
        try:
            with quiet():
                model = AutoModelForSequenceClassification.from_pretrained(
                    folder, local_files_only=True, dtype="float32"
                )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            first = str(error).strip().splitlines()[0]
            raise QontextError(f"cannot be loaded as a cross-encoder: {first}", place=folder) from None
        if not any("ForSequenceClassification" in name for name in model.config.architectures or []):
            raise QontextError("is no cross-encoder: it has no classification head", place=folder)
        if model.config.num_labels > 2:
            raise QontextError(
                f"has {model.config.num_labels} labels; a reranker has one or two", place=folder
            )
        self.device = resolve_device(device)
        self.dtype = resolve_precision("auto", self.device)
        self.model, self.tokenizer = model.to(self.device).eval(), load_tokenizer(folder)
        self.max_length = min(
            max_length, getattr(model.config, "max_position_embeddings", None) or max_length
        )

    def probabilities(self, texts: Sequence[str], passages: Sequence[str]) -> Array:
        """[N]"""
        import torch

        from qontext.engine.precision import autocast

        given = np.zeros(len(texts), np.float32)
        order = sorted(range(len(texts)), key=lambda n: -len(texts[n]) - len(passages[n]))
        with torch.inference_mode(), autocast(self.device, self.dtype):
            for start in range(0, len(order), 32):
                rows = order[start : start + 32]
                tokens = self.tokenizer(
                    [texts[n] for n in rows], [passages[n][:READ_CHARACTERS] for n in rows],
                    truncation="only_second", max_length=self.max_length, padding=True, return_tensors="pt",
                ).to(self.device)  # fmt: skip
                logits = self.model(**tokens).logits.float()
                chance = logits.sigmoid()[:, 0] if logits.shape[1] == 1 else logits.softmax(-1)[:, 1]
                given[rows] = chance.cpu().numpy()
        return given
