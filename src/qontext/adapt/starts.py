"""The initial encoder: the one that is named, the best of several, or the default for the language of the documents.

Several are measured before the plan is made, in the folder `starts`:

    split, generate, holdout    passages, and questions about some of them
    1, 2, …                     each encoder on these, untrained: alone, with BM25, and with its tokens, too

The one with the best system of all three is adapted. The figures and the choice stand in `plan.json`, and are not measured
again; the folder is removed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from qontext.adapt.config import AdaptConfig, Request, parse_budget
from qontext.frame import log
from qontext.frame.artifacts import META, Workdir, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.files import json_digest, read_json
from qontext.frame.inputs import digest_of
from qontext.models.reference import encoder_for, shown_name
from qontext.retrieve.directory import STARTS
from qontext.retrieve.system import System, label_of

WHOLE = System("start", words=True, tokens=True).name
"""The system by which initial encoders are compared."""
SHARE = 0.1
"""Share of the budget for measuring each of them."""
FEWEST_SEARCHED, MOST_SEARCHED = 300, 3_000
"""Passages to measure on."""
FEWEST_LABELS, MOST_LABELS = 50, 500
"""Labeled questions below which generated ones are asked, and the number of training questions that are asked."""


class Candidate(TypedDict):
    """An initial encoder: its digest, nDCG@10 by system, the p of the difference between its whole system and that of the
    best, and the seconds that measuring took."""

    encoder: str
    digest: str
    scores: dict[str, float]
    p: float | None
    seconds: float


class Starts(TypedDict):
    """The candidates, as they were measured on questions of a split; `chosen` is the digest of the best."""

    chosen: str
    split: str
    questions: int
    passages: int
    seconds: float
    candidates: list[Candidate]


def settled(
    config: AdaptConfig, recorded: Starts | None, under: Path, *, is_pending: bool = False
) -> tuple[AdaptConfig, Starts | None]:
    """The configuration with one encoder; of several, also how they were measured. What is recorded of the same ones is not
    measured again, unless all is; otherwise, it is written `under` a folder."""
    names = config.encoder
    if not names:
        names = (encoder_for(_language(config)),)
    if len(names) == 1:
        is_chosen = recorded is not None and _digest(names[0]) in (None, recorded["chosen"])
        return config.model_copy(update={"encoder": names}), recorded if is_chosen else None
    digests = {name: digest_of(name, "encoder") for name in names}
    if len({*digests.values()}) < len(names):
        raise QontextError("the same encoder is named twice", place=names[0], remedy="Name different ones.")
    starts = recorded if recorded and _is_of(recorded, digests.values()) else None
    if starts is None or (config.retrain and not is_pending):
        starts = _measured(config, digests, under / STARTS)
        _show(starts)
    best = next(name for name, digest in digests.items() if digest == starts["chosen"])
    return config.model_copy(update={"encoder": (best,)}), starts


def sentence(starts: Starts) -> str:
    """The measurements in one sentence."""
    kind = "generated" if starts["split"] == "generated" else "real"
    figures = [
        f"{shown_name(one['encoder'])} {one['scores'][WHOLE]:.3f}"
        + (f" (p = {one['p']:.3f})" if one["p"] is not None else "")
        for one in starts["candidates"]
    ]
    return (
        f"Initial encoders by the nDCG@10 of {label_of(WHOLE)} on {starts['questions']:,} {kind} questions: "
        f"{', '.join(figures)}; {shown_name(_best(starts)['encoder'])} is taken."
    )


def _digest(name: str) -> str | None:
    """The digest of an encoder; None if it is no longer there, which an update may do without."""
    try:
        return digest_of(name, "encoder")
    except QontextError:
        return None


def _is_of(starts: Starts, digests: Iterable[str]) -> bool:
    """True if these encoders were measured."""
    return {one["digest"] for one in starts["candidates"]} == {*digests}


def _best(starts: Starts) -> Candidate:
    return next(one for one in starts["candidates"] if one["digest"] == starts["chosen"])


def _language(config: AdaptConfig) -> str:
    from qontext.adapt.survey import survey
    from qontext.retrieve.language import natural

    return natural(
        survey(config.documents, labeled=config.labels is not None, read_as=config.read_as).language
    )


def _measured(config: AdaptConfig, digests: Mapping[str, str], folder: Path) -> Starts:
    """Measure the encoders; what was finished before a kill is kept."""
    from qontext.adapt import recipes
    from qontext.adapt.prepare import prepare
    from qontext.adapt.survey import survey
    from qontext.workflow.run import run_recipe

    started = time.monotonic()
    log.note(f"Measuring {len(digests)} initial encoders: at most {SHARE:.0%} of the budget for each.")
    source = survey(config.documents, labeled=config.labels is not None, read_as=config.read_as)
    requests = {name: prepare(config.model_copy(update={"encoder": (name,)}), source)[0] for name in digests}
    passages = _passages(config, digests, requests, source.sample, folder)
    first = next(iter(requests.values()))
    split = _split(first.judged)
    asking, plan = recipes.asking_recipe(first, source.passages(first.max_tokens), passages, MOST_LABELS)
    run_recipe(asking, folder, on=config.on)
    holdout = open_artifact(folder / "holdout")
    candidates: list[Candidate] = []
    for number, (name, request) in enumerate(requests.items(), 1):
        own = folder / str(number)
        run_recipe(recipes.start_recipe(request, plan, split, holdout.path / "measured"), own, on=config.on)
        scores = {one: _score(own, one, split) for one in recipes.systems(plan)}
        row = {"encoder": name, "digest": digests[name], "scores": scores, "p": None}
        candidates.append({**row, "seconds": _seconds(own)})  # type: ignore[typeddict-item]
    best = max(candidates, key=lambda one: one["scores"][WHOLE])
    rivals = _rivals(folder, split, candidates.index(best), len(candidates))
    for one, p in zip(candidates, rivals):
        one["p"] = p
    questions = int(open_artifact(folder / "1" / f"score-{WHOLE}-{split}").summary["queries"])
    searched = int(holdout.summary["searched_passages"])
    seconds = max(time.monotonic() - started, _seconds(folder))
    return Starts(
        chosen=best["digest"], split=split, questions=questions, passages=searched,
        seconds=round(seconds, 1), candidates=candidates,
    )  # fmt: skip


def _passages(
    config: AdaptConfig,
    digests: Mapping[str, str],
    requests: Mapping[str, Request],
    sample: Any,
    folder: Path,
) -> int:
    """The number of passages that the slowest encoder encodes in half of its share of the budget. It is recorded, so that a
    run that resumes has the same ones. What was measured for another request is removed."""
    from qontext.adapt.rates import encoding_rate

    mark = type(config).inputs()["documents"]
    documents = digest_of(config.documents, "documents", mark)
    key = json_digest([documents, [*digests.values()], config.identity()])
    file = folder / "about.json"
    if file.is_file() and (about := read_json(file, dict[str, Any])).get("key") == key:
        return int(about["passages"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rate = min(encoding_rate(sample, request, folder) for request in requests.values())
    passages = int(SHARE * parse_budget(config.budget) * rate / 2)
    passages = max(FEWEST_SEARCHED, min(MOST_SEARCHED, passages))
    Workdir(folder).write_json("about.json", {"key": key, "passages": passages})
    return passages


def _split(judged: Mapping[str, int]) -> str:
    """The questions to ask: real ones that do not decide the verdict, if there are enough; else those that do, or generated
    ones."""
    others = {name: count for name, count in judged.items() if name != "test" and count >= FEWEST_LABELS}
    if others:
        return max(others, key=lambda name: others[name])
    return "test" if judged.get("test") else "generated"


def _score(folder: Path, system: str, split: str) -> float:
    measures = open_artifact(folder / f"score-{system}-{split}").summary.take("measures", dict[str, float])
    return float(measures["nDCG@10"])


def _rivals(folder: Path, split: str, best: int, count: int) -> list[float | None]:
    """The p of the difference of each encoder's whole system from the best one."""
    from qontext import api

    runs = {str(number): folder / str(number) / f"{WHOLE}-{split}" for number in range(1, count + 1)}
    with log.warnings_only():
        measured = folder / "holdout" / "measured"
        pairs = api.compare(runs, measured, "nDCG@10", split=split, examples=0).as_json()["pairs"]
    p = {frozenset((pair["a"], pair["b"])): float(pair["p"]) for pair in pairs}
    return [p.get(frozenset((str(best + 1), str(number)))) for number in range(1, count + 1)]


def _seconds(folder: Path) -> float:
    """The seconds of all stages below the folder."""
    return sum(float(open_artifact(meta.parent).meta["made"]["seconds"]) for meta in folder.rglob(META))


def _show(starts: Starts) -> None:
    """The table of the encoders."""
    rows = [
        {
            "encoder": shown_name(one["encoder"])
            + (" (chosen)" if one["digest"] == starts["chosen"] else ""),
            **{label_of(name): round(score, 4) for name, score in one["scores"].items()},
            "p": "–" if one["p"] is None else f"{one['p']:.3f}",
            "seconds": round(one["seconds"], 1),
        }
        for one in starts["candidates"]
    ]
    log.show_rows("Initial encoders, nDCG@10", rows)
    log.note(sentence(starts))


def spent(starts: Starts | None, survey: Any) -> Any:
    """The survey, with the seconds that were spent on measuring initial encoders."""
    return replace(survey, seconds=survey.seconds + starts["seconds"]) if starts else survey
