"""Ways to find the nearest vectors, all behind one protocol.

An index finds the passages with the greatest inner product. `numbers` are places in `ids`, which is sorted,
so that the smaller number wins a tie; where a query has fewer than k results, the rest is -1.

A backend is a module with ``build(vectors, folder, config)`` and ``load(folder) -> Index``, and a line in
`BACKENDS`. Exact search needs nothing built: it runs on the vectors themselves.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]

BACKENDS = {
    "faiss-hnsw": "qontext.retrieve.index.faiss",
    "faiss-ivfpq": "qontext.retrieve.index.faiss",
    "milvus": "qontext.retrieve.index.milvus",
}


class Index(Protocol):
    """Something that can be searched."""

    @property
    def dimension(self) -> int: ...

    @property
    def ids(self) -> Array:
        """[P] passage ids, ascending."""

    def search(self, queries_QD: Array, k: int) -> tuple[Array, Array]:
        """([Q, k] int64 numbers, [Q, k] float32 scores), best first."""
