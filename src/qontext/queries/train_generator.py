"""Labelled (passage, query) pairs → a model that asks what a passage answers.

    L = − Σ_t log P(q_t | q_<t, passage)

The batch and the dropout of a step are pure functions of (seed, step), and a checkpoint holds weights,
moments and the best weights so far: a run that was killed ends in the same bits.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from qontext import log
from qontext.artifacts import Workdir
from qontext.collection import Passage
from qontext.config import Input, Machine, StageConfig
from qontext.errors import QontextError
from qontext.queries.t5 import SETTINGS_FILE, Source
from qontext.stages import Stage

CHECKPOINT = "checkpoint.safetensors"


class TrainGeneratorConfig(StageConfig):
    data: Annotated[tuple[str, ...], Input(positional=True)]
    """Labelled sets: folders in BEIR's layout."""
    model: Annotated[str | None, Input()] = None
    """What to start from: a sequence-to-sequence model, or a BERT encoder (used for both halves). If not
    given, a T5 from scratch."""
    preset: Literal["tiny", "mini", "small"] = "mini"
    """Size of a model from scratch: 2, 4 or 6 layers on either side, 128, 256 or 512 wide."""
    vocabulary: Annotated[int, Field(ge=64)] = 8000
    """Tokens of a model from scratch."""
    train_split: str = "train"
    """The judgements to learn from."""
    dev_split: str = "dev"
    """The judgements that say when to stop."""
    dev_pairs: Annotated[int, Field(ge=1)] = 1000
    """At most so many of them are used."""
    prefix: str = ""
    """What stands before each passage; it is kept with the model, and generate uses it."""
    with_title: bool = True
    """Whether the title stands before the text; kept with the model, too."""
    max_passage_tokens: Annotated[int, Field(ge=8)] = 192
    """The rest of a passage is not read."""
    max_query_tokens: Annotated[int, Field(ge=4)] = 48
    """The rest of a query is not learnt."""
    steps: Annotated[int, Field(ge=1)] = 4000
    """Optimiser steps at most."""
    batch: Annotated[int, Field(ge=1)] = 32
    """Pairs per step."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate (about 1e-3 from scratch, 1e-4 to 3e-4 from a model)."""
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the steps in which the rate rises; then it falls to zero."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Of all weights but biases and norms."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target that is spread over all tokens."""
    evaluate_every: Annotated[int, Field(ge=1)] = 500
    """Steps between two looks at the dev pairs; each writes a checkpoint and prints samples."""
    patience: Annotated[int, Field(ge=1)] = 3
    """Stop when the dev loss has not fallen for so many looks."""
    seed: int = 42
    """Decides initial weights, order of pairs and dropout."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Number format of activations."""
    device: Annotated[str, Machine()] = "auto"
    """auto, cpu, cuda or cuda:N."""

    @field_validator("data", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else tuple(map(str, value))


def run(config: TrainGeneratorConfig, work: Workdir) -> dict[str, Any]:
    from qontext.engine.precision import resolve_device, resolve_precision
    from qontext.queries.new_model import from_model, from_scratch
    from qontext.queries.pairs import Pair, encode_pairs, read_pairs
    from qontext.queries.trainer import Progress, Trainer

    pairs = read_pairs(config.data, config.train_split)
    dev_pairs = spread(read_pairs(config.data, config.dev_split), config.dev_pairs)
    if config.model:
        model, tokenizer = from_model(config.model, config.seed)
    else:
        texts = dict.fromkeys(text for pair in pairs for text in (pair.text, pair.query))
        model, tokenizer = from_scratch(config.preset, texts, config.vocabulary, config.seed)

    shape = Source(config.prefix, config.with_title)

    def source(pair: Pair) -> str:
        return shape.text(Passage("", pair.title, pair.text, ""))

    lengths = (config.max_passage_tokens, config.max_query_tokens)
    train, dev = (encode_pairs(tokenizer, part, source, *lengths) for part in (pairs, dev_pairs))
    if len(train) < config.batch:
        raise QontextError(
            f"there are only {len(train)} pairs", remedy=f"Choose --batch {len(train)} or less."
        )
    device = resolve_device(config.device)
    trainer = Trainer(
        model.to(device), tokenizer, train, dev, config, resolve_precision(config.precision, device)
    )
    shown, samples = spread(dev_pairs, 3), spread(dev_pairs, 20)
    started = time.monotonic()
    progress = trainer.load(work.path / CHECKPOINT) if work.has(CHECKPOINT) else Progress()
    first = progress.step
    with log.progress("train-generator", config.steps - first, "steps") as advance:
        for progress in trainer.go(progress):  # noqa: B020 - it goes on from there
            advance(1)
            if progress.looked:
                with work.write(CHECKPOINT) as path:
                    trainer.save(path, progress)
                log.note(f"step {progress.step:,}: dev loss {progress.history[-1][1]:.3f}")
                for pair, query in zip(shown, trainer.samples(shown, source)):
                    log.note(f"    {pair.title[:40]!r} asked {pair.query!r}, drawn {query!r}")
    seconds = time.monotonic() - started
    drawn = trainer.use_best(progress).samples(samples, source)
    work.write_json("samples.json", [
        {"title": p.title, "text": p.text[:300], "asked": p.query, "drawn": q} for p, q in zip(samples, drawn)
    ])  # fmt: skip
    save_model(work, model, tokenizer, config)
    work.remove(CHECKPOINT)
    return {
        "pairs": len(train), "dev_pairs": len(dev), "parameters": sum(p.numel() for p in model.parameters()),
        "steps": progress.step, "best_step": progress.best_step, "dev_loss": round(progress.best, 4),
        "history": [[step, round(loss, 4)] for step, loss in progress.history],
        "pairs_per_second": round((progress.step - first) * config.batch / max(seconds, 1e-9), 1),
    }  # fmt: skip


def spread(pairs: list[Any], most: int) -> list[Any]:
    """At most so many, evenly from the whole list."""
    return [pairs[i * len(pairs) // most] for i in range(most)] if len(pairs) > most else pairs


def save_model(work: Workdir, model: Any, tokenizer: Any, config: TrainGeneratorConfig) -> None:
    """Write what `generate --model` reads."""
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        for file in sorted(Path(scratch).iterdir()):
            with work.write(file.name) as path:
                shutil.copyfile(file, path)
    settings = {"prefix": config.prefix, "with_title": config.with_title}
    with work.write(SETTINGS_FILE) as path:
        path.write_text(json.dumps(settings) + "\n", encoding="utf-8")


STAGE = Stage(
    "train-generator",
    TrainGeneratorConfig,
    run,
    examples="""
        qontext train-generator labelled --out runs/generator
        qontext train-generator labelled --out runs/generator --model google/t5-v1_1-small --lr 3e-4
        qontext generate passages --out queries --model runs/generator
    """,
)
