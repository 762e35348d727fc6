"""Measuring the speed of this machine: a few timed steps of the real stages on a sample."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qontext import api
from qontext.adapt.config import PROMPTS, Request
from qontext.adapt.survey import spread
from qontext.data.collection import Passage, passage_row
from qontext.data.lines import write_jsonl
from qontext.evaluation.question_model import AskingTime, time_questions
from qontext.frame import log, machine
from qontext.frame.workdir import scratch
from qontext.queries.generators import GENERATORS

TRAINED, ENCODED, STEPS, BATCH = 64, 192, 3, 32
"""Passages that are trained on and encoded, steps, and the batch, at most."""
MOST_SECONDS = 6.0
"""Approximate time for a training, and for the scores of a cross-encoder; encoding gets half of it."""
FEW_ENCODED, FEWEST_TRAINED = 12, 4
"""Passages with which the speed is estimated first, and passages of the smallest training that is worth timing."""
TRAINED_SHARE = 0.27
"""Speed of training, with a query for each passage, as a share of that of encoding: MiniLM on two cores."""
ASKED = 16
"""Passages about which a language model asks."""
FEWEST = 8
"""Minimum number of passages for training; below it, nothing is timed."""
SPLIT_CHARACTERS, BM25_PASSAGES, KEYPHRASE_PASSAGES = 1_500_000, 15_000, 2_500
"""Conservative rates per second on one core, for parts that take too little time to be measured."""
STAGE_SECONDS = 1.0
"""Fixed seconds of a stage, after others in the same process: loading a model, writing."""


def searching_by_words(queries: int, passages: int) -> float:
    """Seconds for BM25, which scores all passages for each query: measured on two cores, with 30,000 queries
    on 6,000 passages and 115,000 on 23,000."""
    once, per_passage = (6e-5, 2e-9) if find_spec("numba") else (1e-4, 2e-8)
    return queries * (once + per_passage * passages)


@dataclass(frozen=True)
class Rates:
    """Per second: training passages (with a query each), encoded passages, passages with generated queries,
    pairs scored by the cross-encoder (if any); and what the language model (if any) needs for its questions. `seconds`
    were spent on measuring; `load` is that of the machine, if it was busy."""

    trained: float
    encoded: float
    generated: float
    scored: float
    seconds: float = 0.0
    asking: AskingTime = field(default_factory=AskingTime)
    load: float = 0.0


def measure(
    sample: tuple[Passage, ...],
    pretrain: dict[str, Any],
    generate: dict[str, Any],
    max_length: int,
    reranker: str | None = None,
    *,
    window: int | None = None,
    question_model: str | None = None,
    trains: bool = True,
    under: Path,
) -> Rates:
    """Run generate, pretrain (if it `trains`) and encode on the sample, with the recipe's settings, and measure
    their time. The slower the machine, the smaller the samples.
    Their output is temporary, in a hidden folder of the directory `under`.
    """
    started, load = time.monotonic(), machine.load()
    # Records with repeated ids are skipped in the real work, too.
    usable = list({passage.id: passage for passage in sample if passage.text.strip()}.values())
    if len(usable) < FEWEST:
        return Rates(1.0, 10.0, KEYPHRASE_PASSAGES, 1.0, 0.0)
    parts = 3 + bool(reranker) + bool(question_model)
    with (
        log.progress("measure the speed of this machine", parts, "parts") as advance,
        log.warnings_only(),
        scratch(under) as root,
    ):
        prompts = {name: pretrain[name] for name in PROMPTS if name in pretrain}
        reading = {"encoder": str(pretrain["encoder"]), "max_length": max_length, "window": window, **prompts}
        encoded = _encoded(usable, reading, root)
        advance(1)
        some = spread(usable, TRAINED)
        passages = api.split(_write(root / "trained", some), keep=True, workers=1, out=root / "passages")
        is_timed = not GENERATORS.load(generate["generator"]).is_quick
        before = time.monotonic()
        queries = api.generate(passages, **generate, out=root / "queries")
        generated = len(some) / (time.monotonic() - before) if is_timed else KEYPHRASE_PASSAGES
        advance(1)
        # With a smaller batch, what a step costs in itself weighs more.
        batch = min(BATCH, len(some) // 2, int(MOST_SECONDS * TRAINED_SHARE * encoded / STEPS))
        trained = TRAINED_SHARE * encoded
        if trains and batch >= FEWEST_TRAINED:
            settings = {**pretrain, "batch_size": batch, "steps": STEPS, "log_every": 1, "workers": 1}
            trained = _trained(api.pretrain(passages, queries=queries, **settings, out=root / "encoder").path)
        advance(1)
        scored = _scored(reranker, some) if reranker else 1.0
        advance(1 if reranker else 0)
        asking = time_questions(question_model, spread(usable, ASKED)) if question_model else AskingTime()
    seconds = time.monotonic() - started
    return Rates(
        trained, encoded, generated, scored, seconds, asking, load if load > machine.cores() else 0.0
    )


def encoding_rate(sample: tuple[Passage, ...], request: Request, under: Path) -> float:
    """Passages per second that the request's encoder encodes."""
    usable = list({passage.id: passage for passage in sample if passage.text.strip()}.values())
    if len(usable) < FEWEST:
        return 10.0
    reading = {"encoder": request.encoder, "max_length": request.read_tokens, "window": request.window}
    reading |= request.prompts
    with log.warnings_only(), scratch(under) as root:
        return _encoded(usable, reading, root)


def _encoded(passages: list[Passage], reading: dict[str, Any], root: Path) -> float:
    """Encoded passages per second: of a few, then of more as long as that takes seconds."""

    def rate_of(count: int) -> float:
        texts = _write(root / f"encoded-{count}", spread(passages, count))
        return float(api.encode(texts, **reading, out=root / f"vectors-{count}").summary["texts_per_second"])

    rate_of(1)  # one-time costs
    count = min(FEW_ENCODED, len(passages))
    while True:
        rate = rate_of(count)
        more = min(ENCODED, len(passages), int(MOST_SECONDS / 2 * rate))
        if more < 2 * count:
            return rate
        count = more


def _trained(folder: Path) -> float:
    """The passages per second of a training, apart from its first step, which includes one-time costs."""
    lines = (folder / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rates = [json.loads(line)["passages_per_second"] for line in lines if "passages_per_second" in line]
    return float(statistics.median(rates[1:]))


def _scored(reranker: str, passages: list[Passage]) -> float:
    from qontext.models.cross_encoder import CrossEncoder

    model = CrossEncoder(reranker)
    pairs = [(passage.text[:60], passage.content) for passage in passages]
    model.score(pairs[:FEWEST])  # one-time costs
    started = time.monotonic()
    model.score(pairs[:FEWEST])
    rate = FEWEST / (time.monotonic() - started)
    pairs = pairs[: int(MOST_SECONDS * rate)]
    if len(pairs) < 2 * FEWEST:
        return rate
    started = time.monotonic()
    model.score(pairs)
    return len(pairs) / (time.monotonic() - started)


def _write(folder: Path, passages: list[Passage]) -> Path:
    folder.mkdir()
    write_jsonl(folder / "corpus.jsonl", map(passage_row, passages))
    return folder
