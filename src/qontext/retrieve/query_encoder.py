"""The models that answer a query: its encoder, and a cross-encoder, loaded on first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qontext.data.collection import Passage
    from qontext.models.folder import TextKind

WITHOUT_TORCH = 16
"""Maximum number of queries to encode and search without torch, which takes seconds to import."""


class QueryEncoder:
    """The encoder of queries, loaded on first use. A few texts are encoded in NumPy where it can, unless torch is resident.

    Args:
        model: A folder or a Hub name.
        max_length: Maximum tokens of a query; None for the encoder's limit.
        passage_length: Maximum tokens of a passage, in comparisons with passages.
        prompts, pooling: Those of the vectors, if not those of the folder.
        packed: Accept representations other than one vector.
    """

    def __init__(
        self,
        model: str,
        max_length: int | None = None,
        *,
        passage_length: int | None = None,
        device: str = "auto",
        precision: Any = "auto",
        prompts: Mapping[TextKind, str | None] | None = None,
        pooling: str | None = None,
        packed: bool = False,
        is_resident: bool = False,
    ) -> None:
        self.model, self.device, self.is_resident = model, device, is_resident
        self.lengths = {"query": max_length, "passage": passage_length or max_length}
        self._form: dict[str, Any] = {"device": device, "precision": precision, "prompts": prompts}
        self._form |= {"pooling": pooling, "packed": packed}

    @cached_property
    def is_light(self) -> bool:
        """True if a few texts are encoded without torch."""
        from qontext.models.light import light_folder  # which loads no weights

        if self.is_resident or self.device not in ("auto", "cpu") or self._form["packed"]:
            return False
        return light_folder(self.model) is not None

    @property
    def dimension(self) -> int:
        return int(self.retriever.dimension)

    def encode(self, texts: Sequence[str], kind: TextKind) -> Any:
        """[N, D] vectors, or packed representations."""
        if self._is_few(texts):
            return self._light.encode(texts, kind)
        return self.embed(texts, kind)[0]

    def embed(self, texts: Sequence[str], kind: TextKind) -> tuple[Any, list[int]]:
        """([N, D] vectors in fp32 or packed representations, [N] tokens read of each text)."""
        half = self.retriever.of(kind)
        tokens = half.tokenize(texts, kind, self.lengths[kind])
        return half.encode_tokens(tokens, kind), [len(ids) for ids in tokens]

    def token_vectors(self, texts: Sequence[str], kind: TextKind) -> list[Any]:
        """[T, H] for each text: the vectors of its tokens."""
        import numpy as np

        if kind == "query" and self._is_few(texts):
            return list(self._light.encode_tokens_of_queries(texts))
        half = self.retriever.of(kind)
        packed = half.encode_each_token(half.tokenize(texts, kind, self.lengths[kind]))
        return np.split(packed.values, packed.starts[1:-1])

    def _is_few(self, texts: Sequence[str]) -> bool:
        return len(texts) <= WITHOUT_TORCH and self.is_light

    @cached_property
    def _light(self) -> Any:
        from qontext.models.light import open_light

        return open_light(self.model, self.lengths["query"], self._form["prompts"])

    @cached_property
    def retriever(self) -> Any:
        """The encoder in torch."""
        from qontext.models.retriever import Retriever

        return Retriever(self.model, max_length=self.lengths["query"], **self._form)


class LazyReranker:
    """A cross-encoder that is loaded on first use."""

    def __init__(
        self, path: str, *, device: str = "auto", precision: Any = "auto", is_resident: bool = False
    ) -> None:
        self.path, self.name = path, Path(path).name
        self._form: dict[str, Any] = {"device": device, "precision": precision}

    @cached_property
    def _model(self) -> Any:
        from qontext.models.cross_encoder import CrossEncoder

        return CrossEncoder(self.path, **self._form)

    def score(self, pairs: Sequence[tuple[str, Passage | str]]) -> Any:
        """[N] the logits of queries and passages."""
        return self._model.score(pairs)
