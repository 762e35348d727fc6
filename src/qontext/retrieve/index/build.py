"""`qontext index`: vectors → an approximate index, or the rows of a collection on a server; passages → a BM25 index.

What is a file is built in one go, by one process: one part. The rows of a server's collection have the parts of the
vectors: many processes can send them, each over a connection of its own.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import model_validator

from qontext.frame import locks
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig
from qontext.frame.stages import Stage
from qontext.retrieve.index import BACKENDS, PARTIAL
from qontext.retrieve.index.servers.addresses import password_of

if TYPE_CHECKING:
    from qontext.retrieve.index.servers.ingest import Content, Ingest
    from qontext.retrieve.stored import Encoded

BUILT = f"{PARTIAL}/built.json"
"""Stands for an index that was built in one go."""


class IndexConfig(PartsConfig):
    kinds: ClassVar = {"backend": BACKENDS}

    source: Annotated[str, Input(positional=True)]
    """Vectors that `encode` wrote; for BM25, passages: what `split` wrote, a BEIR folder or corpus file, Parquet."""

    backend: str
    """The kind of index."""

    @property
    def is_divisible(self) -> bool:
        return bool(BACKENDS.load(self.backend).is_divisible(self.options("backend")))

    @model_validator(mode="after")
    def _by_one_process(self) -> Self:
        if (self.on != "local" or self.shard is not None) and not self.is_divisible:
            raise QontextError(
                f"the backend {self.backend!r} writes a file, which a single process builds",
                remedy="Leave out --on and --shard; several processes can write to a server (postgres, milvus with --uri).",
            )
        return self


class Build(Parts[IndexConfig]):
    unit = "vectors"

    def __init__(self, config: IndexConfig, work: Workdir) -> None:
        super().__init__(config, work)
        self.backend, self.options = BACKENDS.load(config.backend), config.options("backend")
        self.reads_texts = self.backend.reads == "texts"

    @cached_property
    def vectors(self) -> Encoded:
        from qontext.retrieve.stored import open_stored

        vectors = open_stored(self.config.source, "tokens" if self.backend.reads == "tokens" else "vector")
        if vectors.artifact.config["kind"] != "passage":
            raise QontextError("holds vectors of queries, not of passages", place=self.config.source)
        return vectors

    @cached_property
    def ingest(self) -> Ingest | None:
        """The rows of a collection on a server; None for what is built in one go."""
        from qontext.retrieve.index.servers.ingest import Ingest

        if not self.config.is_divisible:
            return None
        return Ingest(self.vectors, self.work, self.options)

    def plan(self) -> list[Part]:
        """The first process claims the collection."""
        from qontext.retrieve.index.servers.ingest import OWNED, marker

        if self.ingest is None:
            return [Part(0, BUILT, 0, 1, 0 if self.reads_texts else len(self.vectors))]
        if self.config.on != "local" and password_of(self.options.uri) is not None:
            raise QontextError(
                "a password in --uri does not reach the workers of a cluster",
                remedy="Start Ray with PGPASSWORD or MILVUS_TOKEN on its nodes, or use ~/.pgpass.",
            )
        with locks.lock(self.work.path, "-collection", wait=True):
            if not self.work.has(OWNED):
                self.vectors.check()
            with self._store() as store:
                self.ingest.claim(store)
        return [Part(n, marker(n), n, n + 1, len(part)) for n, part in enumerate(self.ingest.source.parts)]

    def read(self, part: Part) -> Content | None:
        return None if self.ingest is None else self.ingest.read(part.number)

    def make(self, part: Part, content: Content | None) -> dict[str, int]:
        if self.ingest is not None:
            assert content is not None
            with self._store() as store:
                self.ingest.write(store, part.number, content)
            self.advance(part.size)
        else:
            self.work.write_json(BUILT, {"passages": self._build()})
        return {}

    def _build(self) -> Any:
        from qontext.data.collection import read_passages

        if self.reads_texts:
            passages = read_passages(self.config.source)
            return self.backend.build(passages, self.work, self.options, lambda passages: None)
        self.vectors.check()
        return self.backend.build(self.vectors, self.work, self.options, self.advance)

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        from qontext.frame.inputs import rebased
        from qontext.retrieve.stored import pooling_of, prompts_of, write_ids

        if self.ingest is None:
            passages = read_json(self.work.path / BUILT, dict[str, int])["passages"]
        else:
            with self._store() as store:
                passages = self.ingest.finish(store)
        summary: dict[str, Any] = {"passages": passages}
        if not self.reads_texts:
            with self.work.write("ids.parquet") as path:
                write_ids(path, self.vectors.ids)
            encoder = rebased(self.vectors.encoder, self.vectors.artifact.path, self.work.path)
            summary |= {"dimension": self.vectors.dimension, "encoder": encoder}
            prompts = prompts_of(self.vectors.artifact)
            summary |= {"prompts": prompts} if prompts else {}
            pooling = pooling_of(self.vectors.artifact)
            summary |= {"pooling": pooling} if pooling else {}
        self.work.remove(PARTIAL)
        return summary

    def _store(self) -> Any:
        return self.backend.store(self.vectors, self.work, self.options)


STAGE = Stage(
    "index",
    IndexConfig,
    Build,
    """
        qontext index vectors --backend faiss-hnsw --out index
        qontext index data --backend bm25 --out index
        qontext index token-vectors --backend residual --out index
        qontext index vectors --backend milvus --uri http://localhost:19530 --kind HNSW --out index
        qontext index vectors --backend postgres --uri postgresql://me@db.example/search --with-text --out index
        qontext index vectors --backend postgres --uri postgresql://me@db.example/search --replace index --out newer
        qontext index vectors --backend postgres --uri postgresql://me@db.example/search --on ray --out index
    """,
    format=2,
)
