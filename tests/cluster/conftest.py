"""Small inputs for every stage that is made of parts, each with settings under which it has several parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.retrieve.servers import TOKEN
from tests.tiny import save_bert, write_inputs

import qontext
from qontext import api
from qontext.baselines import expand
from qontext.corpus import blocks, tokens
from qontext.finetune.negatives import mine
from qontext.frame.artifacts import Artifact
from qontext.retrieve import encode, rerank, search

ROOT = Path(__file__).parents[2]
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
SIZES = {"max_position_embeddings": 64, "initializer_range": 0.3}
COMMANDS: dict[str, dict[str, Any]] = {
    "encode": {"texts": "passages", "encoder": "encoder", "precision": "fp32", "device": "cpu"},
    "encode text": {"texts": "labeled", "encoder": "encoder", "precision": "fp32", "device": "cpu"},
    "encode queries": {
        "texts": "queries", "encoder": "encoder", "kind": "query", "precision": "fp32", "device": "cpu",
    },
    "generate": {"passages": "passages", "generator": "keyphrase", "part_passages": 16},
    "tokens": {"texts": "passages", "tokenizer": "encoder", "workers": 1},
    "rerank": {
        "run": "run", "reranker": ["reranker"], "data": "labeled", "k": 5, "precision": "fp32", "device": "cpu",
    },
    "retrieve": {"index": "vectors", "data": "labeled", "k": 5, "precision": "fp32", "device": "cpu"},
    "retrieve words": {"bm25": True, "data": "labeled", "k": 5},
    "split": {"source": "docs.jsonl", "max_tokens": 40, "on_error": "skip", "workers": 1},
    "mine": {"run": "run", "qrels": "labeled", "data": "labeled", "per_query": 3, "random": 2, "split": "train"},
    "filter": {"queries": "queries", "passages": "passages", "by": "retrieval", "retriever": "encoder", "device": "cpu"},
    "expand": {"queries": "queries", "passages": "passages"},
}  # fmt: skip
"""Settings of each verb; values that name a file of `Inputs.folder` stand for it. What follows the verb tells apart."""


@dataclass
class Inputs:
    """The folder of the inputs, and what one process makes of them."""

    folder: Path
    whole: dict[str, Artifact] = field(default_factory=dict)

    def settings(self, name: str) -> dict[str, Any]:
        return {key: self._path(value) for key, value in COMMANDS[name].items()}

    def _path(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._path(item) for item in value]
        if isinstance(value, str) and (self.folder / value).exists():
            return str(self.folder / value)
        return value

    def make(self, name: str, out: Path, **more: Any) -> Artifact:
        artifact: Artifact = getattr(api, name.split()[0])(out=out, **self.settings(name), **more)
        return artifact

    def digest(self, name: str) -> str:
        """The digest of what one process makes in one go."""
        if name not in self.whole:
            self.whole[name] = self.make(name, self.folder / f"whole {name}")
        return self.whole[name].digest

    def argv(self, name: str, out: Path, *more: str) -> list[str]:
        """The command line."""
        options = []
        for key, value in self.settings(name).items():
            for item in value if isinstance(value, list) else [value]:
                is_first = key == next(iter(COMMANDS[name]))
                options += [str(item)] if is_first else [f"--{key.replace('_', '-')}", str(item)]
        return [name.split()[0], *options, "--out", str(out), *more]


def shrink(set_attribute: Callable[..., None]) -> None:
    """Few rows make a part, as in `tests/server.py`."""
    set_attribute(blocks, "RECORDS_PER_BLOCK", 4)
    set_attribute(blocks, "BLOCKS_PER_PART", 2)
    set_attribute(tokens, "TEXTS_PER_BLOCK", 16)
    set_attribute(tokens, "TEXTS_PER_CHUNK", 32)
    set_attribute(encode, "BLOCK", 16)
    set_attribute(rerank, "BLOCK", 6)
    set_attribute(search, "BLOCK", 4)
    set_attribute(expand, "PART", 20)
    set_attribute(mine, "PART", 6)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch.setattr)


@pytest.fixture(scope="session")
def inputs(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    folder = tmp_path_factory.mktemp("cluster")
    write_inputs(folder, "labeled", {"train": range(20), "dev": range(20, 30)})
    save_bert(folder / "encoder", minilm, **SIZES)
    save_bert(folder / "reranker", minilm, seed=1, num_labels=1, **SIZES)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch.setattr)
        api.split(folder / "docs.jsonl", max_tokens=40, workers=1, out=folder / "passages")
    api.generate(
        folder / "passages", generator="keyphrase", per_passage=2, part_passages=30, out=folder / "queries"
    )
    api.retrieve(bm25=True, data=folder / "labeled", k=10, out=folder / "run")
    api.encode(
        folder / "labeled",
        encoder=folder / "encoder",
        precision="fp32",
        device="cpu",
        out=folder / "vectors",
    )
    return Inputs(folder)


def start_head(settings: dict[str, Any], attempts: int = 3) -> Any:
    """Ray may not see a node that it has just started, where this process was connected to another cluster before."""
    from ray.cluster_utils import Cluster

    for _ in range(attempts - 1):
        try:
            return Cluster(initialize_head=True, head_node_args=settings)
        except Exception as error:  # of no class of its own
            if "timed out during startup" not in str(error):
                raise
    return Cluster(initialize_head=True, head_node_args=settings)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head without cores and three nodes of one core each; this process is connected to them. The nodes log in to
    servers with what is in their environment when they start."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{Path(qontext.__file__).parents[1]}:{ROOT}")  # which the nodes inherit
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("MILVUS_TOKEN", TOKEN)
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 * 2**20}
        started = start_head(head)
        for _ in range(3):
            started.add_node(**NODE)
        ray.init(address=started.address, logging_level="ERROR", log_to_driver=False)
        yield started
        ray.shutdown()
        started.shutdown()
