"""Search with PostgreSQL and pgvector: a table that SQL can query, too.

    TABLE        number, id, vector; with --with-text also document, title, text, place, metadata
    TABLE_build  one row for the build that the table belongs to, and one for each part that it wrote

A part's rows and its row of `TABLE_build` are written in one transaction: a part is there as a whole or not at all,
whichever side is killed. Passwords come from PGPASSWORD, ~/.pgpass or a service file; one in --uri is used and not recorded.

Shapes: Q queries, D dimensions.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveInt, field_validator

from qontext.frame import trust
from qontext.frame.artifacts import META, Artifact, Workdir
from qontext.frame.config import Asks, Machine
from qontext.frame.errors import QontextError, first_line, missing_extra
from qontext.retrieve.index import Array
from qontext.retrieve.index.servers.addresses import password_of
from qontext.retrieve.index.servers.addresses import postgres as demands
from qontext.retrieve.index.servers.base import (
    ServerIndex,
    ServerOptions,
    ServerStore,
    StoredRows,
    cells,
    check_owner,
    read_keys,
    rebuilt,
)
from qontext.retrieve.index.servers.conditions import postgres as translate
from qontext.retrieve.index.servers.conditions import postgres_keys as condition_of
from qontext.retrieve.index.servers.ingest import ServerBackend
from qontext.retrieve.stored import Encoded, read_ids

if TYPE_CHECKING:
    from qontext.retrieve.where import Condition

_SECONDS = 10
"""The time limit of a connection."""
_LARGEST = {"vector": 2_000, "halfvec": 4_000}
"""Maximum number of dimensions of an index, by the type of the vectors."""
_TEXTS = ("document", "title", "text", "place", "metadata")


class PostgresOptions(ServerOptions):
    uri: Annotated[str, Asks(demands)] = ""
    """Address of the server, such as postgresql://user@host/database; by default what PGHOST, PGSERVICE and the like say.
    The password is read from PGPASSWORD or ~/.pgpass."""

    table: str = Field("qontext", pattern=r"^[^.]+(\.[^.]+)?$")
    """Name of the table, or SCHEMA.TABLE; one that exists already is not touched."""

    kind: Literal["hnsw", "ivfflat", "exact"] = "hnsw"
    """Type of the index: hnsw (a graph), ivfflat (inverted lists), or exact (none: all vectors are compared)."""

    halfvec: bool = False
    """Store vectors in 16 bits: half the space, and indexes of up to 4,000 dimensions."""

    build_memory: Annotated[int, Machine()] = Field(512, ge=1, le=2_000_000)
    """MiB that the server may use to build the index (maintenance_work_mem). A graph that does not fit is built slowly."""

    @field_validator("table")
    @classmethod
    def _short_name(cls, table: str) -> str:
        if any(len(name.encode()) > 56 for name in table.split(".")):  # the server would cut it
            raise ValueError("is longer than 56 bytes")
        return table


class PostgresIndex(ServerIndex):
    def __init__(self, config: Any, dimension: int, ids: Array, keys: Array | None) -> None:
        super().__init__(dimension, ids, keys)
        self.config, self._lock = config, threading.Lock()
        self.client = connect(config["uri"])

    def where(self, conditions: Sequence[Condition]) -> Any:
        if not self.config["with_text"] or (translated := translate(conditions)) is None:
            return None
        table = _table(self.config["table"]).as_string(self.client)
        known = f"SELECT EXISTS (SELECT FROM {table} WHERE metadata ? %s)"
        with self._lock, _messages(self.config["uri"]):
            names = {condition.name for condition in conditions}
            is_known = all(self.client.execute(known, [name]).fetchone()[0] for name in names)
        return translated if is_known else None

    def _nearest(self, queries_QD: Array, k: int, chosen: Any) -> tuple[Array, Array]:
        import psycopg

        with self._lock, _messages(self.config["uri"]):
            try:
                return self._answers(queries_QD, k, chosen)
            except psycopg.OperationalError:
                if not self.client.closed:
                    raise
                self.client = connect(self.config["uri"])  # the server was restarted
                return self._answers(queries_QD, k, chosen)

    def _answers(self, queries_QD: Array, k: int, chosen: Any) -> tuple[Array, Array]:
        from psycopg import sql

        keys = np.full((len(queries_QD), k), -1, np.int64)
        scores = np.full((len(queries_QD), k), -np.inf, np.float32)
        condition, values = condition_of(chosen)
        statement = sql.SQL(
            "SELECT number, vector <#> %s FROM {} {} ORDER BY vector <#> %s, number LIMIT %s"
        ).format(_table(self.config["table"]), condition)
        with self.client.transaction(), self.client.cursor(binary=True) as cursor:
            for setting in _settings(self.config, k, len(self.ids), chosen is not None, self.client):
                cursor.execute(setting)
            for row, vector in enumerate(_typed(queries_QD, self.config["halfvec"])):
                cursor.execute(statement, [vector, *values, vector, k], prepare=False)
                hits = cursor.fetchall()
                keys[row, : len(hits)] = [key for key, _ in hits]
                scores[row, : len(hits)] = [-distance for _, distance in hits]
        return keys, scores


def _settings(config: Any, k: int, vectors: int, is_filtered: bool, client: Any) -> Iterator[str]:
    """The server's settings for a search. With a condition, all rows that meet it are compared: a graph may miss them."""
    if is_filtered:
        yield "SET LOCAL enable_indexscan = off"
    elif config["kind"] == "hnsw":
        yield f"SET LOCAL hnsw.ef_search = {min(1_000, max(config['effort'], k))}"
        if _version(client) >= (0, 8):
            yield "SET LOCAL hnsw.iterative_scan = strict_order"
    elif config["kind"] == "ivfflat":
        yield f"SET LOCAL ivfflat.probes = {min(config['probes'], cells(config['lists'], vectors))}"
        if _version(client) >= (0, 8):
            yield "SET LOCAL ivfflat.iterative_scan = relaxed_order"


class PostgresTable(ServerStore):
    """A table, and the table of its build."""

    def __init__(self, client: Any, source: Encoded, options: PostgresOptions) -> None:
        self.client, self.source, self.options = client, source, options
        self.name = options.table
        self.place = f"the table {self.name!r}"
        self.type = "halfvec" if options.halfvec else "vector"

    def builds(self) -> tuple[str, str] | None:
        return _builds(self.client, self.name)

    def create(self, build: str, encoder: str) -> None:
        columns = ["number int8 PRIMARY KEY", "id text NOT NULL"]
        columns += [f"vector {self.type}({self.source.dimension}) NOT NULL"]
        if self.options.with_text:
            columns += [f"{name} {'jsonb' if name == 'metadata' else 'text'}" for name in _TEXTS]
        with self.client.transaction():
            self._execute(f"CREATE TABLE {{table}} ({', '.join(columns)})")
            self._execute("CREATE TABLE {build} (build text, part int PRIMARY KEY, rows int, encoder text)")
            self._execute("INSERT INTO {build} VALUES (%s, -1, %s, %s)", build, len(self.source), encoder)

    def take_over(self, build: str) -> None:
        with self.client.transaction():
            self._execute("DELETE FROM {build} WHERE part >= 0")
            self._execute("UPDATE {build} SET build = %s, rows = %s", build, len(self.source))

    def drop(self) -> None:
        self._execute("DROP TABLE {table}, {build}")

    def write(self, build: str, part: int, rows: StoredRows) -> None:
        with self.client.transaction():
            own = "SELECT FROM {build} WHERE part = -1 AND build = %s FOR SHARE"
            if not self._execute(own, build).rowcount:
                raise rebuilt(self.place)
            # Another process at the same part is waited for here; then it has written all.
            done = "INSERT INTO {build} VALUES (%s, %s, %s) ON CONFLICT (part) DO NOTHING"
            if self._execute(done, build, part, len(rows.keys)).rowcount:
                self._execute("DELETE FROM {table} WHERE number = ANY(%s::int8[])", rows.keys.tolist())
                self._copy(rows)

    def _copy(self, rows: StoredRows) -> None:
        names = ["number", "id", "vector", *(_TEXTS if rows.texts is not None else ())]
        types = ["int8", "text", self.type, "text", "text", "text", "text", "jsonb"][: len(names)]
        copy = self._format(f"COPY {{table}} ({', '.join(names)}) FROM STDIN (FORMAT binary)")
        vectors = _typed(rows.vectors_ND, self.options.halfvec)
        with self.client.cursor() as cursor, cursor.copy(copy) as target:
            target.set_types(types)
            for i, (key, id, vector) in enumerate(zip(rows.keys.tolist(), rows.ids, vectors)):
                target.write_row((key, _text(id), vector, *(_texts(rows.texts[i]) if rows.texts else ())))

    def delete(self, keys: Array) -> None:
        self._execute("DELETE FROM {table} WHERE number = ANY(%s::int8[])", keys.tolist())

    def finish(self) -> None:
        kind, options = self.options.kind, self.options
        if kind != "exact":
            build = {"m": options.neighbors, "ef_construction": max(options.effort, 2 * options.neighbors)}
            params = build if kind == "hnsw" else {"lists": cells(options.lists, len(self.source))}
            self.client.execute(f"SET maintenance_work_mem = '{options.build_memory}MB'")
            self._execute(
                f"CREATE INDEX IF NOT EXISTS {{index}} ON {{table}} USING {kind} (vector {self.type}_ip_ops) "
                f"WITH ({', '.join(f'{name} = {value}' for name, value in params.items())})"
            )
        self._execute("ANALYZE {table}")

    def count(self) -> int:
        return int(self._execute("SELECT count(*) FROM {table}").fetchone()[0])

    def _format(self, statement: str) -> Any:
        from psycopg import sql

        return sql.SQL(statement).format(
            table=_table(self.name),
            build=_table(self.name, "_build"),
            index=sql.Identifier(self.name.rpartition(".")[2] + "_vector"),
        )

    def _execute(self, statement: str, *values: Any) -> Any:
        return self.client.execute(self._format(statement), values)


class Postgres(ServerBackend):
    Options = PostgresOptions

    @classmethod
    def is_divisible(cls, options: PostgresOptions) -> bool:
        return True

    @classmethod
    @contextlib.contextmanager
    def store(cls, source: Encoded, work: Workdir, options: PostgresOptions) -> Iterator[ServerStore]:
        most = _LARGEST["halfvec" if options.halfvec else "vector"]
        if options.kind != "exact" and source.dimension > most:
            is_narrow = source.dimension <= 4_000 and not options.halfvec
            raise QontextError(
                f"an index of {source.dimension} dimensions is more than pgvector allows ({most:,})",
                place=source.artifact.path,
                remedy="Add --halfvec." if is_narrow else "Use --kind exact.",
            )
        with _messages(options.uri), connect(options.uri, creates=True) as client:
            yield PostgresTable(client, source, options)

    @classmethod
    def load(cls, artifact: Artifact) -> PostgresIndex:
        folder, config = artifact.path, artifact.config
        trust.require(demands(config), folder / META)
        ids = read_ids(folder)
        keys = read_keys(folder, len(ids)).keys
        dimension = artifact.summary.take("dimension", PositiveInt)
        with _messages(config["uri"]):
            index = PostgresIndex(config, dimension, ids, keys)
            check_owner(f"the table {config['table']!r}", _builds(index.client, config["table"]), artifact)
        return index


def connect(uri: str, *, creates: bool = False) -> Any:
    """A connection that knows vectors, each statement a transaction of its own; `creates` the extension if need be."""
    psycopg = _psycopg()
    trust.require(demands({"uri": uri}))
    from pgvector.psycopg import register_vector

    limit = (
        {} if "connect_timeout" in uri or "PGCONNECT_TIMEOUT" in os.environ else {"connect_timeout": _SECONDS}
    )
    password = password_of(uri)
    secret = {"password": password} if password else {}
    client = psycopg.connect(uri, autocommit=True, application_name="qontext", **limit, **secret)
    if creates:
        client.execute("CREATE EXTENSION IF NOT EXISTS vector")
    try:
        register_vector(client)
    except psycopg.ProgrammingError:
        raise QontextError(
            "the database has no extension vector", remedy="Run CREATE EXTENSION vector in it."
        ) from None
    return client


def _psycopg() -> Any:
    try:
        import pgvector  # noqa: F401
        import psycopg
    except ImportError as error:
        package = "pgvector" if error.name == "pgvector" else "psycopg"
        raise missing_extra(package, "postgres", "an index in PostgreSQL") from None
    return psycopg


@contextlib.contextmanager
def _messages(uri: str) -> Iterator[None]:
    """Turn what the client raises into one sentence."""
    psycopg = _psycopg()
    try:
        yield
    except psycopg.Error as error:
        message = error.diag.message_primary or first_line(error)
        remedy = _remedy(str(error)) if isinstance(error, psycopg.OperationalError) else None
        raise QontextError(f"PostgreSQL: {message}", place=uri or None, remedy=remedy) from None


def _remedy(message: str) -> str:
    if "password" in message:
        return "Set PGPASSWORD, or add it to ~/.pgpass."
    if "maintenance_work_mem" in message:
        return "Raise --build-memory, and run the same command again: it resumes."
    return "Check that it runs, and --uri."


def _builds(client: Any, name: str) -> tuple[str, str] | None:
    table, build = (_table(name, ending).as_string(client) for ending in ("", "_build"))
    there = client.execute("SELECT to_regclass(%s), to_regclass(%s)", [table, build]).fetchone()
    if there[0] is None:
        return None
    if there[1] is None:
        return "", ""
    row = client.execute(f"SELECT build, encoder FROM {build} WHERE part = -1").fetchone()
    return (row[0], row[1]) if row else ("", "")


def _version(client: Any) -> tuple[int, ...]:
    row = client.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    return tuple(int(number) for number in row[0].split(".")[:2])


def _table(name: str, ending: str = "") -> Any:
    from psycopg import sql

    *schema, table = name.split(".")
    return sql.Identifier(*schema, table + ending)


def _typed(vectors_ND: Array, is_half: bool) -> Iterator[Any]:
    from pgvector import HalfVector, Vector

    one, dtype = (HalfVector, np.float16) if is_half else (Vector, np.float32)
    return (one(vector) for vector in np.asarray(vectors_ND, dtype))


def _texts(row: Any) -> Iterator[Any]:
    import json

    from psycopg.types.json import Jsonb

    for name in _TEXTS:
        text = _text(getattr(row, name))
        yield Jsonb(json.loads(text.replace("\\u0000", "␀"))) if name == "metadata" else text


def _text(text: str) -> str:
    """The text without the one character that PostgreSQL does not store."""
    return text.replace("\0", "␀")
