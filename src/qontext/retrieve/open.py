"""The one door to what answers questions.

AdaptedFolder    a directory of `adapt`, with its recommended system
OneIndex         the output of `encode` or `index`
InMemory         passages in memory; in a module of its own

`open_path` opens a path; documents as they are become a directory first. Parts are opened on first use, and nothing
else makes an encoder of queries from them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from qontext.data.places import Found, Place, find_passages
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.trust import trusting
from qontext.retrieve.ask.prepared import is_documents, prepare
from qontext.retrieve.directory import (
    ADAPTED,
    PLAN,
    dense_index,
    is_adapted,
    model_of,
    read_adapted,
    reranker_of,
)
from qontext.retrieve.index import How, Index
from qontext.retrieve.query_encoder import WITHOUT_TORCH, LazyReranker, QueryEncoder
from qontext.retrieve.rankers import (
    Among,
    Fused,
    IndexRanker,
    PairReranked,
    Ranker,
    TokenReranked,
    everything,
)
from qontext.retrieve.system import TOKEN_WEIGHT, WEIGHTS, System

if TYPE_CHECKING:
    from qontext.data.collection import Passage
    from qontext.retrieve.index.lexical import LexicalIndex
    from qontext.retrieve.max_sim import TokenBits
    from qontext.retrieve.where import Mask

SCANNED = 8
"""Queries that one pass over the vectors answers faster than a matrix product, which pads them to a multiple of so many."""


@dataclass
class Opening:
    """The settings of opening; what is opened with the same object shares models."""

    device: str = "auto"
    precision: Any = "auto"
    encoder: str | None = None
    """A copy of the encoder, if it is no longer where it was."""
    trust: bool = False
    """Allow the code or the server that a directory names for its index."""
    is_resident: bool = False
    """True for a server, which has torch loaded."""
    models: WeakValueDictionary[tuple[Any, ...], Any] = field(default_factory=WeakValueDictionary)

    def model(self, kind: type, path: str, *, key: Any = None, **settings: Any) -> Any:
        """The model at a path; in a server, one whose content is the same is loaded once for each key."""
        from qontext.models.folder import locate
        from qontext.models.reference import model_digest

        if not self.is_resident:
            return kind(path, device=self.device, precision=self.precision, **settings)
        key = (kind, path, model_digest(locate(path).root), key, str(settings))
        model = self.models.get(key)
        if model is None:
            model = self.models[key] = kind(
                path, device=self.device, precision=self.precision, is_resident=True, **settings
            )
        return model

    def index(self, path: Path | str, *, few: int = 0) -> tuple[Index, Any]:
        """The index at a path, and the encoder that made its vectors."""
        from qontext.retrieve.index.load import open_index

        with trusting(self.trust):
            return open_index(path, How(self.device, few=SCANNED if self.is_resident else few))


class Searchable(ABC):
    """Passages, and the rankers that find them."""

    system: System
    """The combination that is searched, unless another one is named."""
    weights: Sequence[float] = WEIGHTS
    encoder: Any = None
    lexical: LexicalIndex | None = None

    @property
    def label(self) -> str:
        """The combination, for users."""
        return self.system.label

    @property
    @abstractmethod
    def words(self) -> IndexRanker | None:
        """The ranker by words."""

    @property
    @abstractmethod
    def dense(self) -> IndexRanker | None:
        """The ranker by vectors."""

    def ranker(self, system: System | None = None) -> Ranker:
        """The ranker of a system; by default, of the one that is searched."""
        system = system or self.system
        parts = [*([self.words] if system.words else []), *([self.dense] if system.encoder else [])]
        if system.tokens or system.reranked or not parts or None in parts:
            raise QontextError(f"{self} has no system {system.name!r}", remedy="Choose another one.")
        return Fused(cast("Any", parts), self.weights) if len(parts) > 1 else cast("Ranker", parts[0])

    @abstractmethod
    def find(self, ids: set[str]) -> Mapping[str, Found]:
        """The passages with these ids."""

    @abstractmethod
    def among(self, where: tuple[str, ...]) -> Among:
        """The passages that meet conditions."""

    def passages(self, ids: set[str]) -> dict[str, Passage]:
        """The passages with these ids, without their places."""
        return {id: found.passage for id, found in self.find(ids).items()}

    def path_of(self, place: Place) -> str | None:
        """The path of the file of a passage, if it is one that is still there."""
        return None


class SearchableFolder(Searchable):
    """A collection on disk; the masks of the last conditions are kept."""

    folder: Path
    """The folder of the index."""

    def __init__(self, root: str | os.PathLike[str], opening: Opening) -> None:
        self.root, self.opening = Path(root), opening
        self._last_masks: tuple[tuple[str, ...], dict[int, Mask]] = ((), {})

    def __str__(self) -> str:
        return str(self.root)

    @property
    @abstractmethod
    def passages_place(self) -> str:
        """The path of the passages."""

    def find(self, ids: set[str]) -> Mapping[str, Found]:
        return find_passages(self.passages_place, ids)

    def among(self, where: tuple[str, ...]) -> Among:
        from qontext.retrieve.where import mask, parse

        if not where:
            return everything
        known, masks = self._last_masks
        if known != where:
            masks = {}
            self._last_masks = (where, masks)

        def rows(index: Index) -> Mask:
            if id(index) not in masks:
                own = index.where(parse(where))
                masks[id(index)] = mask(where, index.ids, self.passages_place) if own is None else own
            return masks[id(index)]

        return rows


class AdaptedFolder(SearchableFolder):
    """A finished directory of `adapt`."""

    def __init__(self, root: str | os.PathLike[str], opening: Opening) -> None:
        super().__init__(root, opening)
        self.about = read_adapted(self.root)
        self.folder = self.root / self.about["index"]
        self.system, self.read_tokens = System.parse(self.about["system"]), self.about["read_tokens"]
        self.weights = self.about["weights"]

    @property
    def passages_place(self) -> str:
        return str(self.folder / "passages")

    def ranker(self, system: System | None = None) -> Ranker:
        system = system or self.system
        if system.reranked:
            how = self.about["reranker"]
            first = self.ranker(system.first_stage)
            return PairReranked(first, self.cross_encoder, self.passages, how["depth"], how["weight"])
        if system.tokens:
            weight = self.about.get("token_weight", TOKEN_WEIGHT)
            return TokenReranked(self.ranker(system.first_stage), self.tokens, self.encoder, weight)
        return super().ranker(system)

    @cached_property
    def words(self) -> IndexRanker:
        return IndexRanker(self.lexical)

    @cached_property
    def dense(self) -> IndexRanker | None:
        return IndexRanker(self.index, self.encoder) if dense_index(self.folder).exists() else None

    @cached_property
    def lexical(self) -> LexicalIndex:  # type: ignore[override]
        """The index of BM25."""
        return cast("LexicalIndex", self.opening.index(self.folder / "bm25")[0])

    @cached_property
    def index(self) -> Index:
        """The index of the vectors."""
        few = WITHOUT_TORCH if self.encoder.is_light else 0
        return self.opening.index(dense_index(self.folder), few=few)[0]

    @cached_property
    def tokens(self) -> TokenBits:
        """The bits of the passages' tokens."""
        from qontext.retrieve.max_sim import TokenBits

        return TokenBits(self.folder / "vectors")

    @cached_property
    def encoder(self) -> QueryEncoder:
        """The encoder of the queries."""
        from qontext.retrieve.stored import prompts_of

        model = model_of(self.root, self.opening.encoder, self.about)
        prompts = prompts_of(open_artifact(dense_index(self.folder)))
        encoder: QueryEncoder = self.opening.model(
            QueryEncoder, model, max_length=self.read_tokens, prompts=prompts
        )
        return encoder

    @cached_property
    def cross_encoder(self) -> Any:
        """The cross-encoder of the last stage."""
        return self.opening.model(LazyReranker, reranker_of(self.root, self.about))

    def path_of(self, place: Place) -> str | None:
        from qontext.corpus.sources.several import FIELD, FILE, place_of, read_listing

        if not place.file or "://" in place.file:
            return None
        name, root = place.metadata.get(FIELD), self.root
        if (root / FILE).is_file() and (entry := read_listing(root / FILE).get(str(name))) is not None:
            source, file = Path(place_of(entry, root)), place.file.removeprefix(entry.get("ids", ""))
        else:
            recorded = open_artifact(self.passages_place).inputs["source"]["path"]
            source, file = Path(recorded).expanduser(), place.file
        path = source / file if source.is_dir() else source
        return str(path) if path.exists() else None


class OneIndex(SearchableFolder):
    """The output of `encode` or `index`.

    Args:
        passages: The path of the passages, if not the recorded one.
    """

    def __init__(self, path: str, opening: Opening, passages: str | None = None) -> None:
        super().__init__(path, opening)
        self.artifact, self._passages = open_artifact(path), passages
        self.folder = self.root
        self.index, entry = opening.index(path)
        self._ranker = IndexRanker(self.index, None if entry is None else self._encoder(entry))
        is_lexical = self.index.reads == "texts"
        self.system = System(None if is_lexical else "start", words=is_lexical)
        self.lexical = cast("Any", self.index) if hasattr(self.index, "bm25") else None
        self.encoder = self._ranker.encoder

    def _encoder(self, entry: Any) -> QueryEncoder:
        from qontext.retrieve.index.load import encoder_of, fit, passage_length
        from qontext.retrieve.stored import pooling_of, prompts_of

        path = encoder_of(entry, self.root, self.opening.encoder)
        form: dict[str, Any] = {"prompts": prompts_of(self.artifact), "packed": self.index.reads == "packed"}
        form |= {"pooling": pooling_of(self.artifact), "passage_length": passage_length(self.artifact)}
        encoder: QueryEncoder = self.opening.model(QueryEncoder, path, key=self.index.dimension, **form)
        fit(encoder.retriever, self.index, path)
        return encoder

    @property
    def label(self) -> str:
        backend = self.index.tag if self.artifact.verb == "encode" else str(self.artifact.config["backend"])
        return "BM25" if backend == "bm25" else "vectors" if backend == "dense" else backend

    @property
    def words(self) -> IndexRanker | None:
        return self._ranker if self.lexical is not None else None

    @property
    def dense(self) -> IndexRanker | None:
        return self._ranker if self.encoder is not None else None

    @cached_property
    def passages_place(self) -> str:
        from qontext.retrieve.where import passages_of

        return self._passages or passages_of(self.artifact)


def open_path(
    path: str | os.PathLike[str], opening: Opening, passages: str | None = None
) -> SearchableFolder:
    """The collection at a path: a directory of `adapt`, the output of `encode` or `index`, or documents as they are, whose
    index follows them."""
    place = prepare(os.fspath(path)) if is_documents(os.fspath(path)) else os.fspath(path)
    if is_adapted(place):
        return AdaptedFolder(place, opening)
    if (Path(place) / PLAN).is_file():
        raise QontextError(
            f"not a finished 'qontext adapt' directory: it has no {ADAPTED}",
            place=place,
            remedy="Run the same 'qontext adapt' again.",
        )
    return OneIndex(place, opening, passages)
