"""A directory of `adapt` whose best passages are compared token by token: the same results by every way to search it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import World

from qontext import api
from qontext.data.collection import read_queries
from qontext.data.runs import Run, read_run
from qontext.retrieve.searcher import Searcher
from qontext.serve.systems import Opener

WEIGHT = 0.4
FP32: dict[str, Any] = {"device": "cpu", "precision": "fp32"}


@pytest.fixture(scope="module")
def root(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokens") / "mine"
    shutil.copytree(world.folder / "mine", root)
    about = json.loads((root / "adapted.json").read_text())
    about |= {"system": "tokens-start", "token_weight": WEIGHT}
    (root / "adapted.json").write_text(json.dumps(about))
    read = {"encoder": root / "model", "max_length": about["read_tokens"], **FP32}
    vectors = root / "index" / "vectors"
    window = json.loads((vectors / "meta.json").read_text())["config"]["window"]
    api.encode(root / "index" / "passages", **read, window=window, tokens=True, out=vectors, overwrite=True)
    return root


@pytest.fixture(scope="module")
def by_verbs(world: World, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Its parts, one verb after the other."""
    folder, weights = (
        tmp_path_factory.mktemp("verbs"),
        json.loads((root / "adapted.json").read_text())["weights"],
    )
    data, k = world.folder / "data", {"k": 100}
    words = api.retrieve(root / "index" / "bm25", data=data, **k, out=folder / "words")
    vectors = api.retrieve(root / "index" / "vectors", data=data, **k, **FP32, out=folder / "vectors")
    both = api.fuse((words, vectors), method="zscore", weights=tuple(weights), **k, out=folder / "both")
    ranked = api.rerank(
        both, tokens=root / "index" / "vectors", data=data, **k, **FP32, out=folder / "ranked"
    )
    runs, fusing = (both, ranked), (1 - WEIGHT, WEIGHT)
    return read_run(api.fuse(runs, method="zscore", weights=fusing, out=folder / "tokens").path)


def test_searcher_and_server_agree_with_the_verbs(world: World, root: Path, by_verbs: Run) -> None:
    queries = dict(list(read_queries(world.folder / "data").items())[:8])
    searcher = Searcher(root, device="cpu").run(queries, 10)
    opened = Opener(**FP32).open("mine", str(root))
    assert [system.name for system in opened] == ["mine", "mine/bm25", "mine/dense", "mine/hybrid"]
    assert opened[0].label == "BM25 + original encoder + tokens"
    served = opened[0].run(queries, 10)
    for name in queries:
        expected = by_verbs[name][:10]
        assert [hit.passage for hit in searcher[name]] == [hit.passage for hit in expected]
        assert [hit.score for hit in searcher[name]] == pytest.approx([h.score for h in expected], abs=2e-3)
        assert [hit.passage for hit in served[name]] == [hit.passage for hit in expected]


def test_tokens_change_the_order(world: World, root: Path, by_verbs: Run, tmp_path: Path) -> None:
    """Otherwise nothing would be tested above."""
    both = read_run(
        api.retrieve(world.folder / "mine", data=world.folder / "data", k=10, out=tmp_path / "r").path
    )
    assert any(
        [hit.passage for hit in both[query]] != [hit.passage for hit in by_verbs[query][:10]]
        for query in both.queries
    )


def test_similar_passages_can_be_searched(root: Path) -> None:
    """With a passage as the query, which has more tokens."""
    system = Opener(**FP32).open("mine", str(root))[0]
    (passage,) = system.passages.sample(1)
    hits = system.run({"q": passage.content}, 3, kind="passage")["q"]
    assert passage.id == hits[0].passage and hits[0].score > hits[1].score
