"""A directory of `adapt`: what `adapted.json` says, where its parts are, and the rankers that they make.

adapted.json     the recommended system, and how to search
model/           the encoder, unless it was not changed and is referred to
reranker/        the cross-encoder, if the recommended system has one and it was copied
index/           passages, bm25, vectors, tokens, and dense if the vectors have an index
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, cast

from pydantic import Field, NonNegativeFloat
from typing_extensions import TypedDict

from qontext.data.places import Found, Place, find_passages
from qontext.frame.artifacts import is_artifact, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.files import json_digest, read_json
from qontext.frame.locks import ReadLock
from qontext.frame.trust import trusting
from qontext.models.reference import Reference, model_digest, resolve
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
from qontext.retrieve.system import System, SystemName

if TYPE_CHECKING:
    from qontext.data.passage import Passage
    from qontext.models.folder import TextKind
    from qontext.retrieve.encoded.token_bits import TokenBits
    from qontext.retrieve.index.lexical import LexicalIndex
    from qontext.retrieve.where import Mask

ADAPTED, PLAN, INDEX, DENSE, TOKENS = "adapted.json", "plan.json", "index", "dense", "tokens"
MODEL, RERANKER, STARTS = "model", "reranker", "starts"
FORMAT = 1
"""The format of such a directory, apart from the program's version: incremented when earlier programs cannot read it."""
LOCK = "-adapt"
"""The lock of what writes such a directory."""
TOKEN_WEIGHT = 0.5
"""Weight of the comparison by tokens beside BM25 and the vectors, without labels to tune it."""
RERANKER_WEIGHT = 0.8
"""Weight of a cross-encoder's scores beside those of the system that finds its candidates, without labels to tune it."""
WITHOUT_TORCH = 16
"""Maximum number of queries to encode and search without torch, which takes seconds to import."""
REPEAT = "Remove it, and run the same 'qontext adapt' again: finished steps are kept."


class RerankerDescription(TypedDict):
    """The cross-encoder of the recommended system."""

    depth: Annotated[int, Field(ge=1)]
    """Candidates that it reads for a question."""
    weight: Annotated[float, Field(ge=0, le=1)]
    reference: NotRequired[Reference]
    """The cross-encoder, if it is not in the folder `reranker`."""
    digest: NotRequired[str]
    """The hash of the folder `reranker`."""
    model_folder: NotRequired[Annotated[str, Field(pattern=r"^reranker-[0-9]+$")]]


class Description(TypedDict):
    """The fields read from `adapted.json`."""

    format: NotRequired[int]
    system: SystemName
    weights: tuple[NonNegativeFloat, NonNegativeFloat]
    token_weight: NotRequired[Annotated[float, Field(ge=0, le=1)]]
    """The weight of the comparison by tokens beside both."""
    read_tokens: Annotated[int, Field(ge=3)]
    reference: NotRequired[Reference]
    """The encoder, if it is not in the folder `model`."""
    model_digest: NotRequired[str]
    """The hash of the folder `model`; not recorded by earlier versions."""
    model_folder: NotRequired[Annotated[str, Field(pattern=r"^model-[0-9]+$")]]
    """See `copied_model`."""
    reranker: NotRequired[RerankerDescription]
    index: NotRequired[Annotated[str, Field(pattern=r"^index(-[0-9]+)?$")]]
    """The folder of the index. An update builds another one beside it."""


def is_adapted(path: str | os.PathLike[str]) -> bool:
    """True for a finished directory of `adapt`."""
    return (Path(path) / ADAPTED).is_file()


def read_adapted(root: Path) -> dict[str, Any]:
    """The content of `adapted.json`."""
    try:
        about: dict[str, Any] = read_json(root / ADAPTED, Description)
    except QontextError as error:
        raise QontextError(error.message, place=error.place, remedy=REPEAT) from None
    if about.get("format", FORMAT) > FORMAT:
        raise QontextError(
            f"its format {about['format']} is of a newer version, which this one cannot read",
            place=root,
            remedy="Upgrade Qontext.",
        )
    return about


def copied_model(entry: Mapping[str, Any], root: Path, name: str) -> Path:
    """The folder of a copied model. Training again writes another one beside the one that is searched with, whose name it
    takes once no process reads that."""
    folder = root / str(entry.get("model_folder", name))
    return folder if folder.is_dir() else root / name


def model_of(root: Path, encoder: str | None = None, about: Mapping[str, Any] | None = None) -> str:
    """The encoder of a directory of `adapt`: its folder `model`, or the model that it refers to, unchanged. `encoder`
    names a copy of it elsewhere; `about` is what `adapted.json` said when the directory was opened."""
    return _located(read_adapted(root) if about is None else about, root, MODEL, "encoder", encoder)


def reranker_of(root: Path, about: Mapping[str, Any] | None = None) -> str:
    """The cross-encoder of a directory of `adapt`, as `adapted.json` or its new content says."""
    about = read_adapted(root) if about is None else about
    if "reranker" not in about:
        raise QontextError("has no cross-encoder", place=root, remedy="Choose another system.")
    return _located(about["reranker"], root, RERANKER, "cross-encoder", None)


def _located(entry: Mapping[str, Any], root: Path, name: str, what: str, copy: str | None) -> str:
    """A model of a directory of `adapt`: the one that the entry refers to, or the folder of this name."""
    if "reference" in entry:
        return resolve(entry["reference"], root, copy, what)
    folder = copied_model(entry, root, name)
    if not folder.is_dir():
        raise QontextError(
            f"the folder of the {what} is missing",
            place=folder,
            remedy="Restore it, or run the same 'qontext adapt' again.",
        )
    if copy is not None:
        return resolve({"path": str(folder), "digest": model_digest(folder)}, root, copy, what)
    return str(folder)


def verify_model(root: Path) -> None:
    """Refuse other models in the directory than `adapt` wrote; reads all of them."""
    about = read_adapted(root)
    models = ((MODEL, about, "model_digest"), (RERANKER, about.get("reranker", {}), "digest"))
    for name, entry, key in models:
        folder, digest = copied_model(entry, root, name), entry.get(key)
        if digest is not None and model_digest(folder) != digest:
            raise QontextError(
                "changed since it was written",
                place=folder,
                remedy="Restore it, or run adapt with --retrain.",
            )


def index_of(root: Path) -> Path:
    """The folder of the index of a directory of `adapt`."""
    return root / str(read_adapted(root).get("index", INDEX))


def dense_index(index: Path) -> Path:
    """The vector index of a directory of `adapt`, or else its vectors."""
    return index / DENSE if is_artifact(index / DENSE) else index / "vectors"


def _read(root: Path) -> tuple[dict[str, Any], ReadLock | None, Path]:
    """`adapted.json`, and the folder of the index, which an update leaves alone as long as the second value is
    kept."""
    while True:
        about, folder = read_adapted(root), index_of(root)
        try:
            reading = ReadLock(folder)
        except OSError:
            reading = None
        if index_of(root) == folder:  # otherwise an update has just finished, and may have removed it
            return about, reading, folder


def fingerprint_of(path: str) -> str | None:
    """The hash of what a directory of `adapt` answers with; None for other directories."""
    root = Path(path).expanduser()
    if not is_adapted(root):
        return None
    about, _reading, folder = _read(root)
    made = {
        child.name: open_artifact(child).digest for child in sorted(folder.iterdir()) if is_artifact(child)
    }
    model = (
        about["reference"]["digest"]
        if "reference" in about
        else model_digest(copied_model(about, root, MODEL))
    )
    system = {name: about.get(name) for name in ("system", "weights", "token_weight", "read_tokens")}
    last = about.get("reranker")
    stages = [[last["depth"], last["weight"], _digest_of(last)]] if last else []
    return json_digest([system, made, model, *stages])


def _digest_of(reranker: Mapping[str, Any]) -> str:
    """The digest of the cross-encoder."""
    return str(reranker["reference"]["digest"] if "reference" in reranker else reranker["digest"])


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
        self.about, self._reading, self.folder = _read(self.root)
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

        # Earlier versions encoded them apart from the vectors.
        path = self.folder / (TOKENS if is_artifact(self.folder / TOKENS) else "vectors")
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
