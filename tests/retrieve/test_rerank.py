from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny import Server

import qontext
from qontext import Passage, Run, api
from qontext.data.collection import load_collection
from qontext.data.runs import read_run
from qontext.frame import artifacts
from qontext.frame.errors import QontextError
from qontext.models.cross_encoder import CrossEncoder, encode_pairs, pad_pairs
from qontext.retrieve import rerank

pytestmark = pytest.mark.numeric


def test_scores_are_the_models_own(tiny_rerankers: list[Path]) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    pairs = [("which mill", "the mill by the river"), ("bread", "stone " * 100), ("a", "b")]
    scores = CrossEncoder(str(tiny_rerankers[0]), device="cpu", precision="fp32", batch_tokens=70).score(
        pairs
    )
    model = AutoModelForSequenceClassification.from_pretrained(tiny_rerankers[0]).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_rerankers[0])
    for pair, score in zip(pairs, scores):
        tokens = tokenizer(*pair, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            assert score == pytest.approx(model(**tokens).logits.item(), abs=1e-5)


def test_close_pairs_do_not_tie_in_bf16(tiny_rerankers: list[Path]) -> None:
    """The layers compute in bf16, what makes the score of them in fp32: in training, too."""
    from qontext.finetune.listwise import load_classifier
    from qontext.models.precision import autocast

    pairs = [(f"chapter {i}", f"the mill by the river {i % 7}") for i in range(40)]
    exact, scores = (
        CrossEncoder(str(tiny_rerankers[0]), device="cpu", precision=precision).score(pairs)
        for precision in ("fp32", "bf16")
    )
    model, tokenizer, _ = load_classifier(str(tiny_rerankers[0]), 1, 0.0)
    inputs = pad_pairs(tokenizer, encode_pairs(tokenizer, pairs, 64))
    with torch.no_grad(), autocast(torch.device("cpu"), torch.bfloat16):
        trained = model.eval()(**inputs).logits[:, 0].numpy()
    for values in (scores, trained):
        assert values.dtype == np.float32
        assert len(set(values.tolist())) == len(set(exact.tolist())) > 30
        assert 0 < np.abs(values - exact).max() < 0.02
        assert (torch.from_numpy(values).bfloat16().float().numpy() != values).any()


def test_the_top_is_ordered_by_the_mean_of_the_ensemble(
    beir: Path, tiny_rerankers: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerank, "BLOCK", 3)
    first = api.retrieve(bm25=True, data=beir, k=20, out=tmp_path / "first")
    names = [str(path) for path in tiny_rerankers]
    reranked = api.rerank(first, reranker=names, data=beir, k=5, precision="fp32", out=tmp_path / "reranked")
    assert [p.name for p in reranked.parts()] == ["run.trec"]
    assert reranked.meta["computed"] == "fp32"
    run, before = read_run(reranked.path), read_run(first.path)
    collection = load_collection(beir)
    texts, queries = {p.id: p.content for p in collection.passages()}, collection.queries()
    for query in run:
        assert {h.passage for h in run[query]} == {h.passage for h in before[query][:5]}
        pairs = [(queries[query], texts[hit.passage]) for hit in run[query]]
        one, two = (CrossEncoder(name, device="cpu", precision="fp32").score(pairs) for name in names)
        assert [hit.score for hit in run[query]] == pytest.approx(((one + two) / 2).tolist(), abs=1e-5)


def test_the_rest_of_the_run_may_follow(beir: Path, tiny_rerankers: list[Path], tmp_path: Path) -> None:
    first = api.retrieve(bm25=True, data=beir, k=12, out=tmp_path / "first")
    reranked = api.rerank(
        first, reranker=[str(tiny_rerankers[0])], data=beir, k=5, keep_rest=True, out=tmp_path / "o"
    )
    run, before = read_run(reranked.path), read_run(first.path)
    for query in before:
        names = [hit.passage for hit in run[query]]
        assert set(names[:5]) == {hit.passage for hit in before[query][:5]}
        assert names[5:] == [hit.passage for hit in before[query][5:]]
        assert all(a.score > b.score for a, b in pairwise(run[query][4:]))


@pytest.mark.parametrize("keep_rest", [False, True])
def test_a_run_without_results_stays_one(
    beir: Path, tiny_rerankers: list[Path], tmp_path: Path, keep_rest: bool
) -> None:
    (tmp_path / "none.tsv").write_text("q\txyzzy\n")
    form: dict[str, Any] = {"queries": tmp_path / "none.tsv", "passages": beir}
    found = api.retrieve(bm25=True, **form, out=tmp_path / "found")
    out = api.rerank(found, reranker=tiny_rerankers[:1], keep_rest=keep_rest, **form, out=tmp_path / "out")
    assert out.summary["pairs"] == 0 and not read_run(out.path)
    assert not qontext.rerank(Run.of([]), {}, [], tiny_rerankers[0], keep_rest=keep_rest)


def test_two_processes_share_the_work(
    beir: Path, tiny_rerankers: list[Path], tmp_path: Path, warm: Server
) -> None:
    queries = "".join(f"n{i}\tchapter {i % 60} river stone\n" for i in range(150))  # three blocks
    (tmp_path / "queries.tsv").write_text(queries)
    settings = {"queries": str(tmp_path / "queries.tsv"), "passages": str(beir)}
    first = api.retrieve(bm25=True, k=3, out=tmp_path / "first", **settings)
    alone = api.rerank(first, reranker=[str(tiny_rerankers[0])], out=tmp_path / "alone", **settings)
    more = ["--queries", settings["queries"], "--passages", str(beir), "--reranker", str(tiny_rerankers[0])]
    warm.run(["rerank", str(first.path), *more, "--out", str(tmp_path / "two")], tmp_path / "said", ranks=2)
    assert artifacts.open_artifact(tmp_path / "two").digest == alone.digest


@pytest.mark.parametrize("settings", [{"k": 2}, {"k": 2, "keep_rest": True}])
def test_a_run_in_memory_is_reranked_as_by_the_command(
    beir: Path, tmp_path: Path, tiny_rerankers: list[Path], settings: dict[str, Any]
) -> None:
    run = qontext.Bm25.build(qontext.load_passages(beir)).search(qontext.load_queries(beir), 3)
    run.write(tmp_path / "run.trec")
    api.rerank(
        tmp_path / "run.trec", reranker=tiny_rerankers, data=beir, precision="fp32", out=tmp_path / "again.trec",
        **settings,
    )  # fmt: skip
    models = [CrossEncoder(name, precision="fp32") for name in tiny_rerankers]
    again = qontext.rerank(run, qontext.load_queries(beir), qontext.load_passages(beir), models, **settings)
    assert dict(again) == dict(Run.read(tmp_path / "again.trec"))


def test_a_cross_encoder_reranks_a_run(tiny_rerankers: list[Path]) -> None:
    model = CrossEncoder(tiny_rerankers[0], precision="fp32")
    run = Run.from_columns(["q", "q"], ["a", "b"], [2.0, 1.0])
    passages = [Passage("a", "", "stone bridge", "a"), Passage("b", "", "mill flour", "b")]
    scores = model.score([("water", passages[0]), ("water", passages[1])])
    reranked = qontext.rerank(run, {"q": "water"}, passages, model)
    assert {hit.passage: hit.score for hit in reranked["q"]} == dict(zip("ab", map(float, scores)))
    with pytest.raises(QontextError, match="names the query 'q', which is not in the queries"):
        qontext.rerank(run, {}, passages, model)
    with pytest.raises(QontextError, match="names the passage 'b', which is not in the passages"):
        qontext.rerank(run, {"q": "water"}, passages[:1], model)
