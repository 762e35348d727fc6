"""Search with Milvus: through one client, a local database (milvus-lite), a server or a cluster.

A passage's key in the collection is its number; ids stay in the artifact.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qontext.artifacts import Workdir, open_artifact
from qontext.errors import QontextError, missing_extra
from qontext.retrieve.index import Array
from qontext.retrieve.vectors import Vectors, read_ids

if TYPE_CHECKING:
    from qontext.retrieve.index.build import IndexConfig

DATABASE = "milvus.db"
_ROWS, _QUERIES = 2_048, 64
_MOST = 16_384
"""Results that Milvus gives for a query at most."""


class MilvusIndex:
    def __init__(self, client: Any, collection: str, dimension: int, ids: Array) -> None:
        self.client, self.collection = client, collection
        self._dimension, self._ids = dimension, ids

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def ids(self) -> Array:
        return self._ids

    def search(self, queries_QD: Array, k: int) -> tuple[Array, Array]:
        k = min(k, len(self.ids))
        if k > _MOST:
            raise QontextError(f"Milvus gives at most {_MOST:,} results for a query, not {k:,}")
        numbers = np.full((len(queries_QD), k), -1, np.int64)
        scores = np.full((len(queries_QD), k), -np.inf, np.float32)
        for start in range(0, len(queries_QD), _QUERIES):
            found = self.client.search(
                self.collection,
                data=list(np.asarray(queries_QD[start : start + _QUERIES], np.float32)),
                limit=k,
                anns_field="vector",
                search_params={"metric_type": "IP"},
                output_fields=["number"],
            )
            for row, hits in enumerate(found, start=start):
                numbers[row, : len(hits)] = [hit["number"] for hit in hits]
                scores[row, : len(hits)] = [hit["distance"] for hit in hits]
        order = np.lexsort((numbers, -scores), axis=1)
        return np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)


def build(vectors: Vectors, work: Workdir, config: IndexConfig, advance: Callable[[int], None]) -> None:
    from pymilvus import DataType, MilvusClient, MilvusException

    client = _client(config.uri or str(work.path / DATABASE))
    name = config.collection
    try:
        if client.has_collection(name):
            if config.uri:
                raise QontextError(
                    f"the server has a collection {name!r} already",
                    place=config.uri,
                    remedy="Choose another --collection, or drop it on the server.",
                )
            client.drop_collection(name)  # what a killed run left in our own directory
        schema = MilvusClient.create_schema(auto_id=False)
        schema.add_field("number", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=vectors.dimension)
        index = client.prepare_index_params()
        index.add_index("vector", index_type=config.kind, metric_type="IP")
        client.create_collection(name, schema=schema, index_params=index, consistency_level="Strong")
        for numbers, part in vectors.blocks():
            for start in range(0, len(part), _ROWS):
                rows = zip(
                    numbers[start : start + _ROWS].tolist(), part[start : start + _ROWS].astype(np.float32)
                )
                client.insert(name, [{"number": number, "vector": vector} for number, vector in rows])
                advance(min(_ROWS, len(part) - start))
        client.flush(name)
    except MilvusException as error:
        raise QontextError(f"Milvus refuses: {error.message}", place=config.uri) from None
    finally:
        client.close()


def load(folder: Path) -> MilvusIndex:
    artifact = open_artifact(folder)
    uri, name = artifact.config["uri"], artifact.config["collection"]
    client = _client(uri or str(folder / DATABASE))
    if not client.has_collection(name):
        raise QontextError(f"Milvus has no collection {name!r}", place=uri or folder, remedy="Build it anew.")
    return MilvusIndex(client, name, int(artifact.summary["dimension"]), read_ids(folder))


def _client(uri: str) -> Any:
    try:
        from pymilvus import MilvusClient, MilvusException
    except ImportError:
        raise missing_extra("pymilvus", "milvus", "a Milvus index") from None
    try:
        return MilvusClient(uri, token=os.environ.get("MILVUS_TOKEN", ""))
    except MilvusException as error:
        raise QontextError(f"cannot reach Milvus: {error.message}", place=uri) from None
