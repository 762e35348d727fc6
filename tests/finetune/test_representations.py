"""What holds for every representation: the cache and a resumed run train the same, teachers teach it, search finds what its
similarity says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.finetune.test_run import apart, losses

from qontext import api
from qontext.data.collection import load_collection
from qontext.data.runs import read_run
from qontext.finetune.config import FinetuneConfig
from qontext.finetune.run import open_representation
from qontext.frame.errors import QontextError
from qontext.models.representations import REPRESENTATIONS
from qontext.models.retriever import Retriever
from qontext.models.tokenizer import token_ids
from qontext.retrieve.searcher import Searcher
from qontext.serve.systems import Opener

Finetune = Callable[..., Any]
OPTIONS: dict[str, dict[str, Any]] = {
    "vector": {},
    "sparse": {},
    "tokens": {"token_dimensions": 8},
    "first-tokens": {"passage_vectors": 4},
    "matches": {"token_dimensions": 8, "cls_dimensions": 20},
    "matches, weights alone": {"token_dimensions": 1, "cls_dimensions": 0, "token_relu": True},
}
NAMES = list(OPTIONS)
PACKED = [name for name in NAMES if name != "vector"]


def settings(name: str, **more: Any) -> dict[str, Any]:
    kind = name.partition(",")[0]
    return {"representation": kind, "precision": "fp32", **OPTIONS[name], **more}


def test_every_representation_is_tested() -> None:
    assert {settings(name)["representation"] for name in NAMES} == set(REPRESENTATIONS.own)


@pytest.mark.parametrize("name", NAMES)
def test_the_cache_trains_the_same(finetune: Finetune, tmp_path: Path, name: str) -> None:
    more = settings(name, steps=3, lr=1e-4, temperature=20.0, dropout=0.1)
    plain = finetune(tmp_path / "plain", gradient_cache="off", **more).path
    cached = finetune(tmp_path / "cached", gradient_cache="on", micro_tokens=60, **more).path
    assert apart(plain, cached) < 1e-5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", ["kl", "margin-mse"])
def test_it_comes_closer_to_a_teacher(
    finetune: Finetune, scores: Path, tmp_path: Path, name: str, loss: str
) -> None:
    more = settings(name, teacher=str(scores), loss=loss, steps=20)
    course = losses(finetune(tmp_path / "out", **more).path)
    assert np.mean(course[-3:]) < 0.7 * np.mean(course[:3]), course


@pytest.mark.parametrize("name", NAMES)
def test_a_training_that_was_stopped_ends_in_the_same_bits(
    finetune: Finetune, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qontext.training.step import Stepper

    more = settings(name, steps=4, checkpoint_minutes=0)
    whole = finetune(tmp_path / "whole", **more)
    step = Stepper.step

    def stopped(self: Stepper, number: int, *more: Any) -> None:
        if number == 2:
            raise KeyboardInterrupt
        step(self, number, *more)

    monkeypatch.setattr(Stepper, "step", stopped)
    with pytest.raises(KeyboardInterrupt):
        finetune(tmp_path / "stopped", **more)
    monkeypatch.undo()
    assert finetune(tmp_path / "stopped", **more).digest == whole.digest


@pytest.mark.parametrize("name", PACKED)
def test_search_finds_what_the_similarity_says(
    finetune: Finetune, beir: Path, tmp_path: Path, name: str
) -> None:
    retriever = Path(finetune(tmp_path / "retriever", **settings(name, steps=20)).path)
    on: dict[str, Any] = {"precision": "fp32", "device": "cpu"}
    vectors = api.encode(beir, encoder=retriever, **on, out=tmp_path / "vectors")
    kind = settings(name)["representation"]
    assert vectors.summary["representation"] == kind and vectors.summary["entries_per_text"] > 0
    run = read_run(api.retrieve(vectors.path, data=beir, split="dev", k=10, **on, out=tmp_path / "run").path)
    collection = load_collection(beir)
    passages = {p.id: p.content for p in collection.passages()}
    queries = collection.queries("dev")
    expected = similarities(retriever, list(queries.values()), list(passages.values()))
    for row, query in enumerate(queries):
        found = {hit.passage: hit.score for hit in run[query]}
        best = sorted(expected[row].tolist(), reverse=True)[: len(found)]
        assert list(found.values()) == pytest.approx(best, rel=1e-4)
        for place, passage in enumerate(passages):
            if passage in found:
                assert found[passage] == pytest.approx(expected[row, place].item(), rel=1e-4)
    assert all(len(run[query]) == 10 for query in queries) or name in ("sparse", "matches, weights alone")
    memory = Searcher.build(collection.passages(), retriever, device="cpu")
    memory.system = "start"
    first = next(iter(queries))
    assert memory.search(queries[first], 1)[0].id == run[first][0].passage
    (served,) = Opener(**on).open("packed", str(vectors.path))
    assert [hit.id for hit in served.search(queries[first], 3)] == [hit.passage for hit in run[first][:3]]
    again: dict[str, Any] = {"tokens": vectors.path, "data": beir, "out": tmp_path / "again", **on}
    if REPRESENTATIONS.load(kind).stored in ("tokens", "sparse"):
        reranked = read_run(api.rerank(tmp_path / "run", **again).path)
        assert [hit.passage for hit in reranked[first]] == [hit.passage for hit in run[first]]
    else:
        with pytest.raises(QontextError, match=f"holds the representation '{kind}', not tokens"):
            api.rerank(tmp_path / "run", **again)


def similarities(retriever: Path, queries: list[str], passages: list[str]) -> torch.Tensor:
    """[Q, P] as in training: all texts filled up."""
    model = Retriever(retriever, device="cpu", precision="fp32", packed=True)
    model.representation.fill_up()
    sides = []
    for kind, texts in (("query", queries), ("passage", passages)):
        rows = []
        for text in texts:
            longest = model.representation.longest(kind) or model.max_length  # type: ignore[arg-type]
            (ids,) = token_ids(model.tokenizer, model.layout, [text], kind, longest)  # type: ignore[arg-type]
            ids_1T = torch.from_numpy(ids).long()[None]
            with torch.inference_mode():
                rows.append(
                    model.representation(model.model, ids_1T, torch.ones_like(ids_1T) > 0, kind == "query")
                )
        sides.append(torch.cat(rows))
    return model.representation.similarity(*sides)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["tokens", "matches"])
def test_a_prompt_cuts_off_no_end_of_a_text(start: Path, name: str) -> None:
    config = FinetuneConfig.make(
        {**settings(name), "groups": "groups", "encoder": str(start), "passage_prompt": "bridge of stone: "},
        where="finetune",
    )
    encoder = config.open_encoder(config.encoder).eval()
    representation = open_representation(config, encoder)
    longest = representation.longest("passage") or config.passage_length + encoder.longest_prompt
    assert longest == config.passage_length + encoder.longest_prompt > config.passage_length
    ids = torch.randint(20, 60, (1, longest), generator=torch.Generator().manual_seed(0))
    packed = []
    with torch.no_grad():
        for even in (representation.even, None):  # as in training, and as they are
            representation.even = even
            texts = representation(encoder, ids, torch.ones_like(ids) > 0, False)
            packed.append(representation.pack(texts).values)
    np.testing.assert_array_equal(*packed)
