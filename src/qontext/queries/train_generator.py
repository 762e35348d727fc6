"""`qontext train-generator`: labeled (passage, query) pairs → a model that writes queries for passages, or the reverse."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field, field_validator

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input
from qontext.frame.errors import QontextError
from qontext.frame.files import opening
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


class TrainGeneratorConfig(TrainingConfig):
    data: Annotated[tuple[str, ...], Input(positional=True)]
    """Labeled sets: folders in BEIR's layout; to learn from questions, also DPR's training files, of which every 50th
    question is for dev."""

    model: Annotated[str | None, Input()] = None
    """Initial model: a sequence-to-sequence model, a decoder-only model, or a BERT encoder
    (used as encoder and decoder). Default: a T5 from scratch."""

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

    dev_pairs: int = Field(1000, ge=1)
    """Maximum number of dev pairs."""

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

    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing: share of the target distribution spread over all tokens."""

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
    dev_pairs = spread(dev_pairs, config.dev_pairs)
    source = SourceText(config.prefix, config.with_title)
    generator = task.model(config, pairs, Shape(source, config.max_passage_tokens, config.max_query_tokens))
    set_dropout(generator.model, config.dropout)
    sampler = EpochSampler(len(pairs), config.batch_size, config.seed, group.rank, group.world, "pairs")
    plan = generator.plan(pairs, sampler, config.token_budget(group.device))
    steps = config.steps_over(len(pairs))
    objective = generator.objective(config.label_smoothing).to(group.device)
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
    """Set the dropout rate of all layers and attention; refused if a model has none."""
    from torch import nn

    if rate is None:
        return
    has_dropout = False
    for module in model.modules():
        # Attention drops weights by a function, with a rate of one of these names.
        names = (
            ("p",) if isinstance(module, nn.Dropout) else ("dropout", "attention_dropout", "hidden_dropout")
        )
        for name in names:
            if isinstance(getattr(module, name, None), int | float):
                setattr(module, name, rate)
                has_dropout = True
    if rate and not has_dropout:
        raise QontextError(f"dropout = {rate}, but the model has none", remedy="Leave out --dropout.")


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
        from qontext.models.language import find_causal, load_causal
        from qontext.queries.training import TrainableCausal, TrainableSeq2Seq

        if not config.model:
            texts = dict.fromkeys(text for pair in pairs for text in (pair.text, pair.query))
            model, tokenizer = from_scratch(config.preset, texts, config.vocabulary, config.seed)
            return TrainableSeq2Seq(model, tokenizer, shape)
        if folder := find_causal(config.model):
            return TrainableCausal(*load_causal(folder), shape)
        return TrainableSeq2Seq(*from_model(config.model, config.seed), shape)


class GeneratorPreset(NamedTuple):
    """Layers of encoder and decoder, hidden size and heads of a T5 from scratch."""

    layers: int
    hidden: int
    heads: int


PRESETS = {
    "tiny": GeneratorPreset(2, 128, 2),
    "mini": GeneratorPreset(4, 256, 4),
    "small": GeneratorPreset(6, 512, 8),
}


def from_scratch(preset: str, texts: Iterable[str], vocabulary: int, seed: int) -> tuple[Any, Any]:
    """A new T5 and a tokenizer trained on the texts."""
    from transformers import T5Config, T5ForConditionalGeneration

    from qontext.models.load import seeded

    tokenizer = train_tokenizer(texts, vocabulary)
    layers, hidden, heads = PRESETS[preset]
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


def from_model(name: str, seed: int) -> tuple[Any, Any]:
    """A sequence-to-sequence model unchanged; a BERT encoder as encoder and decoder, with new cross-attention."""
    from transformers import EncoderDecoderModel

    from qontext.models.folder import locate
    from qontext.models.language import load_seq2seq, load_seq2seq_tokenizer, seq2seq_folder
    from qontext.models.load import quiet, seeded

    model_folder = locate(name)
    folder, config = model_folder.transformer, model_folder.config
    if config.get("is_encoder_decoder"):
        return load_seq2seq(seq2seq_folder(name))
    if config.get("model_type") != "bert":
        raise QontextError(
            f"is a {config.get('model_type')!r} model, not a sequence-to-sequence model or BERT encoder",
            place=name,
        )
    # About checkpoints of 2021; emitted at every use of the class.
    warnings.filterwarnings("ignore", message="Version v4.12.0 introduces", category=FutureWarning)
    tokenizer = load_seq2seq_tokenizer(folder)
    with opening(folder, "a loadable BERT encoder"), seeded(seed), quiet():
        model = EncoderDecoderModel.from_encoder_decoder_pretrained(str(folder), str(folder))
    for settings in (model.config, model.generation_config):
        settings.decoder_start_token_id = tokenizer.cls_token_id
        settings.eos_token_id = tokenizer.sep_token_id
        settings.pad_token_id = tokenizer.pad_token_id
    for half in (model.config.encoder, model.config.decoder):
        half._name_or_path = ""  # it would be saved: the model must not depend on the encoder's path
    return model, tokenizer


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
