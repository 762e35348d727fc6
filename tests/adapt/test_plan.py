"""How a budget is spent, with fixed rates: the same on every machine. And the recipe that a plan becomes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qontext.adapt.config import AdaptConfig, Request, parse_budget
from qontext.adapt.plan import FEWEST_SEARCHED, PASSES, QUESTIONS, USED_SHARE, Plan, make_plan
from qontext.adapt.prepare import WINDOW, _window, prepare
from qontext.adapt.rates import Rates
from qontext.adapt.recipes import serving_recipe, training_recipe
from qontext.adapt.run import ADAPT
from qontext.adapt.state import Planned, read_planned, with_recorded_settings
from qontext.adapt.survey import Survey
from qontext.evaluation.question_model import AskingTime
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.execution import claim_of
from qontext.retrieve.directory import ADAPTED
from qontext.workflow.recipe import Recipe, read_recipe

RATES = Rates(trained=20, encoded=100, generated=2_000, scored=50)
MINUTE = 60.0
REQUEST = Request(
    documents="docs.jsonl",
    labels=None,
    splits=("generated",),
    labeled=0,
    encoder="encoder",
    generate={"generator": "keyphrase", "seed": 42},
    pretrain={"encoder": "encoder", "method": "cocondenser", "max_tokens": 144, "seed": 42},
    max_tokens=144,
    read_tokens=256,
    budget=30 * MINUTE,
    device="cpu",
    keep=True,
    language="en",
)
LABELS: dict[str, Any] = {"labels": "labels.jsonl", "splits": ("dev", "test", "generated")}


def survey(passages: int) -> Survey:
    """Of so many records that are passages already."""
    return Survey(passages, passages * 800, True, True, "en", 120, 0.0, 0, 0.0, ())


def plan(passages: int, minutes: float, **changes: Any) -> Plan:
    return make_plan(replace(REQUEST, budget=minutes * MINUTE, **changes), survey(passages), RATES)


@pytest.mark.parametrize("passages", [500, 5_000, 20_000])
@pytest.mark.parametrize("minutes", [10, 30, 120])
def test_a_plan_that_trains_keeps_to_its_budget(passages: int, minutes: float) -> None:
    adaptation = plan(passages, minutes)
    assert adaptation.trains and adaptation.expected <= USED_SHARE * minutes * MINUTE


def test_a_slow_language_model_writes_fewer_questions() -> None:
    slow = make_plan(REQUEST, survey(20_000), replace(RATES, asking=AskingTime(loading=3, question=6)))
    assert slow.questions == int(0.3 * 1_800 / 6) == 90
    assert steps(training_recipe(REQUEST, slow))["holdout"]["questions"] == 90
    assert "questions" not in steps(training_recipe(REQUEST, plan(20_000, 30)))["holdout"]
    assert plan(20_000, 30).questions == QUESTIONS


@pytest.mark.parametrize("rule", ["leave", "sep", None])
def test_every_stage_of_a_plan_reads_titles_by_the_rule_that_is_set(
    rule: Any, reports: Path, small_encoder: Path
) -> None:
    config = AdaptConfig(documents=str(reports), encoder=str(small_encoder), title=rule, out="out")
    request = prepare(config)[0]
    trained = plan(5_000, 30)
    recipes = [
        training_recipe(request, trained),
        serving_recipe(request, "@pretrain", {}, None, tokens=True),
    ]
    read = {
        (step.stage.verb, step.settings.get("title"))
        for recipe in recipes
        for step in recipe.steps
        if step.stage.verb in ("pretrain", "encode") or step.settings.get("bm25") or step.name == "bm25"
    }
    words = "leave" if rule == "leave" else None
    assert read == {("pretrain", rule), ("encode", rule), ("retrieve", words), ("index", words)}


def test_windows_are_no_longer_than_what_the_encoder_reads() -> None:
    assert [_window("exact", survey(500), [200] * 10, read) for read in (256, 62)] == [WINDOW, 62]


def test_more_time_is_more_training_up_to_six_passes() -> None:
    steps = [plan(5_000, minutes).steps for minutes in (10, 20, 30, 60, 120)]
    assert steps == sorted(steps)
    assert steps[-1] == plan(5_000, 1_000).steps == PASSES * 5_000 // 32


def test_few_passages_are_not_trained_on() -> None:
    assert not plan(7, 30).trains and "7 passages are too few" in plan(7, 30).notes[0]
    assert plan(8, 30).trains and plan(8, 30).batch == 4


def test_a_large_corpus_is_measured_among_a_part_and_indexed_whole() -> None:
    adaptation = plan(200_000, 60)
    assert adaptation.pool == int(0.3 * 3_600 * 100 / 2) < adaptation.passages == 200_000
    assert any("evaluated on 54,000 of the passages" in note for note in adaptation.notes)
    assert plan(5_000, 60).pool == 5_000
    assert plan(2_000_000, 1).pool == 0.3 * 60 * 100, "without training, there is one encoder to evaluate"
    assert plan(2_000_000, 0.1).pool == FEWEST_SEARCHED


def test_filtering_goes_where_it_takes_more_than_a_tenth() -> None:
    assert plan(5_000, 30).filters and plan(5_000, 30).queries == "@filter"
    adaptation = plan(300_000, 120)
    assert adaptation.trains and not adaptation.filters and adaptation.queries == "@holdout/queries"


@pytest.mark.parametrize(("labels", "visits"), [(64, 640), (100, 1_000), (320, 1_000), (400, 1_200)])
def test_labels_are_fine_tuned_on_for_three_passes_or_ten_over_few(labels: int, visits: int) -> None:
    adaptation = plan(5_000, 120, labeled=labels, **LABELS)
    assert (adaptation.finetune_steps, adaptation.finetune_batch) == (visits // 32, 32)


def test_few_labels_have_small_batches() -> None:
    assert plan(5_000, 30, labeled=9, **LABELS).finetune_batch == 4
    adaptation = plan(5_000, 30, labeled=3, **LABELS)
    assert adaptation.finetune_steps == 0 and any(
        "are not sufficient for training" in note for note in adaptation.notes
    )


def test_processes_on_gpus_share_the_work_and_divide_the_batches() -> None:
    one = plan(20_000, 60, device="cuda")
    four = plan(20_000, 60, device="cuda", processes=4)
    assert one.batch == four.batch == 512 and four.processes == 4
    assert four.steps >= one.steps
    assert plan(20_000, 60, device="cuda", processes=3).batch % 3 == 0
    assert plan(100, 60, device="cuda", processes=4).processes == 1, "too few passages for several"


def steps(recipe: Recipe) -> dict[str, dict[str, Any]]:
    return {step.name: {"verb": step.stage.verb, **step.settings} for step in recipe.steps}


@pytest.mark.parametrize(
    "changes",
    [{}, {"labeled": 320, **LABELS}, {"reranker": "reranker"}, {"labeled": 320, "reranker": "r", **LABELS},
     {"keep": False, "language": "de"}, {"budget": 60.0}],
    ids=["plain", "labels", "reranker", "both", "German", "untrained"],
)  # fmt: skip
def test_a_recipe_is_read_as_it_was_built(tmp_path: Path, changes: dict[str, Any]) -> None:
    request = replace(REQUEST, documents='d "ö"\x7f\n', **changes)
    adaptation = make_plan(request, survey(5_000), RATES)
    for recipe in (
        training_recipe(request, adaptation),
        serving_recipe(request, "model", {}, None, tokens=False),
        serving_recipe(
            request,
            "model",
            {"vectors": "old/vectors"},
            {"source": "@vectors", "backend": "faiss-hnsw"},
            tokens=True,
        ),
    ):
        file = tmp_path / "recipe.toml"
        file.write_text(recipe.dump(), encoding="utf-8")
        read = read_recipe(str(file))
        assert (read.title, read.steps) == (recipe.title, recipe.steps)
        for step in recipe.steps:
            step.configure(tmp_path)  # every setting is one of the stage's


@pytest.mark.parametrize(
    ("passes", "pretrain", "share"),
    [
        (2.0, {"head_weight": 0.0}, 0.5),
        (1.0, {"head_weight": 0.0}, None),
        (2.0, {}, None),  # a language model knows nothing that a retriever should keep
        (2.0, {"head_weight": 0.0, "lora_rank": 4}, None),
    ],
)
def test_a_retriever_that_trains_for_long_keeps_half_of_its_weights(
    passes: float, pretrain: dict[str, Any], share: float | None
) -> None:
    request = replace(REQUEST, pretrain={**REQUEST.pretrain, **pretrain})
    long = replace(plan(5_000, 30), batch=50, steps=int(100 * passes), finetune_steps=0)
    assert steps(training_recipe(request, long))["pretrain"].get("initial_share") == share
    tuned = replace(long, finetune_steps=3, finetune_batch=2)
    assert "initial_share" not in steps(training_recipe(request, tuned))["pretrain"]


def test_what_is_trained_is_measured_and_the_rest_is_left_out() -> None:
    plain = steps(training_recipe(REQUEST, plan(5_000, 5)))
    assert plain["adapted-vectors"]["encoder"] == "@pretrain" and "finetune" not in plain
    assert plain["hybrid-generated"]["weights"] == [0.6, 0.4]
    labeled = replace(REQUEST, labeled=320, **LABELS)
    tuned = steps(training_recipe(labeled, make_plan(labeled, survey(5_000), RATES)))
    assert tuned["adapted-vectors"]["encoder"] == "@finetune" and "teacher" not in tuned
    assert tuned["hybrid-dev"]["tune"] == "@holdout/measured/qrels/dev.tsv"
    assert tuned["hybrid-test"]["weights_from"] == "@hybrid-dev" and "score-hybrid-dev" not in tuned
    untrained = steps(training_recipe(REQUEST, plan(5_000, 1)))
    assert "pretrain" not in untrained and "adapted-vectors" not in untrained
    assert [name for name in untrained if name.startswith("score-")] == [
        "score-bm25-generated", "score-start-generated", "score-hybrid-start-generated",
        "score-tokens-start-generated"]  # fmt: skip


def test_tokens_are_compared_where_there_is_time_and_room() -> None:
    with_tokens = plan(5_000, 60)
    assert with_tokens.tokens
    made = steps(training_recipe(REQUEST, with_tokens))
    assert made["start-vectors"]["tokens"] and made["adapted-vectors"]["tokens"], (
        "one forward pass makes both"
    )
    assert made["adapted-by-tokens-generated"]["tokens"] == "@adapted-vectors"
    assert made["hybrid-generated"]["k"] == made["adapted-by-tokens-generated"]["k"] == 100
    assert made["adapted-by-tokens-generated"]["run"] == "@hybrid-generated"
    assert made["tokens-generated"]["runs"] == ["@hybrid-generated", "@adapted-by-tokens-generated"]
    assert made["tokens-generated"]["weights"] == [0.5, 0.5] and "score-tokens-start-generated" in made
    labeled = replace(REQUEST, labeled=320, **LABELS)
    tuned = steps(training_recipe(labeled, with_tokens))
    assert tuned["tokens-dev"]["tune"] == "@holdout/measured/qrels/dev.tsv"
    assert tuned["tokens-test"]["weights_from"] == "@tokens-dev"
    assert plan(5_000, 5).tokens, "the passes that make the vectors make the bits"
    assert plan(5_000, 0.2).tokens, "they are measured, however short the time is"
    large = plan(300_000, 60 * 24)
    assert not large.tokens
    strange = replace(REQUEST, budget=5 * MINUTE, unknown=0.6)
    assert not make_plan(strange, survey(5_000), RATES).tokens, "the vocabulary has hardly any of them"


def test_labels_that_are_not_trained_on_all_measure() -> None:
    judged = {"train": 12, "dev": 6, "test": 12}
    divided = replace(REQUEST, labeled=12, judged=judged, divided=True, **LABELS)
    request = divided.without_training_on_labels()
    assert request.judged == {"test": 30} and request.splits == ("test", "generated")
    adaptation = plan(5_000, 1, labeled=12, **LABELS)
    assert not adaptation.finetune_steps
    untrained = steps(training_recipe(request, adaptation))
    assert untrained["holdout"]["split_labels"] is False and "hybrid-start-dev" not in untrained
    assert untrained["hybrid-start-test"]["weights"] == [0.6, 0.4]
    assert (
        "split_labels"
        not in steps(training_recipe(divided, plan(5_000, 120, labeled=320, **LABELS)))["holdout"]
    )
    own = replace(divided, divided=False)  # the labels have splits
    assert own.without_training_on_labels() == own


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1_800), ("2h", 7_200), ("1d", 86_400), ("5", 300)]
)
def test_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "9s", "-5m", "nan", "infh", "5 years"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(QontextError, match="is not a length of time"):
        parse_budget(text)
    with pytest.raises(ValueError, match="is not a length of time"):
        AdaptConfig(documents="docs", budget=text)  # before any document is read


def test_what_is_read_as_what_is_in_the_plan_and_kept_by_updates(tmp_path: Path) -> None:
    request = replace(REQUEST, read_as=("foo=markdown", "pm=text"))
    plan = make_plan(request, survey(10_000), RATES)
    index = serving_recipe(request, "model", {}, None, tokens=False)
    for recipe, step in ((training_recipe(request, plan), "split"), (index, "passages")):
        (tmp_path / "recipe.toml").write_text(recipe.dump())
        steps = {step.name: step for step in read_recipe(str(tmp_path / "recipe.toml")).steps}
        assert steps[step].configure(tmp_path).read_as == request.read_as
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.pm").write_text("A boat.")
    made = AdaptConfig(documents=str(tmp_path / "docs"), encoder=str(tmp_path), read_as=request.read_as)
    work = Workdir(tmp_path)
    Planned(claim_of(ADAPT, made, tmp_path), request, plan).write(work)
    work.write_json(ADAPTED, {})
    before = read_planned(tmp_path)
    assert before is not None and before.request == request
    again = with_recorded_settings(AdaptConfig(documents=made.documents), tmp_path, before)
    assert again.read_as == request.read_as and again.identity() == made.identity()


@pytest.mark.parametrize(
    ("pool", "tokens", "answers"),
    [
        (5_000, True, "@asked-answers-by-tokens"),
        (5_000, False, "@asked-answers"),
        (1_000, True, "@asked-bm25"),  # the vectors of all passages are more than is planned
    ],
)
def test_pseudo_labels_are_those_of_what_is_encoded(pool: int, tokens: bool, answers: str) -> None:
    asking = replace(REQUEST, questions="log.txt")
    made = replace(plan(5_000, 30), pool=pool, tokens=tokens)
    recipe = training_recipe(asking, made)
    names = [step.name for step in recipe.steps]
    assert steps(recipe)["holdout"]["answers"] == answers
    assert answers.removeprefix("@") in names and ("asked-by-tokens" in names) == answers.endswith("tokens")
    assert ("reuse" in steps(recipe)["start-vectors"]) == (pool == 5_000)
