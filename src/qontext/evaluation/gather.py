"""Gathering the facts of a report from directories."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from typing_extensions import TypedDict

from qontext.data import records
from qontext.evaluation.compare import system_names
from qontext.evaluation.comparison import SystemScores
from qontext.evaluation.datasets import BENCHMARKS, Benchmark
from qontext.evaluation.measures import Floats
from qontext.frame import artifacts
from qontext.frame.artifacts import CLAIM, META, Artifact
from qontext.frame.config import parse_toml
from qontext.frame.errors import QontextError, choose
from qontext.frame.files import damaged, read_json
from qontext.frame.fingerprint import places
from qontext.training import metrics

_SEED = re.compile(r"--(?:[\w-]+\.)?seed=\d+|[-_./]?seed[-_]?\d+", re.IGNORECASE)
GENERATED = "generated"
"""The split of `holdout` whose queries were generated."""
_QUERIES = pa.schema([pa.field("query", pa.string())])


_CURVE = re.compile(r"R|Success|Answer|nb-recall\^\d+")


class Curves(TypedDict):
    """The content of `curves.json`: depths, and a value for each."""

    depths: list[int]
    curves: dict[str, list[float]]


@dataclass(frozen=True, eq=False)
class Section:
    """The systems that were scored on the same judgments."""

    place: str
    split: str  # which judgments, where the place is a folder
    benchmark: Benchmark | None
    queries: list[str]
    systems: list[SystemScores]
    curves: dict[str, dict[str, list[float]]]  # curve → system → value per depth
    depths: list[int]
    without_results: dict[str, int]
    searched: dict[str, int]  # system → passages of its collection, where that is known
    runs: dict[str, str]  # system → path of its (first) run
    relevant: int  # the lowest grade that counts

    @property
    def measures(self) -> list[str]:
        """The measures that every system has, in the first one's order."""
        return [
            m for m in self.systems[0].seeds[0] if all(m in seed for s in self.systems for seed in s.seeds)
        ]

    @property
    def title(self) -> str:
        if self.benchmark:
            return self.benchmark.name
        if self.is_held_out:
            return "generated questions" if self.split == GENERATED else f"real questions ({self.split})"
        return Path(self.place).stem.removesuffix(".tsv") or self.place

    @property
    def is_held_out(self) -> bool:
        """True if `holdout` wrote the judgments."""
        parent = Path(self.place).parent
        return artifacts.is_artifact(parent) and artifacts.open_artifact(parent).verb == "holdout"


Losses: TypeAlias = dict[str, list[tuple[float, float]]]
"""Name → (step, value) pairs."""


@dataclass(frozen=True)
class TrainingLosses:
    """The logged losses of a training, or of one of its phases."""

    path: Path
    phase: str
    losses: Losses


@dataclass
class Facts:
    """All facts of a report."""

    title: str = ""
    sections: list[Section] = field(default_factory=list)
    trainings: list[TrainingLosses] = field(default_factory=list)
    stages: list[tuple[str, Artifact]] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    recipes: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return float(sum(stage.meta["made"]["seconds"] for _, stage in self.stages))


def gather(directories: Sequence[str], labels: Mapping[str, str] | None = None) -> Facts:
    """Read every finished artifact in the directories, the losses of trainings, and recipes.

    `labels` are the display names of systems. These systems come first, in this order.
    """
    facts, known = Facts(), set[Path]()
    for directory in directories:
        paths = list(_folders([Path(directory)], facts))
        for path in paths:
            if path.resolve() in known:
                continue
            known.add(path.resolve())
            facts.trainings += _training(path)
            if (path / META).is_file():
                facts.stages.append((str(path), artifacts.open_artifact(path)))
            else:
                facts.unfinished.append(str(path))
        if not paths:
            raise _nothing(directory)
    if not facts.stages and not facts.trainings:
        raise _nothing(", ".join(directories))
    evaluations = [s for _, s in facts.stages if s.verb == "evaluate"]
    facts.sections = _sections(evaluations, labels or {})
    titles = [_title(text) for text in facts.recipes.values()]
    names = dict.fromkeys(Path(d).resolve().name for d in directories)
    facts.title = titles[0] if len(titles) == 1 and titles[0] else ", ".join(names)
    return facts


def _nothing(place: str) -> QontextError:
    return QontextError(
        "nothing to report: no finished stage in it",
        place=place,
        remedy="Pass output directories of stages, or a folder with such directories.",
    )


def _folders(roots: Sequence[Path], facts: Facts) -> Iterator[Path]:
    """The artifacts (finished or not) at or below the roots, except reports."""
    for root in roots:
        if not root.is_dir():
            raise QontextError("no such directory", place=root)
        if (root / "recipe.toml").is_file():
            facts.recipes[str(root)] = (root / "recipe.toml").read_text(encoding="utf-8")
        if (root / META).is_file() or (root / CLAIM).is_file():
            name = META if (root / META).is_file() else CLAIM
            if artifacts.read_description(root / name)["verb"] != "report":
                yield root
        else:
            yield from _folders(sorted(p for p in root.iterdir() if p.is_dir()), facts)


def _title(recipe: str) -> str:
    """The name of a recipe; empty if it has none or is not valid TOML."""
    try:
        about = parse_toml(recipe).get("recipe")
    except ValueError:
        return ""
    return str(about.get("title", "")) if isinstance(about, dict) else ""


def _sections(evaluations: Sequence[Artifact], labels: Mapping[str, str]) -> list[Section]:
    """Group evaluations by their judgments, and merge those that differ only in a seed into one system.

    Real queries come before generated ones.
    """
    groups: dict[str, list[Artifact]] = {}
    for evaluation in evaluations:
        same = {"qrels": evaluation.inputs["qrels"]["digest"], "config": _without_measures(evaluation.config)}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(evaluation)
    comparable = list(itertools.chain.from_iterable(map(_with_common_measures, groups.values())))
    named = {name for group in comparable for name in _names(group, _split(group))}
    for name in labels if named else ():
        choose(name, sorted(named), "system in --label")
    sections = [_section(group, labels) for group in comparable]
    return sorted(sections, key=lambda section: section.split == GENERATED)


def _with_common_measures(group: list[Artifact]) -> Iterable[list[Artifact]]:
    """The group; if it has no measure in common, those with the same measures."""
    measures = [frozenset(per_query(evaluation)[1]) for evaluation in group]
    if frozenset.intersection(*measures):
        return [group]
    apart: dict[frozenset[str], list[Artifact]] = {}
    for evaluation, own in zip(group, measures):
        apart.setdefault(own, []).append(evaluation)
    return apart.values()


def _without_measures(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "measures"}


def _split(group: Sequence[Artifact]) -> str:
    return str(group[0].config.get("split", "test"))


def _section(group: Sequence[Artifact], labels: Mapping[str, str]) -> Section:
    first, split = group[0], _split(group)
    names = _names(group, split)
    if known_first := [name for name in labels if name in names]:
        order = sorted(
            range(len(group)),
            key=lambda i: known_first.index(names[i]) if names[i] in labels else len(known_first),
        )
        shown = {name: labels.get(name, name) for name in names}
        if twice := [label for label, count in Counter(shown.values()).items() if count > 1]:
            raise QontextError(f"two systems have the name {twice[0]!r}", remedy="Pass another --label.")
        group, names = [group[i] for i in order], [shown[names[i]] for i in order]
    tables = [per_query(evaluation) for evaluation in group]
    queries = tables[0][0]
    by_name: dict[str, list[dict[str, Floats]]] = {}
    curves: dict[str, dict[str, list[list[float]]]] = {}
    without: dict[str, int] = {}
    searched: dict[str, int] = {}
    runs: dict[str, str] = {}
    for name, evaluation, (own, values) in zip(names, group, tables):
        if own != queries:  # the same judgments are in the same order
            raise damaged(
                evaluation.path / "queries.parquet", f"its queries differ from those of {group[0].path}"
            )
        by_name.setdefault(name, []).append(values)
        read = read_json(evaluation.part("curves.json"), Curves)
        for curve, values in read["curves"].items():
            if not _CURVE.fullmatch(curve):  # files of plots have these names
                raise damaged(evaluation.path / "curves.json", f"{curve!r} is no curve")
            curves.setdefault(curve, {}).setdefault(name, []).append(values)
        without[name] = without.get(name, 0) + evaluation.summary.take("queries_without_results", int)
        run = _place(evaluation, "run")
        runs.setdefault(name, run)
        if (count := _searched(run)) is not None:
            searched[name] = count
    benchmark = first.summary.get("benchmark")
    return Section(
        place=_place(first, "qrels"),
        split=split,
        benchmark=BENCHMARKS.get(benchmark) if benchmark else None,
        queries=queries,
        systems=[SystemScores(name, seeds) for name, seeds in by_name.items()],
        curves={
            c: {s: np.mean(v, axis=0).tolist() for s, v in systems.items()} for c, systems in curves.items()
        },
        depths=read["depths"],
        without_results=without,
        searched=searched,
        runs=runs,
        relevant=first.config.get("relevant") or (BENCHMARKS[benchmark].relevant if benchmark else 1),
    )


def per_query(evaluation: Artifact) -> tuple[list[str], dict[str, Floats]]:
    """The queries of an evaluation, and measure → [Q] the value of each."""
    table = records.read_whole(evaluation.part("queries.parquet"), _QUERIES).to_pydict()
    queries = [str(query) for query in table.pop("query")]
    return queries, {measure: np.array(column) for measure, column in table.items()}


def _names(group: Sequence[Artifact], split: str) -> list[str]:
    """The name of each evaluation's system. Those of one system, with several seeds, have the same."""
    full = system_names([""] * len(group), [[str(evaluation.path)] for evaluation in group])
    # Names of systems are unique: only seeds are merged.
    if len({_plain(name) for name in full}) == len(full):
        names = [_plain(without_seed(name) or name) for name in full]
    else:
        names = [without_seed(name) or name for name in full]
    if all(name.endswith(f"-{split}") and len(name) > len(split) + 1 for name in names):
        names = [name.removesuffix(f"-{split}") for name in names]
    return [name.replace("--", ", ") if "=" in name else name for name in names]


def without_seed(name: str) -> str:
    """``pretrain--context=query--seed=1`` → ``pretrain--context=query``."""
    return _SEED.sub("", name)


def _searched(run: str) -> int | None:
    """The number of passages in the search of a run, if known."""
    if not artifacts.is_artifact(run):
        return None
    search = artifacts.open_artifact(run)
    artifacts_read = [search]
    if "index" in search.inputs and artifacts.is_artifact(index := _place(search, "index")):
        artifacts_read.append(artifacts.open_artifact(index))
    for one in artifacts_read:
        name = "passages" if "passages" in one.summary else "texts"
        if one.summary.get(name) is not None:
            return int(one.summary.take(name, int))
    return None


def _place(artifact: Artifact, name: str) -> str:
    """The current path of the artifact's input; its recorded path, if it is missing."""
    there = [place for place in places(artifact.inputs[name], artifact.path) if place.exists()]
    original = str(artifact.inputs[name]["path"])
    return original if not there or Path(original) in there else str(there[0])


def _plain(name: str) -> str:
    """A system's name without suffixes of its evaluation."""
    parts = [
        re.sub(r"^(evaluate|evaluation|scores?)[-_.]+|[-_.](evaluate|evaluation|scores?)$", "", p)
        for p in name.split("/")
    ]
    telling = [part for part in parts if part not in ("evaluate", "evaluation", "scores", "score", "")]
    return "/".join(telling) or name


def _training(path: Path) -> list[TrainingLosses]:
    """The logged losses of a training, one entry per phase."""
    phases: dict[str, Losses] = {}
    for row in metrics.read(path / metrics.FILE):
        total = {"loss": row["loss"]} if "loss" in row else {}
        for name, value in (total | row.get("losses", {})).items():
            if isinstance(value, int | float) and math.isfinite(value):
                losses = phases.setdefault(row.get("phase", ""), {})
                losses.setdefault(name.replace("_", " "), []).append((float(row["step"]), float(value)))
    return [TrainingLosses(path, phase, history) for phase, history in phases.items()]
