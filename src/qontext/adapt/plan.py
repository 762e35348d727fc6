"""What to do with these documents, on this machine, in this time; and the recipe that does it.

The budget goes first to what must be done (queries, two encodings to measure with, one to serve with), the rest to
training, up to a number of passes over the passages after which little is gained.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from qontext.adapt.rates import (
    BM25_PASSAGES,
    FEWEST,
    SPLIT_CHARACTERS,
    STAGE_SECONDS,
    Rates,
    searching_by_words,
)
from qontext.adapt.survey import Survey
from qontext.errors import QontextError
from qontext.queries.generate import PART_PASSAGES as GENERATED_AT_A_TIME
from qontext.retrieve.encode import BLOCK as ENCODED_AT_A_TIME

PASSES = 6
FEWEST_STEPS = 4
MEASURES = "nDCG@10 MRR@10 R@100"
DENSE_WEIGHT = 0.3
"""Of the dense run beside BM25 where no labels say better."""
QUERY_TOKENS = 16
FINETUNED_PASSAGES = 4
QUERIES_PER_PASSAGE = 5
FILTERED_SHARE = 0.1
"""The most of the budget that filtering queries may take."""
MEASURED_SHARE = 0.3
"""The most of the budget that encoding for measuring may take; larger corpora are measured on a part."""


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    documents: str
    labels: str | None
    splits: tuple[str, ...]
    labelled: int
    encoder: str
    generate: dict[str, Any]
    pretrain: dict[str, Any]
    max_tokens: int
    read_tokens: int
    budget: float
    device: str
    keep: bool
    language: str
    max_labels: int | None = None
    reranker: str | None = None
    processes: int = 1


@dataclass(frozen=True)
class Plan:
    """How much of everything, and what it should take: seconds by part, bytes on disk."""

    passages: int
    pool: int
    batch: int
    steps: int
    finetune_steps: int
    finetune_batch: int
    processes: int
    seconds: dict[str, float]
    disk: int
    notes: list[str] = field(default_factory=list)

    @property
    def trains(self) -> bool:
        return self.steps > 0

    @property
    def filters(self) -> bool:
        return "filter" in self.seconds

    @property
    def queries(self) -> str:
        """The recipe's generated queries to train on."""
        return "@filter" if self.filters else "@holdout/queries"

    @property
    def expected(self) -> float:
        return sum(self.seconds.values())


def make_plan(request: Request, survey: Survey, rates: Rates, dimension: int) -> Plan:
    passages = max(1, survey.passages(request.max_tokens))
    processes = request.processes if passages >= 64 * request.processes else 1
    served = rates.encoded  # by one process
    if request.device == "cuda":  # processes on a CPU share its cores
        rates = Rates(
            rates.trained * processes,
            rates.encoded * min(processes, -(-passages // ENCODED_AT_A_TIME)),
            rates.generated * min(processes, -(-passages // GENERATED_AT_A_TIME)),
            rates.scored * processes,
        )
    pool = passages
    if 2 * passages / rates.encoded > MEASURED_SHARE * request.budget:
        pool = max(1_000, int(MEASURED_SHARE * request.budget * rates.encoded / 2))
        pool = min(pool, passages)
    seconds = {
        "split": STAGE_SECONDS + survey.characters / SPLIT_CHARACTERS,
        "generate": STAGE_SECONDS + passages / rates.generated,
        "hold out": STAGE_SECONDS + passages / BM25_PASSAGES,
        "measure": 9 * STAGE_SECONDS + 2 * pool / rates.encoded + 2 * pool / BM25_PASSAGES,
        # The vectors of the passages that are measured among are taken over.
        "serve": 3 * STAGE_SECONDS + (passages - pool) / served + passages / BM25_PASSAGES,
    }
    filtering = STAGE_SECONDS + searching_by_words(QUERIES_PER_PASSAGE * passages, passages)
    if filtering > FILTERED_SHARE * request.budget:  # it leaves out but two queries of a hundred
        filtering = 0.0
    notes = []
    left = 0.95 * request.budget - sum(seconds.values()) - filtering - 2 * STAGE_SECONDS
    batch = 32 if passages >= 64 else max(2, passages // 2)
    if request.device == "cuda":
        batch = min(512, max(batch, passages // 20))
    batch = max(1, batch // processes) * processes
    finetuning = _finetuning_size(request, passages, processes, left, rates)
    trained = min((left - finetuning.seconds) * rates.trained, PASSES * passages)
    steps = int(trained / batch)
    if passages < FEWEST:
        notes.append(f"{passages} passages are too few to train on: the encoder stays as it is.")
        steps = 0
    elif steps < FEWEST_STEPS:
        needed = (sum(seconds.values()) + filtering + 60 * batch / rates.trained) / 0.95
        notes.append(
            f"the budget does not reach for training, so the encoder stays as it is; {needed / 60:.0f} minutes would do."
        )
        steps = 0
    elif trained < 0.5 * passages:
        notes.append("the budget reaches for less than half a pass over the passages: more time would help.")
    if steps:
        if filtering:
            seconds["filter"] = filtering
        else:
            notes.append("there is no time to filter the generated queries.")
        seconds["train"] = 2 * STAGE_SECONDS + steps * batch / rates.trained
    else:
        finetuning = Finetuning(0, 0, 0.0)
    if finetuning.steps:
        seconds["fine-tune"] = finetuning.seconds
    elif request.labelled and steps:
        notes.append(
            f"{request.labelled} labelled questions, or the time, do not reach for training on them."
        )
    if pool < passages:
        notes.append(f"measured among {pool:,} of the passages; the index holds all.")
    disk = round(2.5 * survey.characters + 4 * dimension * (2 * pool + passages)) + 400_000_000
    return Plan(
        passages, pool, batch, steps, finetuning.steps, finetuning.batch, processes, seconds, disk, notes
    )


@dataclass(frozen=True)
class Finetuning:
    steps: int
    batch: int
    seconds: float


def _finetuning_size(
    request: Request, passages: int, processes: int, left: float, rates: Rates
) -> Finetuning:
    """At most 0.4 of the time that is left, three passes over the labels or one over the passages.

    A step shows `batch` queries with their passages, which a cross-encoder, if there is one, scores before.
    """
    queries = request.labelled or (passages if request.reranker else 0)
    batch = min(32, queries // 2) // processes * processes
    if batch < 2:
        return Finetuning(0, 0, 0.0)
    around = 4 * STAGE_SECONDS
    step = batch * FINETUNED_PASSAGES * (1 / rates.trained + (1 / rates.scored if request.reranker else 0))
    if not request.labelled:
        step += searching_by_words(batch, passages)
    visits = 3 * request.labelled or passages
    steps = int(max(0.0, min((0.4 * left - around) / step, visits / batch)))
    return Finetuning(steps, batch, around + steps * step) if steps else Finetuning(0, 0, 0.0)


def recipe(request: Request, plan: Plan) -> str:
    """The plan as TOML, for `qontext run`."""
    made: list[tuple[str, dict[str, Any], str]] = []

    def step(name: str, comment: str = "", **settings: Any) -> None:
        made.append((name, {k: v for k, v in settings.items() if v is not None}, comment))

    seed = request.pretrain["seed"]
    split: dict[str, Any] = {"keep": True} if request.keep else {"max_tokens": request.max_tokens}
    language = request.language if not request.keep and request.language != "en" else None
    step(
        "split",
        source=request.documents,
        on_error="skip",
        tokenizer=request.encoder,
        language=language,
        **split,
    )
    step("generate", "queries that the passages themselves suggest", passages="@split", **request.generate)
    step(
        "holdout",
        "some documents' queries are set aside to measure with",
        passages="@split",
        queries="@generate",
        labels=request.labels,
        pool=max(plan.pool, 1_000),
        max_labels=request.max_labels,
        least_labels=plan.finetune_batch if request.labelled and plan.finetune_steps else None,
        seed=seed,
    )
    model = request.encoder
    if plan.trains:
        if plan.filters:
            step(
                "filter",
                "queries that do not find their passage by its words are about something else",
                queries="@holdout/queries",
                passages="@split",
            )
        step(
            "pretrain",
            passages="@split",
            queries=plan.queries,
            **request.pretrain,
            batch_size=plan.batch,
            steps=plan.steps,
        )
        model = "@pretrain"
    if plan.trains and plan.finetune_steps:
        _finetuning(step, request, plan)
        model = "@finetune"
    _measuring(step, request, plan, model)
    lines = ["# Written by `qontext adapt`. `qontext run` does the same; change what you like.", ""]
    lines += ["[recipe]", f"title = {json.dumps('Adapt a retriever to ' + request.documents)}", ""]
    for name, settings, comment in made:
        lines.append(f"[{name}]" + (f" # {comment}" if comment else ""))
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
        lines.append("")
    return "\n".join(lines)


def _finetuning(step: Any, request: Request, plan: Plan) -> None:
    """On the labels, else on generated queries; with a cross-encoder, on its scores of each query's passages.

    Generated queries are not fine-tuned on without one: that gained nothing over pre-training longer (docs/adapt.md).
    """
    passages = "@holdout/measured" if request.labelled else "@split"
    named = {"data": passages} if request.labelled else {"queries": plan.queries, "passages": passages}
    drawn: dict[str, Any] = {"seed": request.pretrain["seed"]}
    if request.reranker:  # what the steps show, and a batch more for queries without negatives
        drawn["limit"] = plan.finetune_batch * (plan.finetune_steps + 1)
    split: dict[str, Any] = {"split": "train"} if request.labelled else drawn
    step("bm25-train", verb="search", bm25=True, **named, **split, k=100 if request.labelled else 30)
    step(
        "negatives",
        verb="mine",
        run="@bm25-train",
        qrels="@holdout/measured/qrels/train.tsv" if request.labelled else plan.queries,
        **named,
        depth=100 if request.labelled else 30,
        # More than a visit shows, where nothing has to score them.
        per_query=FINETUNED_PASSAGES - 1 if request.reranker else 12,
        **drawn,
    )
    taught: dict[str, Any] = {}
    if request.reranker:
        step("teacher", verb="rerank", run="@negatives", reranker=[request.reranker], **named)
        taught = {"teacher": "@teacher", "distill": "margin-mse"}
    step(
        "finetune",
        groups="@negatives",
        passages=passages,
        encoder="@pretrain",
        steps=plan.finetune_steps,
        batch_size=plan.finetune_batch,
        passages_per_query=FINETUNED_PASSAGES,
        passage_length=request.max_tokens,
        query_length=48,
        lr=2e-5,
        dropout=0.0,
        seed=request.pretrain["seed"],
        **taught,
    )


def systems(trains: bool) -> list[str]:
    """What is compared: names of the recipe's searches."""
    return ["bm25", "start", "hybrid-start", *(["adapted", "hybrid"] if trains else [])]


def _measuring(step: Any, request: Request, plan: Plan, model: str) -> None:
    """Search and score with every system, on generated questions and where there are labels on real ones."""
    step(
        "start-vectors",
        verb="encode",
        texts="@holdout/measured",
        encoder=request.encoder,
        max_length=request.read_tokens,
    )
    if plan.trains:
        step(
            "adapted-vectors",
            verb="encode",
            texts="@holdout/measured",
            encoder=model,
            max_length=request.read_tokens,
        )
    tuned = "dev" in request.splits
    for split in request.splits:
        named = {"data": "@holdout/measured", "split": split, "k": 100}
        step(f"bm25-{split}", verb="search", bm25=True, **named)
        dense = [("start", "hybrid-start"), *([("adapted", "hybrid")] if plan.trains else [])]
        for system, hybrid in dense:
            step(f"{system}-{split}", verb="search", index=f"@{system}-vectors", **named)
            fused = {"verb": "fuse", "runs": [f"@bm25-{split}", f"@{system}-{split}"], "method": "zscore"}
            if tuned and split == "dev":
                step(f"{hybrid}-{split}", tune="@holdout/measured/qrels/dev.tsv", **fused)
            elif tuned:
                step(f"{hybrid}-{split}", weights_from=f"@{hybrid}-dev", **fused)
            else:
                step(f"{hybrid}-{split}", weights=[round(1 - DENSE_WEIGHT, 3), DENSE_WEIGHT], **fused)
        if split == "dev":
            continue
        for system in systems(plan.trains):
            step(
                f"score-{system}-{split}",
                verb="evaluate",
                run=f"@{system}-{split}",
                qrels="@holdout/measured",
                split=split,
                measures=MEASURES,
            )


def parse_budget(text: str) -> float:
    """'30m', '2h', '90s' or minutes → seconds."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "m")
    try:
        seconds = float(number) * units[unit]
    except (ValueError, KeyError):
        seconds = 0
    if not 10 <= seconds < float("inf"):
        raise QontextError(f"the budget {text!r} is not a length of time", remedy="Write 90s, 30m or 2h.")
    return seconds
