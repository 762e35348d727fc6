"""Search with Milvus: through one client, a local database (milvus-lite), a server or a cluster.

A local database inside the output directory is built in one go. On a server, the collection has the build's key and the
encoder's digest as properties; a part is upserted, and recorded as done in the output directory once the server has it in
its log. Upserting a part twice, or by two processes, changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import PositiveInt

from qontext.frame import trust
from qontext.frame.artifacts import META, Artifact, Workdir
from qontext.frame.config import Asks
from qontext.frame.errors import QontextError, missing_extra
from qontext.frame.files import damaged, raise_disk_error
from qontext.retrieve.index import Array
from qontext.retrieve.index.servers.addresses import milvus as demands
from qontext.retrieve.index.servers.addresses import password_of, token
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
from qontext.retrieve.index.servers.conditions import milvus as translate
from qontext.retrieve.index.servers.conditions import milvus_keys as conditions_of
from qontext.retrieve.index.servers.ingest import ServerBackend
from qontext.retrieve.stored import Encoded, read_ids

if TYPE_CHECKING:
    from qontext.retrieve.where import Condition

DATABASE = "milvus.db"
LITE_KINDS = ("FLAT", "HNSW", "HNSW_SQ", "IVF_FLAT", "IVF_SQ8", "AUTOINDEX")
"""Index types of milvus-lite. It accepts any other name, too, and then searches without an index."""
_BUILD, _ENCODER = "qontext.build", "qontext.encoder"
_SECONDS = 10.0
"""The time limit of a request."""
_ROWS, _QUERIES = 2_048, 64
"""Rows of an upsert, and queries of a search."""
_MOST = 16_384
"""Maximum number of results that Milvus returns for a query."""
_LONGEST = 65_535
"""Maximum number of bytes of a text."""


class MilvusOptions(ServerOptions):
    uri: Annotated[str | None, Asks(demands)] = None
    """Address of a server, such as http://localhost:19530 (its token is read from MILVUS_TOKEN); by default a local
    database inside the output directory."""

    collection: str = "qontext"
    """Name of the collection on the server; one that exists already is not touched."""

    kind: str = "FLAT"
    """Type of the index: FLAT (exact), HNSW, IVF_FLAT, AUTOINDEX and others that the server offers."""


class MilvusIndex(ServerIndex):
    def __init__(self, client: Any, config: Any, dimension: int, ids: Array, keys: Array | None) -> None:
        super().__init__(dimension, ids, keys)
        self.client, self.config = client, config
        self._consistency = "Strong"

    def where(self, conditions: Sequence[Condition]) -> Any:
        if not self.config["with_text"] or (translated := translate(conditions)) is None:
            return None
        fields = [f"exists metadata[{json.dumps(condition.name)}]" for condition in conditions]
        names = self.config["collection"]
        is_known = all(
            self.client.query(names, filter=field, limit=1, output_fields=["number"]) for field in fields
        )
        return translated if is_known else None

    def _nearest(self, queries_QD: Array, k: int, chosen: Any) -> tuple[Array, Array]:
        if k > _MOST:
            raise QontextError(f"Milvus returns at most {_MOST:,} results for a query, not {k:,}")
        keys = np.full((len(queries_QD), k), -1, np.int64)
        scores = np.full((len(queries_QD), k), -np.inf, np.float32)
        search_params = {"metric_type": "IP", "params": _search_params(self.config, k, len(self.ids))}
        for start in range(0, len(queries_QD), _QUERIES):
            queries = list(queries_QD[start : start + _QUERIES])
            for condition in conditions_of(chosen):
                hits = self.client.search(
                    self.config["collection"],
                    data=queries,
                    limit=k,
                    filter=condition,
                    anns_field="vector",
                    search_params=search_params,
                    output_fields=["number"],
                    consistency_level=self._consistency,
                )
                self._consistency = (
                    "Bounded"  # every row has been seen: no need to wait for the server's clock
                )
                _merge(keys[start : start + _QUERIES], scores[start : start + _QUERIES], hits)
        return keys, scores


def _merge(keys_QK: Array, scores_QK: Array, hits_of_queries: Any) -> None:
    """Take the hits of a search in among the best, in place."""
    k = keys_QK.shape[1]
    for row, hits in enumerate(hits_of_queries):
        keys = np.concatenate([keys_QK[row], np.array([hit["number"] for hit in hits], np.int64)])
        scores = np.concatenate([scores_QK[row], np.array([hit["distance"] for hit in hits], np.float32)])
        best = np.lexsort((keys, -scores))[:k]
        keys_QK[row], scores_QK[row] = keys[best], scores[best]


class MilvusCollection(ServerStore):
    """A collection on a server, or in a local database."""

    def __init__(self, client: Any, source: Encoded, options: MilvusOptions) -> None:
        self.client, self.source, self.options = client, source, options
        self.name = options.collection
        self.place = f"the collection {self.name!r}" + (f" at {options.uri}" if options.uri else "")

    def builds(self) -> tuple[str, str] | None:
        return _builds(self.client, self.name)

    def create(self, build: str, encoder: str) -> None:
        from pymilvus import DataType, MilvusClient

        options = self.options
        schema = MilvusClient.create_schema(auto_id=False)
        schema.add_field("number", DataType.INT64, is_primary=True)
        schema.add_field("id", DataType.VARCHAR, max_length=_LONGEST)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self.source.dimension)
        if options.with_text:
            for name in ("document", "title", "text", "place"):
                schema.add_field(name, DataType.VARCHAR, max_length=_LONGEST)
            schema.add_field("metadata", DataType.JSON)
        properties = {_BUILD: build, _ENCODER: encoder}
        self.client.create_collection(
            self.name, schema=schema, consistency_level="Strong", properties=properties
        )
        try:
            self._index()
        except Exception:  # such as a type of index that the server lacks
            self.drop()
            raise

    def _index(self) -> None:
        if not self.client.list_indexes(self.name):
            index = self.client.prepare_index_params()
            params = _build_params(self.options, len(self.source))
            index.add_index("vector", index_type=self.options.kind, metric_type="IP", params=params)
            self.client.create_index(self.name, index)

    def take_over(self, build: str) -> None:
        self.client.alter_collection_properties(self.name, properties={_BUILD: build})

    def drop(self) -> None:
        self.client.drop_collection(self.name)

    def write(self, build: str, part: int, rows: StoredRows) -> None:
        if (self.builds() or ("",))[0] != build:
            raise rebuilt(self.place)
        for start in range(0, len(rows.keys), _ROWS):
            some = slice(start, start + _ROWS)
            self.client.upsert(self.name, _records(rows, some))
        if _is_lite(self.options.uri):  # a server has a log of its own
            self.client.flush(self.name)

    def delete(self, keys: Array) -> None:
        self.client.delete(self.name, ids=keys.tolist())

    def finish(self) -> None:
        self._index()
        self.client.flush(self.name)
        while self.client.describe_index(self.name, "vector").get("pending_index_rows"):
            time.sleep(
                0.2
            )  # until the server has built it: what is loaded before has no index, or another one

    def count(self) -> int | None:
        if _is_lite(self.options.uri):
            return None
        self.client.load_collection(self.name)
        (row,) = self.client.query(self.name, output_fields=["count(*)"], consistency_level="Strong")
        return int(row["count(*)"])


def _records(rows: StoredRows, some: slice) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = [
        {"number": key, "id": _cut(id), "vector": vector}
        for key, id, vector in zip(
            rows.keys[some].tolist(), rows.ids[some], rows.vectors_ND[some].astype(np.float32)
        )
    ]
    for record, row in zip(records, rows.texts[some] if rows.texts is not None else ()):
        record |= {name: _cut(getattr(row, name)) for name in ("document", "title", "text", "place")}
        record["metadata"] = json.loads(row.metadata)
    return records


def _cut(text: str) -> str:
    """The text as far as a column takes it."""
    encoded = text.encode()
    return text if len(encoded) <= _LONGEST else encoded[:_LONGEST].decode(errors="ignore")


class Milvus(ServerBackend):
    Options = MilvusOptions
    changes_files = True

    @classmethod
    def is_divisible(cls, options: MilvusOptions) -> bool:
        return not _is_lite(options.uri)

    @classmethod
    @contextlib.contextmanager
    def store(cls, source: Encoded, work: Workdir, options: MilvusOptions) -> Iterator[ServerStore]:
        _check(options)
        if options.uri is None:
            # It would serve the files of an earlier index that this process opened.
            _stop(work.path / DATABASE)
            if work.has(DATABASE):
                work.remove(DATABASE)  # unfinished: nothing else writes there
        with _messages(options.uri, work.path):
            trust.require(demands({"uri": options.uri}))
            client = _client(options.uri or str(work.path / DATABASE))
            try:
                yield MilvusCollection(client, source, options)
            finally:
                client.close()
                if _is_lite(options.uri):
                    _stop(options.uri or work.path / DATABASE)

    @classmethod
    def is_for_one_process(cls, artifact: Artifact) -> bool:
        return _is_lite(artifact.config["uri"])

    @classmethod
    def load(cls, artifact: Artifact) -> MilvusIndex:
        folder, config = artifact.path, artifact.config
        uri, name = config["uri"], config["collection"]
        trust.require(demands(config), folder / META)
        if uri is None and not (folder / DATABASE).exists():  # the client would make an empty one
            raise damaged(folder / DATABASE, "the local database is missing")
        ids = read_ids(folder)
        keys = read_keys(folder, len(ids)).keys
        with _messages(uri, folder):
            client = _client(uri or str(folder / DATABASE))
            if uri is not None:
                check_owner(f"the collection {name!r} at {uri}", _builds(client, name), artifact)
            elif not client.has_collection(name):
                raise damaged(folder / DATABASE, f"it has no collection {name!r}")
            client.load_collection(name)  # milvus-lite opens a database with its collections released
        return MilvusIndex(client, config, artifact.summary.take("dimension", PositiveInt), ids, keys)


def _builds(client: Any, name: str) -> tuple[str, str] | None:
    if not client.has_collection(name):
        return None
    properties = client.describe_collection(name).get("properties") or {}
    return str(properties.get(_BUILD, "")), str(properties.get(_ENCODER, ""))


def _build_params(options: MilvusOptions, vectors: int) -> dict[str, int]:
    kind = options.kind.upper()
    if kind.startswith("HNSW"):
        return {"M": options.neighbors, "efConstruction": options.effort}
    return {"nlist": cells(options.lists, vectors)} if kind.startswith("IVF") else {}


def _search_params(config: Any, k: int, vectors: int) -> dict[str, int]:
    kind = config["kind"].upper()
    if kind.startswith("HNSW"):
        return {"ef": max(config["effort"], k)}
    if kind == "DISKANN":
        return {"search_list": max(config["effort"], k)}
    return (
        {"nprobe": min(config["probes"], cells(config["lists"], vectors))} if kind.startswith("IVF") else {}
    )


def _stop(database: Path | str) -> None:
    """Wait until milvus-lite, which runs in threads of this process, has written everything."""
    if manager := sys.modules.get("milvus_lite.server_manager"):
        manager.server_manager_instance.release_server(str(database))


def _is_lite(uri: str | None) -> bool:
    return uri is None or uri.endswith(".db")


def _check(options: MilvusOptions) -> None:
    if options.uri is None and options.replace is not None:
        raise QontextError(
            "a local database cannot replace another one", remedy="Leave --replace out: it is built quickly."
        )
    if _is_lite(options.uri) and options.kind.upper() not in LITE_KINDS:
        raise QontextError(
            f"milvus-lite has no index of type {options.kind!r}",
            place=options.uri,
            remedy=f"Choose --kind from {', '.join(LITE_KINDS)}, or give the --uri of a Milvus server.",
        )


@contextlib.contextmanager
def _messages(uri: str | None, folder: Path) -> Iterator[None]:
    """Turn what the client raises into one sentence."""
    try:
        from pymilvus import MilvusException
    except ImportError:
        raise missing_extra("pymilvus", "milvus", "a Milvus index") from None
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it would write tracebacks of what is raised
    try:
        yield
    except MilvusException as error:
        with contextlib.suppress(MilvusException):  # raised again where it is not about the disk
            raise_disk_error(error, folder)
        raise QontextError(f"Milvus refuses: {error.message}", place=uri) from None


def _client(uri: str) -> Any:
    from pymilvus import MilvusClient, MilvusException

    try:
        return MilvusClient(uri, token=token() or _credentials(uri), timeout=_SECONDS)
    except MilvusException as error:
        if "UNAUTHENTICATED" in str(error.__cause__):
            raise QontextError(
                "Milvus refuses the login",
                place=uri,
                remedy="Set MILVUS_TOKEN to USER:PASSWORD, or to a token.",
            ) from None
        raise QontextError(
            f"cannot reach Milvus: {error.message}", place=uri, remedy="Start it, or correct --uri."
        ) from None


def _credentials(uri: str) -> str:
    """USER:PASSWORD of an address that was given with both."""
    password = password_of(uri)
    return f"{uri.partition('://')[2].partition('@')[0]}:{password}" if password else ""
