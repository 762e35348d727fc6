"""Other ways to train the encoder of `adapt`, and another list to search with, on real questions of dev splits.

    python benchmarks/adapt_arms.py DATA/fairytaleqa DATA/cosqa … --encoder … --teacher … --splade … --work FOLDER

For each set (a part of its source, as in adapt.py), the recipe of `adapt` runs with a fixed number of steps; then every arm
trains another encoder in about the same time, from the same passages and generated queries, or adds a list to the fusion:

    frozen     the embeddings and the lower half of the layers are not trained, for half as many more steps
    filtered   queries that do not retrieve their passage with the original encoder are dropped, too
    half       half of the steps; the two arms below continue from it
    self       … with the scores that BM25, this encoder and its tokens together have for a query's passages (KL)
    teacher    … with the similarities of a larger encoder (KL)
    questions  a language model's questions instead of keyphrases, filtered alike (with --question-model)
    titles     a passage's title is one more of its queries; the passages themselves leave it out
    tokens     a contrastive loss between tokens (MaxSim) beside that of vectors
    share-…    not trained again: so many percent of the initial weights, where `adapt` takes half
    splade     not trained: a SPLADE retriever beside BM25 and the vectors of the encoder, at .15 and .3 of all

Every arm's encoder is searched as in `adapt`: by itself, with BM25, and with its tokens. Writes adapt_arms.json beside this
file: nDCG@10 of the systems, and the differences from `adapt` with the p of the paired randomization test, not corrected;
rows of other sets, and with `--arms` of other arms, are kept. A finished step is not run again. The arms that continue from
`half` need it; those that end without the initial weights (self and teacher) stand beside `share-0`, too.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel

from adapt import MAIN, adapted, means, rounded, scores_of
from qontext.adapt import recipes
from qontext.adapt.config import Request
from qontext.adapt.plan import Plan
from qontext.data.collection import read_passages
from qontext.evaluation.comparison import difference
from qontext.frame import artifacts, log, machine
from qontext.queries.generators.file import read_queries_by_passage
from qontext.workflow.recipe import Recipe, Step
from qontext.workflow.run import run_recipe

OUT = Path(__file__).with_suffix(".json")
SPLIT, TRAINED = "dev", ("adapted", "hybrid", "tokens")
QUERIES, PASSAGES = 8, 4
"""Queries of a step of distillation, and passages of each: as many passages as a step of pre-training has."""
QUESTIONS = 3
"""Of the language model, for each passage: a step has a passage once, and there are two to three passes."""
LR = 5e-5
SYSTEM_TEMPERATURE, TEACHER_TEMPERATURE = 0.5, 0.05
SHARES = (0.15, 0.3)
WEIGHTS = "model.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+", help="labeled sets in BEIR's layout, with a dev or train split")
    parser.add_argument("--encoder", required=True, help="the encoder to adapt")
    parser.add_argument("--teacher", required=True, help="a larger encoder")
    parser.add_argument("--splade", required=True, help="a SPLADE retriever")
    parser.add_argument("--question-model", help="a language model fine-tuned by qontext train-generator")
    parser.add_argument("--work", required=True, type=Path, help="folder for the steps")
    parser.add_argument("--arms", nargs="*", help="some of the arms; by default all")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--passages", type=int, default=500, help="passages of a set")
    parser.add_argument("--questions", type=int, default=200, help="questions of a split")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    log.show(log.SILENT)
    for source in map(Path, options.sets):
        row = measured(source, options.work / source.name, options)
        print(json.dumps({source.name: row}), flush=True)
        sets = json.loads(OUT.read_text("utf-8"))["sets"] if OUT.exists() else {}
        if options.arms and source.name in sets:
            row["arms"] = {**sets[source.name]["arms"], **row["arms"]}
        result = {
            "settings": {name: getattr(options, name) for name in ("steps", "seed")},
            "machine": machine.describe(),
            "sets": {**sets, source.name: row},
        }
        OUT.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def measured(source: Path, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a set: nDCG@10 of each arm's systems, their differences from `adapt`, and seconds of training."""
    request, plan, training, sizes = adapted(source, work, options)
    steps, real = work / "steps", str(work / "real")
    own = {step.name: step for step in training.steps}
    asked = list(recipes.searches(request, plan, SPLIT, real, "adapt"))
    run_recipe(Recipe("adapt", (*training.steps, *asked)), steps)
    base = scores_of(steps, recipes.systems(plan), "adapt")
    arms: dict[str, Any] = {"adapt": {"seconds": seconds(steps, ["pretrain"]), MAIN: means(base)}}

    def compared(arm: str, names: Iterable[str]) -> None:
        scores = scores_of(steps, list(names), arm)
        arms[arm][MAIN] = means(scores)
        arms[arm]["difference"] = {name: rounded(difference(base[name], s)) for name, s in scores.items()}

    earlier: list[Step] = []
    encoders = [(arm, added, f"@{added[-1].name}") for arm, added in trained(own, request, options)]
    if titled := with_titles(steps, own["pretrain"]):
        encoders.append(("titles", titled, f"@{titled[-1].name}"))
    encoders += [(arm, [], str(folder)) for arm, folder in mixed(steps, request)]
    for arm, added, encoder in encoders:
        earlier += added
        if options.arms and arm not in options.arms:
            continue
        encoding = replace(own["adapted-vectors"], name=f"{arm}-vectors").renamed({"@pretrain": encoder})
        searching = recipes.searches(request, plan, SPLIT, real, arm)
        renamed = (step.renamed({"@adapted-vectors": f"@{arm}-vectors"}) for step in searching)
        own_steps = [s for s in earlier if s.name in needed(added[-1], earlier)] if added else []
        run_recipe(Recipe(arm, (*training.steps, *own_steps, encoding, *renamed)), steps)
        arms[arm] = {"seconds": seconds(steps, needed(added[-1], earlier) if added else ["pretrain"])}
        compared(arm, TRAINED)
    for arm, share, searching in with_splade(request, plan, real, options):
        if options.arms and arm not in options.arms:
            continue
        run_recipe(Recipe(arm, (*training.steps, *asked, *searching)), steps)
        arms[arm] = {"share": share}
        compared(arm, ("hybrid", "tokens"))
    return {"passages": sizes["passages"], "questions": sizes["questions"][SPLIT], "arms": arms}


def needed(last: Step, known: list[Step]) -> set[str]:
    """The steps of the arms that a step needs, and itself."""
    upstream = [step for step in known if step.name in last.upstream()]
    return {last.name}.union(*(needed(step, known) for step in upstream))


def seconds(steps: Path, names: Iterable[str]) -> float:
    return round(sum(artifacts.open_artifact(steps / name).meta["made"]["seconds"] for name in names), 1)


def trained(
    own: dict[str, Step], request: Request, options: argparse.Namespace
) -> Iterator[tuple[str, list[Step]]]:
    """The steps that each arm adds; the last one writes its encoder."""
    pretrain, half = own["pretrain"], options.steps // 2
    layers = AutoConfig.from_pretrained(request.encoder).num_hidden_layers
    frozen = {"frozen_layers": layers // 2, "steps": options.steps + half}
    yield "frozen", [changed(pretrain, "frozen", frozen)]
    searching = {"queries": "@filter", "passages": "@split", "retriever": request.encoder}
    yield (
        "filtered",
        [Step.of("found", searching, verb="filter"), changed(pretrain, "filtered", {"queries": "@found"})],
    )
    if options.question_model:
        asking = {"passages": "@split", "generator": "causal", "model": options.question_model}
        asking |= {"per_passage": QUESTIONS, "seed": options.seed}
        yield (
            "questions",
            [
                Step.of("asked", asking, verb="generate"),
                replace(own["filter"], name="asked-found").renamed({"@holdout/queries": "@asked"}),
                changed(pretrain, "questions", {"queries": "@asked-found"}),
            ],
        )
    yield "tokens", [changed(pretrain, "tokens", {"token_weight": 1.0})]
    yield "half", [changed(pretrain, "half", {"steps": half})]
    queries = {"queries": "@filter", "passages": "@split"}
    sampling = {**queries, "limit": QUERIES * (half + 1), "seed": options.seed}
    reading = {**own["adapted-vectors"].settings, "texts": "@split"}
    groups = [
        Step.of("words-queries", {"bm25": True, **request.words, **sampling, "k": 100}, verb="search"),
        Step.of("half-passages", {**reading, "encoder": "@half-trained"}, verb="encode"),
        Step.of("vectors-queries", {"index": "@half-passages", **sampling, "k": 100}, verb="search"),
        fused("both-queries", ["@words-queries", "@vectors-queries"], recipes.WEIGHTS),
        Step.of(
            "groups",
            {"run": "@both-queries", "qrels": "@filter", **sampling, "depth": 100, "per_query": 7},
            verb="mine",
        ),
    ]
    scored = [
        Step.of("tokens-queries", {"run": "@groups", "tokens": "@half-passages", **queries}, verb="rerank"),
        fused("system-queries", ["@both-queries", "@tokens-queries"], (0.5, 0.5)),
    ]
    yield "self", [*groups, *scored, distilled("self", "@system-queries", SYSTEM_TEMPERATURE, options)]
    plain = {"texts": "@split", "encoder": options.teacher, "max_length": request.read_tokens}
    every = {"index": "@teacher-passages", "queries": "@filter", "k": 4 * options.passages}
    every |= {name: sampling[name] for name in ("limit", "seed")}
    teaching = [
        Step.of("teacher-passages", plain, verb="encode"),
        Step.of("teacher-queries", every, verb="search"),
    ]
    yield "teacher", [*teaching, distilled("teacher", "@teacher-queries", TEACHER_TEMPERATURE, options)]


def with_titles(steps: Path, pretrain: Step) -> list[Step]:
    """The steps of the arm with titles; none where passages have no title."""
    queries: dict[str, list[str]] = {}
    for passage, texts in read_queries_by_passage(steps / "filter"):
        queries.setdefault(passage, []).extend(texts)
    titles = {passage.id: " ".join(passage.title.split()) for passage in read_passages(steps / "split")}
    rows = [
        f"{passage}\t{text}\n"
        for passage, own in queries.items()
        for text in (*own, *([titles[passage]] if titles[passage] else []))
    ]
    if not any(titles.values()):
        return []
    file = steps / "titles.tsv"
    file.write_text("".join(rows), "utf-8")
    most = 1 + max(map(len, queries.values()))
    reading = {"passages": "@split", "generator": "file", "queries": str(file), "per_passage": most}
    return [
        Step.of("titled", reading, verb="generate"),
        changed(pretrain, "titles", {"queries": "@titled", "title": "leave"}),
    ]


def mixed(steps: Path, request: Request) -> Iterator[tuple[str, Path]]:
    """The encoder of `adapt`, a mean of the initial and the trained weights, with other shares of both."""
    half = load_file(steps / "pretrain" / WEIGHTS)
    initial = AutoModel.from_pretrained(request.encoder).state_dict()
    for share in (0.0, 0.25, 0.75):
        folder = steps / f"share-{share:.2f}"
        as_model = shutil.ignore_patterns("meta.json", "logs")
        shutil.copytree(steps / "pretrain", folder, dirs_exist_ok=True, ignore=as_model)
        weights = {
            name: values
            if (before := initial.get(name.removeprefix("bert."))) is None
            else (2 * share - 1) * before + 2 * (1 - share) * values
            for name, values in half.items()
        }
        save_file(weights, folder / WEIGHTS)
        yield f"share-{100 * share:.0f}", folder


def changed(pretrain: Step, name: str, settings: dict[str, Any]) -> Step:
    return replace(pretrain, name=f"{name}-trained", settings={**pretrain.settings, **settings})


def fused(name: str, runs: list[str], weights: Iterable[float]) -> Step:
    return Step.of(name, {"runs": runs, "method": "zscore", "weights": [*weights], "k": 100}, verb="fuse")


def distilled(arm: str, teacher: str, temperature: float, options: argparse.Namespace) -> Step:
    settings = {
        "groups": "@groups",
        "passages": "@split",
        "encoder": "@half-trained",
        "teacher": teacher,
        "loss": "kl",
        "teacher_temperature": temperature,
        "steps": options.steps // 2,
        "batch_size": QUERIES,
        "passages_per_query": PASSAGES,
        "passage_length": 128,
        "lr": LR,
        "dropout": 0.0,
        "seed": options.seed,
    }
    return Step.of(f"{arm}-trained", settings, verb="finetune")


def with_splade(
    request: Request, plan: Plan, real: str, options: argparse.Namespace
) -> Iterator[tuple[str, float, list[Step]]]:
    """Each share of the third list, and the steps of the search: as in `adapt`, with three lists instead of two."""
    reading = {
        "texts": "@holdout/measured",
        "encoder": options.splade,
        "max_length": request.read_tokens,
    }
    finding = {"index": "@splade-vectors", "data": real, "split": SPLIT, "k": 100}
    third = [
        Step.of("splade-vectors", reading, verb="encode"),
        Step.of("splade-run", finding, verb="search"),
    ]
    for share in SHARES:
        arm = f"splade-{share:.0%}".rstrip("%")
        runs = [f"@bm25-{arm}", f"@adapted-{arm}", "@splade-run"]
        weights = [*(round(weight * (1 - share), 3) for weight in recipes.WEIGHTS), share]
        both = fused(f"hybrid-{arm}", runs, weights)
        searching = recipes.searches(request, plan, SPLIT, real, arm)
        yield arm, share, [*third, *(both if step.name == both.name else step for step in searching)]


if __name__ == "__main__":
    main()
