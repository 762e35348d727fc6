"""A server follows its documents: what is served is replaced at once, and no answer is lost or mixed meanwhile."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.serve.conftest import World, start

from qontext import api
from qontext.serve.refresh import Refresher
from qontext.serve.security import Policy
from qontext.serve.systems import Opener
from qontext.serve.verb import ServeConfig, make_app, open_service


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "mill.md").write_text("The mill grinds flour.\n")
    return folder


def served(out: Path) -> Any:
    return open_service(
        ServeConfig.make({"directories": (str(out),), "device": "cpu", "port": 0}, where="serve")
    )


def titles(service: Any, question: str) -> list[str]:
    system = service.default
    return [answer.document for answer in system.search(question, 5)]


def follow(service: Any, out: Path, every: float) -> Refresher:
    return Refresher(service, [out], lambda: service.opener.open_all([str(out)]), every)


def test_a_changed_file_is_served_once_it_is_looked_at(docs: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    api.refresh(out, source=[docs], words=True)
    service = served(out)
    try:
        thread = follow(service, out, 60)
        assert thread.look() is False and titles(service, "bread") == []
        (docs / "oven.md").write_text("The oven bakes bread.\n")
        api.refresh(out, words=True)
        assert thread.look() is True, "whoever built the index"
        assert titles(service, "bread") == ["oven.md"] and titles(service, "flour") == ["mill.md"]
        assert thread.look() is False
    finally:
        service.close()


def test_what_changed_since_it_was_opened_is_served(docs: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    api.refresh(out, source=[docs], words=True)
    service = served(out)
    try:
        (docs / "oven.md").write_text("The oven bakes bread.\n")
        api.refresh(out, words=True)
        assert follow(service, out, 60).look() is True and titles(service, "bread") == ["oven.md"]
    finally:
        service.close()


def test_a_failed_refresh_leaves_what_is_served(docs: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    api.refresh(out, source=[docs], words=True)
    service = served(out)
    try:
        thread = follow(service, out, 60)
        docs.rename(tmp_path / "elsewhere")
        assert thread.look() is False and titles(service, "flour") == ["mill.md"]
    finally:
        service.close()


def test_a_model_is_loaded_again_once_it_changed(world: World, tmp_path: Path) -> None:
    root = Path(shutil.copytree(world / "mine", tmp_path / "mine"))
    directories, settings = [f"mine={root}"], {"device": "cpu", "precision": "fp32"}
    opener = Opener(**settings)
    before = opener.open_all(directories)[0]
    assert opener.open_all(directories)[0].encoder is before.encoder
    assert before.encoder.encode(["a"], "query").shape == (1, 16)
    file = root / "model" / "model.safetensors"
    save_file({name: 2 * values for name, values in load_file(file).items()}, tmp_path / "new")
    (tmp_path / "new").replace(file)
    after = opener.open_all(directories)[0].encoder
    assert before.encoder is not None and after is not None
    assert not np.allclose(after.encode(["a"], "query"), before.encoder.encode(["a"], "query"))


def test_a_request_keeps_the_systems_that_it_began_with(docs: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    api.refresh(out, source=[docs], words=True)
    service = served(out)
    try:
        before = service.default
        (docs / "mill.md").write_text("The mill saws wood.\n")
        api.refresh(out, words=True)
        service.replace(service.opener.open_all([str(out)]))
        assert before is not service.default
        assert [answer.text for answer in before.search("mill", 5)] == ["The mill grinds flour."]
        assert titles(service, "wood") == ["mill.md"]
    finally:
        service.close()


def test_no_answer_is_lost_or_mixed_while_the_index_is_swapped(tmp_path: Path) -> None:
    """Two states of the same documents, swapped a hundred times under load: each answer is of one of them."""
    states = []
    for word in ("flour", "timber"):
        docs = tmp_path / f"{word}.jsonl"
        rows = [
            {"_id": f"{word}-{n}", "text": f"Lot {n} of the mill is {word}."}
            for n in range(30 if word == "flour" else 50)
        ]
        docs.write_text("".join(json.dumps(row) + "\n" for row in rows))
        api.refresh(tmp_path / word, source=[docs], words=True)
        states.append(str(tmp_path / word))
    service = served(Path(states[0]))
    config = ServeConfig.make({"directories": (states[0],), "device": "cpu", "port": 0}, where="serve")
    running = start(make_app(service, config, Policy()), service)
    done, problems, answered = threading.Event(), [], [0]

    def ask() -> None:
        with httpx.Client(base_url=running.url, timeout=60) as client:
            while not done.is_set():
                reply = client.post("/v1/search", json={"query": ["the mill", "lot 7"], "k": 20})
                words = {
                    hit["text"].split()[-1]
                    for result in reply.json().get("results", [])
                    for hit in result["hits"]
                }
                ids = {
                    hit["document"].partition("-")[0] + "."
                    for r in reply.json().get("results", [])
                    for hit in r["hits"]
                }
                if reply.status_code != 200 or len(words) != 1 or words != ids:
                    problems.append((reply.status_code, words, ids))
                answered[0] += 1

    threads = [threading.Thread(target=ask) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for swap in range(100):
            service.replace(Opener(device="cpu").open_all([f"mine={states[swap % 2]}"]))
            time.sleep(0.005)
    finally:
        done.set()
        for thread in threads:
            thread.join(timeout=60)
        running.stop()
    assert problems == [] and answered[0] > 10
