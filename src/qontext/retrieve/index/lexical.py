"""The backend `bm25`: an index of words, which is searched with texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.config import Options
from qontext.retrieve.index import Array, Backend, Index

if TYPE_CHECKING:
    from qontext.data.collection import Passage
    from qontext.retrieve.bm25 import Bm25

FOLDER = "bm25"


class Bm25Options(Options):
    k1: float = Field(0.9, ge=0)
    """BM25: how fast repeated words saturate."""

    b: float = Field(0.4, ge=0, le=1)
    """BM25: how much long passages are discounted."""

    analyzer: str = "english"
    """BM25: how words become terms: english, lucene (for figures that compare with Anserini's), code (names also by their
    parts), plain, or the name of another language, such as german."""

    title: Literal["prepend", "leave"] = "prepend"
    """BM25: index the title of a passage before its text, or leave it out."""

    def bm25_settings(self) -> dict[str, Any]:
        """These settings alone."""
        return self.model_dump(include=set(Bm25Options.model_fields))


class LexicalIndex(Index):
    """A BM25 index. Passages without a word of the query are no results."""

    reads = "texts"
    tag = "bm25"

    def __init__(self, bm25: Bm25) -> None:
        self.bm25 = bm25

    @classmethod
    def of(cls, passages: Iterable[Passage], *, k1: float, b: float, analyzer: str) -> LexicalIndex:
        """An index of the passages in memory."""
        from qontext.retrieve.bm25 import Bm25

        return cls(Bm25.build(passages, k1=k1, b=b, analyzer=analyzer))

    @property
    def ids(self) -> Array:
        return self.bm25.ids

    def search(self, queries: Sequence[str], k: int, rows: Array | None = None) -> tuple[Array, Array]:
        import numpy as np

        numbers, scores = self.bm25.top(queries, k, rows)
        return np.where(scores > 0, numbers, -1).astype(np.int64), scores


class Bm25Backend(Backend):
    Options = Bm25Options
    reads = "texts"

    @classmethod
    def build(cls, source: Any, work: Workdir, options: Bm25Options, advance: Callable[[int], None]) -> int:
        from qontext.retrieve.bm25 import Bm25
        from qontext.retrieve.stored import read_ids

        if not work.has(FOLDER):
            with work.write_folder(FOLDER) as folder:
                Bm25.write(folder, source, **options.bm25_settings())
        return len(read_ids(work.path / FOLDER))

    @classmethod
    def load(cls, artifact: Artifact) -> LexicalIndex:
        from qontext.retrieve.bm25 import Bm25

        return LexicalIndex(Bm25.load(artifact.path / FOLDER))
