"""The one door to what answers questions.

AdaptedFolder    a directory of `adapt`, with its recommended system
OneIndex         the output of `encode` or `index`
InMemory         passages in memory

`open_path` opens a path; documents as they are become a directory first. Parts are opened on first use, and nothing
else makes an encoder of queries from them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from qontext.data.places import Found
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.retrieve.ask.prepared import is_documents, prepare
from qontext.retrieve.directory import (
    ADAPTED,
    INDEX,
    PLAN,
    dense_index,
    is_adapted,
    model_of,
    read_adapted,
    reranker_of,
    write_adapted,
)
from qontext.retrieve.index import Index
from qontext.retrieve.query_encoder import WITHOUT_TORCH, Opening, QueryEncoder
from qontext.retrieve.system import (
    TOKEN_WEIGHT,
    WEIGHTS,
    Among,
    Fused,
    IndexRanker,
    Ranker,
    Reranked,
    System,
    everything,
)

if TYPE_CHECKING:
    from qontext.data.collection import Passage
    from qontext.retrieve.index.lexical import LexicalIndex
    from qontext.retrieve.scorers import TokenScorer
    from qontext.retrieve.where import Condition, Mask

_MASKS = 16
"""Conditions whose masks are kept."""


class Searchable:
    """Passages, and the rankers that find them; on disk, unless it is `InMemory`.

    Args:
        passages: The path of the passages, if not the recorded one.
    """

    system: System
    """The combination that is searched, unless another one is named."""
    tag: str
    """The name of the system in runs."""
    folder: Path
    """The folder of the index."""
    weights: Sequence[float] = WEIGHTS
    encoder: Any = None
    lexical: LexicalIndex | None = None
    words: IndexRanker | None = None
    """The ranker by words."""
    dense: IndexRanker | None = None
    """The ranker by vectors."""
    _recorded_passages: str

    def __init__(self, root: str | os.PathLike[str], opening: Opening, passages: str | None = None) -> None:
        self.root, self.opening, self._passages = Path(root), opening, passages
        self._masks: OrderedDict[tuple[Condition, ...], dict[int, Mask]] = OrderedDict()

    def __str__(self) -> str:
        return str(self.root)

    def label(self, system: System) -> str:
        """A combination, for users."""
        return system.label

    def ranker(self, system: System) -> Ranker:
        """The ranker of a system."""
        parts = [*([self.words] if system.words else []), *([self.dense] if system.encoder else [])]
        if system.tokens or system.reranked or not parts or None in parts:
            raise QontextError(f"{self} has no system {system.name!r}", remedy="Choose another one.")
        return Fused(cast("Any", parts), self.weights) if len(parts) > 1 else cast("Ranker", parts[0])

    @property
    def passages_place(self) -> str:
        """The path of the passages."""
        return self._passages or self._recorded_passages

    def find(self, ids: set[str]) -> Mapping[str, Found]:
        """The passages with these ids, which results have."""
        found = self.opening.find(self.passages_place, ids)
        if missing := ids - found.keys():
            raise QontextError(
                f"a result is the passage {min(missing)!r}, which is not in the passages",
                remedy="Name the passages that were indexed with --passages.",
            )
        return found

    def among(self, where: Sequence[str | Condition]) -> Among:
        """The passages that meet conditions, whose masks are kept."""
        from qontext.retrieve.where import mask, parse

        if not where:
            return everything
        conditions = tuple(parse(where))
        masks = self._masks.setdefault(conditions, {})
        if len(self._masks) > _MASKS:
            self._masks.popitem(last=False)

        def rows(index: Index) -> Mask:
            if id(index) not in masks:
                # What an index server says of its own passages is faster.
                is_own = self._passages is None and all(one.operator != "==" for one in conditions)
                own = index.where(conditions) if is_own else None
                masks[id(index)] = mask(conditions, index.ids, self.passages_place) if own is None else own
            return masks[id(index)]

        return rows


class AdaptedFolder(Searchable):
    """A finished directory of `adapt`."""

    def __init__(self, root: str | os.PathLike[str], opening: Opening, passages: str | None = None) -> None:
        super().__init__(root, opening, passages)
        self.about = read_adapted(self.root)
        self.folder = self.root / self.about["index"]
        self._recorded_passages = str(self.folder / "passages")
        self.system, self.read_tokens = System.parse(self.about["system"]), self.about["read_tokens"]
        self.weights, self.tag = self.about["weights"], self.about["system"]

    @property
    def systems(self) -> list[System]:
        """The recommended system, and the others that its parts make."""
        encoder = self.system.encoder or self.about.get("encoder", "adapted")
        parts = [System(words=True)]
        if self.dense is not None:
            parts += [System(encoder), System(encoder, words=True)]
        if self.system.reranked:
            parts.append(self.system.first_stage)
        return list(dict.fromkeys([self.system, *parts]))

    def ranker(self, system: System) -> Ranker:
        from qontext.retrieve.scorers import PairScorer

        if system.reranked:
            how, scorer = self.about["reranker"], PairScorer([self.cross_encoder], self.find)
            return Reranked(self.ranker(system.first_stage), scorer, how["weight"], how["depth"])
        if system.tokens:
            weight = self.about.get("token_weight", TOKEN_WEIGHT)
            return Reranked(self.ranker(system.first_stage), self.tokens, weight)
        return super().ranker(system)

    @cached_property
    def words(self) -> IndexRanker:  # type: ignore[override]
        return IndexRanker(self.lexical)

    @cached_property
    def dense(self) -> IndexRanker | None:  # type: ignore[override]
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
    def tokens(self) -> TokenScorer:
        """The bits of the passages' tokens."""
        from qontext.retrieve.scorers import TokenScorer

        return TokenScorer(self.folder / "vectors", self.encoder)

    @cached_property
    def encoder(self) -> QueryEncoder:
        """The encoder of the queries."""
        path = model_of(self.root, self.opening.encoder, self.about)
        made = open_artifact(dense_index(self.folder))
        return self.opening.query_encoder(path, made, max_length=self.read_tokens)

    @cached_property
    def cross_encoder(self) -> Any:
        """The cross-encoder of the last stage."""
        from qontext.models.cross_encoder import CrossEncoder

        return self.opening.model(CrossEncoder, reranker_of(self.root, self.about))


class OneIndex(Searchable):
    """The output of `encode` or `index`, or an `index` that is open already."""

    def __init__(
        self, path: str, opening: Opening, passages: str | None = None, index: Index | None = None
    ) -> None:
        super().__init__(path, opening, passages)
        self.folder, entry = self.root, None
        if index is None:
            self.artifact = open_artifact(path)
            index, entry = opening.index(path)
        self.index, self.encoder = index, None if entry is None else self._encoder(index, entry)
        self.tag = index.tag
        self.lexical = cast("Any", index) if hasattr(index, "bm25") else None
        if index.reads == "texts":
            self.system, self.words = System(words=True), IndexRanker(index)
        else:
            self.system, self.dense = System("start"), IndexRanker(index, self.encoder)

    def _encoder(self, index: Index, entry: Any) -> QueryEncoder:
        from qontext.retrieve.index.load import encoder_of, fit, passage_length
        from qontext.retrieve.stored import pooling_of

        opening = self.opening
        path = encoder_of(entry, self.root, opening.encoder, untied=opening.untied)
        is_other_half = opening.untied and opening.encoder is not None
        encoder = opening.query_encoder(
            path,
            self.artifact,
            key=index.dimension,
            packed=index.reads == "packed",
            pooling=None if is_other_half else pooling_of(self.artifact),
            passage_length=passage_length(self.artifact),
        )
        fit(encoder.retriever, index, path, untied=opening.untied)
        return encoder

    def label(self, system: System) -> str:
        if system.words:
            return system.label
        name = self.index.tag if self.artifact.verb == "encode" else str(self.artifact.config["backend"])
        return "vectors" if name == "dense" else name

    @cached_property
    def _recorded_passages(self) -> str:  # type: ignore[override]
        from qontext.retrieve.where import passages_of

        return passages_of(self.artifact)


class InMemory(Searchable):
    """Passages in memory, their index of words and, with an encoder, their vectors."""

    def __init__(
        self, passages: Iterable[Passage | str], encoder: str | os.PathLike[str] | None, device: str
    ) -> None:
        from qontext.data.load import as_passages
        from qontext.retrieve.bm25 import Bm25
        from qontext.retrieve.index.lexical import LexicalIndex

        own = list(as_passages(passages))
        self.lexical = LexicalIndex(Bm25.build(own))  # refuses ids that occur twice
        self._by_id = {passage.id: passage for passage in own}
        self.system = System("start" if encoder is not None else None, words=True)
        self.words = IndexRanker(self.lexical)
        if encoder is not None:
            self.encoder = QueryEncoder(os.fspath(encoder), device=device, packed=True)
            self.dense = self._encoded(self.encoder)

    def _encoded(self, encoder: QueryEncoder) -> IndexRanker:
        import numpy as np

        from qontext.retrieve.index.load import index_of_arrays

        retriever, ordered = encoder.retriever, sorted(self._by_id)
        vectors = retriever.encode_passages([self._by_id[id] for id in ordered])
        ids, representation = np.array(ordered, dtype=object), retriever.layout.representation
        return IndexRanker(index_of_arrays(ids, vectors, representation, retriever.dimension), encoder)

    def __str__(self) -> str:
        return f"{len(self._by_id):,} passages"

    def find(self, ids: set[str]) -> Mapping[str, Found]:
        return {id: Found(self._by_id[id]) for id in ids}

    def among(self, where: Sequence[str | Condition]) -> Among:
        if where:
            raise QontextError("passages in memory have no metadata to filter by")
        return everything

    def save(self, root: Path, system: System) -> None:
        """Write what a directory of `adapt` needs to be searched; its encoder is referred to."""
        from qontext.data.collection import passage_row
        from qontext.frame.execution import command
        from qontext.models.reference import refer

        self.ranker(system)  # refuses one that is not there
        if self.encoder is not None and self.encoder.retriever.is_packed:
            raise QontextError(
                f"passages with the representation {self.encoder.retriever.layout.representation!r} are not saved as a "
                "directory",
                remedy="Write them with 'qontext encode', whose output is searched and served.",
            )
        if root.exists() and any(root.iterdir()):
            raise QontextError("is not an empty directory", place=root, remedy="Choose another one.")
        passages = root / INDEX / "passages"
        with tempfile.TemporaryDirectory(prefix="qontext-") as folder:
            file = Path(folder) / "passages.jsonl"
            lines = (json.dumps(passage_row(passage)) + "\n" for passage in self._by_id.values())
            file.write_text("".join(lines), encoding="utf-8")
            command("split")(file, keep=True, language="en", out=passages)
        command("index")(passages, backend="bm25", out=root / INDEX / "bm25")
        about: dict[str, Any] = {"system": system.name, "weights": [1, 0], "read_tokens": 3}
        if self.encoder is not None:
            name, device = self.encoder.model, self.encoder.device
            command("encode")(passages, encoder=name, device=device, out=root / INDEX / "vectors")
            about |= {"encoder": "start", "weights": list(WEIGHTS), "reference": refer(name, root)}
            about["read_tokens"] = self.encoder.retriever.max_length
        write_adapted(root, {**about, "index": INDEX})


def open_path(path: str | os.PathLike[str], opening: Opening, passages: str | None = None) -> Searchable:
    """The collection at a path: a directory of `adapt`, the output of `encode` or `index`, or documents as they are, whose
    index follows them."""
    place = prepare(os.fspath(path)) if is_documents(os.fspath(path)) else os.fspath(path)
    if is_adapted(place):
        return AdaptedFolder(place, opening, passages)
    if (Path(place) / PLAN).is_file():
        raise QontextError(
            f"not a finished 'qontext adapt' directory: it has no {ADAPTED}",
            place=place,
            remedy="Run the same 'qontext adapt' again.",
        )
    return OneIndex(place, opening, passages)
