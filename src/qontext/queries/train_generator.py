"""`qontext train-generator`: labeled (passage, query) pairs → a model that writes queries for passages, or the reverse."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input
from qontext.frame.kinds import resolve
from qontext.frame.stages import Stage
from qontext.training.config import TrainingConfig

if TYPE_CHECKING:
    from qontext.queries.training import Shape, Trainable, TrainingPair

TASKS = {
    "queries": "qontext.queries.train_generator:QueryTask",
    "terms": "qontext.baselines.deepct:WeighTerms",
    **dict.fromkeys(("answers", "titles", "sentences"), "qontext.baselines.gar:AnswerQuestions"),
}
"""The setting `learns` → the class that knows its pairs and its model."""
DEV_PAIRS = 1000
"""Maximum number of dev pairs."""


class TrainGeneratorConfig(TrainingConfig):
    data: Annotated[tuple[str, ...], Input(positional=True)]
    """Labeled sets: folders in BEIR's layout; to learn from questions, also DPR's training files, of which every 50th
    question is for dev."""

    model: Annotated[str | None, Input()] = None
    """Initial model: a sequence-to-sequence model or a decoder-only one. Default: a T5 from scratch."""

    preset: Literal["tiny", "mini", "small"] = "mini"
    """Size of a model from scratch: 2, 4 or 6 layers in encoder and decoder, hidden size 128, 256 or 512."""

    vocabulary: int = Field(8000, ge=64, le=1 << 24)
    """Vocabulary size of a model from scratch."""

    learns: Literal["queries", "terms", "answers", "titles", "sentences"] = "queries"
    """The task: to write a passage's queries, or which of its own words they contain (terms: DeepCT), from an encoder
    named with --model, for 'generate --generator terms'; or for 'generate --of queries' to write a question's answers, the
    titles of its passages, or the sentence with an answer (GAR)."""

    train_split: str = "train"
    """The split to train on."""

    dev_split: str = "dev"
    """The split for evaluating the loss during training."""

    prefix: str = ""
    """Text before each passage, or query if it learns from these. Saved with the model and used by generate."""

    with_title: bool = True
    """Prepend the title to the text. Saved with the model, too."""

    max_passage_tokens: int = Field(192, ge=8, le=100_000)
    """Maximum length in tokens of what is read, a passage or a query; longer ones are truncated."""

    max_query_tokens: int = Field(48, ge=4, le=100_000)
    """Maximum length in tokens of what is written; longer texts are truncated."""

    steps: int | None = Field(None, ge=1)
    """Optimizer steps. Default: 4,000, or derived from --epochs if given."""

    epochs: float | None = Field(None, gt=0)
    """Passes over the pairs, instead of a number of steps."""

    batch_size: int = Field(32, ge=1)
    """Pairs per step, across all GPUs."""

    lr: float = Field(1e-3, gt=0)
    """Peak learning rate (AdamW): about 1e-3 from scratch, 1e-4 to 3e-4 from a sequence-to-sequence model, 2e-5 to 1e-4
    from a decoder-only one."""

    warmup: float = Field(0.05, ge=0, le=1)
    """Share of the steps for learning-rate warmup."""

    dev_every: int = Field(500, ge=1)
    """Steps between two evaluations on the dev pairs, which also print samples."""

    patience: int | None = Field(3, ge=1)
    """Stop after this many evaluations without a lower dev loss."""

    keep: Literal["best", "last"] = "best"
    """Weights to keep: those with the lowest dev loss, or the last ones."""

    @field_validator("data", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else tuple(map(str, value))

    def steps_over(self, examples: int) -> int:
        if self.steps is None and self.epochs is None:
            return 4000
        return super().steps_over(examples)


def run(config: TrainGeneratorConfig, work: Workdir) -> dict[str, Any]:
    from qontext.queries.generators.t5 import SourceText
    from qontext.queries.training import Shape
    from qontext.training.distributed import join
    from qontext.training.loop import train
    from qontext.training.randomness import EpochSampler

    group = join(config.device)
    task = resolve(TASKS[config.learns])
    pairs, dev_pairs = task.pairs(config.data, (config.train_split, config.dev_split), config.learns)
    dev_pairs = spread(dev_pairs, DEV_PAIRS)
    source = SourceText(config.prefix, config.with_title)
    generator = task.model(config, pairs, Shape(source, config.max_passage_tokens, config.max_query_tokens))
    set_dropout(generator.model, config.dropout)
    sampler = EpochSampler(len(pairs), config.batch_size, config.seed, group.rank, group.world, "pairs")
    plan = generator.plan(pairs, sampler, config.token_budget(group.device))
    steps = config.steps_over(len(pairs))
    objective = generator.loss(generator.model).to(group.device)
    evaluations = _evaluations(config, generator, objective, dev_pairs, group, work, steps)
    summary: dict[str, Any] = {
        "pairs": len(pairs),
        "dev_pairs": len(dev_pairs),
        "parameters": sum(p.numel() for p in generator.model.parameters()),
        "steps": steps,
    }
    summary |= train(
        objective, plan, config, group, work, steps=steps, phase="generator", evaluations=evaluations
    )
    if group.is_first:
        _save(config, generator, dev_pairs, work)
    return summary if group.is_first else {}


def set_dropout(model: Any, rate: float | None) -> None:
    """Set the dropout rate of all layers and attention."""
    from torch import nn

    for module in model.modules() if rate is not None else ():
        # Attention drops weights by a function, with a rate of one of these names.
        layer = isinstance(module, nn.Dropout)
        for name in ("p",) if layer else ("dropout", "attention_dropout", "hidden_dropout"):
            if isinstance(getattr(module, name, None), int | float):
                setattr(module, name, rate)


def _evaluations(
    config: TrainGeneratorConfig,
    generator: Any,
    objective: Any,
    dev_pairs: list[Any],
    group: Any,
    work: Workdir,
    steps: int,
) -> Any:
    """The loss on the dev pairs, and a few samples."""
    from qontext.models.precision import resolve_precision, settle_precision
    from qontext.training.evaluation import Evaluations, Schedule
    from qontext.training.randomness import EpochSampler

    dtype = resolve_precision(settle_precision(work, config.precision, group.device), group.device)
    sampler = EpochSampler(len(dev_pairs), 1, config.seed, unit="pairs")
    plan = generator.plan(dev_pairs, sampler, config.token_budget(group.device))
    sample = spread(dev_pairs, 3)

    def measure() -> dict[str, float]:
        for pair, query in zip(sample, generator.samples(sample, config.seed, dtype)):
            log.note(f"    {(pair.title or pair.text)[:40]!r}: labeled {pair.query!r}, generated {query!r}")
        return {"loss": round(objective.loss(plan, group.device, dtype), 4)}

    schedule = Schedule(config.dev_every, config.keep, config.patience)
    return Evaluations(
        measure, objective, group, work, schedule, phase="generator", watch="loss", minimize=True
    )


def spread(pairs: list[Any], most: int) -> list[Any]:
    """At most `most` of them, evenly spaced."""
    return [pairs[i * len(pairs) // most] for i in range(most)] if len(pairs) > most else pairs


def _save(config: TrainGeneratorConfig, generator: Any, dev_pairs: list[Any], work: Workdir) -> None:
    """Write samples and `generator.json` for `generate --model`."""
    import torch

    from qontext.models.load import quiet
    from qontext.queries.generators.t5 import SETTINGS_FILE, TARGETS
    from qontext.training import checkpoint, metrics

    generator.model.to("cpu")
    sample = spread(dev_pairs, 20)
    generated = generator.samples(sample, config.seed, torch.float32)
    work.write_json("samples.json", [
        {"title": p.title, "text": p.text[:300], "labeled": p.query, "generated": q} for p, q in zip(sample, generated)
    ])  # fmt: skip
    with work.write_folder(".") as folder, quiet():
        generator.model.save_pretrained(folder)
        generator.tokenizer.save_pretrained(folder)
        learned = {"learns": config.learns} if config.learns in TARGETS else {}
        settings = json.dumps({**generator.settings(), **learned})
        (folder / SETTINGS_FILE).write_text(settings + "\n", encoding="utf-8")
    metrics.plot(work)
    checkpoint.remove(work, "checkpoints")


class QueryTask:
    """The task of a training: by default, to write the queries of passages."""

    @staticmethod
    def pairs(
        sources: Sequence[str], splits: tuple[str, str], learns: str
    ) -> tuple[list[TrainingPair], list[TrainingPair]]:
        """The pairs to train on, and those for dev."""
        from qontext.queries.training import read_pairs

        return read_pairs(sources, splits[0]), read_pairs(sources, splits[1])

    @staticmethod
    def model(config: Any, pairs: Sequence[TrainingPair], shape: Shape) -> Trainable:
        """The model to train, as its architecture is trained."""
        from qontext.models.language import find_causal, load_causal, load_seq2seq, seq2seq_folder
        from qontext.queries.training import TrainableCausal, TrainableSeq2Seq

        if not config.model:
            texts = dict.fromkeys(text for pair in pairs for text in (pair.text, pair.query))
            model, tokenizer = from_scratch(*PRESETS[config.preset], texts, config.vocabulary, config.seed)
            return TrainableSeq2Seq(model, tokenizer, shape)
        if folder := find_causal(config.model):
            return TrainableCausal(*load_causal(folder), shape)
        return TrainableSeq2Seq(*load_seq2seq(seq2seq_folder(config.model)), shape)


PRESETS = {"tiny": (2, 128, 2), "mini": (4, 256, 4), "small": (6, 512, 8)}
"""Layers of encoder and decoder, hidden size and heads of a T5 from scratch."""


def from_scratch(
    layers: int, hidden: int, heads: int, texts: Iterable[str], vocabulary: int, seed: int
) -> tuple[Any, Any]:
    """A new T5 and a tokenizer trained on the texts."""
    from transformers import T5Config, T5ForConditionalGeneration

    from qontext.models.load import seeded

    tokenizer = train_tokenizer(texts, vocabulary)
    build: Any = T5Config  # its signature lacks the common settings
    config = build(
        vocab_size=len(tokenizer), d_model=hidden, d_kv=hidden // heads, d_ff=4 * hidden, num_layers=layers,
        num_heads=heads, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    with seeded(seed):
        return T5ForConditionalGeneration(config), tokenizer


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """A BPE tokenizer with T5's special tokens: <pad> 0, </s> 1 at the end, <unk> 2.

    Not Unigram, as in T5: its trainer is not deterministic.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.normalizer = normalizers.NFKC()
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<pad>", "</s>", "<unk>"],
        limit_alphabet=1000,
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    raw.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    wrap: Any = PreTrainedTokenizerFast  # untyped
    return wrap(tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


STAGE = Stage(
    "train-generator",
    TrainGeneratorConfig,
    run,
    format=3,
    distributed=True,
    examples="""
        qontext train-generator data --out generator
        qontext train-generator data --model google/t5-v1_1-small --lr 3e-4 --out generator
        qontext generate passages --model generator --out queries
        qontext train-generator data --model language-model --lr 5e-5 --epochs 1 --out question-model
        qontext generate passages --generator causal --model question-model --out queries
        qontext train-generator data --learns terms --model encoder --lr 2e-5 --epochs 3 --out weights
        qontext train-generator data --learns titles --preset tiny --steps 200 --out title-writer
    """,
)
