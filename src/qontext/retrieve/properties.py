"""The settings that determine what `encode` stores: for its summary, and for reuse."""

from __future__ import annotations

from typing import Any

from qontext.retrieve.reuse import weights_hash
from qontext.retrieve.vectors import TOKEN_BITS


def properties_of(retriever: Any, storage: str, window: int | None = None) -> dict[str, Any]:
    """The settings that determine vectors, for the summary and for reuse."""
    return {
        **({} if window is None else {"representation": "windows", "window": window}),
        "dimension": retriever.dimension,
        "similarity": retriever.layout.similarity,
        "pooling": retriever.layout.pooling
        if retriever.representation is None
        else retriever.layout.representation,
        "normalized": retriever.layout.normalize,
        "max_length": retriever.max_length,
        "title": retriever.titles.rule,
        "computed_in": str(retriever.dtype).removeprefix("torch."),
        "weights": weights_hash(retriever.modules()),
        "storage": storage,
    }


def token_properties(retriever: Any) -> dict[str, Any]:
    """The settings that determine bits of tokens, for the summary and for reuse."""
    properties = properties_of(retriever, "bits")
    for name in ("similarity", "pooling", "normalized"):
        del properties[name]
    return {"representation": TOKEN_BITS, **properties, "dimension": retriever.width}


def packed_properties(retriever: Any, storage: str) -> dict[str, Any]:
    """The settings that determine representations other than one vector, for the summary."""
    return {
        **retriever.representation.about(),
        "dimension": retriever.dimension,
        "max_length": retriever.max_length,
        "title": retriever.titles.rule,
        "computed_in": str(retriever.dtype).removeprefix("torch."),
        "weights": weights_hash(retriever.modules()),
        "storage": storage,
    }
