"""The recommendation of `adapt` without labels, against every system on real questions.

    python benchmarks/adapt.py DATA/fairytaleqa DATA/scifact … --encoder FOLDER --work FOLDER

For each set, the recipe of `adapt` runs on its documents alone, with a fixed number of training steps; then every system
of the recipe answers the real questions of the set. From the scores of each question, the table says for every set:

    nDCG@10 of each system on the questions of the test split
    unmixed   in rows of adapt.json that have it: the same without the original encoder's half of the weights
    regret    the best system's nDCG@10 minus that of the recommended one: without labels, and with 30, 100 and 300 real
              questions to choose by (means over 200 random draws, measured on the questions that were not drawn)
    judged    the same after people judged 30, 100 or 300 questions of a search log (`--questions`, `--judge`): the labels
              stand for people, who see the best passages of each system alone, and the other questions have pseudo-labels

A set is a part of its source: questions in equal distances, all documents that answer them, and other documents up to
`--passages`. Choices are made on the split `dev` (`train` where a set has no other); `test` is reported. A finished step is
not run again. Writes adapt.json beside this file, or with `--name` the results of another encoder into adapt_encoders.json;
rows of other sets and encoders are kept.

With `--budget`, `adapt` runs as its users run it, on all documents of the set, and every system answers all questions of
the test split; written into adapt_whole.json.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qontext import api
from qontext.adapt import recipes, state, verdict
from qontext.adapt.config import AdaptConfig, Request
from qontext.adapt.judgments import POOL
from qontext.adapt.plan import Plan
from qontext.adapt.prepare import prepare
from qontext.adapt.survey import survey
from qontext.adapt.verdict import BASE, SplitEvidence, evidence, expected
from qontext.data.collection import load_collection, passage_row
from qontext.data.lines import write_jsonl
from qontext.data.runs import read_run
from qontext.evaluation.comparison import difference
from qontext.evaluation.evaluate import per_query
from qontext.evaluation.measures import measure, parse
from qontext.evaluation.ppi import estimate
from qontext.frame import artifacts, log, machine
from qontext.retrieve.system import ENCODERS
from qontext.workflow.recipe import Recipe, Step, read_recipe
from qontext.workflow.run import run_recipe

OUT = Path(__file__).with_suffix(".json")
OTHERS, WHOLE = OUT.with_stem("adapt_encoders"), OUT.with_stem("adapt_whole")
MAIN = "nDCG@10"
FEW = (30, 100, 300)
DRAWS = 200
Scores = Mapping[str, np.ndarray]
"""System → nDCG@10 of each question."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+", help="labeled sets in BEIR's layout, with a test split")
    parser.add_argument("--encoder", required=True, help="the encoder to adapt")
    parser.add_argument("--name", help="of an encoder other than that of adapt.json")
    parser.add_argument("--work", required=True, help="folder for the steps, several hundred MB a set")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--passages", type=int, default=2_000, help="passages of a set")
    parser.add_argument("--questions", type=int, default=300, help="questions of a split")
    parser.add_argument("--budget", help="measure the whole of `adapt` with this budget")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    if options.budget:
        for source in options.sets:
            keep_whole(Path(source), Path(options.work) / Path(source).name, options)
        return
    log.show(log.SILENT)
    settings = {name: getattr(options, name) for name in ("steps", "seed")}
    for source in options.sets:
        name = Path(source).name
        row = measured(Path(source), Path(options.work) / name, options)
        print(json.dumps({name: row}), flush=True)
        file = OTHERS if options.name else OUT
        whole: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {"models": {}}
        earlier = whole["models"].get(options.name, {}) if options.name else whole
        rows: dict[str, Any] = {**earlier.get("sets", {}), name: row}
        result = {"settings": settings, "machine": machine.describe(), "mean": mean(rows), "sets": rows}
        whole = {"models": {**whole["models"], options.name: result}} if options.name else result
        file.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")


def keep_whole(source: Path, work: Path, options: argparse.Namespace) -> None:
    """Measure `adapt` with a budget on all documents of a set, and keep its row."""
    options.passages = options.questions = sys.maxsize
    if not (work / "set" / "sizes.json").exists():
        write_set(source, work / "set", options)
    sizes = json.loads((work / "set" / "sizes.json").read_text())
    out = work / "run"
    api.adapt(
        work / "set" / "corpus.jsonl",
        encoder=options.encoder,
        budget=options.budget,
        out=out,
        seed=options.seed,
    )
    planned = state.read_planned(out)
    assert planned is not None
    training = read_recipe(str(out / state.RECIPE))
    steps = out / state.STEPS
    is_whole = planned.plan.pool >= planned.plan.passages
    real = with_real_questions(work, steps, sizes) if is_whole else work / "set"
    asked = recipes.searches(planned.request, planned.plan, "test", str(real), "real-test")
    renamed = {} if is_whole else {f"@{encoder}-vectors": f"@{encoder}-all" for encoder in ENCODERS}
    encoding = [] if is_whole else list(encoding_all(training, real, out))
    searching = [step.renamed(renamed) for step in asked]
    run_recipe(Recipe(training.title, (*training.steps, *encoding, *searching)), steps)
    seconds = sum(
        artifacts.open_artifact(steps / step.name).meta["made"]["seconds"] for step in training.steps
    )
    names = recipes.systems(planned.plan)
    scores = scores_of(steps, names, "real-test")
    every = {
        name: {
            measure: round(float(values.mean()), 4)
            for measure, values in per_query(artifacts.open_artifact(steps / f"score-{name}-real-test"))[
                1
            ].items()
        }
        for name in names
    }
    generated = scores_of(steps, names, "generated")
    found = comparison(generated, {"test": scores})
    chosen = scores[found["recommended"]]
    row = {
        **sizes,
        "budget": options.budget,
        "steps": artifacts.open_artifact(steps / "pretrain").summary["steps"] if planned.plan.trains else 0,
        "minutes": round(seconds / 60, 1),
        "measures": every,
        **found,
        "judged": judged_regrets(
            steps,
            names,
            real,
            scores,
            evidence(generated, is_real=False),
            "tokens-start" if is_whole else "bm25",
        ),
        "recommended against": {name: rounded(difference(values, chosen)) for name, values in scores.items()},
    }
    rows = json.loads(WHOLE.read_text("utf-8"))["sets"] if WHOLE.exists() else {}
    result = {"sets": {**rows, source.name: row}, "machine": machine.describe()}
    WHOLE.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def encoding_all(training: Recipe, passages: Path, out: Path) -> Iterator[Step]:
    """The vectors of all passages, where `adapt` measured on a part of them and indexed all for one encoder."""
    of = {step.name: step for step in training.steps}
    indexed = json.loads((out / "adapted.json").read_text())["verdict"]["encoder"]
    for encoder in (encoder for encoder in ENCODERS if f"{encoder}-vectors" in of):
        step = of[f"{encoder}-vectors"]
        reuse = str(out / "index" / "vectors") if encoder == indexed else f"@{step.name}"
        settings = {**step.settings, "texts": str(passages), "reuse": reuse}
        yield replace(step, name=f"{encoder}-all", settings=settings)


def measured(source: Path, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a set."""
    request, plan, training, sizes = adapted(source, work, options)
    steps, real = work / "steps", work / "real"
    asked = [
        step
        for split in sizes["questions"]
        for step in recipes.searches(request, plan, split, str(real), f"real-{split}")
    ]
    run_recipe(Recipe(training.title, (*training.steps, *asked)), steps)
    names = recipes.systems(plan)
    of = {split: scores_of(steps, names, f"real-{split}") for split in sizes["questions"]}
    generated = scores_of(steps, names, "generated")
    return {
        **sizes,
        "window": request.window,
        **comparison(generated, of),
        "judged": judged_regrets(steps, names, real, of["test"], evidence(generated, is_real=False)),
    }


def adapted(
    source: Path, work: Path, options: argparse.Namespace
) -> tuple[Request, Plan, Recipe, dict[str, Any]]:
    """Run the recipe of `adapt` on the documents of a set, in `work`/steps; `work`/real gets the real questions and the
    passages as they were split. Returns the request, the plan, the recipe, and the sizes of the set."""
    if not (work / "set" / "sizes.json").exists():
        write_set(source, work / "set", options)
    sizes = json.loads((work / "set" / "sizes.json").read_text())
    config = AdaptConfig(
        documents=str(work / "set" / "corpus.jsonl"), encoder=(options.encoder,), seed=options.seed
    )
    # Labels name passages, so these are kept, however long they are.
    request, *_ = prepare(config, replace(survey(config.documents), keep=True))
    plan = fixed_plan(sizes["passages"], options.steps)
    training = recipes.training_recipe(request, plan)
    steps = work / "steps"
    run_recipe(training, steps)
    with_real_questions(work, steps, sizes)
    return request, plan, training, sizes


def judged_regrets(
    steps: Path,
    names: list[str],
    data: Path,
    test: Scores,
    generated: SplitEvidence,
    labeler: str = "tokens-start",
) -> dict[str, float]:
    """The mean regret after people judged so many of the questions, as `adapt --questions --judge` asks them to: the best
    passages of each system are pooled, and a pseudo-label is the first passage of the system `labeler`. Nothing is trained
    on the questions."""
    runs = {name: read_run(steps / f"{name}-real-test") for name in names}
    qrels = load_collection(data).qrels("test")
    queries, _ = per_query(artifacts.open_artifact(steps / f"score-{BASE}-real-test"))
    guessed: dict[str, dict[str, int]] = {}
    pooled: dict[str, dict[str, int]] = {}
    for query in queries:
        guessed[query] = {hit.passage: 1 for hit in runs[labeler].get(query, ())[:1]}
        seen = {hit.passage for run in runs.values() for hit in run.get(query, ())[:POOL]} | guessed[
            query
        ].keys()
        pooled[query] = {passage: qrels[query].get(passage, 0) for passage in seen}
    machine, own = (
        {name: _in_order(measure(run, labels, parse(MAIN)), queries) for name, run in runs.items()}
        for labels in (guessed, pooled)
    )

    def seen_by_people(seen: np.ndarray) -> SplitEvidence:
        found = {
            name: estimate(machine[name] - machine[BASE], own[name][seen] - own[BASE][seen], seen)
            for name in names
        }
        changes = {name: one.mean for name, one in found.items()}
        return SplitEvidence(changes, {name: one.error for name, one in found.items()}, True, len(seen))

    return {str(few): regret for few, regret in regrets_with(test, generated, seen_by_people)}


def _in_order(result: Any, queries: Sequence[str]) -> np.ndarray:
    """The values of these questions; 0 where nothing is relevant."""
    of = dict(zip(result.queries, np.nan_to_num(result.values[MAIN]), strict=True))
    return np.array([of.get(query, 0.0) for query in queries])


def with_real_questions(work: Path, steps: Path, sizes: dict[str, Any]) -> Path:
    """The real questions, on the passages as they were split: `work`/real."""
    real, new = work / "real", work / "new"
    if not real.exists():
        shutil.copytree(work / "set", new)
        shutil.copy(steps / "holdout" / "measured" / "corpus.jsonl", new / "corpus.jsonl")
        kept = {passage.id for passage in load_collection(new).passages()}
        for split in sizes["questions"]:
            judged = {id for of in load_collection(new).qrels(split).values() for id in of}
            if not judged <= kept:
                raise SystemExit(
                    f"{work}: {len(judged - kept)} judged passages are not among those that are searched"
                )
        new.rename(real)
    return real


def fixed_plan(passages: int, steps: int) -> Plan:
    return Plan(passages, passages, 32, steps, 0, 0, 1, 0.0, filters=True, tokens=True)


def comparison(generated: Scores, of: Mapping[str, Scores]) -> dict[str, Any]:
    """Means, differences and regrets of the systems: on generated questions, and on the real ones of each split."""
    chosen = verdict.choose(expected([evidence(generated, is_real=False)]))
    test = of["test"]
    best = max(test, key=lambda name: test[name].mean())
    baseline = "hybrid-start"
    gain = difference(test[baseline], test[chosen])

    def labeled(seen: np.ndarray) -> SplitEvidence:
        return evidence({name: values[seen] for name, values in test.items()}, is_real=True)

    return {
        "generated": means(generated),
        **{split: means(scores) for split, scores in of.items()},
        "recommended": chosen,
        "best": best,
        "gain": {"over": baseline, **rounded(gain)},
        "regret": {
            "0": round(float(test[best].mean() - test[chosen].mean()), 4),
            **{
                str(few): regret
                for few, regret in regrets_with(test, evidence(generated, is_real=False), labeled)
            },
        },
    }


def regrets_with(
    test: Scores, generated: SplitEvidence, evidence_of: Callable[[np.ndarray], SplitEvidence]
) -> Iterator[tuple[int, float]]:
    """Numbers of questions to choose by, and the mean regret on the others."""
    count = len(next(iter(test.values())))
    for few in FEW:
        if count - few >= 30:
            rng = np.random.default_rng(few)
            draws = (rng.permutation(count) for _ in range(DRAWS))
            found = [regret_of(test, [evidence_of(draw[:few]), generated], draw[few:]) for draw in draws]
            yield few, round(float(np.mean(found)), 4)


def regret_of(test: Scores, found: list[SplitEvidence], others: np.ndarray) -> float:
    """The regret on the other questions of what is chosen by this evidence."""
    chosen = verdict.choose(expected(found))
    left = {name: float(values[others].mean()) for name, values in test.items()}
    return max(left.values()) - left[chosen]


def scores_of(steps: Path, names: list[str], suffix: str) -> dict[str, np.ndarray]:
    return {
        name: per_query(artifacts.open_artifact(steps / f"score-{name}-{suffix}"))[1][MAIN] for name in names
    }


def means(scores: Scores) -> dict[str, float]:
    return {name: round(float(values.mean()), 4) for name, values in scores.items()}


def rounded(d: Any) -> dict[str, float]:
    return {name: round(float(getattr(d, name)), 4) for name in ("mean", "low", "high", "p")}


def mean(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Means over the sets, and the greatest regret without labels."""
    systems = next(iter(rows.values()))["test"]
    return {
        "sets": len(rows),
        "test": {
            name: round(float(np.mean([r["test"][name] for r in rows.values()])), 4) for name in systems
        },
        "recommended": round(float(np.mean([r["test"][r["recommended"]] for r in rows.values()])), 4),
        "regret": {
            few: round(float(np.mean(found)), 4)
            for few in ("0", *map(str, FEW))
            if (found := [r["regret"][few] for r in rows.values() if few in r["regret"]])
        },
        "greatest_regret": max(r["regret"]["0"] for r in rows.values()),
        "significantly_above_untrained": sum(
            r["gain"]["mean"] > 0 and r["gain"]["p"] < verdict.LEVEL for r in rows.values()
        ),
    }


def write_set(source: Path, out: Path, options: argparse.Namespace, labels: int = 0) -> None:
    """A part of the set: questions of two splits, so many labels to train on, the documents that answer them, and
    others."""
    whole = load_collection(source)
    passages = list(whole.passages())
    has = {path.stem for path in (source / "qrels").glob("*.tsv")}
    first = "dev" if "dev" in has else "train" if "train" in has and not labels else None
    asked: dict[str, list[str]] = {}
    qrels: dict[str, Mapping[str, Mapping[str, int]]] = {}
    for split, name, number in (
        ("dev", first, options.questions),
        ("test", "test", options.questions),
        ("train", "train", labels),
    ):
        if name and number:
            qrels[split] = whole.qrels(name)
            ids = sorted(qrels[split])
            every = max(1, len(ids) // number)
            asked[split] = ids[::every][:number]
    relevant = {p for s, ids in asked.items() for q in ids for p, grade in qrels[s][q].items() if grade > 0}
    documents = {p.doc for p in passages if p.id in relevant}
    others = sorted({p.doc for p in passages} - documents)
    random.Random(options.seed).shuffle(others)
    sizes: dict[str, int] = {}
    for p in passages:
        sizes[p.doc] = sizes.get(p.doc, 0) + 1
    left = options.passages - sum(sizes[document] for document in documents)
    for document in others:
        if left <= 0:
            break
        documents.add(document)
        left -= sizes[document]
    own = [p for p in passages if p.doc in documents]
    kept = {p.id for p in own}
    (out / "qrels").mkdir(parents=True)
    write_jsonl(out / "corpus.jsonl", map(passage_row, own))
    texts = {split: whole.queries({"dev": first}.get(split) or split) for split in asked}
    rows = ({"_id": q, "text": texts[split][q]} for split, ids in asked.items() for q in ids)
    write_jsonl(out / "queries.jsonl", rows)
    for split, ids in asked.items():
        lines = [f"{q}\t{p}\t{g}" for q in ids for p, g in qrels[split][q].items() if p in kept]
        (out / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    about = {"passages": len(own), "questions": {split: len(ids) for split, ids in asked.items()}}
    (out / "sizes.json").write_text(json.dumps(about))


if __name__ == "__main__":
    main()
