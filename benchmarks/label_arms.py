"""Other ways to train on few labels, on development questions.

    python benchmarks/label_arms.py DATA/scifact DATA/fairytaleqa DATA/medquad --encoder FOLDER --work FOLDER

For each set, the recipe of `adapt` generates queries, pre-trains on them and fine-tunes on 100 labels with mined
negatives. The arms:

    start           the encoder as it comes
    pre-trained     generated queries alone, no labels
    three-passes    … then three passes over the labels, which `adapt` did before
    three-mixed     the mean of its weights and those of the start
    mixed-first     fine-tuned from the mean of the pre-trained weights and those of the start
    adapt           the same in ten passes, as `adapt` does
    in-batch        the same without mined negatives
    in-batch-mixed  the mean of its weights and those of the start
    labels-alone    the same ten passes from the start, without generated queries

Each is measured on 200 questions of the dev split (of half of the training questions, where a set has none), with
windows, and as part of the whole system. A finished step is not run again. Writes label_arms.json beside this file; rows
of other sets are kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from labels import BATCH, EPOCHS, PASSES, SYSTEMS, prepared, trained
from safetensors.torch import load_file, save_file

from adapt import MAIN, rounded, write_set
from qontext.adapt import recipes
from qontext.adapt.config import Request
from qontext.adapt.plan import Plan
from qontext.evaluation.comparison import difference
from qontext.evaluation.gather import per_query
from qontext.frame import artifacts, log, machine
from qontext.workflow.recipe import Recipe, Step
from qontext.workflow.run import run_recipe

OUT = Path(__file__).with_suffix(".json")
WEIGHTS = "model.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sets", nargs="+", type=Path, help="labeled sets in BEIR's layout, with a train split"
    )
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--work", required=True, type=Path, help="folder for the steps")
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100, help="of pre-training")
    parser.add_argument("--passages", type=int, default=1_500)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    log.show(log.SILENT)
    for source in options.sets:
        name = f"{source.name}-{options.labels}"
        row = measured(source, options.work / name, options)
        print(json.dumps({name: row}), flush=True)
        earlier = json.loads(OUT.read_text("utf-8"))["sets"] if OUT.exists() else {}
        result = {
            "settings": {name: getattr(options, name) for name in ("steps", "seed")},
            "machine": machine.describe(),
            "sets": {**earlier, name: row},
        }
        OUT.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def measured(source: Path, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a set: nDCG@10 of each arm's systems, and their differences from `adapt`."""
    if not (work / "set" / "sizes.json").exists():
        asked = with_dev_as_test(source, options.work / f"src-{source.name}")
        write_set(asked, work / "set", options, options.labels)
    sizes, request, plan = prepared(work / "set", options)
    count = sizes["questions"]["train"]
    plan = replace(plan, finetune_steps=max(1, PASSES * count // BATCH))
    trained(request, plan, work / "steps", work / "seconds.json")
    scores = {
        arm: scores_of(request, plan, encoder, work / "steps", work / "measured" / arm)
        for arm, encoder in encoders(request, plan, work, count).items()
    }
    return {
        **sizes,
        "arms": {
            arm: {
                MAIN: {system: round(float(values.mean()), 4) for system, values in own.items()},
                "difference": {
                    s: rounded(difference(scores["adapt"][s], values)) for s, values in own.items()
                },
            }
            for arm, own in scores.items()
        },
    }


def with_dev_as_test(source: Path, out: Path) -> Path:
    """The set with its dev questions, or half of its training questions, in the place of the test split."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "qrels").mkdir(parents=True)
    for file in filter(Path.is_file, source.iterdir()):
        (out / file.name).symlink_to(file.absolute())
    own, test = (source / "qrels" / name for name in ("train.tsv", "dev.tsv"))
    if test.exists():
        shutil.copy(own, out / "qrels" / "train.tsv")
        shutil.copy(test, out / "qrels" / "test.tsv")
        return out
    head, *lines = own.read_text("utf-8").splitlines()
    held_out = set(sorted({line.split("\t")[0] for line in lines})[::2])
    for name, is_held_out in (("test", True), ("train", False)):
        kept = [line for line in lines if (line.split("\t")[0] in held_out) == is_held_out]
        (out / "qrels" / f"{name}.tsv").write_text("\n".join([head, *kept]) + "\n", "utf-8")
    return out


def encoders(request: Request, plan: Plan, work: Path, labels: int) -> dict[str, str]:
    """Arm → its encoder."""
    steps, start = work / "steps", request.encoder
    settings = next(s for s in recipes.training_recipe(request, plan).steps if s.name == "finetune").settings
    settings |= {"groups": str(steps / "negatives"), "passages": str(steps / "holdout" / "measured")}
    ten = {"steps": max(1, EPOCHS * labels // BATCH)}
    in_batch = {"passages_per_query": 1, **ten}

    def tuned(arm: str, encoder: str, **changed: Any) -> str:
        step = Step.of(arm, {**settings, "encoder": encoder, **changed}, verb="finetune")
        run_recipe(Recipe(arm, (step,)), work / "arms")
        return str(work / "arms" / arm)

    def mixed(arm: str, encoder: str) -> str:
        return str(mean_of(Path(encoder), Path(start), work / "arms" / arm))

    own, pretrained = str(steps / "finetune"), str(steps / "pretrain")
    unmined = tuned("in-batch", pretrained, **in_batch)
    return {
        "start": start,
        "pre-trained": pretrained,
        "three-passes": own,
        "three-mixed": mixed("three-mixed", own),
        "mixed-first": tuned("mixed-first", mixed("pre-trained-mixed", pretrained)),
        "adapt": tuned("adapt", pretrained, **ten),
        "in-batch": unmined,
        "in-batch-mixed": mixed("in-batch-mixed", unmined),
        "labels-alone": tuned("labels-alone", start, **in_batch),
    }


def mean_of(encoder: Path, start: Path, out: Path) -> Path:
    """The encoder with the mean of its weights and those of the start."""
    if (out / WEIGHTS).exists():
        return out
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(encoder, out, ignore=shutil.ignore_patterns(WEIGHTS, "meta.json", ".*"))
    before = load_file(start / WEIGHTS)
    weights = {
        name: weight.float().lerp(before[name].float(), 0.5).to(weight.dtype)
        for name, weight in load_file(encoder / WEIGHTS).items()
    }
    save_file(weights, out / WEIGHTS, metadata={"format": "pt"})
    return out


def scores_of(request: Request, plan: Plan, encoder: str, steps: Path, work: Path) -> dict[str, np.ndarray]:
    """System → nDCG@10 of each question, with this encoder, fusions with the weights without labels."""
    asked = replace(request, encoder=encoder, reranker=None)
    untrained = replace(plan, steps=0, finetune_steps=0)
    data = steps / "holdout" / "measured"
    run_recipe(recipes.start_recipe(asked, untrained, "test", data), work / "windows")
    paths = {title: work / "windows" / f"score-{system}-test" for system, title in SYSTEMS.items()}
    return {title: per_query(artifacts.open_artifact(path))[1][MAIN] for title, path in paths.items()}


if __name__ == "__main__":
    main()
