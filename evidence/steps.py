"""The recipes of the study: how a cell is computed, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from study import BM25, FILES, GENERATORS, MEASURES, MINED, WITH_BM25, Arm, Cell, Scale, named

from qontext.workflow.recipe import Recipe, Step


def paragraphs_recipe(documents: str) -> Recipe:
    return Recipe("Paragraphs of the documents", (Step.of("split", {"source": documents, "keep": True}),))


def start_recipe(scale: Scale, model: str, documents: str) -> Recipe:
    """The plain language model that arms start from: the given encoder, trained to predict masked words again, or one from
    nothing with a tokenizer of its own."""
    tokens = scale.start_tokens or scale.tokens
    if scale.encoder:
        first = [
            Step.of("split", {"source": documents, "keep": True}),
            Step.of(
                "tokenizer", {"passages": "@split", "vocabulary": scale.vocabulary}, verb="train-tokenizer"
            ),
        ]
        encoder = {"encoder": scale.encoder, "tokenizer": "@tokenizer", "title": "prepend"}
    else:
        first = [Step.of("split", {"source": documents, "tokenizer": model, "max_tokens": tokens})]
        encoder = {"encoder": model}
    return Recipe(
        "A language model to start from",
        (
            *first,
            Step.of(
                "pretrain",
                {
                    "passages": "@split",
                    **encoder,
                    "method": "mlm",
                    "steps": scale.start_steps,
                    "batch_size": scale.batch,
                    "max_tokens": tokens,
                    "lr": scale.start_lr,
                },
            ),
        ),
    )


@dataclass(frozen=True)
class Places:
    """The inputs of a cell: a data set, the encoder that arms start from, the set's training questions as queries of their
    passages, pairs of passages that are close and less close, the set to measure on, if it is another one, and, for the arms
    that need one, a language model that asks questions and a cross-encoder that learned from another set's labels."""

    data: str
    start: str
    gold: str
    upper: str = ""
    lower: str = ""
    target: str | None = None
    question_model: str | None = None
    teacher: str = ""


def teacher_recipe(scale: Scale, start: str, data: str) -> Recipe:
    """A cross-encoder from the arms' start and the labels of a set that the arms are not measured on."""
    steps = (
        _by_bm25("bm25", data, scale.teacher_labels),
        _groups("groups", "@bm25", data, scale.teacher_labels, scale),
        _reranker("reranker", "@groups", start, data, scale, scale.teacher_steps, scale.reranker_batch),
    )
    return Recipe("A cross-encoder of another set", steps)


def recipe(cell: Cell, scale: Scale, places: Places) -> Recipe:
    """The steps of a cell. Cells of one data set share the steps that have no arm in their names; those that measure on
    another set, `target`, are named after it."""
    data, start = places.data, places.start
    arm, tag, measured = cell.arm, f"{cell.arm.name}-{cell.seed}", places.target or data
    end = f"-{cell.target}" if cell.target else ""
    words = Step.of(
        f"bm25{end}", {"bm25": True, "data": measured, "split": scale.split, "k": 100}, verb="retrieve"
    )
    if arm.name == BM25:
        scored = {"run": f"@bm25{end}", "qrels": measured, "split": scale.split, "measures": MEASURES}
        return Recipe(arm.title, (words, Step.of(f"score-bm25-1{end}-0", scored, verb="evaluate")))
    trained = named(arm.of) if arm.of else arm
    steps = [words, *_shared(trained, scale, places)]
    encoder = start
    for training in cell.trainings:
        steps.append(_pretrain(training, cell, scale, encoder))
        encoder = f"@pretrain-{training.name}-{cell.seed}"
    if arm.at:
        encoder += f"/snapshots/{arm.at}"
    if scale.unlabeled and (not arm.of or arm.at) and not arm.representation:
        steps += _measured(f"{tag}{end}", "0", encoder, scale, measured, words.name)
    if arm.distilled:
        steps += _distilled(cell, encoder, scale, places)
        steps += _measured(f"{tag}{end}", "0", f"@finetune-{tag}-0", scale, measured, words.name)
    for labels in () if arm.distilled else scale.labels:
        steps += _finetuned(cell, labels, encoder, start, scale, data)
        retriever, is_vector = f"@finetune-{tag}-{labels}", arm.representation is None
        steps += _measured(
            f"{tag}{end}", str(labels), retriever, scale, measured, words.name, is_vector=is_vector
        )
        if scale.mined and is_vector:
            steps += _mined(f"{tag}{MINED}", tag, labels, scale, data)
            groups = f"@groups-{tag}{MINED}-{labels}"
            steps.append(_finetune(f"{tag}{MINED}", labels, encoder, groups, cell, scale, data))
            retriever = f"@finetune-{tag}{MINED}-{labels}"
            steps += _measured(f"{tag}{end}", f"{labels}{MINED}", retriever, scale, measured, words.name)
    return Recipe(f"{arm.title} on {cell.place}", tuple(steps))


def _finetuned(cell: Cell, labels: int, encoder: str, start: str, scale: Scale, data: str) -> Iterator[Step]:
    """Fine-tuning of an arm, after what it needs: another retriever's negatives, or a cross-encoder's scores."""
    arm, tag, groups = cell.arm, f"{cell.arm.name}-{cell.seed}", f"@groups-{labels}"
    more = dict(arm.finetune)
    if arm.mined:
        first = f"{arm.of}-{cell.seed}"
        yield _finetune(first, labels, encoder, groups, cell, scale, data)
        yield from _mined(tag, first, labels, scale, data)
        groups = f"@groups-{tag}-{labels}"
    if arm.taught:
        yield from _teacher(labels, groups, start, cell.seed, scale, data)
        more |= {"teacher": f"@scores-train-{labels}-{cell.seed}", "loss": "kl"}
    yield _finetune(tag, labels, encoder, groups, cell, scale, data, more)


def _teacher(labels: int, groups: str, start: str, seed: int, scale: Scale, data: str) -> Iterator[Step]:
    """A cross-encoder from the same start and the same labels, and its scores of all passages of the groups."""
    name, batch = f"reranker-{labels}-{seed}", min(scale.reranker_batch, labels)
    yield _reranker(name, groups, start, data, scale, scale.reranker_steps, batch, seed=seed)
    scored = {"run": groups, "reranker": [f"@{name}"], "data": data}
    yield Step.of(f"scores-train-{labels}-{seed}", scored, verb="rerank")


def _reranker(
    name: str, groups: str, start: str, data: str, scale: Scale, steps: int, batch: int, *, seed: int = 1
) -> Step:
    of = {
        "groups": groups,
        "passages": data,
        "encoder": start,
        "title": "prepend",
        "candidates": 8,
        "max_length": scale.tokens + 32,
    }
    how = {"steps": steps, "batch_size": batch, "lr": 1e-4, "seed": seed}
    return Step.of(name, {**of, **how}, verb="train-reranker")


def _distilled(cell: Cell, encoder: str, scale: Scale, places: Places) -> Iterator[Step]:
    """Fine-tuning without labels: a keyphrase of each passage, BM25's negatives, and a cross-encoder's scores."""
    of = {"passages": "@passages", "per_passage": 1, "seed": 7}  # others than those of pre-training
    yield Step.of("queries-distilled", {**of, "generator": "keyphrase"}, verb="generate")
    texts = {"queries": "@queries-distilled", "passages": "@passages"}
    yield Step.of("bm25-distilled", {"bm25": True, **texts, "k": 50}, verb="retrieve")
    mined = {"run": "@bm25-distilled", "qrels": "@queries-distilled", **texts, "depth": 50, "per_query": 8}
    yield Step.of("groups-distilled", mined, verb="mine")
    scored = {"run": "@groups-distilled", "reranker": [places.teacher], **texts}
    yield Step.of("scores-distilled", {**scored, "max_length": scale.tokens + 32}, verb="rerank")
    tag = f"{cell.arm.name}-{cell.seed}"
    more = {"teacher": "@scores-distilled", "loss": "kl", "steps": scale.distill_steps}
    yield _finetune(tag, 0, encoder, "@groups-distilled", cell, scale, "@passages", cell.arm.finetune | more)


def _shared(arm: Arm, scale: Scale, places: Places) -> Iterator[Step]:
    data, start = places.data, places.start
    yield Step.of("passages", {"source": data, "keep": True, "tokenizer": start}, verb="split")
    drawn = {"passages": "@passages", "per_passage": scale.queries_per_passage}
    generator = GENERATORS.get(arm.source or "")
    if generator == "causal":
        drawn |= {"per_passage": min(2, scale.queries_per_passage), "model": places.question_model}
    if (generator == "span" and scale.titles != "all") or (
        generator in ("span", "keyphrase") and not scale.query_titles
    ):
        drawn |= {"title": "leave"}
    if generator:
        yield Step.of(f"queries-{generator}", {**drawn, "generator": generator}, verb="generate")
    if arm.source in ("filtered", "causal-filtered"):
        settings = {"queries": f"@queries-{generator}", "passages": "@passages", "keep_at_least": 1}
        yield Step.of(f"queries-{arm.source}", settings, verb="filter")
    if arm.source == "uncertain":
        settings = {"queries": "@queries-keyphrase", "passages": "@passages", "keep_at_least": 0}
        ranks = {"by": "retrieval", "retriever": start, "skip": 1, "top": 100}
        yield Step.of("queries-uncertain", settings | ranks, verb="filter")
    if arm.source in FILES:
        read = {**drawn, "generator": "file", "queries": getattr(places, arm.source)}
        yield Step.of(f"queries-{arm.source}", read, verb="generate")
    if scale.labels:
        yield _by_bm25("bm25-train", data, max(scale.labels))
    for labels in scale.labels:
        yield _groups(f"groups-{labels}", "@bm25-train", data, labels, scale)


def _by_bm25(name: str, data: str, labels: int) -> Step:
    """The hits of BM25 for training questions."""
    of = {"bm25": True, "data": data, "split": "train", "limit": labels, "k": 100}
    return Step.of(name, of, verb="retrieve")


def _groups(name: str, run: str, data: str, labels: int, scale: Scale) -> Step:
    """Training questions with their passages, and negatives from a run: at least as many as fine-tuning shows at once."""
    of = {
        "run": run,
        "qrels": data,
        "data": data,
        "split": "train",
        "depth": 100,
        "per_query": max(8, scale.finetune_passages - 1),
        "limit": labels,
    }
    return Step.of(name, of, verb="mine")


def _finetune(
    tag: str,
    labels: int,
    encoder: str,
    groups: str,
    cell: Cell,
    scale: Scale,
    data: str,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Step:
    settings = {
        "groups": groups,
        "passages": data,
        "encoder": encoder,
        "steps": max(scale.finetune_steps, scale.finetune_epochs * labels // scale.finetune_batch),
        "batch_size": min(scale.finetune_batch, labels or scale.finetune_batch),
        "passages_per_query": scale.finetune_passages,
        "passage_length": scale.tokens,
        "title": "prepend",
        "lr": scale.finetune_lr,
        "seed": cell.seed,
    }
    if cell.arm.representation:
        settings["representation"] = cell.arm.representation
    else:
        settings |= {
            "pooling": scale.vector,
            "similarity": scale.similarity,
            "temperature": scale.temperature,
        }
    return Step.of(f"finetune-{tag}-{labels}", {**settings, **more}, verb="finetune")


def _mined(tag: str, retriever: str, labels: int, scale: Scale, data: str) -> Iterator[Step]:
    """Negatives from what a retriever finds for the training questions, as many as from BM25."""
    end = f"{tag}-{labels}"
    texts = {
        "texts": data,
        "encoder": f"@finetune-{retriever}-{labels}",
        "max_length": scale.tokens,
        "storage": "fp16",
    }
    yield Step.of(f"vectors-train-{end}", texts, verb="encode")
    search = {"index": f"@vectors-train-{end}", "data": data, "split": "train", "limit": labels, "k": 100}
    yield Step.of(f"run-train-{end}", search, verb="retrieve")
    yield _groups(f"groups-{end}", f"@run-train-{end}", data, labels, scale)


def _pretrain(arm: Arm, cell: Cell, scale: Scale, start: str) -> Step:
    queries = {"queries": f"@queries-{arm.source}"} if arm.source else {}
    settings = {
        "passages": "@passages",
        "encoder": start,
        "steps": (arm.warmup and scale.condenser_steps) or scale.steps,
        "batch_size": scale.batch,
        "max_tokens": scale.tokens,
        "lr": cell.rates.get(arm.name, scale.lr),
        "vector": scale.vector,
        "similarity": scale.similarity,
        "title": "prepend" if scale.titles == "all" else "leave",
        "seed": cell.seed,
    }
    if arm.settings["method"] == "cocondenser" or "contrastive_weight" in arm.settings:
        settings["temperature"] = scale.temperature
    if (
        arm.settings["method"] == "cocondenser"
        and arm.settings.get("head_weight") != 0
        and scale.condenser_steps
    ):
        settings["condenser_steps"] = scale.condenser_steps
    if scale.snapshots and not arm.warmup:
        settings["snapshots"] = scale.snapshots
    return Step.of(
        f"pretrain-{arm.name}-{cell.seed}", {**settings, **queries, **arm.settings}, verb="pretrain"
    )


def _measured(
    tag: str, labels: str, encoder: str, scale: Scale, data: str, bm25: str, *, is_vector: bool = True
) -> Iterator[Step]:
    """Steps that score an encoder on the test questions. Without pre-training for retrieval its vector is [CLS], too."""
    end = f"{tag}-{labels}"
    texts = {
        "texts": data,
        "encoder": encoder,
        "max_length": scale.tokens,
        "title": "prepend",
        "storage": "fp16",
    }
    if is_vector:
        texts["pooling"] = scale.vector
    yield Step.of(f"vectors-{end}", texts, verb="encode")
    yield Step.of(
        f"run-{end}",
        {"index": f"@vectors-{end}", "data": data, "split": scale.split, "k": 100},
        verb="retrieve",
    )
    of = {"run": f"@run-{end}", "qrels": data, "split": scale.split, "measures": MEASURES}
    yield Step.of(f"score-{end}", of, verb="evaluate")
    yield Step.of(
        f"fused-{end}", {"runs": [f"@{bm25}", f"@run-{end}"], "method": "minmax", "k": 100}, verb="fuse"
    )
    yield Step.of(f"score-{end}{WITH_BM25}", {**of, "run": f"@fused-{end}"}, verb="evaluate")
