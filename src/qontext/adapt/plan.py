"""The amounts of work for these documents, this machine and the time budget: what is necessary (queries, evaluation,
serving), then training, up to a number of passes over the passages after which more brings little."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import NamedTuple

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from qontext.adapt.config import Request
from qontext.adapt.rates import FEWEST, Rates
from qontext.adapt.survey import MOST_UNKNOWN, Survey
from qontext.evaluation.holdout import MOST_ASKED
from qontext.queries.generators import GENERATORS
from qontext.retrieve.encode import BLOCK as ENCODED_AT_A_TIME

PASSES = 6
FEWEST_STEPS = 4
FINETUNED_PASSAGES, MOST_VISITS = 4, 1_000
QUERIES_PER_PASSAGE = 5
QUESTIONS, HELD_OUT_SHARE, FEWEST_QUESTIONS = 500, 0.1, 50
"""Questions about held-out passages: at most so many, of at most this share of the passages. A slow language model writes
fewer of them."""
FEWEST_SEARCHED = 300
"""Passages to evaluate on, however small the budget is."""
USED_SHARE = 0.95
"""Share of the budget to plan with."""
FILTERED_SHARE, MEASURED_SHARE, RERANKED_SHARE, FINETUNED_SHARE = 0.1, 0.3, 0.2, 0.4
"""Maximum shares of the budget: for filtering queries, without which training does; for encoding for evaluation, which
larger corpora have of a part; for a cross-encoder as the last stage. And that of the rest for fine-tuning."""
MOST_RERANKED, FEWEST_RERANKED = 50, 10
"""The passages of a question that a cross-encoder reads as the last stage; with fewer, there is no such stage."""
MOST_TOKENS, CHARACTERS_PER_TOKEN = 40_000_000, 4
"""Tokens whose bits are stored: 2 GB for 384 dimensions."""
COMPARED_BY_TOKENS = 0.015
"""Seconds to compare a question with the best passages token by token."""
SPLIT_CHARACTERS, BM25_PASSAGES = 1_500_000, 15_000
"""Conservative rates per second on one core, for parts that take too little time to be measured."""
STAGE_SECONDS = 1.0
"""Fixed seconds of a stage, after others in the same process: loading a model, writing."""


@dataclass(frozen=True)
class Plan:
    """Amounts of work, and the estimated seconds of all of it."""

    passages: PositiveInt
    pool: PositiveInt
    """The passages to evaluate on."""
    batch: PositiveInt
    steps: NonNegativeInt
    finetune_steps: NonNegativeInt
    finetune_batch: NonNegativeInt
    processes: PositiveInt
    expected: NonNegativeFloat
    notes: list[str] = field(default_factory=list)
    filters: bool = False
    tokens: bool = False
    """True if the best passages are compared with the question token by token."""
    reranked: NonNegativeInt = 0
    """The passages of a question that the cross-encoder reads as the last stage; 0 without this stage."""
    questions: PositiveInt = QUESTIONS
    """Maximum number of questions about held-out passages."""
    limits: dict[str, dict[str, NonNegativeFloat]] = field(default_factory=dict)
    """The settings with which the trainings end on time, by the steps of the recipe: minutes, and the number of steps above
    which more brings little."""

    @property
    def trains(self) -> bool:
        return self.steps > 0

    @property
    def queries(self) -> str:
        """The recipe step with the generated queries to train on."""
        return "@filter" if self.filters else "@holdout/queries"


class Necessary(NamedTuple):
    """The work without training: the passages to search, the most questions, how many passages of a question a
    cross-encoder reads, and the seconds of all."""

    pool: int
    questions: int
    reranked: int
    seconds: float


def make_plan(request: Request, survey: Survey, rates: Rates) -> Plan:
    """Make the plan, a pure function of its arguments."""
    passages = max(1, survey.passages(request.max_tokens))
    processes = request.processes if passages >= 64 * request.processes else 1
    if request.device == "cuda":  # processes on a CPU share its cores
        rates = _rates_together(rates, passages, processes, request.generate["generator"])
    has_room = survey.characters <= MOST_TOKENS * CHARACTERS_PER_TOKEN
    tokens = has_room and request.unknown <= MOST_UNKNOWN
    needed = _necessary(request, survey, passages, rates, tokens=tokens, encoders=2)
    filtering = STAGE_SECONDS + searching_by_words(QUERIES_PER_PASSAGE * passages, passages)
    filters = filtering <= FILTERED_SHARE * request.budget  # it leaves out but two queries of a hundred
    seconds = needed.seconds + filters * filtering + 2 * STAGE_SECONDS
    left = USED_SHARE * request.budget - seconds
    batch = _batch(passages, processes, request.device)
    finetune_steps, finetune_batch, finetuning = _finetuning(request, passages, processes, left, rates)
    can_train = passages >= FEWEST and not request.untrainable
    steps = int(min((left - finetuning) * rates.trained, PASSES * passages) / batch) if can_train else 0
    limits = {}
    if steps >= FEWEST_STEPS:
        limits["pretrain"] = _limit(left - finetuning, PASSES * passages // batch)
        if finetune_steps:  # what a cross-encoder has to score is drawn for the planned steps
            most = finetune_steps if request.reranker else _visits(request, passages) // finetune_batch
            limits["finetune"] = _limit(finetuning, most)
        seconds += finetuning + steps * batch / rates.trained
    else:
        needed = _necessary(request, survey, passages, rates, tokens=tokens, encoders=1)
        steps, finetune_steps, finetune_batch, filters, seconds = 0, 0, 0, False, needed.seconds
    sizes = (passages, needed.pool, batch, steps, finetune_steps, finetune_batch, processes)
    plan = Plan(*sizes, seconds, [], filters, tokens, needed.reranked, needed.questions, limits)
    return replace(plan, notes=list(_notes(request, plan)))


def _necessary(
    request: Request, survey: Survey, passages: int, rates: Rates, *, tokens: bool, encoders: int
) -> Necessary:
    """The work without training, if so many encoders are evaluated."""
    budget, question = request.budget, rates.asking.question
    pool = min(passages, max(FEWEST_SEARCHED, int(MEASURED_SHARE * budget * rates.encoded / encoders)))
    questions = max(FEWEST_QUESTIONS, int(MEASURED_SHARE * budget / question)) if question else QUESTIONS
    questions = min(QUESTIONS, questions)
    generated = min(questions, HELD_OUT_SHARE * passages)
    judged = sum(number for split, number in request.judged.items() if split != "train")
    asked = judged + min(MOST_ASKED, request.logged / 2) + generated
    depth = int(RERANKED_SHARE * budget * rates.scored / max(1.0, asked * encoders))
    depth = min(MOST_RERANKED, depth) if request.reranker and depth >= FEWEST_RERANKED else 0
    splits = len(request.splits) + (request.questions is not None)
    stages = 7 + encoders * (4 + 1.5 * splits * (tokens + bool(depth)))
    seconds = (
        survey.seconds
        + rates.seconds
        + survey.characters / SPLIT_CHARACTERS
        + passages / rates.generated
        + (2 * passages + 2 * pool) / BM25_PASSAGES
        + rates.asking.loading
        + generated * question
        + (encoders * pool + passages - pool)
        / rates.encoded  # the vectors of the pool are those of the index
        + encoders * asked * (tokens * COMPARED_BY_TOKENS + depth / rates.scored)
        + stages * STAGE_SECONDS
    )
    return Necessary(pool, questions, depth, seconds)


def _rates_together(rates: Rates, passages: int, processes: int, generator: str) -> Rates:
    """The rates of several processes, each on its own GPU."""
    generated_at_a_time = GENERATORS.load(generator).part_passages
    return replace(
        rates,
        trained=rates.trained * processes,
        encoded=rates.encoded * min(processes, -(-passages // ENCODED_AT_A_TIME)),
        generated=rates.generated * min(processes, -(-passages // generated_at_a_time)),
        scored=rates.scored * processes,
    )


def _batch(passages: int, processes: int, device: str) -> int:
    """Passages per step: a multiple of the processes."""
    batch = 32 if passages >= 64 else max(2, passages // 2)
    if device == "cuda":
        batch = min(512, max(batch, passages // 20))
    return max(1, batch // processes) * processes


def _finetuning(
    request: Request, passages: int, processes: int, left: float, rates: Rates
) -> tuple[int, int, float]:
    """Steps, batch and seconds of fine-tuning: a share of the seconds that are left, three passes over the labels (ten over
    few) or one over the passages. A step has `batch` queries with their passages, which are first scored by the
    cross-encoder, if any.
    """
    queries = request.labeled or (passages if request.reranker else 0)
    batch = min(32, queries // 2) // processes * processes
    if batch < 2:
        return 0, 0, 0.0
    around = 4 * STAGE_SECONDS
    step = batch * FINETUNED_PASSAGES * (1 / rates.trained + (1 / rates.scored if request.reranker else 0))
    if not request.labeled:
        step += searching_by_words(batch, passages)
    steps = int(max(0.0, min((FINETUNED_SHARE * left - around) / step, _visits(request, passages) / batch)))
    return (steps, batch, around + steps * step) if steps else (0, 0, 0.0)


def _visits(request: Request, passages: int) -> int:
    return max(3 * request.labeled, min(10 * request.labeled, MOST_VISITS)) or passages


def _limit(seconds: float, steps: int) -> dict[str, float]:
    return {"minutes": round(seconds / 60, 2), "steps": steps}


def searching_by_words(queries: int, passages: int) -> float:
    """Seconds for BM25, which scores all passages for each query: measured on two cores, with 30,000 queries
    on 6,000 passages and 115,000 on 23,000."""
    once, per_passage = (6e-5, 2e-9) if find_spec("numba") else (1e-4, 2e-8)
    return queries * (once + per_passage * passages)


def _notes(request: Request, plan: Plan) -> list[str]:
    """The work that is left out, with the reasons."""
    notes = []
    if request.untrainable:
        notes.append(
            f"the encoder is measured as it is, because it cannot be trained: {request.untrainable}."
        )
    elif plan.passages < FEWEST:
        notes.append(f"{plan.passages} passages are too few for training: the encoder will not be changed.")
    elif not plan.trains:
        notes.append("the budget is too small to train the encoder: it is measured as it is.")
    elif request.labeled and not plan.finetune_steps:
        notes.append(
            f"{request.labeled} labeled questions, or the budget, are not sufficient for training on them."
        )
    if request.reranker and not plan.reranked:
        notes.append("the cross-encoder is too slow for a last stage with this budget.")
    if plan.pool < plan.passages:
        notes.append(f"evaluated on {plan.pool:,} of the passages; the index contains all.")
    return notes
