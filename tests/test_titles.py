"""A passage's title in the input of models: the same in every stage, by one rule that the model's folder records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.finetune.conftest import write_groups
from tests.tiny import save_bert, write_collection

import qontext
from qontext import Retriever, Searcher, api, load_passages
from qontext.contexts import Context, Slices, Sources
from qontext.corpus.store import open_store
from qontext.data import records
from qontext.data.passage import Passage
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.models.cross_encoder import CrossEncoder
from qontext.models.encoder import Encoder, load_encoder
from qontext.models.folder import read_layout, record_title
from qontext.models.tokenizer import Titles
from qontext.pretrain.batches import BatchPlan, Layout
from qontext.pretrain.masking import Vocabulary
from qontext.retrieve.bm25 import Bm25
from qontext.training.randomness import hashed
from qontext.workflow.recipe import describe_recipe

torch.set_num_threads(1)
Rule = Literal["prepend", "sep", "leave"]
RULES: tuple[Rule, ...] = ("prepend", "sep", "leave")
SPAN = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve documents of three passages each, one document without a title; the same as a labeled set; an encoder."""
    root = tmp_path_factory.mktemp("titles")
    dice = np.random.default_rng(0)
    words = "river stone bridge water boat mill flour bread oven fire leaf sail".split()
    passages: list[dict[str, Any]] = [
        {
            "_id": f"p{n:02}",
            "doc_id": f"d{n // 3}",
            "title": "" if n < 3 else f"Chapter {words[n // 3]}",
            "text": " ".join(f"{' '.join(dice.choice(words, 5)).capitalize()}." for _ in range(3)),
        }
        for n in range(36)
    ]
    queries = [{"_id": f"q{n}", "text": passages[2 * n]["text"][:20]} for n in range(12)]
    data = write_collection(
        root / "data", passages, queries, {"train": {f"q{n}": f"p{2 * n:02}" for n in range(12)}}
    )
    split = api.split(data / "corpus.jsonl", keep=True, workers=1, out=root / "passages")
    api.train_tokenizer(split, out=root / "tokenizer", vocabulary=200)
    load_encoder("tiny", tokenizer=str(root / "tokenizer"), dropout=0.0, seed=1).save(
        root / "start", max_length=64
    )
    return root


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return load_encoder(str(folder / "start"))


def plan_of(folder: Path, rule: Rule, encoder: Encoder, out: Path, max_tokens: int) -> BatchPlan:
    tokens = api.tokens(folder / "passages", tokenizer=folder / "start", title=rule, workers=1, out=out)
    sources = Sources(open_store(tokens.path), max_tokens)
    anchors, words = np.arange(len(sources.passages)), Vocabulary.of(encoder.tokenizer)
    return BatchPlan(sources, Layout("anchor", "nothing", 0.15), None, words, anchors, None, 4, 4096, 0)


def flat(plan: BatchPlan, slices: Slices) -> list[list[int]]:
    texts = plan._flatten(slices, hashed(0, "text", np.arange(len(slices))))
    return [part.tolist() for part in np.split(texts.ids, np.cumsum(texts.lengths)[:-1])]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The ids of the passages that retrievers encode, ascending."""
    ids: list[list[int]] = []
    inner = Retriever.encode_tokens

    def encode_tokens(self: Retriever, tokens: Any, *kind: Any, **settings: Any) -> Any:
        ids.extend(sorted(row.tolist() for row in tokens))
        return inner(self, tokens, *kind, **settings)

    monkeypatch.setattr(Retriever, "encode_tokens", encode_tokens)
    return ids


@pytest.mark.parametrize("rule", RULES)
def test_all_stages_read_the_same_ids(
    folder: Path,
    encoder: Encoder,
    tmp_path: Path,
    read: list[list[int]],
    rule: Rule,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from qontext.finetune import run

    finetuned: list[list[int]] = []

    def plan(
        config: Any, examples: Any, source: str, reader: Any, group: Any, work: Any, teacher: Any
    ) -> Any:
        made = inner(config, examples, source, reader, group, work, teacher)
        texts = made.texts.passages
        finetuned.extend(texts.ids[b : b + n].tolist() for b, n in zip(texts.begin, texts.length))
        return made

    inner = run._plan
    monkeypatch.setattr(run, "_plan", plan)
    pretrained = api.pretrain(
        folder / "passages", encoder=str(folder / "start"), method="mlm", steps=1, batch_size=4, max_tokens=64,
        title=rule, workers=1, out=tmp_path / "encoder",
    )  # fmt: skip
    retriever = api.finetune(
        folder / "data",
        encoder=pretrained,
        steps=1,
        batch_size=4,
        passages_per_query=2,
        out=tmp_path / "retriever",
    )
    assert [read_layout(model.path).title for model in (pretrained, retriever)] == [rule, rule]
    tokenizer: Any = encoder.tokenizer

    def plain(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    between = [tokenizer.sep_token_id] if rule == "sep" else []
    passages = load_passages(folder / "data")
    expected = [
        [*(plain(p.title) + between if p.title and rule != "leave" else []), *plain(p.text)] for p in passages
    ]

    batches = plan_of(folder, rule, encoder, tmp_path / "tokens", 62)
    store = batches.sources.passages
    everything = np.arange(len(store))
    assert flat(batches, Slices.of_passages(store, everything)) == expected
    whole = sorted([tokenizer.cls_token_id, *ids, tokenizer.sep_token_id] for ids in expected)
    assert {*map(tuple, finetuned)} <= {*map(tuple, whole)}
    assert len(finetuned) == 12

    vectors = api.encode(folder / "data", encoder=retriever, out=tmp_path / "vectors")
    assert read == whole
    assert vectors.summary["title"] == rule
    read.clear()
    Searcher.build(passages, retriever.path)
    assert read == whole


def test_every_span_begins_with_its_title(folder: Path, encoder: Encoder, tmp_path: Path) -> None:
    for rule in RULES[:2]:
        plan = plan_of(folder, rule, encoder, tmp_path / rule, SPAN)
        store, passages = plan.sources.passages, np.arange(len(plan.sources.passages))
        for context in ("near", "rand", "olap"):
            slices = Context(context, plan.sources).draw(passages, passages % 5, 3, 0)
            of = np.searchsorted(store.offsets, slices.begin, "right") - 1
            for passage, text in zip(of, flat(plan, slices)):
                title = store.title_ids[
                    store.title_offsets[passage] : store.title_offsets[passage + 1]
                ].tolist()
                assert text[: len(title)] == title
                assert len(title) < len(text) <= SPAN
                assert text.count(encoder.tokenizer.sep_token_id) == (rule == "sep" and passage >= 3)


def test_a_long_title_leaves_half_of_the_span_to_the_text(
    folder: Path, encoder: Encoder, tmp_path: Path
) -> None:
    plan = plan_of(folder, "prepend", encoder, tmp_path / "tokens", 3)
    store = plan.sources.passages
    (text,) = flat(plan, Slices.of_passages(store, np.array([20])))
    begin = store.title_offsets[20]
    assert text[:1] == store.title_ids[begin : begin + 1].tolist()
    body = " ".join(map(str, store.ids[store.offsets[20] : store.offsets[21]]))
    assert " ".join(map(str, text[1:])) in body
    assert (store.title_lengths[20], len(text)) == (2, 3)


def test_the_separator_is_never_masked(folder: Path, encoder: Encoder, tmp_path: Path) -> None:
    plan = plan_of(folder, "sep", encoder, tmp_path / "tokens", 62)
    slices = Slices.of_passages(plan.sources.passages, np.arange(36))
    texts = plan._flatten(slices, hashed(0, "text", np.arange(36)))
    masked = texts.masked("encoder", 0.9, 0, plan.words)
    assert masked.chosen.mean() > 0.7
    assert not masked.chosen[texts.ids == plan.words.sep].any()


def test_rule_of_a_folder_and_another_one(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = shutil.copytree(folder / "start", tmp_path / "own")
    (own / "qontext.json").write_text(json.dumps({"title": "sep"}))
    settings: dict[str, Any] = {"method": "mlm", "steps": 1, "batch_size": 4, "max_tokens": 64, "workers": 1}
    again = api.pretrain(folder / "passages", encoder=own, **settings, out=tmp_path / "again")
    assert read_layout(again.path).title == "sep"
    plain = api.pretrain(folder / "passages", encoder=folder / "start", **settings, out=tmp_path / "plain")
    assert read_layout(plain.path).title == "prepend"
    assert "was trained with --title" not in capsys.readouterr().err
    api.encode(folder / "data", encoder=own, title="leave", out=tmp_path / "vectors")
    told = f"{own} was trained with --title sep, and now reads passages with --title leave."
    assert told in " ".join(capsys.readouterr().err.split())
    tokens = api.tokens(
        folder / "passages", tokenizer=folder / "start", title="leave", workers=1, out=tmp_path / "t"
    )
    stored = api.pretrain(tokens, encoder=folder / "start", **settings, out=tmp_path / "stored")
    assert read_layout(stored.path).title == "leave"
    with pytest.raises(QontextError, match="made with --title leave, not sep"):
        api.pretrain(tokens, encoder=folder / "start", title="sep", **settings, out=tmp_path / "refused")


def test_no_separator_token(folder: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(folder / "start", tmp_path / "bare")
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    settings = {name: value for name, value in settings.items() if name != "sep_token"}
    (bare / "tokenizer_config.json").write_text(
        json.dumps({**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    with pytest.raises(QontextError, match="no separator token"):
        api.encode(folder / "data", encoder=bare, title="sep", out=tmp_path / "vectors")
    with pytest.raises(QontextError, match="no separator token"):
        api.tokens(folder / "passages", tokenizer=bare, title="sep", workers=1, out=tmp_path / "tokens")


def test_reranker_reads_passages_as_it_was_trained(folder: Path, tmp_path: Path) -> None:
    groups = [{"query": "q1", "text": "river stone", "positives": ["p05"], "negatives": ["p08", "p09"]}]
    rows = [tuple(group.values()) for group in groups]
    mined = write_groups(tmp_path / "groups.parquet", rows)  # type: ignore[arg-type]
    reranker = api.train_reranker(
        mined, passages=str(folder / "data"), encoder=folder / "start", title="sep", steps=1, batch_size=1,
        candidates=2, max_length=64, out=tmp_path / "reranker",
    )  # fmt: skip
    model = CrossEncoder(reranker.path)
    passage = Passage("p", "A title", "a text", "d")
    as_text = model.score([("river", f"A title{model.tokenizer.sep_token}a text")])
    assert model.titles.rule == "sep" and model.score([("river", passage)]) == as_text


@pytest.mark.parametrize("rule", ["sep", "leave"])
def test_judges_of_queries_read_passages_as_their_models_were_trained(
    folder: Path, tmp_path: Path, read: list[list[int]], rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(folder / "start", tmp_path / "model")
    record_title(model, rule)
    passages = list(load_passages(folder / "data"))
    rows = [{"passage": p.id, "query": p.text[:20], "number": 0} for p in passages]
    records.write_table(tmp_path / "queries.parquet", records.table_of(rows, records.QUERIES))
    judged: Any = {"queries": tmp_path / "queries.parquet", "passages": folder / "passages"}
    tokenizer = Retriever(model).tokenizer
    between = {"sep": tokenizer.sep_token, "leave": None}[rule]
    expected = sorted(tokenizer(p.joined(between))["input_ids"] for p in passages)
    read.clear()
    api.filter(**judged, retriever=model, out=tmp_path / "filtered")
    assert [ids for ids in read if ids in expected] == expected

    pairs: list[tuple[str, str]] = []
    scored = CrossEncoder.score
    monkeypatch.setattr(CrossEncoder, "score", lambda self, some: pairs.extend(some) or scored(self, some))
    cross = save_bert(tmp_path / "cross", folder / "start", num_labels=1, num_hidden_layers=1)
    record_title(Path(cross), rule)
    api.filter(**judged, by="reranker", reranker=cross, out=tmp_path / "reranker")
    assert pairs == [(p.text[:20], p.joined(between)) for p in passages]


def test_separator_of_a_tokenizer_that_pads() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"[PAD]": 0, "[SEP]": 1, "a": 2}, unk_token="[PAD]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["[PAD]", "[SEP]"])
    backend.enable_padding(length=8)  # as in all-MiniLM-L6-v2's tokenizer.json
    tokenizer = SimpleNamespace(sep_token="[SEP]", sep_token_id=1, backend_tokenizer=backend)
    assert Titles.of("sep", tokenizer, "model").between == "[SEP]"


def test_words_and_spans(folder: Path, tmp_path: Path) -> None:
    passages = [Passage("a", "Mill", "stone", "a"), Passage("b", "", "river", "b")]
    found = [Bm25.build(passages, title=rule).search({"q": "mill"}, 1) for rule in ("prepend", "leave")]
    assert [[hit.passage for hit in run["q"]] if "q" in run else [] for run in found] == [["a"], []]
    built = api.retrieve(bm25=True, title="leave", data=str(folder / "data"), out=tmp_path / "run")
    assert open_artifact(built.path).config["title"] == "leave"
    for title, starts in (("prepend", True), ("leave", False)):
        settings: dict[str, Any] = {"generator": "span", "title": title}
        task = api.generate(folder / "passages", **settings, out=tmp_path / title)
        rows = [row for batch in records.read_table(task.path, records.QUERIES) for row in batch.to_pylist()]
        titled = {p.id for p in load_passages(folder / "data") if p.title}
        assert {row["query"].startswith("Chapter ") for row in rows if row["passage"] in titled} == {starts}


def test_separators_survive_lower_case() -> None:
    from qontext.models.tokenizer import lowered

    assert lowered("A Title[SEP]A Text", SimpleNamespace(sep_token="[SEP]")) == "a title[SEP]a text"
    assert lowered("A Text", SimpleNamespace(sep_token=None)) == "a text"


OF_TOKENS = ("colbert", "colbert-end-to-end", "colbertv2")
UNTITLED = {f"{name}-msmarco" for name in (*OF_TOKENS, "ance", "coil", "splade", "tas-b", "unicoil")}
"""Recipes of papers that read MS MARCO's passages as published: without titles."""
PAPERS = sorted(
    file.stem
    for kind in ("msmarco", "nq", "triviaqa")
    for file in (Path(qontext.__file__).parent / "recipes").glob(f"*{kind}*.toml")
)


@pytest.mark.parametrize("name", [*PAPERS, "cocondenser-beir", "cocondenser-documents"])
def test_recipes_of_papers_read_titles_as_their_toolkits_did(name: str) -> None:
    recipe = describe_recipe(name)
    splits = {step.name: step.settings for step in recipe.steps if step.stage.verb == "split"}
    for step in recipe.steps:
        if step.stage.verb in ("finetune", "train-reranker"):
            goes_on = "retriever" in step.settings["encoder"]  # its folder says it
            rule = "leave" if name in UNTITLED else "sep"
            assert step.settings.get("title", rule if goes_on else None) == rule, step.name
        if step.stage.verb == "pretrain" and splits:  # the title is in the text, or in none
            assert step.settings["title"] == "leave", step.name
