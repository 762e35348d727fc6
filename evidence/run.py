"""Run the cells of the study that are not recorded yet.

    python evidence/run.py --data DATA --start MODEL --documents DOCUMENTS [--sets fairytaleqa …] [--arms mlm …]
        [--seeds 1 …] [--scale minilm] [--zero-shot cranfield …] [--question-model MODEL] [--split test]
        [--teacher-set squad_pool] [--work runs/evidence] [--cells evidence/cells]

DATA holds labeled sets in BEIR's layout, one per folder. Where the scale says so, MODEL is first turned back into a
language model by training on DOCUMENTS.
Every cell is a recipe, so a killed run continues where it was. With --zero-shot, what was trained on the sets is measured
on those sets. A language model that `qontext train-generator` fine-tuned on other sets (--question-model) asks the
questions of the arms that need one; without it, they are left out. A cross-encoder that learns from the labels of
--teacher-set teaches the arms that are distilled; on that set itself, they are left out. What a cell measured is written
(record.py): its recipe, the values of each question, seconds per step, and the machine. A cell whose recipe changed is
run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from isotropy import of_arm, of_words
from record import Values, read_cell, recorded, write_cell
from sets import joined, part_of, without_titles, write_gold, write_pairs
from steps import Places, paragraphs_recipe, recipe, start_recipe, teacher_recipe
from study import ARMS, GENERATORS, MINED, NEIGHBORS, PILOT, SCALES, TITLED, Arm, Cell, Scale, named, pilot

from qontext.data.runs import read_run
from qontext.evaluation.evaluate import per_query
from qontext.evaluation.measures import neighborhood_recall
from qontext.frame import artifacts, log, machine
from qontext.workflow.recipe import Recipe
from qontext.workflow.run import run_recipe

HERE = Path(__file__).parent
JOINT = "joint"
"""The set that is joined from those of a scale's pool."""
LARGE = ("vectors-", "run-", "finetune-")
"""Prefixes of the directories that are removed when a cell is recorded: only the cell itself reads them."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--start", required=True)
    parser.add_argument("--documents", required=True)
    parser.add_argument("--sets", nargs="+", default=["fairytaleqa"])
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=[arm.name for arm in ARMS],
        metavar="ARM",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--scale", default="minilm", choices=SCALES)
    parser.add_argument("--zero-shot", nargs="+")
    parser.add_argument("--question-model", help="a language model fine-tuned by qontext train-generator")
    parser.add_argument("--teacher-set", default="squad_pool")
    parser.add_argument("--split", default="test")
    parser.add_argument("--work", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--cells", type=Path, default=HERE / "cells")
    options = parser.parse_args()
    log.show(log.NOTE)
    scale = replace(SCALES[options.scale], split=options.split)
    work = options.work / options.scale
    study = Study.begin(scale, options.start, options.documents, options.data, work, options.cells)
    study = replace(study, question_model=options.question_model, teacher_set=options.teacher_set)
    arms = options.arms or scale.arms or [arm.name for arm in ARMS]
    targets = options.zero_shot or scale.targets or [None]
    for seed in options.seeds:
        for data in [JOINT] if scale.pool else options.sets:
            for arm in arms:
                cells = [Cell(options.scale, data, named(arm), seed, target) for target in targets]
                study.run_all(cells)


@dataclass(frozen=True)
class Study:
    """The places of a study on this machine, and the language model that its arms start from. `sets`: what is made of the
    labeled sets in `data`, which pilots read, too."""

    scale: Scale
    data: Path
    sets: Path
    work: Path
    cells: Path
    start: str
    start_settings: dict[str, Any]
    judge: str = ""
    question_model: str | None = None
    teacher_set: str = "squad_pool"

    @classmethod
    def begin(cls, scale: Scale, model: str, documents: str, data: Path, work: Path, cells: Path) -> Study:
        """Train the language model, unless that is done."""
        sets = work / "sets"
        if scale.pool:
            run_recipe(paragraphs_recipe(documents), work / "documents")
            paragraphs = work / "documents" / "split"
            documents = str(joined(scale.pool, paragraphs, data, sets / JOINT))
        first = cut(model, scale.layers, work / "cut") if scale.layers else model
        if not scale.start_steps:
            return cls(scale, data, sets, work, cells, first, {}, model)
        steps = start_recipe(scale, first, documents)
        run_recipe(steps, work / "start")
        settings = described(steps, {documents: "DOCUMENTS", first: "MODEL"})
        return cls(scale, data, sets, work, cells, str(work / "start" / "pretrain"), settings, model)

    def run_all(self, cells: Sequence[Cell]) -> None:
        """Run the cells of one arm, which share their training, and remove what only they read."""
        tuned = [replace(cell, rates=self.rates(cell)) for cell in cells]
        for cell in tuned:
            self.run(cell)
        for cell in tuned:
            for step in recipe(cell, self.scale, self.places(cell)).steps:
                if step.name.startswith(LARGE):
                    shutil.rmtree(self.work / cell.data / step.name, ignore_errors=True)

    def rates(self, cell: Cell) -> dict[str, float]:
        """The learning rate of each training of a cell, by its arm: the one with which pilots reached the best MRR@10 on
        development questions. What starts from another arm is tried from that arm with its own rate."""
        chosen = dict(cell.rates)
        if self.scale.rates and not self.lacks(cell):
            for arm in cell.trainings:
                reached = {rate: self.piloted(cell, arm, chosen, rate) for rate in self.scale.rates}
                chosen[arm.name] = max(reached, key=reached.__getitem__)
        return chosen

    def piloted(self, cell: Cell, arm: Arm, chosen: dict[str, float], rate: float) -> float:
        """The MRR@10 that an arm reaches in a pilot with a learning rate; `chosen` are those of what it starts from. Its
        steps have the names of the study's and other settings, so they are elsewhere."""
        small, tried = pilot(self.scale), replace(arm, name=f"{arm.name}-lr{rate:g}")
        rates = chosen | {tried.name: rate}
        short = Cell(f"{cell.scale}{PILOT}", cell.data, tried, 1, small.targets[0], rates)
        replace(self, scale=small, work=self.work / "pilots").run_all([short])
        scores = read_cell(self.cells / f"{short.name}.json")["scores"][str(small.labels[0])]
        return float(np.mean(scores["MRR@10"]))

    def run(self, cell: Cell) -> None:
        """Run a cell, unless it is recorded, and record it."""
        if needed := self.lacks(cell):
            log.note(f"{cell.name}: left out, it needs {needed}")
            return
        if cell.arm.words:
            self.record_words(cell)
            return
        places, work = self.places(cell), self.work / cell.data
        if cell.arm.source == "gold" and not Path(places.gold).exists():
            write_gold(Path(places.data), Path(places.gold))
        if cell.arm.source in ("upper", "lower") and not Path(places.lower).exists():
            write_pairs(Path(places.data), self.judge, Path(places.upper), Path(places.lower))
        steps, settings = recipe(cell, self.scale, places), self.settings(cell, places)
        key, file = key_of(settings), self.cells / f"{cell.name}.json"
        if is_recorded(file, key):
            return
        log.note(f"{cell.name}: {len(steps.steps)} steps")
        load = os.getloadavg()[0]
        if cell.arm.distilled:
            run_recipe(self.teacher(), Path(places.teacher).parent)
        rows = run_recipe(steps, work)
        seconds = {row["step"]: artifacts.open_artifact(row["path"]).meta["made"]["seconds"] for row in rows}
        by_system = scores(steps, work) | self.controls(cell, steps, work, places)
        self.record(file, cell, key, settings, by_system, seconds, load)

    def record_words(self, cell: Cell) -> None:
        """Random vectors of words: no training, and so no recipe. The tokenizer is that of the start."""
        assert cell.arm.words is not None
        settings = {"words": cell.arm.words, "split": self.scale.split}
        key, file = key_of(settings), self.cells / f"{cell.name}.json"
        if is_recorded(file, key):
            return
        began, load, data = time.monotonic(), os.getloadavg()[0], self.set_of(cell.target or cell.data)
        by_system = of_words(cell.arm.words, cell.seed, self.start, data, self.scale.split)
        self.record(file, cell, key, settings, by_system, {"words": round(time.monotonic() - began, 3)}, load)

    def controls(self, cell: Cell, steps: Recipe, work: Path, places: Places) -> dict[str, Values]:
        """The scores of centered and whitened vectors, where the scale says so and the arm has vectors without labels."""
        ends = {
            step.name: step
            for step in steps.steps
            if step.name.startswith("vectors-") and step.name.endswith("-0")
        }
        if not self.scale.isotropy or not ends:
            return {}
        vectors = artifacts.open_artifact(work / next(iter(ends)))
        return of_arm(vectors, Path(places.target or places.data), self.scale.split)

    def record(
        self,
        file: Path,
        cell: Cell,
        key: str,
        settings: dict[str, Any],
        by_system: dict[str, Values],
        seconds: dict[str, float],
        load: float,
    ) -> None:
        record = {
            "scale": cell.scale,
            "set": cell.place,
            "arm": cell.arm.name,
            "seed": cell.seed,
            "recipe": key,
            "settings": settings,
            "tokens": cell.arm.words or self.scale.tokens,
            "title": TITLED[self.scale.titles],
            "start": artifacts.open_artifact(self.start).digest
            if artifacts.is_artifact(self.start)
            else None,
            "scores": by_system,
            "seconds": seconds,
            "load": round(load, 1),
            "threads": torch.get_num_threads(),
            "machine": machine.describe(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }
        write_cell(file, record)

    def places(self, cell: Cell) -> Places:
        return Places(
            data=str(self.set_of(cell.data)),
            start=self.start,
            gold=str(self.sets / f"{cell.data}-gold.tsv"),
            upper=str(self.sets / f"{cell.data}-upper.tsv"),
            lower=str(self.sets / f"{cell.data}-lower.tsv"),
            target=str(self.set_of(cell.target)) if cell.target else None,
            question_model=self.question_model,
            teacher=str(self.work / f"teacher-{self.teacher_set}" / "reranker"),
        )

    def set_of(self, name: str) -> Path:
        """A labeled set; the joined one; a part of it, or a copy without titles, where the scale says so."""
        folder = self.sets / JOINT if name == JOINT else self.data / name
        if self.scale.share > 1:
            folder = part_of(folder, self.scale.share, self.sets / f"{name}-part")
        if self.scale.titles == "none":
            return without_titles(folder, self.sets / name)
        return folder

    def teacher(self) -> Recipe:
        """The training of the cross-encoder on another set's labels."""
        return teacher_recipe(self.scale, self.start, str(self.data / self.teacher_set))

    def settings(self, cell: Cell, places: Places) -> dict[str, Any]:
        """The settings with which a cell was made, with names for the places on this machine."""
        named = {place: field.upper() for field, place in asdict(places).items() if place}
        settings = {
            "start": self.start_settings,
            "cell": described(recipe(cell, self.scale, places), named),
        }
        if cell.arm.distilled:
            own = {str(self.data / self.teacher_set): self.teacher_set, self.start: "START"}
            settings["teacher"] = described(self.teacher(), own)
        return settings

    def lacks(self, cell: Cell) -> str | None:
        """The settings that a cell lacks to run."""
        if GENERATORS.get(cell.arm.source or "") == "causal" and not self.question_model:
            return "--question-model"
        if cell.arm.distilled and self.teacher_set == cell.data:
            return "another --teacher-set"
        return None


def key_of(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def is_recorded(file: Path, key: str) -> bool:
    found = file.exists() and read_cell(file)["recipe"] == key
    if found:
        log.note(f"{file.parent.name}/{file.stem}: recorded")
    return found


def cut(model: str, layers: int, folder: Path) -> str:
    """The encoder with its first layers alone, so that many arms fit into hours of two cores."""
    if not (folder / "config.json").exists():
        from transformers import AutoModel, AutoTokenizer

        AutoTokenizer.from_pretrained(model).save_pretrained(folder)
        AutoModel.from_pretrained(model, num_hidden_layers=layers).save_pretrained(folder)
    return str(folder)


def scores(steps: Recipe, work: Path) -> dict[str, Values]:
    """Labels of fine-tuning → the values of each question; of retriever 1, its neighborhood recall, too."""
    by_system, questions = {}, list[str]()
    for step in steps.steps:
        if step.stage.verb == "evaluate":
            questions, values = per_query(artifacts.open_artifact(work / step.name))
            by_system[step.name.rpartition("-")[2]] = recorded(values)
    for step in steps.steps:
        if step.name.startswith("run-") and step.name.endswith(MINED):
            first = step.name.removesuffix(MINED)
            by_system[first.rpartition("-")[2]] |= neighbors(work / first, work / step.name, questions)
    return by_system


def neighbors(first: Path, second: Path, questions: Sequence[str]) -> Values:
    """The neighborhood recall of a retriever's run, by that of the retriever which its negatives trained."""
    runs = read_run(first), read_run(second)
    found = neighborhood_recall(*runs, n=50, depths=(100,))[100]
    by_question = dict(zip(runs[1].queries, found))
    return recorded({NEIGHBORS: [by_question[question] for question in questions]})


def described(steps: Recipe, places: Mapping[str, str]) -> dict[str, Any]:
    """The settings of all steps, with names for the places on this machine."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return places.get(value, value) if isinstance(value, str) else value

    return {
        step.name: {"verb": step.stage.verb, **{key: plain(value) for key, value in step.settings.items()}}
        for step in steps.steps
    }


if __name__ == "__main__":
    main()
