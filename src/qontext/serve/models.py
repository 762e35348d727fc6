"""The models behind a server: encoders and cross-encoders, each loaded once. Used by one thread at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qontext.data.passage import Passage
from qontext.models.folder import TextKind

Array = np.ndarray[Any, Any]


class ServedEncoder:
    """Texts → vectors. Passages are truncated at the same length as those of the index."""

    def __init__(
        self,
        path: str,
        *,
        device: str,
        precision: Any,
        lengths: dict[TextKind, int | None],
        prompts: dict[TextKind, str | None],
        pooling: str | None = None,
    ) -> None:
        from qontext.models.retriever import Retriever

        self.model = path
        form: dict[str, Any] = {"device": device, "precision": precision, "prompts": prompts}
        self.retriever = Retriever(path, **form, pooling=pooling)
        self._lengths = {kind: lengths[kind] or self.retriever.of(kind).max_length for kind in lengths}

    @property
    def dimension(self) -> int:
        return self.retriever.dimension

    def encode(self, texts: Sequence[str], kind: TextKind) -> Array:
        """[N, D] vectors in fp32."""
        return self.embed(texts, kind)[0]

    def embed(self, texts: Sequence[str], kind: TextKind) -> tuple[Array, list[int]]:
        """([N, D] vectors in fp32, [N] tokens read of each text)."""
        half = self.retriever.of(kind)
        tokens = half.tokenize(texts, kind, self._lengths[kind])
        return half.encode_tokens(tokens, kind), [len(ids) for ids in tokens]

    def token_vectors(self, texts: Sequence[str], kind: TextKind) -> list[Array]:
        """[T, H] for each text: the vectors of its tokens."""
        half = self.retriever.of(kind)
        packed = half.encode_each_token(half.tokenize(texts, kind, self._lengths[kind]))
        return np.split(packed.values, packed.starts[1:-1])


class Reranker:
    """Pairs of query and passage or text → probabilities of relevance."""

    def __init__(self, path: str, name: str, *, device: str, precision: Any) -> None:
        from qontext.models.cross_encoder import CrossEncoder

        self.name = name
        self._model = CrossEncoder(path, device=device, precision=precision)

    def scores(self, pairs: Sequence[tuple[str, Passage | str]]) -> Array:
        """[N] between 0 and 1: the logistic function of the model's logits."""
        logits = self._model.score(pairs)
        chances: Array = 0.5 + 0.5 * np.tanh(logits / 2)
        return chances
