"""Ways to find the best passages, all behind one contract, and the table of those that come with the package.

A *backend* builds an index in a directory and loads it again; an *index* is searched. Exact search needs nothing built:
it runs on the vectors themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from qontext.frame import config
from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.errors import QontextError
from qontext.frame.kinds import Kind, Kinds

if TYPE_CHECKING:
    import numpy as np

    from qontext.retrieve.stored import Parted
    from qontext.retrieve.where import Condition

Array: TypeAlias = "np.ndarray[Any, Any]"

BACKENDS = Kinds(
    "backend",
    "qontext.indexes",
    "qontext.retrieve.index:Backend",
    {
        "bm25": Kind("qontext.retrieve.index.lexical:Bm25Backend", "by words"),
        "faiss": Kind("qontext.retrieve.index.faiss:Faiss", "any index of faiss, by its factory string"),
        "faiss-hnsw": Kind("qontext.retrieve.index.faiss:Hnsw", "a graph: fast, as large as the vectors"),
        "faiss-ivfpq": Kind("qontext.retrieve.index.faiss:IvfPq", "compressed vectors: small, less exact"),
        "residual": Kind("qontext.retrieve.index.residual:Residual", "vectors of tokens, 1 or 2 bits for each dimension"),
        "milvus": Kind("qontext.retrieve.index.servers.milvus:Milvus", "a local file or a server, beyond one machine"),
        "postgres": Kind("qontext.retrieve.index.servers.postgres:Postgres", "a table in PostgreSQL with pgvector"),
    },
)  # fmt: skip


PARTIAL = "partial"
"""The folder of what is known of the parts of an index while it is built."""


@dataclass(frozen=True)
class How:
    """The device of exact search, and the number format of its first pass."""

    device: str = "auto"
    scoring: Literal["fp32", "bf16", "fp16"] = "fp32"
    few: int = 0
    """Number of queries up to which the vectors are scanned in NumPy, without torch."""


class Index(ABC):
    """Something that can be searched."""

    reads: ClassVar[Literal["vectors", "texts", "packed"]] = "vectors"
    """The type of queries: vectors, [Q, D] float32; texts; or a `Packed` of another representation."""
    approximates: ClassVar[type[Index] | None] = None
    """The exact index with the same queries and similarity, if it reads packed representations and is not exact."""
    tag: ClassVar[str] = "dense"
    """The system's name in runs."""
    advance: Callable[[int], None] = staticmethod(lambda passages: None)
    """Called with the number of passages that were compared, to show progress."""

    @property
    @abstractmethod
    def ids(self) -> Array:
        """[P] passage ids. For vectors they ascend, so that the smaller number wins a tie."""

    @property
    def count(self) -> int:
        """P."""
        return len(self.ids)

    def names(self, numbers: Array) -> Array:
        """[N] the ids of passages by their numbers, which ascend."""
        names: Array = self.ids[numbers]
        return names

    def where(self, conditions: Sequence[Condition]) -> Any:
        """The `rows` of `search` for these conditions, if the index itself can tell which passages meet them."""
        return None

    @property
    def dimension(self) -> int:
        """D, of an index of vectors."""
        raise NotImplementedError

    @abstractmethod
    def search(self, queries: Any, k: int, rows: Array | None = None) -> tuple[Array, Array]:
        """([Q, k] int64 places in `ids`, [Q, k] float32 scores) of Q queries, best first.

        With `rows`, [P] bool, among these passages only.
        Greater scores are better. Where a query has fewer than k results, the rest is -1.
        """


class StoredVectors(Index):
    """Base of indexes that search the vectors of `encode` as they are."""

    vectors: Parted

    @property
    def dimension(self) -> int:
        return self.vectors.dimension

    @property
    def ids(self) -> Array:
        return self.vectors.ids

    @property
    def count(self) -> int:
        return len(self.vectors)

    def names(self, numbers: Array) -> Array:
        return self.vectors.names(numbers)


class Backend(ABC):
    """An index type: builds and opens indexes."""

    Options: ClassVar[type[config.Options]] = config.Options
    """The options of `build`."""
    reads: ClassVar[Literal["vectors", "tokens", "texts"]] = "vectors"
    """The input: one vector of each passage or those of its tokens, from 'qontext encode'; or passages."""
    changes_files: ClassVar[bool] = False
    """True if opening the index changes its files, so that their sizes are no sign of damage."""

    @classmethod
    def is_divisible(cls, options: Any) -> bool:
        """True if many processes can build it together, part by part: only where a server holds it."""
        return False

    @classmethod
    def is_for_one_process(cls, artifact: Artifact) -> bool:
        """True if only one process at a time can open what `build` wrote."""
        return False

    @classmethod
    @abstractmethod
    def build(cls, source: Any, work: Workdir, options: Any, advance: Callable[[int], None]) -> int:
        """Write the index into `work`; returns the number of passages.

        `source` is a `qontext.retrieve.stored.Encoded`; where the backend reads texts, an iterator of passages.
        `advance` is called with the number of vectors that are done.
        """

    @classmethod
    @abstractmethod
    def load(cls, artifact: Artifact) -> Index:
        """Open what `build` wrote: `artifact.path` is the directory, `artifact.config` has the options."""


def check_found(results: Any, index: Index, queries: int, k: int) -> tuple[Array, Array]:
    """The result of `search`, after a check of the contract: integers and floats of one shape, [queries, ≤ k]."""
    import numpy as np

    numbers, scores = map(np.asarray, results)
    is_whole = numbers.dtype.kind in "iu" and scores.dtype.kind == "f"
    if not is_whole or numbers.shape != scores.shape or len(numbers) != queries or numbers.shape[1] > k:
        raise QontextError(
            f"search of {type(index).__name__} returned arrays of {numbers.dtype} {list(numbers.shape)} and "
            f"{scores.dtype} {list(scores.shape)}",
            remedy=f"Return places, as integers, and scores, as floats, of the shape [{queries}, {k}].",
        )
    return numbers, scores
