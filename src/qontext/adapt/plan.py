"""Planning the amounts of work for these documents, this machine and the time budget. The budget is first
assigned to the necessary work (queries, two encodings for evaluation, one for serving), the rest to training,
up to a number of passes over the passages after which more brings little.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from qontext.adapt.config import Request
from qontext.adapt.rates import (
    BM25_PASSAGES,
    FEWEST,
    SPLIT_CHARACTERS,
    STAGE_SECONDS,
    Rates,
    searching_by_words,
)
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
FILTERED_SHARE = 0.1
"""Maximum share of the budget for filtering queries."""
MOST_TOKENS, CHARACTERS_PER_TOKEN = 40_000_000, 4
"""Tokens whose bits are stored: 2 GB for 384 dimensions."""
COMPARED_BY_TOKENS = 0.015
"""Seconds to compare a question with the best passages token by token."""
MOST_MINUTES = 1 << 20
"""Two years: larger budgets are not looked at."""
MOST_RERANKED, FEWEST_RERANKED, RERANKED_SHARE = 50, 10, 0.2
"""The passages of a question that a cross-encoder reads as the last stage: as many as fit into this share of the budget,
within these limits; with fewer, there is no such stage."""
MEASURED_SHARE = 0.3
"""Maximum share of the budget for encoding for evaluation; larger corpora are evaluated on a part."""


@dataclass(frozen=True)
class Plan:
    """Amounts of work, and estimates: seconds by part, bytes on disk."""

    passages: PositiveInt
    pool: PositiveInt
    batch: PositiveInt
    steps: NonNegativeInt
    finetune_steps: NonNegativeInt
    finetune_batch: NonNegativeInt
    processes: PositiveInt
    seconds: dict[str, NonNegativeFloat]
    disk: NonNegativeInt
    notes: list[str] = field(default_factory=list)
    limits: dict[str, dict[str, NonNegativeFloat]] = field(default_factory=dict)
    """The settings with which the trainings end on time, by the steps of the recipe: minutes, and the number of steps above
    which more brings little."""
    tokens: bool = False
    """True if the best passages are compared with the question token by token."""
    reranked: NonNegativeInt = 0
    """The passages of a question that the cross-encoder reads as the last stage; 0 without this stage."""
    questions: PositiveInt = QUESTIONS
    """Maximum number of questions about held-out passages."""
    load: NonNegativeFloat = 0.0
    """The load of the machine when its speed was measured, if it was busy."""
    sufficient: NonNegativeInt = 0
    """Minutes of the smallest budget that would suffice, if this one does not."""

    @property
    def trains(self) -> bool:
        return self.steps > 0

    @property
    def filters(self) -> bool:
        return "filter" in self.seconds

    @property
    def queries(self) -> str:
        """The recipe step with the generated queries to train on."""
        return "@filter" if self.filters else "@holdout/queries"

    @property
    def expected(self) -> float:
        return sum(self.seconds.values())

    def is_doubtful(self, budget: float) -> bool:
        """True if a busy machine is the reason that nothing is trained, or that the budget is exceeded."""
        return self.load > 0 and (not self.trains or self.expected > budget)


@dataclass(frozen=True)
class Necessary:
    """The work without training: the passages to search, the most questions, how many passages are encoded for that,
    seconds by part, whether tokens are compared, and how many passages of a question a cross-encoder reads."""

    pool: int
    questions: int
    encoded: int
    seconds: dict[str, float]
    tokens: bool
    reranked: int = 0


@dataclass(frozen=True)
class Finetuning:
    steps: int = 0
    batch: int = 0
    seconds: float = 0.0
    most: int = 0


def make_plan(request: Request, survey: Survey, rates: Rates, dimension: int) -> Plan:
    """Make the plan, a pure function of its arguments. If the budget does not suffice, it says which one would."""

    def is_sufficient(minutes: float) -> bool:
        plan = _plan(replace(request, budget=60.0 * minutes), survey, rates, dimension)
        return (plan.trains or not can_train) and plan.expected <= 60.0 * minutes

    plan = _plan(request, survey, rates, dimension)
    can_train = plan.passages >= FEWEST and not request.untrainable
    if is_sufficient(request.budget / 60):
        return plan
    larger = range(math.ceil(request.budget / 60), MOST_MINUTES)
    minutes = larger[bisect_left(larger, True, hi=len(larger) - 1, key=is_sufficient)]
    why = f"the budget is too small to train the encoder; {minutes:,} minutes would suffice."
    notes = [why] if can_train and not plan.trains else []
    return replace(plan, sufficient=minutes, notes=[*notes, *plan.notes])


def _plan(request: Request, survey: Survey, rates: Rates, dimension: int) -> Plan:
    """The plan for a budget."""
    passages = max(1, survey.passages(request.max_tokens))
    processes = request.processes if passages >= 64 * request.processes else 1
    together = (
        _rates_together(rates, passages, processes, request.generate["generator"])
        if request.device == "cuda"
        else rates
    )
    necessary = partial(_necessary, survey=survey, passages=passages, rates=together, serving=rates.encoded)
    needed = necessary(request, encoders=2)
    filtering = STAGE_SECONDS + searching_by_words(QUERIES_PER_PASSAGE * passages, passages)
    if filtering > FILTERED_SHARE * request.budget:  # it leaves out but two queries of a hundred
        filtering = 0.0
    usable = USED_SHARE * request.budget
    seconds_left = usable - sum(needed.seconds.values()) - filtering - 2 * STAGE_SECONDS
    batch = _batch(passages, processes, request.device)
    finetuning = _finetuning_size(request, passages, processes, seconds_left, together)
    if not finetuning.steps and request.divided:  # then, all labels measure
        spent = sum(needed.seconds.values())
        needed = necessary(request.without_training_on_labels(), encoders=2)
        seconds_left -= sum(needed.seconds.values()) - spent
    trained = min((seconds_left - finetuning.seconds) * together.trained, PASSES * passages)
    steps = int(trained / batch) if passages >= FEWEST and not request.untrainable else 0
    limits: dict[str, dict[str, float]] = {}
    if steps >= FEWEST_STEPS:
        seconds = needed.seconds
        seconds |= {"filter": filtering} if filtering else {}
        seconds["train"] = 2 * STAGE_SECONDS + steps * batch / together.trained
        seconds |= {"fine_tune": finetuning.seconds} if finetuning.steps else {}
        others = sum(seconds.values()) - seconds["train"]
        limits = {"pretrain": _limit(usable - others, PASSES * passages // batch)}
        if finetuning.steps:
            limits["finetune"] = _limit(finetuning.seconds, finetuning.most)
        notes = _notes_on_training(request, passages, trained, filtering, finetuning)
    else:
        notes = _why_untrained(request, passages)
        steps, finetuning = 0, Finetuning()
        needed = necessary(request.without_training_on_labels(), encoders=1)
    disk = _disk(request, survey, needed.encoded + passages, passages, dimension, tokens=needed.tokens)
    sizes = (passages, needed.pool, batch, steps, finetuning.steps, finetuning.batch, processes)
    notes += _notes_on_measuring(request, survey, needed, passages, rates.load)
    return Plan(
        *sizes,
        needed.seconds,
        disk,
        notes,
        limits,
        tokens=needed.tokens,
        reranked=needed.reranked,
        questions=needed.questions,
        load=rates.load,
    )


def _necessary(
    request: Request, survey: Survey, passages: int, rates: Rates, *, serving: float, encoders: int
) -> Necessary:
    """The work without training: `encoders` are evaluated; `serving` is the rate of the single process that encodes the
    index."""
    pool = _pool(passages, rates, request.budget, encoders)
    questions = QUESTIONS
    if rates.asking.question:
        fitting = max(FEWEST_QUESTIONS, int(MEASURED_SHARE * request.budget / rates.asking.question))
        questions = min(questions, fitting)
    seconds = {"survey": survey.seconds + rates.seconds}
    seconds |= _needed(survey, passages, pool, rates, questions, serving=serving, encoders=encoders)
    tokens = _has_room_for_tokens(survey) and request.unknown <= MOST_UNKNOWN
    if tokens:
        seconds["measure"] += _comparing_tokens(request, passages, questions, encoders)
    asked = _asked(request, passages, questions)
    reranked = _reranked(request, asked * encoders, rates)
    if reranked:
        stages = encoders * 1.5 * _splits(request)
        seconds["measure"] += stages * STAGE_SECONDS + encoders * asked * reranked / rates.scored
    return Necessary(pool, questions, encoders * pool, seconds, tokens, reranked)


def _asked(request: Request, passages: int, questions: int) -> float:
    """The number of questions that every system answers."""
    judged = sum(number for split, number in request.judged.items() if split != "train")
    return judged + min(MOST_ASKED, request.logged / 2) + min(questions, HELD_OUT_SHARE * passages)


def _splits(request: Request) -> int:
    """The number of splits that every system answers."""
    return len(request.splits) + (request.questions is not None)


def _reranked(request: Request, answers: float, rates: Rates) -> int:
    """The passages that a cross-encoder reads for each of so many answers; 0 without it, or if it is too slow."""
    if not request.reranker:
        return 0
    depth = min(MOST_RERANKED, int(RERANKED_SHARE * request.budget * rates.scored / max(1.0, answers)))
    return depth if depth >= FEWEST_RERANKED else 0


def _why_untrained(request: Request, passages: int) -> list[str]:
    """The reason why no budget would train the encoder, if there is one."""
    if request.untrainable:
        return [f"the encoder is measured as it is, because it cannot be trained: {request.untrainable}."]
    if passages < FEWEST:
        return [f"{passages} passages are too few for training: the encoder will not be changed."]
    return []


def _notes_on_training(
    request: Request, passages: int, trained: float, filtering: float, finetuning: Finetuning
) -> list[str]:
    notes = []
    if trained < 0.5 * passages:
        notes.append("the budget allows less than half a pass over the passages: more time would help.")
    if not filtering:
        notes.append("there is no time to filter the generated queries.")
    if request.labeled and not finetuning.steps:
        notes.append(
            f"{request.labeled} labeled questions, or the budget, are not sufficient for training on them"
            + ("; all labels are used for evaluation." if request.divided else ".")
        )
    return notes


def _has_room_for_tokens(survey: Survey) -> bool:
    return survey.characters <= MOST_TOKENS * CHARACTERS_PER_TOKEN


def _notes_on_measuring(
    request: Request, survey: Survey, needed: Necessary, passages: int, load: float
) -> list[str]:
    notes = []
    if not _has_room_for_tokens(survey):
        notes.append(
            f"questions are not compared token by token: that is for up to {MOST_TOKENS:,} tokens of documents."
        )
    if request.reranker and not needed.reranked:
        notes.append(
            f"the cross-encoder is too slow for a last stage: {RERANKED_SHARE:.0%} of the budget is not sufficient for "
            f"{FEWEST_RERANKED} passages of every question."
        )
    if needed.pool < passages:
        notes.append(f"evaluated on {needed.pool:,} of the passages; the index contains all.")
    if needed.questions < QUESTIONS:
        notes.append(f"the language model writes at most {needed.questions:,} questions: more take too long.")
    if load:
        notes.append(
            f"the machine was busy (load {load:.1f}) when its speed was measured: on an idle one, everything takes less "
            "time, and more can be trained."
        )
    return notes


def _disk(
    request: Request, survey: Survey, encoded: int, passages: int, dimension: int, *, tokens: bool
) -> int:
    """Bytes, if so many passages are encoded in all."""
    size = 2.5 * survey.characters + 4 * dimension * _vectors(request, survey, encoded) + 400_000_000
    if tokens:
        size += encoded / passages * survey.characters / CHARACTERS_PER_TOKEN * dimension / 8
    return round(size)


def _vectors(request: Request, survey: Survey, passages: int) -> float:
    """The number of vectors of so many passages. Windows are three quarters full, a token has four characters."""
    if request.window is None:
        return passages
    characters = survey.characters / max(1, survey.passages(request.max_tokens))
    return passages * max(1.0, characters / (3 * request.window))


def _limit(seconds: float, steps: int) -> dict[str, float]:
    return {"minutes": round(seconds / 60, 2), "steps": steps}


def _rates_together(rates: Rates, passages: int, processes: int, generator: str) -> Rates:
    """The rates of several processes, each on its own GPU. (Processes on a CPU share its cores.)"""
    generated_at_a_time = GENERATORS.load(generator).part_passages
    return replace(
        rates,
        trained=rates.trained * processes,
        encoded=rates.encoded * min(processes, -(-passages // ENCODED_AT_A_TIME)),
        generated=rates.generated * min(processes, -(-passages // generated_at_a_time)),
        scored=rates.scored * processes,
    )


def _pool(passages: int, rates: Rates, budget: float, encoders: int) -> int:
    """The number of passages for evaluation: all, or as many as every encoder can encode in the time for that."""
    if encoders * passages / rates.encoded <= MEASURED_SHARE * budget:
        return passages
    return min(passages, max(FEWEST_SEARCHED, int(MEASURED_SHARE * budget * rates.encoded / encoders)))


def _needed(
    survey: Survey, passages: int, pool: int, rates: Rates, questions: int, *, serving: float, encoders: int
) -> dict[str, float]:
    """Seconds for the necessary work, apart from comparing by tokens."""
    asking = rates.asking.loading + min(questions, HELD_OUT_SHARE * passages) * rates.asking.question
    return {
        "split": STAGE_SECONDS + survey.characters / SPLIT_CHARACTERS,
        "generate": STAGE_SECONDS + passages / rates.generated,
        "hold_out": STAGE_SECONDS + passages / BM25_PASSAGES + asking,
        "measure": (1 + 4 * encoders) * STAGE_SECONDS
        + encoders * pool / rates.encoded
        + 2 * pool / BM25_PASSAGES,
        # The vectors of the evaluated passages are reused.
        "serve": 3 * STAGE_SECONDS + (passages - pool) / serving + passages / BM25_PASSAGES,
    }


def _comparing_tokens(request: Request, passages: int, questions: int, encoders: int) -> float:
    """Seconds that comparing by tokens takes, beside the necessary work, whose forward passes make the bits, too."""
    asked = _asked(request, passages, questions)
    return encoders * (1.5 * _splits(request) * STAGE_SECONDS + asked * COMPARED_BY_TOKENS)


def _batch(passages: int, processes: int, device: str) -> int:
    """Passages per step: a multiple of the processes."""
    batch = 32 if passages >= 64 else max(2, passages // 2)
    if device == "cuda":
        batch = min(512, max(batch, passages // 20))
    return max(1, batch // processes) * processes


def _finetuning_size(
    request: Request, passages: int, processes: int, seconds_left: float, rates: Rates
) -> Finetuning:
    """At most 0.4 of the remaining time, three passes over the labels (ten over few) or one over the passages. A step has
    `batch` queries with their passages, which are first scored by the cross-encoder, if any.
    """
    queries = request.labeled or (passages if request.reranker else 0)
    batch = min(32, queries // 2) // processes * processes
    if batch < 2:
        return Finetuning()
    around = 4 * STAGE_SECONDS
    step = batch * FINETUNED_PASSAGES * (1 / rates.trained + (1 / rates.scored if request.reranker else 0))
    if not request.labeled:
        step += searching_by_words(batch, passages)
    visits = max(3 * request.labeled, min(10 * request.labeled, MOST_VISITS)) or passages
    steps = int(max(0.0, min((0.4 * seconds_left - around) / step, visits / batch)))
    # What a cross-encoder has to score is drawn for the planned steps.
    most = steps if request.reranker else visits // batch
    return Finetuning(steps, batch, around + steps * step, most) if steps else Finetuning()
