"""`qontext index`: vectors → an approximate index; passages → a BM25 index."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.stages import Stage
from qontext.retrieve.index import BACKENDS


class IndexConfig(StageConfig):
    kinds: ClassVar = {"backend": BACKENDS}

    source: Annotated[str, Input(positional=True)]
    """Vectors that `encode` wrote; for BM25, passages: what `split` wrote, a BEIR folder or corpus file, Parquet."""

    backend: str
    """The kind of index."""


def run(config: IndexConfig, work: Workdir) -> dict[str, Any]:
    from qontext.data.collection import read_passages

    backend, options = BACKENDS.load(config.backend), config.options("backend")
    if backend.reads == "texts":
        count = backend.build(read_passages(config.source), work, options, lambda passages: None)
        return {"passages": _checked(count, config.backend)}
    from qontext.frame.origins import rebased
    from qontext.retrieve.vectors import open_vectors, write_ids

    vectors = open_vectors(config.source)
    if vectors.artifact.config["kind"] != "passage":
        raise QontextError("holds vectors of queries, not of passages", place=config.source)
    vectors.check()
    with log.progress("index", len(vectors), "vectors") as advance:
        passages = backend.build(vectors, work, options, advance)
    with work.write("ids.parquet") as path:
        write_ids(path, vectors.ids)
    return {
        "passages": _checked(passages, config.backend),
        "dimension": vectors.dimension,
        "encoder": rebased(vectors.encoder, vectors.artifact.path, work.path),
    }


def _checked(count: Any, backend: str) -> int:
    """What `build` returned; refused if it is not a number."""
    if not isinstance(count, int):
        raise QontextError(
            f"build of the backend {backend} returned a {type(count).__name__}",
            remedy="Return the number of passages.",
        )
    return count


STAGE = Stage(
    "index",
    IndexConfig,
    run,
    """
        qontext index vectors --backend faiss-hnsw --out index
        qontext index data --backend bm25 --out index
        qontext index vectors --backend milvus --uri http://localhost:19530 --kind HNSW --out index
        qontext index vectors --backend postgres --uri postgresql://me@db.example/search --with-text --out index
        qontext index vectors --backend postgres --uri postgresql://me@db.example/search --replace index --out newer
    """,
    format=2,
)
