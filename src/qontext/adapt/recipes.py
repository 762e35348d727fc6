"""The recipes that `adapt` writes: the one that trains and measures, and the one that indexes all documents."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qontext.adapt.config import Request
from qontext.adapt.plan import FINETUNED_PASSAGES, QUESTIONS, Plan
from qontext.evaluation.holdout import ASKED
from qontext.retrieve.directory import DENSE
from qontext.retrieve.language import natural
from qontext.retrieve.system import CANDIDATES as RERANKED
from qontext.retrieve.system import ENCODERS, RERANKER_WEIGHT, SYSTEMS, TOKEN_WEIGHT, WEIGHTS, System
from qontext.workflow.recipe import Recipe, Step, as_path

MEASURES = "nDCG@10 MRR@10 R@100"
MEASURED = "@holdout/measured"
"""The passages and questions to evaluate on."""
MOST_ASKED = 2_000
"""Real questions without labels that are used of a log."""
INITIAL_SHARE, MIXED_PASSES = 0.5, 1.5
"""Share of the original encoder in the adapted one, and the planned passes over the passages from which on they are
mixed."""


def training_recipe(request: Request, plan: Plan) -> Recipe:
    """The recipe for queries, training and evaluation of all systems."""
    steps = [*_preparing(request, plan), *_encoding(request, plan, "start", request.encoder)]
    if plan.trains:
        steps += _pretraining(request, plan)
        steps += _finetuning(request, plan) if plan.finetune_steps else []
    return Recipe(
        f"Adapt a retriever to {request.documents}",
        (*steps, *_measuring(request, plan)),
        comment="Written by `qontext adapt`. Edit it, and run it with `qontext run`.",
    )


def serving_recipe(
    request: Request,
    model: str | None,
    reuse: Mapping[str, str],
    dense: dict[str, Any] | None,
    *,
    tokens: bool,
) -> Recipe:
    """The recipe for an index of all documents; `reuse` names what earlier steps encoded, `dense` has the settings of an
    index of the vectors. With `tokens`, the bits of tokens are stored, too. Without a model, only words are indexed."""
    reading: dict[str, Any] = {
        "texts": "@passages",
        "encoder": model and as_path(model),
        "max_length": request.read_tokens,
        "title": request.title,
        **request.prompts,
    }
    vectors = {**reading, "reuse": as_path(reuse["vectors"]) if "vectors" in reuse else None}
    if tokens:
        vectors["tokens"] = True
    if dense is None:  # an index has one vector of each passage
        vectors["window"] = request.window
    steps = (
        Step.of("passages", _splitting(request, model or request.encoder), verb="split"),
        *([Step.of("vectors", vectors, verb="encode")] if model else []),
        Step.of(
            "bm25",
            {"source": "@passages", "backend": "bm25", **request.words},
            verb="index",
        ),
        *([Step.of(DENSE, dense, verb="index")] if dense else []),
    )
    return Recipe(
        f"Index {request.documents}",
        steps,
        comment="Written by `qontext adapt`: the index that is searched.",
    )


def asking_recipe(request: Request, plan: Plan) -> Recipe:
    """The recipe for the questions with which initial encoders are measured."""
    quick = {"generator": "keyphrase", "seed": request.pretrain["seed"]}
    most = min(request.max_labels or QUESTIONS, QUESTIONS) if request.labeled else None
    asking = replace(request, generate=quick, question_model=None, questions=None, max_labels=most)
    return Recipe("Questions to measure initial encoders with", tuple(_preparing(asking, plan)))


def start_recipe(request: Request, plan: Plan, split: str, measured: Path) -> Recipe:
    """The recipe that measures an initial encoder on these questions, without tuned weights."""
    data = as_path(str(measured))
    plain = replace(request, splits=(), also={}, questions=None)
    encoding = _encoding(plain, plan, "start", request.encoder, data)
    return Recipe(f"Measure {request.encoder}", (*encoding, *searches(plain, plan, split, data)))


def systems(plan: Plan) -> list[str]:
    """The systems to compare: names of the recipe's searches."""
    return [
        system.name
        for system in SYSTEMS
        if (plan.trains or system.encoder != "adapted")
        and (plan.tokens or not system.tokens)
        # The cross-encoder reads the candidates of the most thorough system.
        and (not system.reranked or (plan.reranked and system.tokens == plan.tokens))
    ]


def _splitting(request: Request, tokenizer: str) -> dict[str, Any]:
    """The settings of `split`."""
    source: dict[str, Any] = {
        "source": request.documents,
        "on_error": "skip",
        "tokenizer": request.tokenizer or tokenizer,
    }
    source |= {"read_as": list(request.read_as)} if request.read_as else {}
    if request.keep:
        return {**source, "keep": True}
    language = natural(request.language)
    return {**source, "language": None if language == "en" else language, "max_tokens": request.max_tokens}


def _preparing(request: Request, plan: Plan) -> Iterator[Step]:
    yield Step.of("split", _splitting(request, request.encoder))
    yield Step.of(
        "generate",
        {"passages": "@split", **request.generate, "like": request.questions},
    )
    asked = yield from _asking(request, plan)
    held_out = {
        "passages": "@split",
        "queries": "@generate",
        "asked": request.questions,
        "answers": asked,
        "labels": request.labels,
        "question_model": request.question_model,
        # The number of passages was estimated: all of them may be some more.
        "pool": plan.pool if plan.pool < plan.passages else max(1_000, 2 * plan.pool),
        "questions": plan.questions if plan.questions < QUESTIONS else None,
        "max_labels": request.max_labels,
        "split_labels": False if request.labels and not request.divided else None,
        "least_labels": plan.finetune_batch if request.labeled and plan.finetune_steps else None,
        "seed": request.pretrain["seed"],
    }
    yield Step.of("holdout", held_out)


def _asking(request: Request, plan: Plan) -> Generator[Step, None, str | None]:
    """The hits of the untrained system for real questions without labels: pseudo-labels. Returns the run."""
    if request.questions is None:
        return None
    questions = {
        "queries": request.questions,
        "limit": MOST_ASKED,
        "seed": request.pretrain["seed"],
        "k": RERANKED,
    }
    words = {"bm25": True, **request.words, "passages": "@split"}
    yield Step.of("asked-bm25", {**words, **questions}, verb="retrieve")
    if plan.pool < plan.passages:  # the vectors of all passages are more than is planned
        return "@asked-bm25"
    yield Step.of("asked-vectors", _reading(request, plan, "@split", request.encoder), verb="encode")
    yield Step.of("asked-dense", {"index": "@asked-vectors", **questions}, verb="retrieve")
    runs = ["@asked-bm25", "@asked-dense"]
    fusing = {"runs": runs, "method": "zscore", "weights": [*WEIGHTS], "k": RERANKED}
    yield Step.of("asked-answers", fusing, verb="fuse")
    if not plan.tokens:
        return "@asked-answers"
    texts = {"queries": request.questions, "passages": "@split"}
    by_tokens = {"run": "@asked-answers", **texts, "tokens": "@asked-vectors", "k": RERANKED}
    yield Step.of("asked-by-tokens", by_tokens, verb="rerank")
    both = {
        "runs": ["@asked-answers", "@asked-by-tokens"],
        "weights": [round(1 - TOKEN_WEIGHT, 3), TOKEN_WEIGHT],
    }
    yield Step.of("asked-answers-by-tokens", {**fusing, **both}, verb="fuse")
    return "@asked-answers-by-tokens"


def _reading(request: Request, plan: Plan, texts: str, encoder: str) -> dict[str, Any]:
    """The settings of `encode` for a vector of each passage, or of its windows, and for the bits of tokens."""
    reading = {"texts": texts, "encoder": encoder, "max_length": request.read_tokens, "title": request.title}
    reading |= {"window": request.window, **request.prompts}
    return {**reading, **({"tokens": True} if plan.tokens else {})}


def _pretraining(request: Request, plan: Plan) -> Iterator[Step]:
    if plan.filters:
        yield Step.of(
            "filter",
            {"queries": "@holdout/queries", "passages": "@split"},
        )
    sized = {"batch_size": plan.batch, "steps": plan.steps, **plan.limits.get("pretrain", {})}
    if _is_mixed(request, plan):
        sized["initial_share"] = INITIAL_SHARE
    yield Step.of("pretrain", {"passages": "@split", "queries": plan.queries, **request.pretrain, **sized})


def _is_mixed(request: Request, plan: Plan) -> bool:
    """True for a retriever that is trained for so long that it forgets some of what it knew (docs/results/adapt.md)."""
    is_retriever = request.pretrain.get("head_weight") == 0
    is_long = plan.steps * plan.batch >= MIXED_PASSES * plan.passages
    return is_retriever and is_long and not plan.finetune_steps and "lora_rank" not in request.pretrain


def _finetuning(request: Request, plan: Plan) -> Iterator[Step]:
    """Fine-tuning on the labels, else on generated queries; with a cross-encoder, on its scores of each
    query's passages. Generated queries are only used with a cross-encoder: without one, fine-tuning was not
    better than longer pre-training (docs/results/adapt.md).
    """
    passages = "@holdout/measured" if request.labeled else "@split"
    texts = {"data": passages} if request.labeled else {"queries": plan.queries, "passages": passages}
    sampling: dict[str, Any] = {"seed": request.pretrain["seed"]}
    if request.reranker:  # the queries of all steps, and another batch for queries without negatives
        sampling["limit"] = plan.finetune_batch * (plan.finetune_steps + 1)
    split: dict[str, Any] = {"split": "train"} if request.labeled else sampling
    depth = 100 if request.labeled else 30
    words = {"bm25": True, **request.words}
    yield Step.of("bm25-train", {**words, **texts, **split, "k": depth}, verb="retrieve")
    mining = {
        "run": "@bm25-train",
        "qrels": "@holdout/measured/qrels/train.tsv" if request.labeled else plan.queries,
        **texts,
        "depth": depth,
        # More than a visit uses, unless they have to be scored.
        "per_query": FINETUNED_PASSAGES - 1 if request.reranker else 12,
        **sampling,
    }
    yield Step.of("negatives", mining, verb="mine")
    if request.reranker:
        yield Step.of(
            "teacher",
            {"run": "@negatives", "reranker": [request.reranker], **texts},
            verb="rerank",
        )
    yield Step.of("finetune", _finetuning_settings(request, plan, passages))


def _finetuning_settings(request: Request, plan: Plan, passages: str) -> dict[str, Any]:
    return {
        "groups": "@negatives",
        "passages": passages,
        "encoder": "@pretrain",
        "steps": plan.finetune_steps,
        "batch_size": plan.finetune_batch,
        **plan.limits.get("finetune", {}),
        "passages_per_query": FINETUNED_PASSAGES,
        "passage_length": request.max_tokens,
        "query_length": 48,
        "lr": 2e-4 if request.pretrain.get("lora_rank") else 2e-5,
        "dropout": 0.0,
        "seed": request.pretrain["seed"],
        **{name: rank for name, rank in request.pretrain.items() if name == "lora_rank"},
        **request.prompts,
        **({"teacher": "@teacher", "loss": "margin-mse"} if request.reranker else {}),
    }


def _measuring(request: Request, plan: Plan) -> Iterator[Step]:
    """Search and evaluate with every system, on generated questions and, with labels, on real ones."""
    if plan.trains:
        yield from _encoding(request, plan, "adapted", "@finetune" if plan.finetune_steps else "@pretrain")
    for split in (*request.splits, *([ASKED] if request.questions else [])):
        yield from searches(request, plan, split)


def searches(
    request: Request, plan: Plan, split: str, data: str = MEASURED, suffix: str | None = None
) -> Iterator[Step]:
    """The searches of every system for the questions of a split, and, but for dev, their scores. The names of the steps
    end with `suffix`, by default the split."""
    suffix = suffix or split
    yield from _searching(request, plan, split, data, suffix)
    if split == "dev" and data == MEASURED:
        return
    for name, asked in request.also.items():
        yield Step.of(
            f"{name}-{suffix}", {"system": asked, "data": data, "split": split, "k": 100}, verb="retrieve"
        )
    for system in [*systems(plan), *request.also]:
        scoring = {"run": f"@{system}-{suffix}", "qrels": data, "split": split, "measures": MEASURES}
        yield Step.of(f"score-{system}-{suffix}", scoring, verb="evaluate")


def _encoding(
    request: Request, plan: Plan, system: str, encoder: str, texts: str = MEASURED
) -> Iterator[Step]:
    """Vectors of the passages, and bits of their tokens, for evaluation."""
    reading = _reading(request, plan, texts, encoder)
    is_known = system == "start" and request.questions is not None and plan.pool >= plan.passages
    reuse = {"reuse": "@asked-vectors"} if is_known else {}
    yield Step.of(f"{system}-vectors", {**reading, **reuse}, verb="encode")


def _searching(request: Request, plan: Plan, split: str, data: str, suffix: str) -> Iterator[Step]:
    questions = {"data": data, "split": split, "k": 100}
    words = {"bm25": True, **request.words}
    yield Step.of(f"bm25-{suffix}", {**words, **questions}, verb="retrieve")
    for encoder in ENCODERS[: 1 + plan.trains]:
        hybrid = System(encoder, words=True)
        yield Step.of(f"{encoder}-{suffix}", {"index": f"@{encoder}-vectors", **questions}, verb="retrieve")
        depth = {"k": RERANKED} if plan.tokens or plan.reranked else {}
        runs = [f"@bm25-{suffix}", f"@{encoder}-{suffix}"]
        yield _fusing(request, hybrid, suffix, runs, WEIGHTS[1], depth)
        first = replace(hybrid, tokens=plan.tokens)
        if plan.tokens:
            by_tokens = {"data": data, "tokens": f"@{encoder}-vectors", "k": RERANKED}
            yield from _reranking(request, first, f"{encoder}-by-tokens", suffix, by_tokens, TOKEN_WEIGHT)
        if plan.reranked:
            last = replace(first, reranked=True)
            pairs = {"data": data, "reranker": [request.reranker], "k": plan.reranked}
            yield from _reranking(request, last, f"{encoder}-by-reranker", suffix, pairs, RERANKER_WEIGHT)


def _reranking(
    request: Request, system: System, name: str, suffix: str, scoring: dict[str, Any], weight: float
) -> Iterator[Step]:
    """The last stage of a system: new scores for the best passages of the system without it, fused with the first ones."""
    run = f"@{system.first_stage.name}-{suffix}"
    yield Step.of(f"{name}-{suffix}", {"run": run, **scoring}, verb="rerank")
    yield _fusing(request, system, suffix, [run, f"@{name}-{suffix}"], weight, {"k": RERANKED})


def _fusing(
    request: Request, system: System, split: str, runs: list[str], weight: float, depth: dict[str, int]
) -> Step:
    """The fusion of two runs; with a dev split, their weights are tuned, else the second one has this weight."""
    fusing: dict[str, Any] = {"runs": runs, "method": "zscore", **depth}
    if "dev" not in request.splits:
        fusing["weights"] = [round(1 - weight, 3), weight]
    elif split == "dev":
        fusing["tune"] = "@holdout/measured/qrels/dev.tsv"
    else:
        fusing["weights_from"] = f"@{system.name}-dev"
    return Step.of(f"{system.name}-{split}", fusing, verb="fuse")
