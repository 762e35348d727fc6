"""A retriever from few labels: `adapt` against sentence-transformers, on the same labels in the same processor time.

    python benchmarks/labels.py DATA/fairytaleqa DATA/squad_pool --encoder FOLDER --work FOLDER [--labels 100 1000]

For each set and number of labels, the recipe of `adapt` generates queries, pre-trains on them (`--steps`) and fine-tunes on
the labels (ten passes over 100, with mined negatives). The processor time of all that is the budget of each training with
sentence-transformers: `MultipleNegativesRankingLoss` on the labels, with and without a hard negative of BM25, for ten passes
or as long as the budget lasts; the better one on the questions of dev (of the test split, where a set has no dev) counts.
Generated questions are not part of it: that is what a user of it does. All encoders are then measured alike, on the
questions of the test split: by themselves, with one vector for each passage and with windows, and as part of the whole
system (BM25, windows, tokens).

A set is a part of its source, as in adapt.py. A finished step is not run again. Writes labels.json beside this file; rows of
other sets are kept.
"""

from __future__ import annotations

import argparse
import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    __version__,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import TrainerCallback

from adapt import MAIN, rounded, write_set
from qontext.adapt import recipes
from qontext.adapt.config import AdaptConfig, Request
from qontext.adapt.plan import MOST_VISITS, Plan
from qontext.adapt.prepare import prepare
from qontext.adapt.survey import survey
from qontext.data.collection import load_collection
from qontext.data.runs import read_run
from qontext.evaluation.comparison import difference
from qontext.evaluation.evaluate import per_query
from qontext.frame import artifacts, log, machine
from qontext.models.precision import has_bf16
from qontext.workflow.recipe import Recipe
from qontext.workflow.run import run_recipe

OUT = Path(__file__).with_suffix(".json")
BATCH, PASSES, EPOCHS = 32, 3, 10
"""Pairs of a step; passes of `adapt` over the labels, and of sentence-transformers."""
SYSTEMS = {
    "start": "windows",
    "hybrid-start": "BM25 + windows",
    "tokens-start": "BM25 + windows + tokens",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sets", nargs="+", help="labeled sets in BEIR's layout, with the splits train and test"
    )
    parser.add_argument("--encoder", required=True, help="the encoder that both begin with")
    parser.add_argument("--work", required=True, help="folder for the steps")
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 1_000])
    parser.add_argument("--steps", type=int, default=100, help="of pre-training")
    parser.add_argument("--passages", type=int, default=1_500)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    log.show(log.SILENT)
    for source in options.sets:
        for labels in options.labels:
            name = f"{Path(source).name}-{labels}"
            own = measured(Path(source), labels, Path(options.work) / name, options)
            row = {"machine": machine.describe(), **own}
            print(json.dumps({name: row}), flush=True)
            earlier = json.loads(OUT.read_text("utf-8"))["sets"] if OUT.exists() else {}
            result = {
                "settings": {name: getattr(options, name) for name in ("steps", "seed")},
                "sentence_transformers": __version__,
                "sets": {**earlier, name: row},
            }
            OUT.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def measured(source: Path, labels: int, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a set and a number of labels."""
    if not (work / "set" / "sizes.json").exists():
        write_set(source, work / "set", options, labels)
    sizes, request, plan = prepared(work / "set", options)
    steps = work / "steps"
    budget = trained(request, plan, steps, work / "seconds.json")
    encoders = {"MiniLM": options.encoder, "adapt": str(steps / "finetune")}
    about: dict[str, Any] = {}
    for kind, negatives in {"pairs": False, "triples": True}.items():
        folder = work / f"sentence-transformers-{kind}"
        if not (folder / "about.json").exists():
            tuned = sentence_transformers(
                options.encoder, triples(steps, negatives), budget, folder, options.seed
            )
            (folder / "about.json").write_text(json.dumps(tuned))
        encoders[kind], about[kind] = str(folder), json.loads((folder / "about.json").read_text())
    chosen = "dev" if "dev" in sizes["questions"] else "test"
    scores = {
        split: {
            name: scores_of(request, plan, folder, split, steps, work / "measured" / name)
            for name, folder in encoders.items()
        }
        for split in {chosen, "test"}
    }
    other = max(("pairs", "triples"), key=lambda kind: scores[chosen][kind]["one vector"].mean())
    test = {"MiniLM": scores["test"]["MiniLM"], "sentence-transformers": scores["test"][other]}
    test["adapt"] = scores["test"]["adapt"]
    return {
        **sizes,
        "cpu_seconds": round(budget),
        "sentence_transformers": {"chosen": other, "by": chosen, **about},
        "test": {
            name: {system: round(float(values.mean()), 4) for system, values in of.items()}
            for name, of in test.items()
        },
        "adapt_minus_sentence_transformers": {
            system: rounded(difference(test["sentence-transformers"][system], test["adapt"][system]))
            for system in test["adapt"]
        },
        # What each leaves its user with: one vector for each passage, and the whole system.
        "used": rounded(
            difference(test["sentence-transformers"]["one vector"], test["adapt"]["BM25 + windows + tokens"])
        ),
    }


def prepared(data: Path, options: argparse.Namespace) -> tuple[dict[str, Any], Request, Plan]:
    """The sizes of a set, and what `adapt` is asked to do with it and would."""
    sizes = json.loads((data / "sizes.json").read_text())
    config = AdaptConfig(
        documents=str(data / "corpus.jsonl"), labels=str(data), encoder=(options.encoder,), seed=options.seed
    )
    request, *_ = prepare(config, replace(survey(config.documents, labeled=True), keep=True))
    count, passages = sizes["questions"]["train"], sizes["passages"]
    finetuned = max(PASSES * count, min(EPOCHS * count, MOST_VISITS)) // BATCH
    plan = Plan(passages, passages, BATCH, options.steps, finetuned, BATCH, 1, 0.0, filters=True, tokens=True)
    return sizes, request, plan


def trained(request: Request, plan: Plan, steps: Path, seconds: Path) -> float:
    """Run the training of the recipe, without what only measures; its processor time."""
    recipe = recipes.training_recipe(request, plan)
    names = [step.name for step in recipe.steps]
    training = recipe.steps[: names.index("finetune") + 1]
    training = tuple(step for step in training if not step.name.endswith("-vectors"))
    began = used()
    run_recipe(Recipe(recipe.title, training), steps)
    if not seconds.exists():
        seconds.write_text(json.dumps(used() - began))
    return float(json.loads(seconds.read_text()))


def used() -> float:
    """The processor time of this process and of those that it has waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def triples(steps: Path, negatives: bool) -> Dataset:
    """The labels: each question with one passage that answers it, and, if so wanted, the best one of BM25 that does not."""
    data = load_collection(steps / "holdout" / "measured")
    texts, contents = data.queries("train"), {p.id: p.content for p in data.passages()}
    run = read_run(steps / "bm25-train")
    rows: dict[str, list[str]] = {"anchor": [], "positive": [], **({"negative": []} if negatives else {})}
    for query, judged in data.qrels("train").items():
        others = (id for id in run.results(query)[0] if judged.get(id, 0) == 0)
        negative = next(others, None) if negatives else None
        if negatives and negative is None:
            continue
        rows["anchor"].append(texts[query])
        rows["positive"].append(contents[max(judged, key=judged.__getitem__)])
        if negative is not None:
            rows["negative"].append(contents[negative])
    return Dataset.from_dict(rows)


class Budget(TrainerCallback):  # type: ignore[misc]
    """Ends the training when its processor time is used up."""

    def __init__(self, seconds: float) -> None:
        self.end = used() + seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_training_stop = used() >= self.end
        return control


def sentence_transformers(
    encoder: str, data: Dataset, budget: float, folder: Path, seed: int
) -> dict[str, Any]:
    """Fine-tune and save the encoder; the learning rate falls to 0 by the end of the passes or of the budget."""
    model = SentenceTransformer(encoder, device="cpu")
    epoch = len(data) / BATCH

    def run(steps: int, seconds: float) -> tuple[int, float]:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(folder / "trainer"),
            per_device_train_batch_size=BATCH,
            max_steps=steps,
            learning_rate=2e-5,
            warmup_steps=max(1, steps // 10),
            batch_sampler="no_duplicates",
            bf16=has_bf16(torch.device("cpu")),
            use_cpu=True,
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        loss = MultipleNegativesRankingLoss(model)
        began = used()
        trainer = SentenceTransformerTrainer(
            model, args=arguments, train_dataset=data, loss=loss, callbacks=[Budget(seconds)]
        )
        trainer.train()
        return trainer.state.global_step, used() - began

    weights = {name: value.clone() for name, value in model.state_dict().items()}
    tried, seconds = run(4, budget)
    model.load_state_dict(weights)
    most = max(1, min(round(EPOCHS * epoch), int(budget * tried / seconds)))
    steps, seconds = run(most, budget)
    model.save_pretrained(str(folder))
    return {"steps": steps, "epochs": round(steps / epoch, 1), "cpu_seconds": round(seconds)}


def scores_of(
    request: Request, plan: Plan, encoder: str, split: str, steps: Path, work: Path
) -> dict[str, np.ndarray]:
    """System → nDCG@10 of each question, with this encoder, fusions with the weights without labels."""
    untrained = replace(plan, steps=0, finetune_steps=0)
    data = steps / "holdout" / "measured"
    found = {}
    for name, window in (("windows", request.window), ("one", None)):
        if name == "one" or window is not None:
            asked = replace(request, encoder=encoder, window=window, reranker=None)
            run_recipe(recipes.start_recipe(asked, untrained, split, data), work / name)
    place = work / ("windows" if request.window is not None else "one")
    of = {"one vector": work / "one" / f"score-start-{split}"}
    of |= {title: place / f"score-{system}-{split}" for system, title in SYSTEMS.items()}
    for title, path in of.items():
        found[title] = per_query(artifacts.open_artifact(path))[1][MAIN]
    return found


if __name__ == "__main__":
    main()
