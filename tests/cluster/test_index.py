"""A collection on a real server: the same rows from one process, shards, ranks and nodes, whatever breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.retrieve.conftest import milvus_server, postgres  # noqa: F401
from tests.retrieve.server_contract import Server, changed, check_search, texts_of, written
from tests.retrieve.servers import TOKEN
from tests.retrieve.test_milvus import milvus
from tests.retrieve.test_postgres import asked
from tests.tiny import Server as Warm

from qontext import api
from qontext.frame.artifacts import Artifact, open_artifact
from qontext.frame.errors import QontextError
from qontext.workflow.recipe import read_recipe
from qontext.workflow.run import run_recipe

TEXTS = texts_of(200)
KILLED = {"postgres": "tests.cluster.dying:Postgres", "milvus": "tests.cluster.dying:Milvus"}


@pytest.fixture(scope="module", autouse=True)
def token() -> Iterator[None]:
    """Of this process; see the fixture `cluster` for that of the nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILVUS_TOKEN", TOKEN)
        yield


@pytest.fixture(scope="module", params=["postgres", "milvus"])
def server(request: pytest.FixtureRequest) -> Server:
    if request.param == "postgres":
        return asked(request.getfixturevalue("postgres").uri)
    return milvus(request.getfixturevalue("milvus_server"))


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """In five parts."""
    return written(tmp_path_factory.mktemp("vectors") / "vectors", TEXTS)


@pytest.fixture(scope="module")
def alone(server: Server, vectors: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The index that one process builds."""
    return server.index(vectors, tmp_path_factory.mktemp("alone") / "index", "alone")


def check(server: Server, index: Artifact, name: str, alone: Artifact) -> None:
    """The index has the rows of that of one process, and its directory the same files."""
    assert server.rows(name) == server.rows("alone") and server.count(name) == len(TEXTS)
    assert index.digest == alone.digest and not index.verify()
    names = {path.name for path in index.path.iterdir() if not path.name.startswith(".lock")}
    assert names == {"meta.json", "logs", "ids.parquet", "keys.parquet"}


def test_shards(server: Server, vectors: Artifact, alone: Artifact, tmp_path: Path) -> None:
    check_search(alone, TEXTS)
    server.index(vectors, tmp_path / "index", "shards", shard="1/2")
    assert server.count("shards") == 80
    with pytest.raises(QontextError, match="not finished"):
        open_artifact(tmp_path / "index")
    check(server, server.index(vectors, tmp_path / "index", "shards", shard="0/2"), "shards", alone)


def test_shards_that_replace_an_earlier_index(server: Server, vectors: Artifact, tmp_path: Path) -> None:
    after = changed(TEXTS)
    earlier = server.index(vectors, tmp_path / "earlier", "replaced")
    later = written(tmp_path / "after", after)
    for shard in ("0/2", "1/2"):
        index = server.index(later, tmp_path / "index", "replaced", replace=earlier.path, shard=shard)
    assert server.count("replaced") == len(after)
    check_search(index, after)


def test_a_shard_is_killed(server: Server, vectors: Artifact, alone: Artifact, tmp_path: Path) -> None:
    server.killed(vectors, tmp_path / "index", "shard", shard="0/2")
    server.index(vectors, tmp_path / "index", "shard", shard="1/2")
    check(server, server.index(vectors, tmp_path / "index", "shard", shard="0/2"), "shard", alone)


@pytest.mark.parametrize("server", ["postgres"], indirect=True)
def test_ranks(server: Server, vectors: Artifact, alone: Artifact, warm: Warm, tmp_path: Path) -> None:
    settings = server.settings_of("ranks")
    options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    argv = ["index", str(vectors.path), *options, "--out", str(out := tmp_path / "index")]
    warm.run(argv, tmp_path / "said", ranks=2, MILVUS_TOKEN=TOKEN)
    check(server, open_artifact(out), "ranks", alone)


def test_nodes(server: Server, vectors: Artifact, alone: Artifact, cluster: Any, tmp_path: Path) -> None:
    check(server, server.index(vectors, tmp_path / "index", "nodes", on="ray"), "nodes", alone)


def test_a_worker_is_killed_in_the_middle_of_a_part(
    server: Server, vectors: Artifact, alone: Artifact, cluster: Any, tmp_path: Path
) -> None:
    (tmp_path / "die").touch()
    dying = replace(server, backend=KILLED[server.backend])
    index = dying.index(vectors, tmp_path / "index", "killed", on="ray")
    assert not (tmp_path / "die").exists()
    check(server, index, "killed", alone)


@pytest.mark.parametrize("server", ["postgres"], indirect=True)
def test_a_collection_that_is_gone_is_written_again(
    server: Server, vectors: Artifact, alone: Artifact, tmp_path: Path
) -> None:
    """The parts that the directory has recorded are written, too."""
    server.index(vectors, tmp_path / "index", "lost", shard="0/2")
    server.drop("lost")
    check(server, server.index(vectors, tmp_path / "index", "lost"), "lost", alone)


@pytest.mark.parametrize("more", [{"shard": "0/2"}, {"on": "ray"}, {"on": "10.0.0.1:6379"}])
@pytest.mark.parametrize("backend", ["faiss-hnsw", "faiss", "bm25", "milvus"])
def test_a_file_is_built_by_one_process(
    vectors: Artifact, tmp_path: Path, backend: str, more: dict[str, Any]
) -> None:
    with pytest.raises(
        QontextError, match=f"the backend '{backend}' writes a file, which a single process builds.*Leave out"
    ):
        api.index(vectors, backend=backend, out=tmp_path / "index", **more)


def test_a_recipe_on_a_cluster_builds_files_in_its_own_process(vectors: Artifact, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(f"[index]\nsource = '{vectors.path}'\nbackend = 'faiss'\n")
    run_recipe(read_recipe(str(tmp_path / "recipe.toml")), tmp_path / "runs", on="127.0.0.1:1")
    assert open_artifact(tmp_path / "runs" / "index").summary["passages"] == len(TEXTS)


def test_a_password_in_the_address_stays_here(vectors: Artifact, tmp_path: Path) -> None:
    uri = "postgresql://me:s3cret@127.0.0.1:1/none"
    with pytest.raises(QontextError, match=r"--uri does not reach the workers.*PGPASSWORD") as refused:
        api.index(vectors, backend="postgres", uri=uri, on="ray", out=tmp_path / "index")
    assert "s3cret" not in str(refused.value) and not (tmp_path / "index").exists()
