"""The speed of this machine: a few timed steps of the real stages on a sample."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qontext import api
from qontext.adapt.config import Request
from qontext.adapt.survey import spread
from qontext.data.collection import Passage, passage_row
from qontext.data.lines import write_jsonl
from qontext.evaluation.question_model import AskingTime, time_questions
from qontext.frame import log
from qontext.frame.workdir import scratch
from qontext.queries.generators import GENERATORS

TRAINED, ENCODED, STEPS, BATCH = 64, 192, 3, 32
"""Passages that are trained on and encoded, steps, and the batch, at most."""
MOST_SECONDS = 6.0
"""Approximate time for a training, and for the scores of a cross-encoder."""
FEW_ENCODED, FEWEST_TRAINED = 12, 4
"""Passages with which the speed is estimated first, and passages of the smallest training that is worth timing."""
TRAINED_SHARE = 0.27
"""Speed of training, with a query for each passage, as a share of that of encoding: MiniLM on two cores."""
ASKED = 16
"""Passages about which a language model asks."""
FEWEST = 8
"""Minimum number of passages for training; below it, nothing is timed."""
KEYPHRASE_PASSAGES = 2_500
"""A conservative rate per second of a generator that is too quick to be measured."""


@dataclass(frozen=True)
class Rates:
    """Per second: training passages (with a query each), encoded passages, passages with generated queries,
    pairs scored by the cross-encoder (if any); and what the language model (if any) needs for its questions. `seconds`
    were spent on measuring."""

    trained: float
    encoded: float
    generated: float
    scored: float
    seconds: float = 0.0
    asking: AskingTime = field(default_factory=AskingTime)


def measure(sample: tuple[Passage, ...], request: Request, under: Path) -> Rates:
    """Run generate, pretrain and encode on the sample, with the recipe's settings, and measure their time. Their output is
    temporary, in a hidden folder of the directory `under`.
    """
    started = time.monotonic()
    # Records with repeated ids are skipped in the real work, too.
    usable = list({passage.id: passage for passage in sample if passage.text.strip()}.values())
    if len(usable) < FEWEST:
        return Rates(1.0, 10.0, KEYPHRASE_PASSAGES, 1.0)
    generate, pretrain = request.generate, request.pretrain
    with log.warnings_only(), scratch(under) as root:
        encoded = _encoded(usable, request, root)
        some = spread(usable, TRAINED)
        passages = api.split(_write(root / "trained", some), keep=True, workers=1, out=root / "passages")
        before = time.monotonic()
        queries = api.generate(passages, **generate, out=root / "queries")
        generated = len(some) / (time.monotonic() - before)
        if GENERATORS.load(generate["generator"]).is_quick:
            generated = KEYPHRASE_PASSAGES
        # With a smaller batch, what a step costs in itself weighs more.
        trained = TRAINED_SHARE * encoded
        batch = min(BATCH, len(some) // 2, int(MOST_SECONDS * trained / STEPS))
        if not request.untrainable and batch >= FEWEST_TRAINED:
            settings = {**pretrain, "batch_size": batch, "steps": STEPS, "log_every": 1, "workers": 1}
            trained = _trained(api.pretrain(passages, queries=queries, **settings, out=root / "encoder").path)
        scored = _scored(request.reranker, some) if request.reranker else 1.0
        writer = request.question_model
        asking = time_questions(writer, spread(usable, ASKED)) if writer else AskingTime()
    return Rates(trained, encoded, generated, scored, time.monotonic() - started, asking)


def _encoded(passages: list[Passage], request: Request, root: Path) -> float:
    """Encoded passages per second: of one, which has one-time costs, then of a few, then of more if that takes seconds."""
    reading: dict[str, Any] = {
        "encoder": request.encoder,
        "max_length": request.read_tokens,
        "window": request.window,
    }
    reading |= request.prompts
    rate, count = 0.0, 1
    while True:
        texts = _write(root / f"encoded-{count}", spread(passages, count))
        made = api.encode(texts, **reading, out=root / f"vectors-{count}")
        rate = float(made.summary["texts_per_second"])
        more = FEW_ENCODED if count == 1 else min(ENCODED, len(passages), int(MOST_SECONDS / 2 * rate))
        if count > 1 and more < 2 * count:
            return rate
        count = more


def _trained(folder: Path) -> float:
    """The passages per second of a training, apart from its first step, which includes one-time costs."""
    lines = (folder / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rates = [json.loads(line)["passages_per_second"] for line in lines if "passages_per_second" in line]
    return float(statistics.median(rates[1:]))


def _scored(reranker: str, passages: list[Passage]) -> float:
    """Pairs per second of a cross-encoder: of a few, then of as many as take seconds."""
    from qontext.models.cross_encoder import CrossEncoder

    model, rate = CrossEncoder(reranker), 0.0
    pairs = [(passage.text[:60], passage.content) for passage in passages]
    model.score(pairs[:FEWEST])  # one-time costs
    for count in (FEWEST, len(pairs)):
        if count > FEWEST:
            count = min(count, int(MOST_SECONDS * rate))
        if count >= FEWEST:
            started = time.monotonic()
            model.score(pairs[:count])
            rate = count / (time.monotonic() - started)
    return rate


def _write(folder: Path, passages: list[Passage]) -> Path:
    folder.mkdir()
    write_jsonl(folder / "corpus.jsonl", map(passage_row, passages))
    return folder
