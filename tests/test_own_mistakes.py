"""Mistakes in a class from outside the package: a sentence that names the class, or its file and line, not a bug of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.tiny import Server

from qontext import api
from qontext.adapt import vector_index
from qontext.data.collection import Passage
from qontext.frame.errors import QontextError
from qontext.retrieve.index import Index
from qontext.retrieve.rankers import IndexRanker
from qontext.serve.passages import Passages
from qontext.serve.systems import ServedSystem

HEAD = """
import numpy as np, torch
from qontext.pretrain.batches import Layout
from qontext.pretrain.objectives.base import Objective, Output
from qontext.retrieve.index import Backend, Index
"""
METHOD = """
class Mine(Objective):
    @staticmethod
    def layout(options, common):
        return {layout}
    def forward(self, rows):
        {forward}
"""
LOSS = "loss = self.encoder(rows.encoder.ids, rows.encoder.mask)[0].sum(); "
LAYOUT = 'Layout("anchor", "nothing", 0.15)'
BACKEND = """
class Nearest(Index):
    ids = np.array(["p00", "p01", "p02"])
    dimension = 128
    def search(self, queries, k, rows=None):
        {search}
class Mine(Backend):
    @classmethod
    def build(cls, source, work, options, advance):
        {build}
    {load}
"""
LOAD = "load = classmethod(lambda cls, artifact: Nearest())"


def method(forward: str, layout: str = LAYOUT) -> str:
    return METHOD.format(layout=layout, forward=forward)


METHODS = {
    "no forward": (method("").replace("    def forward(self, rows):\n", ""), "'mine:Mine' has no forward"),
    "a tensor": (method(LOSS + "return loss"), "forward of Mine returned a Tensor"),
    "a float": (method(LOSS + 'return Output({"a": 1.0})'), "the loss 'a' as a float"),
    "a row of losses": (method('return Output({"a": torch.ones(3)})'), "as shape [3]"),
    "a layout of its own": (method(LOSS, '("anchor", 0.1)'), "mine:Mine returned a tuple"),
    "a typing error": (method("return lose"), "mine.py:12: mine:Mine failed: NameError: name 'lose'"),
    "an unused context": (method(LOSS), "the method mine:Mine reads no context"),
}


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    rows = [{"_id": f"p{n:02d}", "text": f"The {n}th mill grinds flour by the river."} for n in range(24)]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return api.split(folder / "corpus.jsonl", keep=True, out=folder / "passages", workers=1).path


def run(warm: Server, folder: Path, *arguments: str, code: int = 2) -> str:
    """The error of a command whose current directory is `folder`."""
    running = warm.launch({"argv": arguments, "cwd": str(folder)}, folder / "said")
    assert running.wait() == {code}, running.text()
    assert "internal error" not in running.text() and "Traceback" not in running.text()
    return running.text()


@pytest.mark.parametrize("name", METHODS)
def test_a_method(name: str, tmp_path: Path, passages: Path, minilm: Path, warm: Server) -> None:
    code, message = METHODS[name]
    (tmp_path / "mine.py").write_text(HEAD + code)
    context = ["--context", "rand"] if name == "an unused context" else []
    settings = ["--encoder", "tiny", "--tokenizer", str(minilm), "--batch-size", "4", "--steps", "1"]
    command = ["pretrain", str(passages), "--method", "mine:Mine", *settings, *context, "--out", "out"]
    assert message in run(warm, tmp_path, *command)


BACKENDS = {
    "no load": ("return [[0]], [[1.0]]", "return 3", "", "'mine:Mine' has no load"),
    "build returns nothing": ("return [[0]], [[1.0]]", "pass", LOAD, "returned a NoneType"),
    "swapped": ("return np.ones((1, 2), np.float32), np.zeros((1, 2), int)", "return 3", LOAD, "of float32 and int64"),
    "one array": ("return np.zeros((1, 2))[0, 0]", "return 3", LOAD, "search of Nearest returned no pair"),
    "of another shape": ("return np.zeros((7, 2), int), np.ones((7, 2))", "return 3", LOAD, "expected [1, 2]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BACKENDS)
def test_an_index(name: str, tmp_path: Path, passages: Path, warm: Server) -> None:
    search, build, load, message = BACKENDS[name]
    code = HEAD + BACKEND.format(search=search, build=build, load=load) + '    reads = "texts"\n'
    (tmp_path / "mine.py").write_text(
        code.replace("class Nearest(Index):\n", 'class Nearest(Index):\n    reads = "texts"\n')
    )
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "flour"}\n')
    index = ["index", str(passages), "--backend", "mine:Mine", "--out", "index"]
    if name in ("no load", "build returns nothing"):
        assert message in run(warm, tmp_path, *index)
        return
    run(warm, tmp_path, *index, code=0)
    search = ["retrieve", "index", "--queries", "queries.jsonl", "--k", "2", "--trust", "--out", "run"]
    assert message in run(warm, tmp_path, *search)


class Half(Index):
    """Returns places without scores."""

    ids = np.array(["p0", "p1"], object)
    dimension = 4

    def search(self, queries: Any, k: int, rows: Any = None) -> Any:
        return np.zeros((len(queries), k), np.int64)


class Encoder:
    def encode(self, texts: Any, kind: str) -> Any:
        return np.zeros((len(texts), 4), np.float32)


def served(question: str) -> Any:
    passages = Passages([Passage("p0", "", "a", "d"), Passage("p1", "", "b", "d")], "passages")
    return ServedSystem("mine", "mine", cast(Any, None), passages, IndexRanker(Half(), Encoder())).search(
        [question], 2
    )


SEARCHES: dict[str, Callable[[str], Any]] = {
    "a ranker": lambda question: IndexRanker(Half(), Encoder()).rank({"q": question}, 2),
    "its comparison with exact search": lambda question: vector_index._timed(
        Half(), Encoder().encode([question], "")
    ),
    "the server": served,
}


@pytest.mark.parametrize("name", SEARCHES)
def test_all_searches_check_what_an_index_returns(name: str) -> None:
    with pytest.raises(QontextError, match="search of Half returned no pair of arrays"):
        SEARCHES[name]("flour")
