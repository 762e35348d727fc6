"""Indexes in local databases of Milvus: what every server must keep, of a file outside the output directory, too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.retrieve.server_contract import (  # noqa: F401
    Server,
    test_a_collection_that_exists_is_refused,
    test_a_collection_that_is_gone,
    test_a_killed_build_resumes,
    test_a_killed_build_that_replaces_an_earlier_index,
    test_a_missing_server_is_one_sentence,
    test_an_index_that_replaces_an_earlier_one_with_other_settings,
    test_an_unfinished_build_with_other_settings_is_replaced,
    test_conditions_are_left_to_a_server_that_means_the_same,
    test_only_rows_that_changed_are_written,
    test_texts_are_stored,
    texts_of,
    written,
)

from qontext import api
from qontext.frame.errors import QontextError
from qontext.retrieve.index.load import open_index

DIES = """
    import os, signal
    from pymilvus import MilvusClient
    upsert, calls = MilvusClient.upsert, []
    def upsert_and_die(*arguments, **more):
        upsert(*arguments, **more)
        calls.append(0)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    MilvusClient.upsert = upsert_and_die
"""


def milvus(uri: str) -> Server:
    """The server or the local database at this address."""
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")

    def query(name: str, condition: str, fields: list[str], **more: Any) -> list[dict[str, Any]]:
        from pymilvus import MilvusClient

        client = MilvusClient(uri, token=os.environ.get("MILVUS_TOKEN", ""))
        client.load_collection(name)
        rows = client.query(name, filter=condition, output_fields=fields, consistency_level="Strong", **more)
        client.close()
        return [dict(row) for row in rows]

    def drop(name: str) -> None:
        from pymilvus import MilvusClient

        client = MilvusClient(uri, token=os.environ.get("MILVUS_TOKEN", ""))
        client.drop_collection(name)
        client.close()

    def rows(name: str) -> list[tuple[int, str, list[float]]]:
        found = query(name, "number >= 0", ["number", "id", "vector"], limit=1_000)
        return sorted((row["number"], row["id"], list(map(float, row["vector"]))) for row in found)

    fields = ["vector", "document", "title", "text", "place", "metadata"]
    return Server(
        backend="milvus",
        uri=uri,
        names="collection",
        count=lambda name: int(query(name, "", ["count(*)"])[0]["count(*)"]),
        row=lambda name, id: query(name, f'id == "{id}"', fields)[0],
        rows=rows,
        drop=drop,
        missing="http://127.0.0.1:1",
        dies=DIES,
        translates=6,
    )


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return milvus(str(tmp_path / "server.db"))


def test_a_local_database_is_not_replaced(tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    vectors = written(tmp_path / "vectors", texts_of(50))
    index = api.index(vectors, backend="milvus", out=tmp_path / "index")
    with pytest.raises(
        QontextError, match=r"a local database cannot replace another one. Leave --replace out"
    ):
        api.index(vectors, backend="milvus", replace=str(index.path), out=tmp_path / "other")


@pytest.mark.parametrize("kind", ["HNSW", "IVF_FLAT"])
def test_an_approximate_index_of_a_local_database(tmp_path: Path, kind: str) -> None:
    """More probes find more: the options are those of the index."""
    vectors = written(tmp_path / "vectors", texts_of(100))
    exact, _ = open_index(vectors.path)
    queries = np.random.default_rng(5).standard_normal((20, exact.dimension)).astype(np.float32)
    expected, recalls = exact.search(queries, 10)[0].tolist(), []
    for probes in (8, 1):
        more = {"neighbors": 8, "effort": 50, "lists": 8, "probes": probes}
        artifact = api.index(vectors, backend="milvus", kind=kind, out=tmp_path / str(probes), **more)
        opened, _ = open_index(artifact.path)
        answers = opened.search(queries, 10)[0].tolist()
        recalls.append(np.mean([len({*a} & {*b}) / 10 for a, b in zip(answers, expected)]))
        opened.client.close()  # type: ignore[attr-defined]
    assert recalls[0] > 0.95
    assert recalls[1] > 0.95 if kind == "HNSW" else recalls[1] < 0.8


def test_a_database_that_is_open_is_built_again_by_the_same_process(tmp_path: Path) -> None:
    """As in a notebook; milvus-lite would keep serving the files that are gone."""
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    first, second = (written(tmp_path / str(count), texts_of(count)) for count in (50, 30))
    opened, _ = open_index(api.index(first, backend="milvus", out=tmp_path / "index").path)
    query = np.ones((1, opened.dimension), np.float32)
    assert len(opened.search(query, 50)[0][0]) == 50
    artifact = api.index(second, backend="milvus", out=tmp_path / "index", overwrite=True)
    opened, _ = open_index(artifact.path)
    assert sorted(opened.search(query, 30)[0][0]) == list(range(30))
    opened.client.close()  # type: ignore[attr-defined]
