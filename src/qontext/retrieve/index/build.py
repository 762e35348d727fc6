"""`qontext index`: vectors → an approximate index; passages → a BM25 index."""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Literal

from pydantic import Field

from qontext import log
from qontext.artifacts import Workdir
from qontext.collection import read_passages
from qontext.config import Input, StageConfig
from qontext.errors import QontextError
from qontext.retrieve.index import BACKENDS
from qontext.stages import Stage


class IndexConfig(StageConfig):
    source: Annotated[str, Input(positional=True)]
    """Vectors that `encode` wrote; for BM25, passages: what `split` wrote, a BEIR folder or corpus file, Parquet."""

    backend: Literal["bm25", "faiss-hnsw", "faiss-ivfpq", "milvus"]
    """bm25 by words; faiss-hnsw is a graph (fast, as large as the vectors); faiss-ivfpq compresses them (small,
    less exact); milvus is a local file or a server, for what outgrows one machine."""

    k1: float = Field(0.9, ge=0)
    """bm25: how fast repeated words saturate."""

    b: float = Field(0.4, ge=0, le=1)
    """bm25: how much long passages are discounted."""

    neighbours: int = Field(32, ge=2)
    """faiss-hnsw: links of each vector; more are more exact, slower and larger."""

    effort: int = Field(200, ge=1)
    """faiss-hnsw: candidates looked at for each vector while building and for each query while searching."""

    lists: int | None = Field(None, ge=1)
    """faiss-ivfpq: cells into which vectors are sorted; by default four times the root of their number."""

    probes: int = Field(32, ge=1)
    """faiss-ivfpq: cells that a query looks into."""

    code_bytes: int = Field(64, ge=1)
    """faiss-ivfpq: bytes to which a vector is compressed; a divisor of its dimensions."""

    uri: str | None = None
    """milvus: address of a server, such as http://localhost:19530 (its token is read from MILVUS_TOKEN); by default
    a local database inside the output directory."""

    collection: str = "qontext"
    """milvus: name of the collection on the server; one that exists already is not touched."""

    kind: str = "FLAT"
    """milvus: type of its index: FLAT (exact), HNSW, IVF_FLAT, AUTOINDEX and others that the server offers."""


def run(config: IndexConfig, work: Workdir) -> dict[str, Any]:
    if config.backend == "bm25":
        from qontext.retrieve.bm25 import Bm25

        bm25 = Bm25.of(read_passages(config.source), k1=config.k1, b=config.b)
        work.remove("bm25")
        with work.write("bm25") as folder:
            bm25.save(folder)
        return {"passages": len(bm25.ids)}
    from qontext.retrieve.vectors import open_vectors, write_ids

    vectors = open_vectors(config.source)
    if vectors.artifact.config["kind"] != "passage":
        raise QontextError("holds vectors of queries, not of passages", place=config.source)
    with work.write("ids.parquet") as path:
        write_ids(path, vectors.ids)
    with log.progress("index", len(vectors), "vectors") as advance:
        importlib.import_module(BACKENDS[config.backend]).build(vectors, work, config, advance)
    return {"passages": len(vectors), "dimension": vectors.dimension, "encoder": vectors.encoder}


STAGE = Stage(
    "index",
    IndexConfig,
    run,
    """qontext index vectors --backend faiss-hnsw --out index
    qontext index passages --backend bm25 --out bm25
    qontext index vectors --backend milvus --uri http://localhost:19530 --out index""",
)
