"""How fast this machine does each part of the work: a few timed steps of the real stages on a sample."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qontext import api, log
from qontext.adapt.survey import spread
from qontext.collection import Passage, passage_row, write_jsonl

TRAINED, ENCODED, STEPS, BATCH = 64, 192, 4, 16
FEWEST = 8
"""Passages, below which nothing is trained and nothing needs timing."""
SPLIT_CHARACTERS, BM25_PASSAGES, KEYPHRASE_PASSAGES = 1_500_000, 15_000, 2_500
"""Per second, on one core and with room to spare: these take so little of the whole that they are not timed."""
STAGE_SECONDS = 2.5
"""What a stage takes besides: imports, reading a model, writing."""


def searching_by_words(queries: int, passages: int) -> float:
    """Seconds that BM25 takes, which looks at all passages for each query: measured on two cores, with 30,000 queries of
    6,000 passages and 115,000 of 23,000."""
    once, per_passage = (6e-5, 2e-9) if find_spec("numba") else (1e-4, 2e-8)
    return queries * (once + per_passage * passages)


@dataclass(frozen=True)
class Rates:
    """Per second: passages trained on (with a query each), passages encoded, passages that get their queries, pairs
    that the cross-encoder scores (if there is one)."""

    trained: float
    encoded: float
    generated: float
    scored: float
    seconds: float = 0.0


def measure(
    sample: tuple[Passage, ...],
    pretrain: dict[str, Any],
    generate: dict[str, Any],
    max_length: int,
    reranker: str | None = None,
) -> Rates:
    """Run generate, pretrain and encode on the sample, as the recipe will, and read how long they took."""
    started = time.monotonic()
    usable = [passage for passage in sample if passage.text.strip()]
    if len(usable) < FEWEST:
        return Rates(1.0, 10.0, KEYPHRASE_PASSAGES, 1.0, 0.0)
    verbosity, log.verbosity = log.verbosity, -1
    try:
        with tempfile.TemporaryDirectory(prefix="qontext-") as folder:
            root = Path(folder)
            some = spread(usable, TRAINED)
            passages = api.split(_write(root / "trained", some), keep=True, workers=1, out=root / "passages")
            is_model = generate["generator"] != "keyphrase"
            before = time.monotonic()
            queries = api.generate(passages, **generate, out=root / "queries")
            generated = len(some) / (time.monotonic() - before) if is_model else KEYPHRASE_PASSAGES
            batch = max(2, min(BATCH, len(some) // 2))
            settings = {**pretrain, "batch_size": batch, "steps": STEPS, "log_every": 1, "workers": 1}
            made = api.pretrain(passages, queries=queries, **settings, out=root / "encoder")
            lines = (made.path / "logs" / "metrics.jsonl").read_text().splitlines()
            # The first step pays for what is done once.
            trained = [
                json.loads(line)["passages_per_second"] for line in lines if "passages_per_second" in line
            ][1:]
            texts = _write(root / "encoded", spread(usable, ENCODED))
            vectors = api.encode(
                texts, encoder=str(pretrain["encoder"]), max_length=max_length, out=root / "vectors"
            )
            encoded = vectors.summary["texts_per_second"]
            scored = _scored(reranker, some) if reranker else 1.0
    finally:
        log.verbosity = verbosity
    return Rates(statistics.median(trained), encoded, generated, scored, time.monotonic() - started)


def _scored(reranker: str, passages: list[Passage]) -> float:
    from qontext.retrieve.cross_encoder import CrossEncoder

    model = CrossEncoder(reranker)
    pairs = [(passage.text[:60], passage.content) for passage in passages]
    model.score(pairs[:FEWEST])  # what is done once
    started = time.monotonic()
    model.score(pairs)
    return len(pairs) / (time.monotonic() - started)


def _write(folder: Path, passages: list[Passage]) -> Path:
    folder.mkdir()
    write_jsonl(folder / "corpus.jsonl", map(passage_row, passages))
    return folder
