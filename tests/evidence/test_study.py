"""The study in miniature: cells run, and are recorded once."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.evidence.conftest import HERE
from tests.tiny import save_bert, save_llama, write_inputs

from qontext.data.collection import load_collection


def cells_of(begun: Any, modules: Any, *names: str) -> list[Path]:
    study = modules["study"]
    for arm in study.ARMS:
        if arm.name in names:
            begun.run(study.Cell("small", "stories", arm, 1))
    return [begun.cells / "small" / "stories" / f"{name}-1.json" for name in names]


def test_a_cell_is_recorded_with_scores_settings_and_times(begun: Any, modules: Any) -> None:
    (file,) = cells_of(begun, modules, "cocondenser-gold")
    record = modules["record"].read_cell(file)
    assert set(record["scores"]) == {"0", "16", "0+bm25", "16+bm25", "0+centered", "0+whitened"}
    assert record["title"] == modules["study"].TITLED["search"]
    assert record["tokens"] == 32 and record["start"] and record["machine"]["processor"]
    assert [len(record["scores"]["0"][measure]) for measure in ("MRR@10", "nDCG@10", "R@100")] == [10] * 3
    assert record["seconds"]["pretrain-cocondenser-gold-1"] > 0
    assert str(begun.work) not in file.read_text() and str(begun.data) not in file.read_text()


def test_a_cell_is_read_as_it_was_written_whatever_the_number_of_relevant_passages(
    modules: Any, tmp_path: Path
) -> None:
    """Of one passage at each rank, of several, of graded ones, and of none found; with a byte or so per question."""
    record = modules["record"]
    ranks = [*range(1, 101), None] * 20
    found = {
        "MRR@10": [1 / rank if rank and rank <= 10 else 0 for rank in ranks],
        "nDCG@10": [1 / np.log2(1 + rank) if rank and rank <= 10 else 0 for rank in ranks],
        "R@100": [float(rank is not None) for rank in ranks],
    }
    several = {
        "MRR@10": [1.0, 0.5, 0.0, 0.1],
        "nDCG@10": [0.7071, 1.0, 0.0, 0.2],
        "R@100": [0.5, 1.0, 2 / 3, 1 / 3],
        modules["study"].NEIGHBORS: [0.02, 1.0, 0.0, 0.34],
    }
    scores = {"0": record.recorded(found), "16": record.recorded(several)}
    written = {"arm": "a", "settings": {"of": "ä"}, "scores": scores, "seconds": {"b": 1.5}}
    record.write_cell(tmp_path / "set" / "a-1.json", written)
    file = tmp_path / "set" / "a-1.json"
    assert record.read_cell(file) == written and record.read_cells(tmp_path) == [written]
    lines = file.read_text("utf-8").splitlines()
    assert len(lines) == 2 + 3 + 2 + 2, "a line for each field and each search"
    assert len(next(line for line in lines if line.startswith('"0"'))) < len(ranks) + 30


def test_the_cells_are_small(modules: Any) -> None:
    files = list((HERE / "cells").rglob("*.*"))
    assert {file.suffix for file in files} == {".json"}
    searches = {file: len(json.loads(file.read_text("utf-8"))["scores"]) for file in files}
    large = {file.name: n for file, n in searches.items() if file.stat().st_size > 8_000 + 6_000 * n}
    assert not large, "the settings, and about a byte for each of at most 5,000 questions of a search"


def test_titles_are_in_all_texts_or_in_none(begun: Any, modules: Any) -> None:
    """Without them, a copy of the set is read; its queries and judgments are the same."""
    study, load = modules["study"], load_collection
    cell = study.Cell("small", "stories", study.named("cocondenser-span"), 1)
    rules = {}
    for titles in ("search", "all", "none"):
        variant = replace(begun, scale=replace(begun.scale, titles=titles))
        data = variant.set_of("stories")
        titled = {bool(passage.title) for passage in load(data).passages()}
        assert titled == {titles != "none"} and load(data).qrels("test") == load(
            begun.data / "stories"
        ).qrels("test")
        steps = {
            step.name: step
            for step in modules["steps"].recipe(cell, variant.scale, variant.places(cell)).steps
        }
        rules[titles] = [
            steps[name].settings.get("title") for name in ("pretrain-cocondenser-span-1", "queries-span")
        ]
    assert rules == {"search": ["leave", "leave"], "all": ["prepend", None], "none": ["leave", "leave"]}


def test_a_recorded_cell_is_not_run_again_unless_its_settings_changed(begun: Any, modules: Any) -> None:
    (file,) = cells_of(begun, modules, "none")
    before = file.stat().st_mtime_ns
    cells_of(begun, modules, "none")
    assert file.stat().st_mtime_ns == before
    changed = json.loads(file.read_text()) | {"recipe": "another"}
    file.write_text(json.dumps(changed))
    cells_of(begun, modules, "none")
    assert json.loads(file.read_text())["recipe"] != "another"


def test_test_questions_are_in_no_training(begun: Any, modules: Any) -> None:
    cells_of(begun, modules, "cocondenser-gold")
    gold = (begun.sets / "stories-gold.tsv").read_text()
    assert gold.count("\n") == 20
    assert "chapter 19 " in gold and "chapter 20 " not in gold


@pytest.fixture(scope="module")
def deep(modules: Any, tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Any:
    """The study at depth in miniature: its sets are joined, its encoder is from nothing."""
    folder = tmp_path_factory.mktemp("depth")
    splits = {"train": range(16), "dev": range(16, 20), "test": range(20, 30)}
    for name in ("stories", "tales"):
        write_inputs(folder, name, splits)
    write_inputs(folder, "others", {"test": range(20, 30)})
    judge = save_bert(folder / "judge", minilm)
    scale = modules["study"].SCALES["depth-small"]
    documents = str(folder / "docs.jsonl")
    return modules["run"].Study.begin(scale, str(judge), documents, folder, folder / "work", folder / "cells")


def deep_cells(deep: Any, modules: Any, arm: str) -> dict[str, Any]:
    study = modules["study"]
    deep.run_all([study.Cell("depth-small", "joint", study.named(arm), 1, t) for t in deep.scale.targets])
    files = {t: deep.cells / "depth-small" / f"joint-to-{t}" / f"{arm}-1.json" for t in deep.scale.targets}
    return {target: modules["record"].read_cell(file) for target, file in files.items()}


def test_the_joined_set_has_each_text_once_and_all_labels(deep: Any) -> None:
    joint = load_collection(deep.set_of("joint"))
    passages = {passage.id: (passage.title, passage.text) for passage in joint.passages()}
    assert len(set(passages.values())) == len(passages) == 60 + 30
    assert {id.partition("/")[0] for id in passages} == {"stories", "documents"}, "tales has the same texts"
    for split, questions in {"train": 16, "dev": 4, "test": 10}.items():
        judged = joint.qrels(split)
        assert len(judged) == 2 * questions and joint.queries(split).keys() == judged.keys()
        assert all(passage in passages for relevant in judged.values() for passage in relevant)


def test_at_depth_an_arm_is_trained_once_and_measured_on_every_set_at_every_stage(
    deep: Any, modules: Any
) -> None:
    cells = deep_cells(deep, modules, "cot-mae-query")
    stages = {"0", "16", "16+mined"}
    expected = stages | {f"{stage}+bm25" for stage in stages} | {"0+centered", "0+whitened"}
    assert {target: set(cell["scores"]) for target, cell in cells.items()} == dict.fromkeys(cells, expected)
    one, two = (cell["settings"]["cell"] for cell in cells.values())
    assert one["pretrain-cot-mae-query-1"] == two["pretrain-cot-mae-query-1"]
    assert one["queries-keyphrase"]["title"] == "leave"
    assert one["pretrain-cot-mae-query-1"]["title"] == "prepend"
    mined = one["finetune-cot-mae-query-1+mined-16"]
    assert mined["encoder"] == one["finetune-cot-mae-query-1-16"]["encoder"]
    assert one["groups-cot-mae-query-1+mined-16"]["run"] == "@run-train-cot-mae-query-1+mined-16"
    measure = modules["study"].NEIGHBORS
    for cell in cells.values():
        recalls = cell["scores"]["16"][measure]
        assert len(recalls) == 10 and all(0 < value <= 1 for value in recalls)
        assert [name for name, values in cell["scores"].items() if measure in values] == ["16"]
    assert not list((deep.work / "joint").glob("vectors-*")), "what only the arm reads is removed"


def test_neighborhood_recall_has_the_order_of_the_evaluation(modules: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first.trec", tmp_path / "second.trec"
    first.write_text("a Q0 1 1 .9 x\na Q0 2 2 .8 x\nb Q0 1 1 .9 x\nb Q0 4 2 .8 x\n")
    second.write_text("b Q0 1 1 .9 x\nb Q0 3 2 .8 x\na Q0 2 1 .9 x\na Q0 1 2 .8 x\n")
    values = modules["run"].neighbors(first, second, ["a", "b"])
    assert values == {modules["study"].NEIGHBORS: [2 / 50, 1 / 50]}


def test_without_unlabeled_scores_only_retrievers_are_measured(modules: Any) -> None:
    study, steps = modules["study"], modules["steps"]
    scale = study.SCALES["stages"]
    cell = study.Cell("stages", "stories", study.named("contrastive-query"), 1)
    recipe = steps.recipe(cell, scale, steps.Places(data="DATA", start="START", gold=""))
    scores = [step.name for step in recipe.steps if step.stage.verb == "evaluate"]
    ends = ("1000", "1000+bm25", "1000+mined", "1000+mined+bm25")
    assert scores == [f"score-contrastive-query-1-{end}" for end in ends]


def test_a_pilot_chooses_the_learning_rate_on_development_questions(deep: Any, modules: Any) -> None:
    cells = deep_cells(deep, modules, "cot-mae-query")
    pilots = sorted((deep.cells / "depth-small-pilot" / "joint-to-stories").glob("cot-mae-query-lr*.json"))
    reached = {}
    for file in pilots:
        pilot = modules["record"].read_cell(file)
        settings = pilot["settings"]["cell"]
        rate = settings[f"pretrain-{file.stem}"]["lr"]
        assert settings[f"run-{file.stem}-stories-16"]["split"] == "dev"
        reached[rate] = np.mean(pilot["scores"]["16"]["MRR@10"])
    assert set(reached) == set(deep.scale.rates)
    chosen = cells["others"]["settings"]["cell"]["pretrain-cot-mae-query-1"]["lr"]
    assert reached[chosen] == max(reached.values())


def test_pilots_leave_the_trainings_and_searches_of_the_study_alone(deep: Any, modules: Any) -> None:
    deep_cells(deep, modules, "mlm")
    of_study = {file: file.stat().st_mtime_ns for file in (deep.work / "joint").glob("*/meta.json")}
    assert {"bm25-train", "bm25-stories", "pretrain-mlm-1"} <= {file.parent.name for file in of_study}
    deep_cells(deep, modules, "retromae")
    assert {file: file.stat().st_mtime_ns for file in of_study} == of_study
    made = {file.parent.name for file in (deep.work / "pilots" / "joint").glob("pretrain-*/meta.json")}
    assert {"pretrain-retromae-lr0.0001-1", "pretrain-retromae-lr0.001-1"} <= made
    assert not (deep.work / "pilots" / "sets").exists(), "pilots read the study's sets"


@pytest.fixture
def fast(deep: Any, modules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The study at depth, elsewhere, with pilots whose best learning rate is never the scale's."""
    read, best = modules["run"].read_cell, f"-lr{deep.scale.rates[1]:g}"

    def favored(file: Path) -> Any:
        reached = float(best in file.stem)
        return read(file) | {"scores": defaultdict(lambda: {"MRR@10": [reached]})}

    monkeypatch.setattr(modules["run"], "read_cell", favored)
    assert deep.scale.rates[1] != deep.scale.lr
    return replace(deep, work=tmp_path / "work", cells=tmp_path / "cells")


@pytest.mark.parametrize("arm", ["cot-mae-query-at-2", "cot-mae-then-contrastive"])
def test_what_is_derived_from_an_arm_is_trained_with_the_rate_of_that_arm(
    fast: Any, modules: Any, arm: str
) -> None:
    whole, derived = (
        deep_cells(fast, modules, name)["others"]["settings"]["cell"] for name in ("cot-mae-query", arm)
    )
    trained = "pretrain-cot-mae-query-1"
    assert derived[trained] == whole[trained] and whole[trained]["lr"] == fast.scale.rates[1]
    assert {step["lr"] for name, step in derived.items() if name.startswith("pretrain-")} == {
        fast.scale.rates[1]
    }


def test_the_ablation_of_mlm_contrasts_alone_after_the_same_condenser(deep: Any, modules: Any) -> None:
    """Gao & Callan 2022, table 4: both losses of MLM are left out, and the start is a Condenser."""
    whole, part = (
        deep_cells(deep, modules, arm)["others"]["settings"]["cell"]
        for arm in ("cocondenser-passage", "cocondenser-no-mlm")
    )
    one, two = whole["pretrain-cocondenser-passage-1"], part["pretrain-cocondenser-no-mlm-1"]
    differing = {key for key in one.keys() | two.keys() if one.get(key) != two.get(key)} - {"lr"}
    assert differing == {"encoder", "condenser_steps", "late_mlm_weight", "head_weight"}
    assert two["late_mlm_weight"] == two["head_weight"] == 0
    assert two["encoder"] == "@pretrain-condenser-300-1"
    first = part["pretrain-condenser-300-1"]
    assert first["method"] == "condenser" and first["steps"] == one["condenser_steps"]


def test_curves_are_snapshots_of_the_same_training(deep: Any, modules: Any) -> None:
    whole, part = (
        deep_cells(deep, modules, arm)["others"] for arm in ("cot-mae-query", "cot-mae-query-at-2")
    )
    first, second = whole["settings"]["cell"], part["settings"]["cell"]
    assert first["pretrain-cot-mae-query-1"] == second["pretrain-cot-mae-query-1"]
    assert first["pretrain-cot-mae-query-1"]["snapshots"] == 8
    for step in ("vectors-cot-mae-query-at-2-1-others-0", "finetune-cot-mae-query-at-2-1-16"):
        assert second[step]["encoder"] == "@pretrain-cot-mae-query-1/snapshots/2"
    assert set(part["scores"]) == set(whole["scores"])


def test_a_part_has_each_second_document_and_the_questions_that_it_answers(
    begun: Any, modules: Any, tmp_path: Path
) -> None:
    part = load_collection(modules["sets"].part_of(begun.data / "stories", 2, tmp_path / "part"))
    whole = load_collection(begun.data / "stories")
    documents = sorted({passage.doc for passage in whole.passages()})
    assert {passage.doc for passage in part.passages()} == set(documents[::2])
    ids = {passage.id for passage in part.passages()}
    answered = {query: judged for query, judged in whole.qrels("test").items() if judged.keys() & ids}
    assert 0 < len(answered) < len(whole.qrels("test"))
    assert part.qrels("test") == {q: {p: g for p, g in j.items() if p in ids} for q, j in answered.items()}
    variant = replace(begun, scale=replace(begun.scale, titles="none", share=2))
    titled = {
        passage.id for passage in load_collection(variant.set_of("stories")).passages() if passage.title
    }
    assert not titled


def test_pairs_of_passages_are_of_one_document_and_ordered_by_the_judge(tmp_path: Path, modules: Any) -> None:
    """A judge of one's own: it finds texts close that share words."""
    from qontext.models.retriever import Retriever

    words = [["red", "red fox", "red fox runs", "blue whale"], ["one", "two"]]
    rows = [
        {"_id": f"{d}-{n}", "title": "", "text": text, "doc_id": str(d)}
        for d, texts in enumerate(words)
        for n, text in enumerate(texts)
    ]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    vocabulary = sorted({word for texts in words for text in texts for word in text.split()})

    def encode(self: Any, texts: list[str], kind: str) -> Any:
        counts = np.array([[text.split().count(word) for word in vocabulary] for text in texts], np.float32)
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Retriever, "__init__", lambda self, model: None)
        patch.setattr(Retriever, "encode", encode)
        modules["sets"].write_pairs(tmp_path / "set", "judge", tmp_path / "upper.tsv", tmp_path / "lower.tsv")
    upper, lower = (
        dict(line.split("\t") for line in (tmp_path / f"{name}.tsv").read_text().splitlines())
        for name in ("upper", "lower")
    )
    assert upper.keys() == lower.keys() == {f"0-{n}" for n in range(4)}, "two others are needed"
    assert all(upper[id] != lower[id] for id in upper)
    assert "blue whale" not in (upper["0-0"], upper["0-1"], upper["0-2"])


def test_stage_two_trains_the_same_encoder_on_negatives_that_its_own_retriever_mined(
    begun: Any, modules: Any
) -> None:
    one, two = (
        json.loads(file.read_text())
        for file in cells_of(begun, modules, "cocondenser-query", "cocondenser-query-stage-2")
    )
    first, second = one["settings"]["cell"], two["settings"]["cell"]
    trained = "finetune-cocondenser-query-1-16"
    assert second[trained] == first[trained]
    again = second["finetune-cocondenser-query-stage-2-1-16"]
    assert {key for key in again if again[key] != first[trained][key]} == {"groups"}
    assert second["vectors-train-cocondenser-query-stage-2-1-16"]["encoder"] == f"@{trained}"
    assert set(two["scores"]) == {"16", "16+bm25"}


def test_soft_labels_come_from_a_cross_encoder_that_saw_the_same_labels(begun: Any, modules: Any) -> None:
    hard, soft = (
        json.loads(file.read_text())["settings"]["cell"]
        for file in cells_of(begun, modules, "cocondenser-query-eight", "cocondenser-query-soft")
    )
    assert soft["reranker-16-1"]["groups"] == soft["scores-train-16-1"]["run"] == "@groups-16"
    one, two = hard["finetune-cocondenser-query-eight-1-16"], soft["finetune-cocondenser-query-soft-1-16"]
    assert two == one | {"teacher": "@scores-train-16-1", "loss": "kl"}
    assert one["encoder"] == "@pretrain-cocondenser-query-1" and one["passages_per_query"] == 8


def test_zero_shot_cells_train_on_one_set_and_measure_on_another(begun: Any, modules: Any) -> None:
    study = modules["study"]
    for arm in ("bm25", "none"):
        begun.run(study.Cell("small", "stories", study.named(arm), 1, "others"))
    folder = begun.cells / "small" / "stories-to-others"
    assert set(json.loads((folder / "bm25-1.json").read_text())["scores"]) == {"0"}
    record = json.loads((folder / "none-1.json").read_text())
    assert record["set"] == "stories to others" and {"0", "16", "0+bm25", "16+bm25"} < set(record["scores"])
    steps = record["settings"]["cell"]
    assert steps["finetune-none-1-16"]["passages"] == steps["groups-16"]["data"] == "DATA"
    assert steps["vectors-none-1-others-16"]["texts"] == steps["bm25-others"]["data"] == "TARGET"
    assert steps["score-none-1-others-16"]["qrels"] == "TARGET"
    assert str(begun.data) not in (folder / "none-1.json").read_text()


def test_a_language_model_asks_the_questions_of_its_arms_which_are_left_out_without_one(
    begun: Any, modules: Any, tmp_path: Path
) -> None:
    study = modules["study"]
    cell = study.Cell("small", "stories", study.named("cocondenser-causal-filtered"), 1)
    file = begun.cells / f"{cell.name}.json"
    begun.run(cell)
    assert not file.exists()
    model = save_llama(tmp_path / "model", ["who knows what the chapter says about the king of the sea"] * 20)
    replace(begun, question_model=model).run(cell)
    steps = json.loads(file.read_text())["settings"]["cell"]
    assert steps["queries-causal"]["model"] == "QUESTION_MODEL"
    assert steps["queries-causal-filtered"]["queries"] == "@queries-causal"
    assert steps["pretrain-cocondenser-causal-filtered-1"]["queries"] == "@queries-causal-filtered"
    assert model not in file.read_text()


def test_a_cross_encoder_of_another_set_teaches_on_queries_that_pre_training_did_not_see(
    begun: Any, modules: Any
) -> None:
    write_inputs(begun.data, "teaching", {"train": range(20)})
    cell = modules["study"].Cell("small", "stories", modules["study"].named("contrastive-query-distilled"), 1)
    file = begun.cells / f"{cell.name}.json"
    replace(begun, teacher_set="stories").run(cell)
    assert not file.exists(), "its own labels are no other set's"
    replace(begun, teacher_set="teaching").run(cell)
    shutil.rmtree(begun.work / "teacher-teaching")
    replace(begun, teacher_set="teaching").run(cell)
    assert not (begun.work / "teacher-teaching").exists(), "a recorded cell needs no teacher"
    record = json.loads(file.read_text())
    assert set(record["scores"]) == {"0", "0+bm25", "0+centered", "0+whitened"}
    teacher, steps = record["settings"]["teacher"], record["settings"]["cell"]
    assert teacher["reranker"]["passages"] == teacher["groups"]["qrels"] == "teaching"
    trained = steps["finetune-contrastive-query-distilled-1-0"]
    assert trained["encoder"] == "@pretrain-contrastive-query-1" and trained["teacher"] == "@scores-distilled"
    assert steps["scores-distilled"]["reranker"] == ["TEACHER"]
    assert steps["queries-distilled"]["seed"] != 42 == steps["queries-keyphrase"].get("seed", 42)
    assert str(begun.data) not in file.read_text() and str(begun.work) not in file.read_text()


@pytest.mark.parametrize("representation", ["tokens", "sparse"])
def test_other_representations_are_measured_after_fine_tuning(
    begun: Any, modules: Any, representation: str
) -> None:
    (file,) = cells_of(begun, modules, f"none-{representation}")
    record = json.loads(file.read_text())
    assert set(record["scores"]) == {"16", "16+bm25"}
    trained = record["settings"]["cell"][f"finetune-none-{representation}-1-16"]
    assert trained["representation"] == representation and "pooling" not in trained


def test_whitened_passages_are_uncorrelated_and_queries_take_the_same_turn(modules: Any) -> None:
    """Against the equation: the covariance becomes the identity, and distances between queries are Mahalanobis's."""
    draw = np.random.default_rng(0)
    mix = draw.normal(size=(5, 5))
    passages, queries = draw.normal(size=(500, 5)) @ mix + 3, draw.normal(size=(40, 5)) @ mix - 1
    white, turned = modules["isotropy"].whitened(passages, queries)
    np.testing.assert_allclose(white.T @ white / len(white), np.eye(5), atol=1e-3)
    inverse = np.linalg.inv(np.cov(passages.T, bias=True))
    apart = queries[:10] - queries[10:20]
    np.testing.assert_allclose(
        ((turned[:10] - turned[10:20]) ** 2).sum(1), (apart @ inverse * apart).sum(1), rtol=1e-3
    )


def test_random_vectors_of_words_find_what_shares_words(begun: Any, modules: Any) -> None:
    study = modules["study"]
    cell = study.Cell("small", "stories", study.named("words-64"), 1)
    begun.run(cell)
    file = begun.cells / f"{cell.name}.json"
    first = modules["record"].read_cell(file)
    assert set(first["scores"]) == {"0"} and first["tokens"] == 64
    assert np.mean(first["scores"]["0"]["MRR@10"]) > 0.3, "questions share words with their passages"
    file.unlink()
    begun.run(cell)
    assert modules["record"].read_cell(file)["scores"] == first["scores"]


def test_the_page_shows_cells_at_depth_and_their_pilots(deep: Any, modules: Any) -> None:
    deep_cells(deep, modules, "cot-mae-query")
    deep_cells(deep, modules, "cot-mae-query-at-2")
    page, cells = modules["page"], modules["record"].read_cells(deep.cells)
    assert {cell["scale"] for cell in cells} == {"depth-small", "depth-small-pilot"}
    tables, systems = page.tables_of(cells), page.systems_of(cells)
    assert "16 labels, mined + BM25" in tables["depth_small_arms"].columns
    assert tables["depth_small_zero_shot"].rows and tables["depth_small_rates"].rows
    curves = modules["curves"].snapshot_curves(cells, "depth-small")
    assert [at for at, _ in curves["steps-depth-small"]["CoT-MAE, keyphrases"]][-2:] == [2, 8]
    text = page.html(cells, tables, page.figures(systems), [])
    assert "16 labels, mined + BM25" in text and "depth small zero shot" in text
