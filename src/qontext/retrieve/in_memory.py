"""Search over passages in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qontext.data.collection import Passage
from qontext.data.load import as_passages
from qontext.data.places import Found
from qontext.frame.errors import QontextError
from qontext.retrieve.base import BaseSearcher
from qontext.retrieve.system import System
from qontext.retrieve.where import Mask


class InMemory(BaseSearcher):
    """A searcher over passages in memory: BM25 and, with an encoder, vectors."""

    def __init__(
        self, passages: Iterable[Passage | str], encoder: str | os.PathLike[str] | None, device: str
    ) -> None:
        from qontext.models.retriever import Retriever
        from qontext.retrieve.bm25 import Bm25
        from qontext.retrieve.index.load import packed_index

        own = list(as_passages(passages))
        self._bm25 = Bm25.build(own)  # refuses ids that occur twice
        self._by_id = {passage.id: passage for passage in own}
        self.system, self.weights = System(words=True), (1.0, 0.0)
        if encoder is not None:
            self.system, self.weights = System("adapted", words=True), (0.5, 0.5)
            self._retriever = Retriever(encoder, device=device, packed=True)
            ordered = sorted(self._by_id)
            ids = np.array(ordered, dtype=object)
            encoded: Any = self._retriever.encode_passages([self._by_id[id] for id in ordered])
            self._index: Any = None
            if self._retriever.is_packed:
                kind = packed_index(self._retriever.layout.representation)
                self._index = kind.of(ids, encoded, self._retriever.dimension)
            else:
                self._index = _Vectors(ids, encoded)

    @property
    def lexical(self) -> Any:
        return self._bm25

    def _dense_parts(self, queries: int) -> tuple[Any, Any]:
        return self._retriever, self._index

    def _passages(self, ids: set[str]) -> Mapping[str, Found]:
        return {id: Found(self._by_id[id]) for id in ids}

    def _rows(self, where: tuple[str, ...], index: Any) -> Mask | None:
        if where:
            raise QontextError(
                "passages in memory have no metadata to filter by",
                remedy="Search a directory of 'qontext adapt' or 'qontext index' instead.",
            )
        return None


@dataclass(frozen=True)
class _Vectors:
    """Exact search over vectors in memory; `ids` ascend."""

    ids: np.ndarray[Any, Any]  # [P]
    vectors_PD: np.ndarray[Any, Any]

    def search(self, queries_QD: np.ndarray[Any, Any], k: int, rows: Mask | None) -> tuple[Any, Any]:
        """([Q, k] numbers, [Q, k] scores), best first, ties by number."""
        scores_QP = queries_QD @ self.vectors_PD.T
        numbers = np.argsort(-scores_QP, axis=1, kind="stable")[:, :k]
        return numbers, np.take_along_axis(scores_QP, numbers, 1)
