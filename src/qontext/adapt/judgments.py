"""Judgments by people of the questions on which the systems are compared.

questions    in the order of a hash, so that more of them begin with the same ones
pool         for each: the best passages of all measured systems, and what the machine labels name
judgments    which of these are relevant; kept by `annotate` in the folder `judgments`
verdict      on the judged questions, which correct the machine labels of all others (`evaluation.ppi`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qontext.adapt.config import FEWEST_JUDGED
from qontext.data.collection import Qrels, load_collection, read_qrels
from qontext.data.passage import Passage
from qontext.data.runs import read_run
from qontext.evaluation.evaluate import per_query
from qontext.evaluation.measures import Floats, measure, parse
from qontext.evaluation.ppi import Corrected, correct
from qontext.frame import log, stages
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.retrieve.directory import STEPS, is_adapted
from qontext.training.randomness import key_of, uniform

FOLDER, FILE, STUDY = "judgments", "judgments.tsv", "pairs.json"
"""The folder of the study in a directory of `adapt`; its judgments: question, passage, 1 or 0; and what people are shown."""
POOL = 5
"""Passages of each system that are judged."""


class Pooled(NamedTuple):
    """A question with the passages to judge, in an order that says nothing of their systems."""

    id: str
    text: str
    passages: list[Passage]


def pools(root: Path, split: str, systems: Sequence[str], count: int | None = None) -> list[Pooled]:
    """The first `count` questions of a split with their passages; without a count, all."""
    steps = root / STEPS
    measured = steps / "holdout" / "measured"
    if not measured.is_dir():
        raise QontextError(
            "has no questions to judge: its steps were removed",
            place=root,
            remedy="Run the same 'qontext adapt' again with --retrain.",
        )
    collection = load_collection(measured)
    texts, machine = collection.queries(split), collection.qrels(split)
    order = sorted(texts, key=lambda id: float(uniform(0, "judge", key_of(id))))[:count]
    wanted = {id: dict.fromkeys(machine.get(id, {})) for id in order}
    for name in systems:
        run = read_run(steps / f"{name}-{split}").top(POOL)
        for id in order:
            wanted[id] |= dict.fromkeys(hit.passage for hit in run.get(id, ()))
    used = {passage for passages in wanted.values() for passage in passages}
    passages = {passage.id: passage for passage in collection.passages() if passage.id in used}
    return [
        Pooled(
            id,
            texts[id],
            [
                passages[p]
                for p in sorted(wanted[id], key=lambda p: float(uniform(0, id, key_of(p))))
                if p in passages
            ],
        )
        for id in order
    ]


def take_judgments(root: Path) -> None:
    """Bring the file with the judgments up to date with the study, which may have been killed."""
    if (root / FOLDER / STUDY).is_file() and is_adapted(root):
        with log.warnings_only():
            annotate(root, export=True)


def annotate(root: Path, **settings: Any) -> None:
    """Run `annotate` on the directory."""
    verb = stages.load("annotate")
    assert isinstance(verb, stages.Server), verb
    verb.run(verb.config.make({"source": str(root), **settings}, where="annotate"))


class JudgedSplit(NamedTuple):
    """The questions of a split all of whose passages people judged, in the words that they have now, with the grades; and
    those that have other passages since then."""

    grades: Qrels
    outdated: list[str]


def judged(root: Path, split: str, systems: Sequence[str]) -> JudgedSplit:
    """The judgments of the questions of a split, with what these systems found. A question that was left half done, which is
    the last one, does not count."""
    if not (root / FOLDER / FILE).is_file() or not (root / STEPS / "holdout" / "measured").is_dir():
        return JudgedSplit({}, [])
    grades, words = read_qrels(root / FOLDER / FILE), _words(root)
    begun = [one for one in pools(root, split, systems) if one.id in grades]

    def is_judged(one: Pooled, passage: Passage) -> bool:
        now = (one.text, passage.content)
        return passage.id in grades[one.id] and words.get((one.id, passage.id), now) == now

    def is_half_done(one: Pooled) -> bool:
        unjudged = [
            passage for question, passage in words if question == one.id and passage not in grades[one.id]
        ]
        return one is begun[-1] and (bool(unjudged) or not words)

    complete = [one for one in begun if all(is_judged(one, passage) for passage in one.passages)]
    outdated = [one.id for one in begun if one not in complete and not is_half_done(one)]
    return JudgedSplit({one.id: grades[one.id] for one in complete}, outdated)


def _words(root: Path) -> dict[tuple[str, str], tuple[str, str]]:
    """Question and passage → their texts when they were judged, as far as the study is there."""
    file = root / FOLDER / STUDY
    pairs = read_json(file, list[dict[str, Any]]) if file.is_file() else []
    return {tuple(pair["ids"]): (pair["context"], pair["passage"]) for pair in pairs}


def corrected(
    root: Path, split: str, systems: Sequence[str], name: str
) -> tuple[Corrected | None, list[str]]:
    """The systems on the judged questions of a split, by the measure `name`, corrected for all questions of the split. If
    there are judgments that cannot decide, None and the reason."""
    people, outdated = judged(root, split, systems)
    if outdated or not people:
        return None, [_about_outdated(len(outdated), len(outdated) + len(people))] if outdated else []
    are_few = len(people) < FEWEST_JUDGED
    if are_few or not any(grade > 0 for grades in people.values() for grade in grades.values()):
        few = f"are too few for the verdict: at least {FEWEST_JUDGED} are needed"
        return None, [f"{len(people)} judged questions {few if are_few else 'have no relevant passage'}."]
    machine: dict[str, Floats] = {}
    own: dict[str, Floats] = {}
    numbers: np.ndarray[Any, Any] = np.zeros(0, int)
    for system in systems:
        queries, values = per_query(open_artifact(root / STEPS / f"score-{system}-{split}"))
        machine[system] = values[name]
        places: Mapping[str, int] = {query: number for number, query in enumerate(queries)}
        scores = measure(read_run(root / STEPS / f"{system}-{split}"), people, parse(name))
        order = [place for place, query in enumerate(scores.queries) if query in places]
        numbers = np.array([places[scores.queries[place]] for place in order])
        own[system] = np.nan_to_num(scores.values[name][order])
    return correct(machine, own, numbers, name), []


def _about_outdated(outdated: int, count: int) -> str:
    """The reason why judgments do not decide of which some are outdated: the others are selected by their outcome."""
    return (
        f"Since people judged {count:,} questions, the systems found other passages, or other words in them, for "
        f"{outdated:,}. The judgments do not count until these are judged, too (--judge {max(FEWEST_JUDGED, count)}): for "
        "the other questions, nothing new was found."
    )


def about_judgments(result: Corrected, chosen: str, label: Any) -> list[str]:
    """The result of the judgments, and how many more would tell the recommended system from the closest other one."""
    rival, missing = result.missing(chosen)
    low, high = result.intervals[chosen]
    known = (
        f"The verdict is that of {result.judged:,} questions that people judged, which correct the scores of all others: "
        f"with 95 % certainty, {label(chosen)} has {max(0.0, low):.3f} to {min(1.0, high):.3f}."
    )
    if missing == 0:
        return [known, f"These judgments tell it from the closest other system, {label(rival)}."]
    more = (
        f"about {missing:,} more judged questions would tell it from the closest other system, {label(rival)}"
        if missing
        else f"judging all questions would not tell it from the closest other system, {label(rival)}"
    )
    return [known, f"{more[0].upper()}{more[1:]}."]
