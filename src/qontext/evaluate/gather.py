"""What a report is about: everything that lies in the given directories, as plain facts."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from qontext import artifacts
from qontext.artifacts import CLAIM, META, Artifact
from qontext.engine import metrics
from qontext.errors import QontextError
from qontext.evaluate.compare import system_names
from qontext.evaluate.comparison import System
from qontext.evaluate.datasets import BENCHMARKS, Benchmark
from qontext.evaluate.kernels import Floats

_SEED = re.compile(r"[-_./]?seed[-_]?\d+", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Section:
    """The systems that were scored on the same judgements."""

    place: str
    benchmark: Benchmark | None
    queries: list[str]
    systems: list[System]
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
        return (
            self.benchmark.name
            if self.benchmark
            else Path(self.place).stem.removesuffix(".tsv") or self.place
        )


@dataclass(frozen=True)
class Training:
    """The losses that a training wrote down: name → (step, value) pairs."""

    name: str
    losses: dict[str, list[tuple[float, float]]]


@dataclass
class Facts:
    """All there is to report."""

    title: str = ""
    sections: list[Section] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)
    stages: list[tuple[str, Artifact]] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    recipes: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return float(sum(stage.meta["made"]["seconds"] for _, stage in self.stages))


def gather(directories: Sequence[str]) -> Facts:
    """Read every finished artifact in the directories, the losses of trainings, and recipes."""
    facts = Facts()
    for path in _folders([Path(d) for d in directories], facts):
        if not (path / META).is_file():
            facts.unfinished.append(str(path))
            facts.trainings += _training(path)
            continue
        facts.stages.append((str(path), artifacts.open_artifact(path)))
        facts.trainings += _training(path)
    if not facts.stages and not facts.trainings:
        raise QontextError(
            "nothing to report: no finished stage in it",
            place=", ".join(directories),
            remedy="Give directories that qontext wrote, or a folder with such directories.",
        )
    facts.sections = _sections([stage for _, stage in facts.stages if stage.verb == "evaluate"])
    titles = [tomllib.loads(text).get("recipe", {}).get("title") for text in facts.recipes.values()]
    names = dict.fromkeys(Path(d).resolve().name for d in directories)
    facts.title = titles[0] if len(titles) == 1 and titles[0] else ", ".join(names)
    return facts


def _folders(roots: Sequence[Path], facts: Facts) -> Iterator[Path]:
    """The artifacts (finished or not) at or below the roots, except reports."""
    for root in roots:
        if not root.is_dir():
            raise QontextError("no such directory", place=root)
        if (root / "recipe.toml").is_file():
            facts.recipes[str(root)] = (root / "recipe.toml").read_text(encoding="utf-8")
        if (root / META).is_file() or (root / CLAIM).is_file():
            name = META if (root / META).is_file() else CLAIM
            if json.loads((root / name).read_text(encoding="utf-8"))["verb"] != "report":
                yield root
        else:
            yield from _folders(sorted(p for p in root.iterdir() if p.is_dir()), facts)


def _sections(evaluations: Sequence[Artifact]) -> list[Section]:
    """Group evaluations by their judgements, and those that differ only in a seed into one system."""
    groups: dict[str, list[Artifact]] = {}
    for made in evaluations:
        same = {"qrels": made.meta["inputs"]["qrels"]["digest"], "config": _without_measures(made.config)}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(made)
    return [_section(group) for group in groups.values()]


def _without_measures(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "measures"}


def _section(group: Sequence[Artifact]) -> Section:
    full = system_names([""] * len(group), [[str(made.path)] for made in group])
    names = [_plain(name) for name in full]
    # Never one name for two systems: only seeds are put together, below.
    names = names if len(set(names)) == len(names) else full
    tables = [pq.read_table(made.path / "queries.parquet").to_pydict() for made in group]
    queries = list(tables[0]["query"])
    by_name: dict[str, list[dict[str, Floats]]] = {}
    curves: dict[str, dict[str, list[list[float]]]] = {}
    without: dict[str, int] = {}
    searched: dict[str, int] = {}
    runs: dict[str, str] = {}
    for name, made, table in zip(names, group, tables):
        name = _SEED.sub("", name) or name
        assert table.pop("query") == queries, made.path  # the same judgements, in the same order
        by_name.setdefault(name, []).append({m: np.array(column) for m, column in table.items()})
        read = json.loads((made.path / "curves.json").read_text(encoding="utf-8"))
        for curve, values in read["curves"].items():
            curves.setdefault(curve, {}).setdefault(name, []).append(values)
        without[name] = without.get(name, 0) + made.summary["queries_without_results"]
        run = made.meta["inputs"]["run"]["path"]
        runs.setdefault(name, run)
        if (count := _searched(run)) is not None:
            searched[name] = count
    first = group[0]
    known = first.summary.get("benchmark")
    return Section(
        place=first.meta["inputs"]["qrels"]["path"],
        benchmark=BENCHMARKS.get(known) if known else None,
        queries=queries,
        systems=[System(name, seeds) for name, seeds in by_name.items()],
        curves={c: {s: np.mean(v, axis=0).tolist() for s, v in found.items()} for c, found in curves.items()},
        depths=read["depths"],
        without_results=without,
        searched=searched,
        runs=runs,
        relevant=first.config.get("relevant") or (BENCHMARKS[known].relevant if known else 1),
    )


def _searched(run: str) -> int | None:
    """How many passages the search behind a run had, if it is there to tell."""
    for path in (run, *(_inputs(run, "index"))):
        if artifacts.is_artifact(path):
            summary = artifacts.open_artifact(path).summary
            count = summary.get("passages", summary.get("texts"))
            if count is not None:
                return int(count)
    return None


def _inputs(path: str, name: str) -> list[str]:
    """The path of an artifact's input of that name, if it has one."""
    if not artifacts.is_artifact(path):
        return []
    inputs = artifacts.open_artifact(path).meta["inputs"]
    return [inputs[name]["path"]] if name in inputs else []


def _plain(name: str) -> str:
    """A system's name without what only says that it was evaluated."""
    parts = [
        re.sub(r"^(evaluate|evaluation|scores?)[-_.]|[-_.](evaluate|evaluation|scores?)$", "", p)
        for p in name.split("/")
    ]
    kept = [part for part in parts if part not in ("evaluate", "evaluation", "scores", "score", "")]
    return "/".join(kept) or name


def _training(path: Path) -> list[Training]:
    """The losses that a training wrote, one entry per phase."""
    phases: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in metrics.read(path / metrics.FILE):
        total = {"loss": row["loss"]} if "loss" in row else {}
        for name, value in (total | row.get("losses", {})).items():
            if isinstance(value, int | float) and math.isfinite(value):
                losses = phases.setdefault(row.get("phase", ""), {})
                losses.setdefault(name.replace("_", " "), []).append((float(row["step"]), float(value)))
    return [
        Training(f"{path.name}, {phase}" if phase else path.name, found) for phase, found in phases.items()
    ]
