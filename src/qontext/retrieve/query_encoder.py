"""The encoder of queries, loaded on first use, and how it is opened with the index of its vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from qontext.data.places import Found, find_passages
from qontext.frame.artifacts import Artifact
from qontext.frame.trust import trusting
from qontext.retrieve.index import How, Index

if TYPE_CHECKING:
    from qontext.models.folder import TextKind

WITHOUT_TORCH = 16
"""Maximum number of queries to encode and search without torch, which takes seconds to import."""


class QueryEncoder:
    """The encoder of queries, loaded on first use. A few texts are encoded in NumPy where it can, unless torch is resident.

    Args:
        model: A folder or a Hub name.
        max_length: Maximum tokens of a query; None for the encoder's limit.
        passage_length: Maximum tokens of a passage, in comparisons with passages.
        prompts, pooling, title: Those of the vectors, if not those of the folder.
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
        title: Any = None,
        packed: bool = False,
        is_resident: bool = False,
    ) -> None:
        self.model, self.device, self.is_resident = model, device, is_resident
        self.lengths = {"query": max_length, "passage": passage_length or max_length}
        self._form: dict[str, Any] = {"device": device, "precision": precision, "prompts": prompts}
        self._form |= {"pooling": pooling, "title": title, "packed": packed}

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


@dataclass
class Opening:
    """The settings of opening; what is opened with the same object shares models."""

    device: str = "auto"
    precision: Any = "auto"
    """The number format, or a function that settles it once a model is there."""
    encoder: str | None = None
    """A copy of the encoder, if it is no longer where it was; or the other half of an `untied` pair."""
    untied: bool = False
    trust: bool = False
    """Allow the code or the server that a directory names for its index."""
    max_length: int | None = None
    """Maximum tokens of a query, if not those of the encoder."""
    is_resident: bool = False
    """True where torch is loaded anyway."""
    how: How = field(default_factory=How)
    """The search of vectors in such a process."""
    find: Callable[[str, set[str]], Mapping[str, Found]] = find_passages
    """Finds passages by their ids, at a path."""
    models: WeakValueDictionary[tuple[Any, ...], Any] = field(default_factory=WeakValueDictionary)

    def model(self, kind: type, path: str, *, key: Any = None, **settings: Any) -> Any:
        """The model at a path; in a resident process, one whose content is the same is loaded once for each key."""
        from qontext.models.folder import locate
        from qontext.models.reference import model_digest

        precision = self.precision() if callable(self.precision) else self.precision
        form = {"device": self.device, "precision": precision, **settings}
        if not self.is_resident:
            return kind(path, **form)
        key = (kind, path, model_digest(locate(path).root), key, str(form))
        model = self.models.get(key)
        if model is None:
            model = self.models[key] = kind(path, **form)
        return model

    def query_encoder(self, path: str, made: Artifact, **form: Any) -> QueryEncoder:
        """The encoder of queries at a path, for what it `made`: vectors, or their index."""
        from qontext.retrieve.stored import prompts_of

        form |= {"prompts": prompts_of(made), "is_resident": self.is_resident}
        if self.max_length is not None:
            form["max_length"] = self.max_length
        encoder: QueryEncoder = self.model(QueryEncoder, path, **form)
        return encoder

    def index(self, path: Path | str, *, few: int = 0) -> tuple[Index, Any]:
        """The index at a path, and the encoder that made its vectors."""
        from qontext.retrieve.index.load import open_index

        with trusting(self.trust):
            return open_index(path, self.how if self.is_resident else How(self.device, few=few))
