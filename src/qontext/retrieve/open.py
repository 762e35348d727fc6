"""A directory of `adapt`, opened: the rankers that its parts make."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from qontext.data.places import Found, Place, find_passages
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.trust import trusting
from qontext.retrieve.directory import ADAPTED, dense_index, is_adapted, model_of, read_adapted, reranker_of
from qontext.retrieve.index import How, Index
from qontext.retrieve.rankers import (
    Among,
    Fused,
    IndexRanker,
    PairReranked,
    Ranker,
    TokenReranked,
    everything,
)
from qontext.retrieve.system import TOKEN_WEIGHT, System

if TYPE_CHECKING:
    from qontext.data.passage import Passage
    from qontext.models.folder import TextKind
    from qontext.retrieve.encoded.token_bits import TokenBits
    from qontext.retrieve.index.lexical import LexicalIndex
    from qontext.retrieve.where import Mask

WITHOUT_TORCH = 16
"""Maximum number of queries to encode and search without torch, which takes seconds to import."""


class AdaptedFolder:
    """A finished directory of `adapt`. Its parts are opened on first use; an update leaves them alone as long as this
    object exists.

    Args:
        root: The directory.
        device: Device of the encoder and of exact search.
        encoder: A copy of the encoder, if it is no longer where `adapt` found it.
        trust: Allow the code or the server that the directory names for its index.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        device: str = "auto",
        encoder: str | None = None,
        trust: bool = False,
    ) -> None:
        self.root, self.device, self._copy, self._is_trusted = Path(root), device, encoder, trust
        if not is_adapted(self.root):
            raise QontextError(
                f"not a finished 'qontext adapt' directory: it has no {ADAPTED}",
                place=self.root,
                remedy="Finish 'qontext adapt DOCUMENTS --out DIR' first.",
            )
        self.about = read_adapted(self.root)
        self.folder = self.root / self.about["index"]
        self.system, self.read_tokens = System.parse(self.about["system"]), self.about["read_tokens"]
        self._last_masks: tuple[tuple[str, ...], dict[int, Mask]] = ((), {})

    def __str__(self) -> str:
        return str(self.root)

    def ranker(self, system: System | None = None) -> Ranker:
        """The ranker of a system; by default, of the recommended one."""
        system = system or self.system
        if system.reranked:
            model, how = self.cross_encoder, self.about["reranker"]
            return PairReranked(
                self.ranker(system.first_stage), model, self._passages, how["depth"], how["weight"]
            )
        if system.tokens:
            weight = self.about.get("token_weight", TOKEN_WEIGHT)
            return TokenReranked(self.ranker(system.first_stage), self.tokens, self.encoder, weight)
        if system.words and system.encoder is not None:
            return Fused((self.words, self.dense), self.about["weights"])
        return self.words if system.words else self.dense

    @cached_property
    def words(self) -> IndexRanker:
        return IndexRanker(self.lexical)

    @cached_property
    def dense(self) -> IndexRanker:
        return IndexRanker(self.index, self.encoder)

    @cached_property
    def lexical(self) -> LexicalIndex:
        """The index of BM25."""
        from qontext.retrieve.index.load import open_index

        return cast("LexicalIndex", open_index(self.folder / "bm25")[0])

    @cached_property
    def index(self) -> Index:
        """The index of the vectors."""
        from qontext.retrieve.index.load import open_index

        few = WITHOUT_TORCH if self.encoder.is_light else 0
        with trusting(self._is_trusted):
            return open_index(dense_index(self.folder), How(self.device, few=few))[0]

    @cached_property
    def tokens(self) -> TokenBits:
        """The bits of the passages' tokens."""
        from qontext.retrieve.encoded.token_bits import TokenBits

        path = self.folder / "vectors"
        return TokenBits(path)

    @cached_property
    def encoder(self) -> Any:
        """The encoder of the queries."""
        return QueryEncoder(self.model, self.read_tokens, self.device, self.prompts)

    @cached_property
    def prompts(self) -> dict[TextKind, str | None]:
        """The prompts of the vectors, if not those of the encoder's folder."""
        from qontext.retrieve.encoded.vectors import prompts_of

        return prompts_of(open_artifact(dense_index(self.folder)))

    @cached_property
    def model(self) -> str:
        """The encoder: a folder or a Hub name."""
        return model_of(self.root, self._copy, self.about)

    @cached_property
    def cross_encoder(self) -> Any:
        """The cross-encoder of the last stage."""
        from qontext.models.cross_encoder import CrossEncoder

        return CrossEncoder(reranker_of(self.root, self.about), device=self.device)

    def _passages(self, ids: set[str]) -> dict[str, Passage]:
        return {id: found.passage for id, found in self.find(ids).items()}

    def among(self, where: tuple[str, ...]) -> Among:
        """The passages that meet conditions; the masks of the last conditions are kept."""
        from qontext.retrieve.where import mask

        if not where:
            return everything
        known, masks = self._last_masks
        if known != where:
            masks = {}
            self._last_masks = (where, masks)

        def rows(index: Index) -> Mask:
            if id(index) not in masks:
                masks[id(index)] = mask(where, index.ids, self.folder / "passages")
            return masks[id(index)]

        return rows

    def path_of(self, place: Place) -> str | None:
        """The path of the file of a passage, if it is one that is still there."""
        from qontext.corpus.sources.several import FIELD, FILE, place_of, read_listing

        if not place.file or "://" in place.file:
            return None
        name, root = place.metadata.get(FIELD), self.root
        if (root / FILE).is_file() and (entry := read_listing(root / FILE).get(str(name))) is not None:
            source, file = Path(place_of(entry, root)), place.file.removeprefix(entry.get("ids", ""))
        else:
            recorded = open_artifact(self.folder / "passages").inputs["source"]["path"]
            source, file = Path(recorded).expanduser(), place.file
        path = source / file if source.is_dir() else source
        return str(path) if path.exists() else None

    def find(self, ids: set[str]) -> Mapping[str, Found]:
        """The passages with these ids."""
        return find_passages(self.folder / "passages", ids)


class QueryEncoder:
    """An encoder of one vector that is loaded on first use. A few texts are encoded in NumPy where it can, since torch takes
    seconds to import."""

    def __init__(self, model: str, max_length: int, device: str, prompts: dict[TextKind, str | None]) -> None:
        self.model, self.max_length, self.device, self.prompts = model, max_length, device, prompts

    @property
    def is_light(self) -> bool:
        """True if a few texts are encoded without torch."""
        return self._is_light

    def encode(self, texts: Sequence[str], kind: TextKind) -> Any:
        return self._for(len(texts)).encode(texts, kind)

    def token_vectors(self, texts: Sequence[str], kind: TextKind) -> list[Any]:
        vectors: list[Any] = self._for(len(texts)).encode_tokens_of_queries(texts)
        return vectors

    def _for(self, count: int) -> Any:
        return self._light if count <= WITHOUT_TORCH and self.is_light else self._retriever

    @cached_property
    def _is_light(self) -> bool:
        from qontext.models.light import light_folder  # which loads no weights

        return self.device in ("auto", "cpu") and light_folder(self.model) is not None

    @cached_property
    def _light(self) -> Any:
        from qontext.models.light import open_light

        return open_light(self.model, self.max_length, self.prompts)

    @cached_property
    def _retriever(self) -> Any:
        from qontext.models.retriever import Retriever

        form: dict[str, Any] = {"max_length": self.max_length, "prompts": self.prompts}
        return Retriever(self.model, device=self.device, **form)
