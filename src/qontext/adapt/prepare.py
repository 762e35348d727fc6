"""From what the user gave to a complete request: survey, encoder, generator, splits; and how a plan is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext import log
from qontext.adapt.labels import measured_sizes, read_labels
from qontext.adapt.plan import QUERIES_PER_PASSAGE, Plan, Request, parse_budget
from qontext.adapt.survey import Survey, fertility, spread, survey
from qontext.engine.locate import locate
from qontext.engine.tokenizer import load_tokenizer
from qontext.errors import QontextError

if TYPE_CHECKING:
    from qontext.adapt.run import AdaptConfig

STRANGE_FERTILITY, STRANGE_UNKNOWN = 2.2, 0.03
LONGEST_READ, LONGEST_TRAINED, PASSAGE_TOKENS = 256, 192, 144
MULTILINGUAL = "intfloat/multilingual-e5-small"


def prepare(config: AdaptConfig) -> tuple[Request, Survey, list[str], int]:
    """The request, the survey, remarks for the plan, and the vectors' dimension."""
    import torch

    from qontext.engine.precision import resolve_device
    from qontext.retrieve.retriever import Retriever, read_layout

    assert config.encoder is not None
    budget = parse_budget(config.budget)
    seen = survey(config.documents, labelled=config.labels is not None)
    folder = locate(config.encoder)
    tokenizer = load_tokenizer(folder)
    retriever = Retriever(config.encoder, device="cpu")
    notes = _notes(seen, tokenizer)
    positions = min(LONGEST_READ, int(retriever.model.config.max_position_embeddings) - 2)
    longest = _longest(seen, tokenizer)
    read = (
        positions if longest > 256 else min(positions, max(64, longest)) if seen.keep else min(positions, 256)
    )
    splits, labelled = _splits(config)
    if config.max_labels is not None and not labelled:
        notes.append("there are no labelled questions to train on, so --max-labels says nothing.")
    device = resolve_device("auto").type
    layout = read_layout(folder)
    return (
        Request(
            documents=config.documents,
            labels=config.labels,
            splits=splits,
            labelled=labelled,
            max_labels=config.max_labels if labelled else None,
            encoder=config.encoder,
            generate=_generator(config, device),
            pretrain=_objective(config, layout, min(LONGEST_TRAINED, read)),
            max_tokens=PASSAGE_TOKENS if not seen.keep else min(LONGEST_TRAINED, read),
            read_tokens=read,
            budget=budget,
            device=device,
            keep=seen.keep,
            language=seen.language,
            reranker=config.reranker,
            processes=config.processes or (torch.cuda.device_count() if device == "cuda" else 1),
        ),
        seen,
        notes,
        retriever.dimension,
    )


def _objective(config: AdaptConfig, layout: Any, max_tokens: int) -> dict[str, Any]:
    """coCondenser on (passage, query) pairs, compared as the encoder compares.

    An encoder that was trained to retrieve goes on as it was trained, without a new head; a plain language model gets
    the papers' objective, [CLS] and the Condenser head.
    """
    settings: dict[str, Any] = {"encoder": config.encoder, "method": "cocondenser", "max_tokens": max_tokens}
    settings |= {"seed": config.seed, "dropout": 0.0}
    if layout.pooling == "mean":
        settings |= {"vector": "mean", "similarity": "cosine", "temperature": 0.05, "lr": 5e-5}
        settings |= {"head_weight": 0.0, "late_mlm_weight": 0.0}
    elif layout.similarity == "cosine" or layout.normalize:
        settings |= {"similarity": "cosine", "temperature": 0.05, "lr": 5e-5}
        settings |= {"head_weight": 0.0, "late_mlm_weight": 0.0}
    else:
        settings |= {"lr": 1e-4}
    return settings


def _generator(config: AdaptConfig, device: str) -> dict[str, Any]:
    from qontext.queries.t5 import DEFAULT_MODEL

    kind = config.generator
    if kind == "auto":
        kind = "t5" if device == "cuda" and _at_hand(config.generator_model or DEFAULT_MODEL) else "keyphrase"
    settings: dict[str, Any] = {"generator": kind, "seed": config.seed}
    if kind == "t5" and config.generator_model:
        settings["model"] = config.generator_model
    if kind == "llm":
        if config.generator_model is None:
            raise QontextError(
                "the generator llm needs the chat model's name", remedy="Give --generator-model."
            )
        settings["chat_model"] = config.generator_model
        if config.endpoint:
            settings["endpoint"] = config.endpoint
    return settings


def _at_hand(model: str) -> bool:
    try:
        locate(model)
    except QontextError:
        return False
    return True


def _splits(config: AdaptConfig) -> tuple[tuple[str, ...], int]:
    """What will be judged (dev first, to choose weights on), and how many labelled queries there are to train on."""
    if config.labels is None:
        return ("generated",), 0
    labels = read_labels(config.labels)
    count = {name: len(qrels) for name, qrels in labels.splits.items()}
    if labels.are_split:
        trained = count.get("train", 0)
        dev = ("dev",) if "dev" in count and "test" in count else ()
    else:
        (everything,) = count.values()
        trained, dev = everything - sum(measured_sizes(everything, config.labels)), ("dev",)
    return (*dev, "test", "generated"), min(trained, config.max_labels or trained)


def _longest(seen: Survey, tokenizer: Any) -> int:
    """Tokens that nearly all texts of the sample keep to."""
    lengths = sorted(len(tokenizer(p.content, verbose=False)["input_ids"]) for p in spread(seen.sample, 200))
    return int(lengths[int(0.98 * (len(lengths) - 1))]) if lengths else 0


def _notes(seen: Survey, tokenizer: Any) -> list[str]:
    notes = []
    per_word, unknown = fertility(seen.sample, tokenizer)
    if per_word > STRANGE_FERTILITY or unknown > STRANGE_UNKNOWN:
        notes.append(
            f"the encoder hardly knows this language ({seen.language_name}): {per_word:.1f} tokens per word, "
            f"{unknown:.0%} unknown. A multilingual one will serve better: --encoder {MULTILINGUAL}."
        )
    elif seen.language != "en":
        notes.append(
            f"the documents look like {seen.language_name}; an encoder trained on it will serve better."
        )
    if seen.duplicates > 0.05:
        notes.append(f"{seen.duplicates:.0%} of the documents repeat another one, word for word.")
    if seen.unusable:
        notes.append(f"{seen.unusable:,} records cannot be used and will be left out.")
    return notes


def show_plan(request: Request, seen: Survey, plan: Plan, root: Path) -> None:
    """The plan in ten lines, remarks after it."""
    about = "" if seen.exact else "about "
    passages = f"{about}{plan.passages:,}" + (" (as the source has them)" if seen.keep else "")
    per_document = "" if seen.keep else f", {plan.passages / max(1, seen.documents):.1f} per document"
    kind = request.generate["generator"]
    vectors = request.pretrain.get("vector", "cls")
    rows: dict[str, Any] = {
        "documents": f"{about}{seen.documents:,}, {seen.words_per_document:,} words each, {seen.language_name}",
        "passages": passages + per_document,
        "encoder": f"{request.encoder} ({vectors} pooling, reads {request.read_tokens} tokens, on {request.device})",
        "queries": f"{kind}, {QUERIES_PER_PASSAGE} per passage",
        "training": f"coCondenser on (passage, query) pairs: {plan.steps:,} steps of {plan.batch}"
        if plan.trains
        else "none",
        "teacher": f"{request.reranker}"
        + (f": {plan.finetune_steps:,} steps on its scores" if plan.finetune_steps else ": no time for it")
        if request.reranker
        else None,
        "labels": f"{plan.finetune_steps:,} steps of fine-tuning on {request.labelled:,} questions"
        if plan.finetune_steps and request.labelled
        else ("to measure with only" if request.labels else "none: generated questions measure"),
        "measuring": f"{', '.join(s for s in request.splits if s != 'dev')} questions, among {plan.pool:,} passages",
        "time": f"{log.duration(plan.expected)} of {log.duration(request.budget)}: "
        + ", ".join(f"{name} {log.duration(seconds)}" for name, seconds in plan.seconds.items()),
        "disk": f"{plan.disk / 2**30:.1f} GiB",
        "recipe": str(root / "recipe.toml"),
    }
    log.show_table("Plan", {name: row for name, row in rows.items() if row is not None})
    for note in plan.notes:
        log.warn(note[0].upper() + note[1:])
