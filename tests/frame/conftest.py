"""A folder from anyone, and commands that are started in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tiny import Server

from qontext.frame.artifacts import META

HELPER = """
from pathlib import Path
from qontext.queries.generators import Generator
Path(__file__).with_name("MARKER").write_text("ran")
class X(Generator):
    def __call__(self, passages):
        for index, passage in enumerate(passages):
            yield index, [passage.text.split()[0]]
"""
RECIPES = {
    "generator": '[generate]\npassages = "p.jsonl"\ngenerator = "helper:X"\nwords = 3\n',
    "source": '[split]\nsource = "helper:X:docs"\n',
    "input": '[inputs]\ncorpus = "helper:X:docs"\n[split]\nsource = "$corpus"\n',
    "method": '[pretrain]\npassages = "p.jsonl"\nmethod = "helper:X"\n',
    "judge": '[filter]\nqueries = "q"\npassages = "p.jsonl"\nby = "helper:X"\n',
    "backend": '[index]\nsource = "v"\nbackend = "helper:X"\n',
    "representation": '[finetune]\ndata = "d"\nencoder = "e"\nrepresentation = "helper:X"\n',
    "extends": '[recipe]\nextends = "generator.toml"\n',
    "small": '[generate]\npassages = "p.jsonl"\ngenerator = "lead"\n[small]\ngenerate.generator = "helper:X"\n',
    "arm": '[generate]\npassages = "p.jsonl"\ngenerator = "lead"\n[sweep.one]\ngenerate.generator = "helper:X"\n',
}
ARTIFACTS = {
    "index": {"verb": "index", "config": {"backend": "helper:X"}, "summary": {}},
    "vectors": {
        "verb": "encode",
        "config": {"kind": "passage"},
        "summary": {"representation": "helper:X"},
        "inputs": {"encoder": {"path": "e", "digest": "name:e"}},
    },
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The folder."""
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "helper.py").write_text(HELPER)
    (folder / "p.jsonl").write_text('{"_id": "1", "text": "A river of stones."}\n')
    (folder / "q.jsonl").write_text('{"_id": "1", "text": "river"}\n')
    for name, text in RECIPES.items():
        (folder / f"{name}.toml").write_text(text)
    made = {"by": "qontext", "python": "3", "finished": "2026", "seconds": 1.0}
    for name, meta in ARTIFACTS.items():
        (folder / name).mkdir()
        about = {"key": "k", "inputs": {}, "digest": "d", "parts": {}, "made": made, **meta}
        (folder / name / META).write_text(json.dumps(about))
    (folder / "evil_tools.egg-info").mkdir()
    (folder / "evil_tools.egg-info" / "PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: evil-tools\nVersion: 1\n"
    )
    (folder / "evil_tools.egg-info" / "entry_points.txt").write_text(
        "[qontext.generators]\nplain-name = helper:X\n"
    )
    (folder / "entry-point.toml").write_text(RECIPES["generator"].replace("helper:X", "plain-name"))
    return folder


@pytest.fixture
def command(clone: Path, warm: Server) -> Callable[..., tuple[int, str]]:
    """(exit code, what it says) of a command that is started in the folder."""

    def run(*words: str, **environment: str) -> tuple[int, str]:
        order = {"argv": [*words], "cwd": str(clone)}
        running = warm.launch(order, clone / "said", **environment)
        (code,) = running.wait()
        return code, running.text()

    return run
