"""The shipped recipes of published runs have the published settings, resolved as the stages resolve them."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from qontext.evaluation.benchmarks import named
from qontext.pretrain.config import PretrainConfig
from qontext.workflow import recipe
from qontext.workflow.run import published_rows
from qontext.workflow.tables import find_recipe, missing_inputs, read_arms, read_tables, shipped


def inputs_of(name: str, arm: str | None = None) -> tuple[str, ...]:
    """Values for the inputs that a recipe needs."""
    tables = read_tables(find_recipe(name), arm=arm)
    return tuple(f"inputs.{input_name}=given" for input_name in missing_inputs(tables))


def steps(name: str) -> dict[str, Any]:
    """The configurations of a recipe's steps, their defaults included."""
    return {
        step.name: step.configure(Path("runs")) for step in recipe.read_recipe(name, inputs_of(name)).steps
    }


def settings(name: str, verb: str) -> Any:
    """The configuration of a recipe's step."""
    read = recipe.read_recipe(name, inputs_of(name)).steps
    (step,) = (step for step in read if step.stage.verb == verb and not step.name.endswith("-1"))
    return step.configure(Path("runs"))


def spans_per_step(config: PretrainConfig) -> int:
    """The number of texts that the encoder reads per step."""
    layout = config.layout()
    return config.batch_size * (2 if layout.encode == "both" else 1)


@pytest.mark.parametrize(
    ("name", "spans", "steps", "lr", "length", "short", "masks"),
    [
        # Gao & Callan 2021: batch 1,024, 8 epochs
        ("condenser", 1024, None, 1e-4, 128, 0.10, 0.15),
        # Wu et al. 2022, section 4.1; released: 512 documents × 2
        ("cot-mae-msmarco", 1024, 1_200_000, 1e-4, 128, 0.15, 0.30),
        # Wu et al. 2023, sections 4.1 and 4.4; released: 2,048 pairs, corpus "s15"
        ("cocondenser-msmarco", 2 * 2048, 120_000, 1e-4, 144, 0.15, 0.15),
        ("cocondenser-2022-msmarco", 2 * 2048, 120_000, 1e-4, 144, 0.15, 0.15),
        ("qac-cocondenser-msmarco", 2 * 2048, 120_000, 1e-4, 144, 0.15, 0.15),
        ("cot-mae-50k-msmarco", 2 * 16_384, 50_000, 4e-4, 144, 0.15, 0.30),
        ("qac-cot-mae-msmarco", 16_384, 50_000, 4e-4, 144, 0.15, 0.30),
    ],
)
def test_pretraining(
    name: str, spans: int, steps: int | None, lr: float, length: int, short: float, masks: float
) -> None:
    config, split = settings(name, "pretrain"), settings(name, "split")
    assert (spans_per_step(config), config.steps, config.lr) == (spans, steps, lr)
    assert (config.warmup, config.weight_decay, config.seed) == (0.1, 0.01, 42)
    assert config.max_tokens == split.max_tokens == length
    assert split.short_span_probability == short
    assert config.layout().encoder_rate == masks
    if config.method == "cot-mae":
        assert config.layout().decoder_rate == 0.45
        assert config.options("method").layers(2) == 2
    assert config.epochs == (8 if name == "condenser" else 1)
    assert config.anchors == (
        "documents" if name in ("cot-mae-msmarco", "cocondenser-2022-msmarco") else "passages"
    )


def test_a_batch_of_cot_mae_in_its_two_readings() -> None:
    """Pairs, both encoded; or encoded passages, as many as with queries."""
    recipes = {
        arm: recipe.read_recipe("qac-table-1", inputs_of("qac-table-1", arm), arm=arm)
        for arm in ("CoT-MAE", "CoT-MAE, forward", "CoT-MAE, queries")
    }
    texts = {
        arm: spans_per_step(step.configure(Path("runs")))  # type: ignore[arg-type]
        for arm, one in recipes.items()
        for step in one.steps
        if step.name == "pretrain"
    }
    assert texts == {"CoT-MAE": 32_768, "CoT-MAE, forward": 16_384, "CoT-MAE, queries": 16_384}


CONTEXTS = {("pretrain", "context"), ("pretrain", "queries")}
QUERIES = {("generate", key) for key in ("verb", "passages", "generator", "per_passage")}


@pytest.mark.parametrize(
    ("base", "other", "different"),
    [
        ("cocondenser-msmarco", "qac-cocondenser-msmarco", CONTEXTS | QUERIES),
        ("cot-mae-50k-msmarco", "qac-cot-mae-msmarco", CONTEXTS | QUERIES),
        ("qac-cot-mae-msmarco", "qac-cot-mae-autoregressive-msmarco", {("pretrain", "decoder")}),
        ("cot-mae-50k-msmarco", "mlm-msmarco", {("pretrain", "method"), ("pretrain", "context")}),
        ("cot-mae-50k-msmarco", "retromae-msmarco", {("pretrain", "method"), ("pretrain", "context")}),
        (
            "msmarco-finetune",
            "pair-msmarco",
            {("retriever-1", key) for key in ("loss", "passage_weight", "encoder")}
            | {("retriever-2", "encoder")},
        ),
        ("cot-mae-50k-msmarco", "seed-msmarco", {("pretrain", "method"), ("pretrain", "context")}),
        ("cot-mae-50k-msmarco", "costa-msmarco", {("pretrain", "method"), ("pretrain", "context")}),
        ("retromae-msmarco", "dupmae-msmarco", {("pretrain", "method")}),
        (
            "cot-mae-50k-msmarco",
            "simlm-msmarco",
            {("pretrain", key) for key in ("method", "context", "generator")},
        ),
        ("cot-mae-50k-msmarco", "bow-msmarco", {("pretrain", "method"), ("pretrain", "context")}),
        ("qac-cot-mae-msmarco", "qac-bow-msmarco", {("pretrain", "method"), ("pretrain", "target")}),
        (
            "cot-mae-50k-msmarco",
            "cot-mae-msmarco",
            {("split", "max_tokens")}
            | {("pretrain", key) for key in ("anchors", "steps", "batch_size", "lr", "max_tokens")},
        ),
        (
            "cocondenser-2022-msmarco",
            "cocondenser-soft-msmarco",
            {
                ("reranker", key)
                for key in ("verb", "groups", "passages", "encoder", "title", "batch_size", "candidates")
            }
            | {("teacher", key) for key in ("verb", "run", "reranker", "data")}
            | {("retriever-2", "teacher"), ("retriever-2", "loss")},
        ),
        ("cot-mae-msmarco", "cot-mae-800k-msmarco", {("pretrain", "steps")}),
        ("cocondenser-beir", "qac-cocondenser-beir", CONTEXTS | QUERIES),
        ("cot-mae-50k-beir", "qac-cot-mae-beir", CONTEXTS | QUERIES),
        ("cocondenser-nq", "cocondenser-triviaqa", set()),
        ("condenser-nq", "condenser-triviaqa", set()),
        ("bm25-nq", "bm25-triviaqa", set()),
        (
            "gar-nq",
            "gar-triviaqa",
            {
                *((f"{what}-writer", "max_passage_tokens") for what in ("answer", "title", "sentence")),
                *((what, "max_passage_tokens") for what in ("answers", "titles", "sentences")),
                ("answer-writer", "max_query_tokens"),
                ("answers", "max_new_tokens"),
            },
        ),
        (
            "msmarco-finetune-cocondenser",
            "bert-msmarco",
            {("retriever-1", "encoder"), ("retriever-2", "encoder")},
        ),
    ],
)
def test_the_arms_of_a_comparison_differ_in_what_is_compared(
    base: str, other: str, different: set[tuple[str, str]]
) -> None:
    """Setting by setting, over all steps; an input is a setting of its steps."""
    one, two = (flat(name) for name in (base, other))
    differing = {key for key in one.keys() | two.keys() if one.get(key) != two.get(key)}
    assert differing == different


def flat(name: str) -> dict[tuple[str, str], Any]:
    """(step, setting) → value of a recipe, as written, with inputs in their places."""
    read = recipe.read_recipe(name, inputs_of(name)).steps
    return {
        (step.name, key): value
        for step in read
        for key, value in {"verb": step.stage.verb, **step.settings}.items()
    }


@pytest.mark.parametrize(
    ("name", "pretrained_as"),
    [
        ("cocondenser-nq", None),  # on Wikipedia
        ("condenser-nq", "condenser"),
        ("cot-mae-nq", "cot-mae-msmarco"),
    ],
)
def test_rows_of_natural_questions_differ_in_the_pretraining_alone(
    name: str, pretrained_as: str | None
) -> None:
    ours, base = flat(name), flat("dpr-finetune")
    before = {key: value for key, value in ours.items() if key[0] in ("split", "pretrain")}
    after = {key: value for key, value in ours.items() if key not in before}
    assert {key for key in after | base if after.get(key) != base.get(key)} == {
        (retriever, "encoder") for retriever in ("retriever-1", "retriever-2")
    }
    if pretrained_as:
        pretrained = flat(pretrained_as)
        assert before == {key: value for key, value in pretrained.items() if key in before}


def test_lists_of_a_positive_and_63_negatives_from_retriever_1() -> None:
    """Santhanam et al. 2022; retriever 1 is that of the other recipes of ColBERT."""
    configs, base = steps("colbertv2-msmarco"), steps("colbert-end-to-end-msmarco")
    assert configs["retriever-1"] == base["retriever-1"] and base["run-1"].index == "runs/vectors-1"
    two = configs["retriever-2"]
    assert (two.passages_per_query, configs["groups-2"].per_query, two.loss) == (64, 63, "kl")
    assert (two.batch_size, two.lr, two.steps, two.warmup * two.steps) == (32, 1e-5, 400_000, 20_000)
    assert (two.encoder, configs["groups-2"].run) == ("runs/retriever-1", "runs/run-1-train")


def test_splade_teaches_its_order_with_its_own_results_as_negatives() -> None:
    """Zhang et al. 2023, by the settings of its released code."""
    configs = steps("led-msmarco")
    warm, first, second, taught = (
        configs[name] for name in ("retriever-1", "words-1", "words-2", "retriever-2")
    )
    assert [one.passages_per_query - 1 for one in (warm, first, second, taught)] == [7, 5, 5, 32]
    assert [one.lr for one in (warm, first, second, taught)] == [1e-5, 3e-5, 2e-5, 5e-6]
    assert [one.batch_size for one in (warm, first, second, taught)] == [16, 48, 48, 16]
    assert {one.epochs for one in (warm, first, second, taught)} == {3}
    every = {
        (one.warmup, one.query_length, one.passage_length, one.title) for one in (warm, first, second, taught)
    }
    assert every == {(0.01, 32, 128, "sep")}
    assert [one.weight_decay for one in (warm, first, second, taught)] == [0.0, 0.01, 0.01, 0.0]
    for one in (first, second):
        assert vars(one.options("representation")) == {
            "query_flops": 6e-4,
            "passage_flops": 8e-4,
            "flops_warmup": 0,
        }
    assert (second.encoder, taught.encoder) == ("runs/words-1", "runs/retriever-1")
    assert (taught.loss, taught.options("loss").contrastive_weight, taught.teacher) == (
        "rank",
        1.0,
        "runs/teacher",
    )
    assert (configs["teacher"].run, configs["teacher"].tokens) == ("runs/groups-2", "runs/weights-2")
    mined = configs["groups-2"]
    assert (mined.run, mined.also) == ("runs/run-1-train", ("runs/words-run-1", "runs/words-run-2"))


def test_negatives_of_all_kinds_on_generated_questions_and_then_on_labels() -> None:
    """Lu et al. 2020, by its abstract."""
    configs = steps("nprinc-msmarco")
    generated, labeled = configs["groups-1"], configs["groups-2"]
    assert configs["generate"].per_passage == 1
    assert (generated.run, generated.also) == ("runs/bm25-generated", ())
    assert {generated.qrels, generated.queries, configs["bm25-generated"].queries} == {"runs/generate"}
    assert generated.limit == configs["bm25-generated"].limit == 500_000
    assert (labeled.run, labeled.also) == ("runs/run-1-train", ("runs/bm25-train",))
    assert (labeled.qrels, labeled.limit) == ("given", None)
    for one in (generated, labeled):
        assert (one.depth, one.per_query, one.in_document, one.random) == (200, 30, 30, 30)
    one, two = configs["retriever-1"].model_dump(), configs["retriever-2"].model_dump()
    assert {name for name in one if one[name] != two[name]} == {"groups", "encoder"}
    assert (one["encoder"], two["encoder"]) == ("bert-base-uncased", "runs/retriever-1")


def test_both_arms_read_their_contexts() -> None:
    for arm, context in (("cocondenser", "rand"), ("cot-mae-50k", "near+olap+rand")):
        assert settings(f"{arm}-msmarco", "pretrain").context_name() == context
    for arm in ("qac-cocondenser", "qac-cot-mae"):
        assert settings(f"{arm}-msmarco", "pretrain").context_name() == "query"


OWN = (
    "ance-msmarco",
    "colbertv2-msmarco",
    "led-msmarco",
    "me-bert-msmarco",
    "nprinc-msmarco",
    "pair-msmarco",
    "rocketqa-msmarco",
    "tas-b-msmarco",
)
"""Recipes of methods of fine-tuning, whose stages differ."""
TWO_STAGES = [
    path.stem
    for path in shipped()
    if "msmarco" in path.stem
    and path.stem not in OWN
    and "score-2-dl20" in {step.name for step in recipe.describe_recipe(path.stem).steps}
]


def test_the_recipes_of_both_stages() -> None:
    assert len(TWO_STAGES) == 23 and {"msmarco-finetune", "qac-cot-mae-msmarco"} <= set(TWO_STAGES)


@pytest.mark.parametrize("name", TWO_STAGES)
def test_from_passages_to_the_measures_of_the_paper(name: str) -> None:
    configs = steps(name)
    for stage in ("1", "2"):
        assert {"MRR@10", "Success@50", "Success@1000"} <= set(configs[f"score-{stage}"].measures.split())
        for year in ("19", "20"):
            assert configs[f"score-{stage}-dl{year}"].qrels == f"trec-dl-20{year}"
        assert configs[f"groups-{stage}"].depth == 200 == configs["run-1-train"].k
        assert configs[f"run-{stage}"].k == 1_000
    one, two = configs["retriever-1"], configs["retriever-2"]
    first, second = one.model_dump(), two.model_dump()
    shared = first.keys() & second.keys() - {"groups", "teacher", "loss"}
    assert {n: first[n] for n in shared} == {n: second[n] for n in shared}, "both start from the same encoder"
    assert (one.groups, two.groups) == ("runs/groups-1", "runs/groups-2")
    trained = "pretrain" in configs
    assert (one.encoder == "runs/pretrain") is trained


def test_what_a_recipe_reproduces_is_published() -> None:
    for path in shipped():
        described = recipe.describe_recipe(path.stem)
        for system in described.published:
            assert named(system), f"{path.stem}: {system}"
        assert bool(published_rows(described)) == bool(described.published), path.stem


def test_what_is_published_has_a_row_in_the_guide() -> None:
    """Each recipe, and each sweep with an arm, that reproduces published figures: its name is in a table, in backticks."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "reproduce.md").read_text(encoding="utf-8")
    rows = [line for line in guide.splitlines() if line.startswith("|")]
    named = {command.split()[-1] for row in rows for command in re.findall(r"`([^`]+)`", row.split("|")[2])}
    arms = [(file.stem, arm) for file in shipped("sweeps") for arm in read_arms(file)]
    published = {
        name
        for name, arm in [*((path.stem, None) for path in shipped()), *arms]
        if recipe.describe_recipe(name, arm=arm).published
    }
    assert published - named == set(), "add rows to docs/guides/reproduce.md"


@pytest.mark.parametrize(
    ("name", "lr", "batch", "epochs", "passages", "lengths", "untied"),
    [
        # Wu et al. 2023, section 4.2; epochs as released
        ("msmarco-finetune", 2e-5, 64, 3, 16, (32, 144), False),
        # Gao & Callan 2022, section 4.2.1
        ("msmarco-finetune-cocondenser", 5e-6, 64, 3, 8, (32, 128), False),
        # Karpukhin et al. 2020
        ("dpr-finetune", 1e-5, 128, 40, 2, (256, 256), True),
    ],
)
def test_fine_tuning(
    name: str, lr: float, batch: int, epochs: int, passages: int, lengths: tuple[int, int], untied: bool
) -> None:
    config = settings(name, "finetune")
    assert (config.lr, config.batch_size, config.epochs, config.steps) == (lr, batch, epochs, None)
    assert (config.passages_per_query, config.untied) == (passages, untied)
    assert (config.query_length, config.passage_length) == lengths


NAMES = {
    "split": "max_tokens short_span_probability",
    "pretrain": "steps batch_size lr max_tokens warmup weight_decay",
    "mine": "depth per_query",
    "finetune": "lr batch_size epochs passages_per_query query_length passage_length warmup weight_decay",
    "train-reranker": "lr batch_size epochs candidates max_length warmup weight_decay",
}
"""Verb → the settings that a paper could name."""
FINE_TUNING = {"groups-1", "retriever-1", "groups-2", "retriever-2"}
WU = "lr batch_size passages_per_query passage_length weight_decay depth"
GAO = "lr batch_size epochs"


@pytest.mark.parametrize(
    ("name", "of", "named"),
    [
        ("msmarco-finetune", FINE_TUNING, WU),  # Wu et al. 2023, section 4.2
        ("msmarco-finetune-cocondenser", FINE_TUNING, GAO),  # Gao & Callan 2022, section 4.2.1
        ("msmarco-documents-finetune", FINE_TUNING, f"{GAO} passage_length"),  # and section 4.3
        ("dpr-finetune", FINE_TUNING, "lr batch_size epochs passages_per_query"),  # Karpukhin et al. 2020
        ("beir-finetune", {"groups", "retriever"}, ""),  # Wu et al. 2023, section 4.5
        # Wu et al. 2023, section 4.1
        ("cocondenser-msmarco", {"split", "pretrain"}, "steps batch_size lr max_tokens weight_decay"),
        ("cot-mae-50k-msmarco", {"split", "pretrain"}, "steps batch_size lr max_tokens warmup"),
        # Gao & Callan 2022, section 4.1
        ("cocondenser-2022-msmarco", {"split", "pretrain"}, "batch_size lr weight_decay"),
        # Wu et al. 2022, sections 4.1 and 5.2
        (
            "cot-mae-msmarco",
            {"split", "pretrain"},
            "steps batch_size lr max_tokens warmup encoder_mask decoder_mask",
        ),
        ("cocondenser-reranked-msmarco", {"reranker-ernie", "reranker-roberta"}, ""),
        ("cocondenser-soft-msmarco", {"reranker"}, ""),
        ("cot-mae-distilled-msmarco", {"reranker"}, ""),
        ("nprinc-msmarco", FINE_TUNING, ""),  # of Lu et al. 2020, the abstract
    ],
)
def test_the_head_names_every_setting_that_no_paper_names(name: str, of: set[str], named: str) -> None:
    lines = (line for line in find_recipe(name).read_text().splitlines())
    head = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines))
    for step, config in steps(name).items():
        if step not in of:
            continue
        (verb,) = (one.stage.verb for one in recipe.describe_recipe(name).steps if one.name == step)
        values = {field: getattr(config, field) for field in NAMES[verb].split()}
        if verb == "pretrain":
            layout = config.layout()
            values |= {"encoder_mask": layout.encoder_rate}
            values |= {"decoder_mask": layout.decoder_rate} if layout.decode != "nothing" else {}
        for field, value in values.items():
            if field not in named.split():
                said = f"{field} {value if isinstance(value, int) else format(value, 'g')}".replace(
                    "e-0", "e-"
                )
                assert re.search(rf"\b{re.escape(said)}\b", head), f"{name}: {said} of [{step}]"


@pytest.mark.parametrize(
    "name", ["bert-msmarco", "cocondenser-2022-msmarco", "colbert-msmarco", "splade-msmarco"]
)
def test_negatives_of_the_official_triples(name: str) -> None:
    """Where the paper took them (Gao & Callan 2022, section 4.2.1); BM25 does not run then."""
    configs = steps(name)
    assert "bm25-train" not in configs and configs["groups-1"].run == "given"
    if "groups-2" in configs:
        assert configs["groups-2"].also == ("given",)
