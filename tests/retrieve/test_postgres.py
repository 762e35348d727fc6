"""Indexes in a real PostgreSQL server: what every server must keep, its passwords, names and transactions."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.retrieve import server_contract
from tests.retrieve.server_contract import (  # noqa: F401
    Server,
    check_search,
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
from tests.retrieve.servers import PostgresServer

from qontext import api
from qontext.frame import trust
from qontext.frame.errors import QontextError
from qontext.retrieve.index.load import open_index
from qontext.retrieve.stored import open_vectors

DIES = """
    import os, signal
    from qontext.retrieve.index.servers.postgres import PostgresTable
    copy, calls = PostgresTable._copy, []
    def copy_and_die(self, rows):
        copy(self, rows)
        calls.append(rows)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    PostgresTable._copy = copy_and_die
"""


def execute(uri: str, statement: str, *values: Any) -> list[Any]:
    import psycopg
    from pgvector.psycopg import register_vector

    with psycopg.connect(uri, autocommit=True) as client:
        register_vector(client)
        done = client.execute(statement, values)  # type: ignore[arg-type]
        return done.fetchall() if done.description else []


def array_of(vector: Any) -> np.ndarray[Any, Any]:
    """A vector as pgvector reads it: an array (0.4) or an object of its own."""
    return vector if isinstance(vector, np.ndarray) else vector.to_numpy()


def asked(uri: str) -> Server:
    """The server at this address."""

    def row(name: str, id: str) -> dict[str, Any]:
        names = ("vector", "document", "title", "text", "place", "metadata")
        (values,) = execute(uri, f'SELECT {", ".join(names)} FROM "{name}" WHERE id = %s', id)
        return {**dict(zip(names, values)), "vector": array_of(values[0])}

    def rows(name: str) -> list[tuple[int, str, list[float]]]:
        found = execute(uri, f'SELECT number, id, vector FROM "{name}"')
        return sorted((number, id, array_of(vector).tolist()) for number, id, vector in found)

    return Server(
        backend="postgres",
        uri=uri,
        names="table",
        count=lambda name: execute(uri, f'SELECT count(*) FROM "{name}"')[0][0],
        row=row,
        rows=rows,
        drop=lambda name: execute(uri, f'DROP TABLE "{name}", "{name}_build"'),
        missing="postgresql://127.0.0.1:1/none",
        dies=DIES,
        settings={"kind": "exact"},
        translates=25,
    )


@pytest.fixture
def server(postgres: PostgresServer) -> Server:
    return asked(postgres.uri)


def test_a_server_that_is_killed_in_the_middle_of_a_part(
    postgres: PostgresServer, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its finished parts are there as a whole, nothing else is, and the same command resumes."""
    from qontext.retrieve.index.servers.postgres import PostgresTable

    texts, copy = texts_of(100), PostgresTable._copy
    calls: list[int] = []

    def copy_and_kill(self: Any, rows: Any) -> None:
        copy(self, rows)
        calls.append(len(rows.keys))
        if len(calls) == 2:
            postgres.kill()

    vectors = written(tmp_path / "vectors", texts)
    monkeypatch.setattr(PostgresTable, "_copy", copy_and_kill)
    try:
        with pytest.raises(QontextError, match=r"PostgreSQL: .*Check that it runs"):
            server.index(vectors, tmp_path / "index", "crashed")
    finally:
        postgres.start()
    monkeypatch.undo()
    assert server.count("crashed") == 40
    index = server.index(vectors, tmp_path / "index", "crashed")
    assert server.count("crashed") == 100
    check_search(index, texts)


def test_a_part_that_two_processes_write_is_there_once(
    postgres: PostgresServer, server: Server, tmp_path: Path
) -> None:
    """The second waits until the first has written it, and writes nothing; where the first dies, it writes all."""
    from qontext.retrieve.index.servers import postgres as module
    from qontext.retrieve.index.servers.base import StoredRows

    texts = texts_of(80)
    vectors = open_vectors(written(tmp_path / "vectors", texts).path)
    options = module.PostgresOptions.model_construct(uri=postgres.uri, table="twice", kind="exact")
    parts = [
        StoredRows(vectors.part_numbers[n], vectors.part_ids[n].to_pylist(), vectors.parts[n], None)
        for n in (0, 1)
    ]
    with (
        trust.trusting(),
        module.connect(postgres.uri) as one,
        module.connect(postgres.uri) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        first, second = (module.PostgresTable(client, vectors, options) for client in (one, other))
        copy, copied = second._copy, []
        second._copy = lambda rows: (copied.append(len(rows.keys)), copy(rows))  # type: ignore[method-assign]
        first.create("build", "d")
        for number, is_lost in ((0, False), (1, True)):
            with contextlib.suppress(RuntimeError), one.transaction():
                first.write("build", number, parts[number])
                late = pool.submit(second.write, "build", number, parts[number])
                waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                while not execute(postgres.uri, waits)[0][0]:
                    assert not late.done()
                if is_lost:
                    raise RuntimeError
            late.result()
            assert copied == [40] * number and server.count("twice") == 40 * (number + 1)
        first.take_over("next build")
        with pytest.raises(QontextError, match="the table 'twice' was rebuilt in the meantime"):
            second.write("build", 0, parts[0])
    assert [id for _, id, _ in server.rows("twice")] == sorted(texts)


def test_rows_of_others_are_counted(server: Server, postgres: PostgresServer, tmp_path: Path) -> None:
    """Whoever writes into the table during the build is noticed in the end."""
    vectors = written(tmp_path / "vectors", texts_of(100))
    server.index(vectors, tmp_path / "index", "shared", shard="0/2")
    zeros = np.zeros(server_contract.DIMENSIONS, np.float32)
    execute(postgres.uri, "INSERT INTO shared VALUES (1000, 'stranger', %s)", zeros)
    with pytest.raises(QontextError, match=r"'shared' has 101 rows, expected 100. Something else wrote"):
        server.index(vectors, tmp_path / "index", "shared", shard="1/2")


def test_a_server_that_was_restarted_is_found_again(
    postgres: PostgresServer, server: Server, tmp_path: Path
) -> None:
    index = server.index(written(tmp_path / "vectors", texts_of(50)), tmp_path / "index", "restarted")
    opened, _ = open_index(index.path)
    queries = np.ones((1, server_contract.DIMENSIONS), np.float32)
    expected = opened.search(queries, 5)[0].tolist()
    execute(postgres.uri, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND application_name = 'qontext'")  # fmt: skip
    assert opened.search(queries, 5)[0].tolist() == expected


def test_a_password_is_used_and_nowhere_recorded(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = written(tmp_path / "vectors", texts_of(50))
    for number, uri in enumerate(
        [postgres.address("guarded:pa%3As%2Fs%40w"), postgres.address("guarded:pa:s/s@w")]
    ):
        out = tmp_path / f"index{number}"
        api.index(vectors, backend="postgres", uri=uri, table=f"secret{number}", out=out)
        files = "".join(path.read_text(errors="ignore") for path in out.rglob("*.json"))
        assert "guarded@" in files and "s/s" not in files and "s%2Fs" not in files
    monkeypatch.setattr("qontext.retrieve.index.servers.addresses._PASSWORDS", {})
    with pytest.raises(QontextError, match=r"PostgreSQL: .*no password supplied.*Set PGPASSWORD"):
        open_index(out)
    monkeypatch.setenv("PGPASSWORD", "pa:s/s@w")
    assert len(open_index(out)[0].ids) == 50


@pytest.mark.parametrize("form", ["guarded:s3cret", "guarded"])
def test_a_wrong_password_is_refused_and_not_repeated(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    vectors = written(tmp_path / "vectors", texts_of(50))
    with pytest.raises(QontextError, match=r"password authentication failed.*PGPASSWORD") as refused:
        api.index(vectors, backend="postgres", uri=postgres.address(form), out=tmp_path / "index")
    assert "s3cret" not in str(refused.value) and not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    "uri", ["postgresql://u:s3cret@[::1/x", "host=h user=u password='s3cret", "postgres:/u:s3cret@h"]
)
def test_an_address_that_cannot_be_read_does_not_show_its_password(tmp_path: Path, uri: str) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    vectors = written(tmp_path / "vectors", texts_of(50))
    for bad in (uri, uri + "\0"):
        with pytest.raises(QontextError) as refused:
            api.index(vectors, backend="postgres", uri=bad, out=tmp_path / "index")
        assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "table", ['a "quoted" name; DROP TABLE x', "public.in_a_schema", "Ünïcode", "select"]
)
def test_names_are_quoted(server: Server, tmp_path: Path, table: str) -> None:
    texts = texts_of(50)
    index = server.index(written(tmp_path / "vectors", texts), tmp_path / "index", table, kind="hnsw")
    check_search(index, texts)


@pytest.mark.parametrize("table", ["a.b.c", "x" * 57, "", "a."])
def test_names_that_the_server_would_change_are_refused(tmp_path: Path, table: str) -> None:
    vectors = written(tmp_path / "vectors", texts_of(50))
    with pytest.raises(QontextError, match="table"):
        api.index(vectors, backend="postgres", table=table, out=tmp_path / "index")


def test_half_precision_and_graph(server: Server, postgres: PostgresServer, tmp_path: Path) -> None:
    """The table has the type and the index that were asked for, and a search uses it."""
    vectors = written(tmp_path / "vectors", texts_of(100))
    index = server.index(vectors, tmp_path / "index", "half", kind="hnsw", halfvec=True, neighbors=8)
    (definition,) = execute(postgres.uri, "SELECT indexdef FROM pg_indexes WHERE indexname = 'half_vector'")
    assert "halfvec_ip_ops" in definition[0] and "m='8'" in definition[0]
    opened, _ = open_index(index.path)
    opened.client.execute("SET enable_seqscan = off")  # type: ignore[attr-defined]
    exact, _ = open_index(vectors.path)
    queries = np.random.default_rng(5).standard_normal((20, server_contract.DIMENSIONS)).astype(np.float32)
    pairs = zip(opened.search(queries, 10)[0].tolist(), exact.search(queries, 10)[0].tolist())
    assert np.mean([len({*a} & {*b}) / 10 for a, b in pairs]) > 0.95
    scans = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'half_vector'"
    opened.client.execute("SELECT pg_stat_force_next_flush()")  # type: ignore[attr-defined]
    opened.client.commit()  # type: ignore[attr-defined]
    opened.client.close()  # type: ignore[attr-defined]
    assert execute(postgres.uri, scans)[0][0] >= 20


def test_an_index_that_needs_more_memory(server: Server, tmp_path: Path) -> None:
    """The rows are there, and the same command with more memory goes on with the index."""
    texts = {
        f"p{i:04d}": np.random.default_rng(i).standard_normal(400).astype(np.float32) for i in range(600)
    }
    vectors = written(tmp_path / "vectors", texts)
    options: dict[str, Any] = {"kind": "ivfflat", "lists": 300}
    with pytest.raises(QontextError, match=r"memory required is .* Raise --build-memory"):
        server.index(vectors, tmp_path / "index", "memory", build_memory=1, **options)
    assert server.count("memory") == 600
    server.index(vectors, tmp_path / "index", "memory", build_memory=64, **options)


def test_more_dimensions_than_an_index_may_have(server: Server, tmp_path: Path) -> None:
    wide = written(tmp_path / "wide", {f"p{i}": np.ones(2_001, np.float32) for i in range(3)})
    with pytest.raises(
        QontextError, match=r"2001 dimensions is more than pgvector allows \(2,000\). Add --halfvec"
    ):
        server.index(wide, tmp_path / "index", "wide", kind="hnsw")
    assert server.index(wide, tmp_path / "index", "wide", kind="hnsw", halfvec=True).summary["passages"] == 3


def test_several_threads_may_search(server: Server, tmp_path: Path) -> None:
    index = server.index(written(tmp_path / "vectors", texts_of(100)), tmp_path / "index", "threads")
    opened, _ = open_index(index.path)
    queries = np.random.default_rng(5).standard_normal((8, server_contract.DIMENSIONS)).astype(np.float32)
    expected, answers = opened.search(queries, 5)[0].tolist(), [[]] * 8
    threads = [
        threading.Thread(target=lambda i=i: answers.__setitem__(i, opened.search(queries[i : i + 1], 5)[0][0].tolist()))
        for i in range(8)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == expected
