"""A question → the best passages, from a directory of `adapt` (with its recommended system), or from passages
in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from pydantic import Field, NonNegativeFloat
from typing_extensions import TypedDict

from qontext.data.places import Found, find_passages
from qontext.frame.artifacts import is_artifact, open_artifact
from qontext.frame.damage import read_json
from qontext.frame.errors import QontextError
from qontext.frame.hashes import json_digest
from qontext.frame.locks import Reading
from qontext.frame.trust import trusting
from qontext.models.reference import Reference, model_digest, resolve
from qontext.retrieve.base import Answer as Answer
from qontext.retrieve.base import BaseSearcher
from qontext.retrieve.system import System, SystemName

if TYPE_CHECKING:
    from qontext.data.collection import Passage
    from qontext.data.runs import Run
    from qontext.retrieve.where import Mask

ADAPTED, INDEX, DENSE, TOKENS, MODEL = "adapted.json", "index", "dense", "tokens", "model"
TOKEN_WEIGHT = 0.5
"""Weight of the comparison by tokens beside BM25 and the vectors, without labels to tune it."""
FEW = 16
"""Maximum number of queries to encode and search without torch, which takes seconds to import."""
REPEAT = "Remove it, and run the same 'qontext adapt' again: finished steps are kept."


class Adapted(TypedDict):
    """The fields read from `adapted.json`."""

    system: SystemName
    weights: tuple[NonNegativeFloat, NonNegativeFloat]
    token_weight: NotRequired[Annotated[float, Field(ge=0, le=1)]]
    """The weight of the comparison by tokens beside both."""
    read_tokens: Annotated[int, Field(ge=3)]
    reference: NotRequired[Reference]
    """The encoder, if it is not in the folder `model`."""
    model_digest: NotRequired[str]
    """The hash of the folder `model`; not recorded by earlier versions."""
    index: NotRequired[Annotated[str, Field(pattern=r"^index(-[0-9]+)?$")]]
    """The folder of the index. An update builds another one beside it."""


def read_adapted(root: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = read_json(root / ADAPTED, Adapted)
    except QontextError as error:
        raise QontextError(error.message, place=error.place, remedy=REPEAT) from None
    return about


def model_of(root: Path, encoder: str | None = None) -> str:
    """The encoder of a directory of `adapt`: its folder `model`, or the model that it refers to, unchanged. `encoder`
    names a copy of it elsewhere."""
    about = read_adapted(root)
    if "reference" in about:
        return resolve(about["reference"], root, encoder)
    folder = root / MODEL
    if not folder.is_dir():
        raise QontextError(
            "the folder of the encoder is missing",
            place=folder,
            remedy="Restore it, or run the same 'qontext adapt' again.",
        )
    if encoder is not None:
        return resolve({"path": str(folder), "digest": model_digest(folder)}, root, encoder)
    return str(folder)


def verify_model(root: Path) -> None:
    """Refuse another folder `model` than `adapt` wrote; reads all of it."""
    recorded, folder = read_adapted(root).get("model_digest"), root / MODEL
    if recorded is not None and model_digest(folder) != recorded:
        raise QontextError(
            "changed since it was written", place=folder, remedy="Restore it, or run adapt with --retrain."
        )


def index_of(root: Path) -> Path:
    """The folder of the index of a directory of `adapt`."""
    return root / str(read_adapted(root).get("index", INDEX))


def open_adapted(root: Path) -> tuple[dict[str, Any], Reading | None, Path]:
    """What `adapted.json` says, and the folder of the index, which an update leaves alone as long as the second value is
    kept."""
    while True:
        about, folder = read_adapted(root), index_of(root)
        try:
            reading = Reading(folder)
        except OSError:
            reading = None
        if index_of(root) == folder:  # otherwise an update has just finished, and may have removed it
            return about, reading, folder


def fingerprint_of(path: str) -> str | None:
    """The hash of what a directory of `adapt` answers with; None for other directories."""
    root = Path(path).expanduser()
    if not is_adapted(root):
        return None
    about, _reading, folder = open_adapted(root)
    made = {
        child.name: open_artifact(child).digest for child in sorted(folder.iterdir()) if is_artifact(child)
    }
    model = about["reference"]["digest"] if "reference" in about else model_digest(root / MODEL)
    system = {name: about.get(name) for name in ("system", "weights", "token_weight", "read_tokens")}
    return json_digest([system, made, model])


def dense_index(index: Path) -> Path:
    """What is searched by vectors in the index of a directory of `adapt`: an index, or else the vectors."""
    return index / DENSE if is_artifact(index / DENSE) else index / "vectors"


def is_adapted(path: str | Path) -> bool:
    """Whether this is a finished directory of `adapt`."""
    return (Path(path) / ADAPTED).is_file()


class Searcher(BaseSearcher):
    """Answers questions with passages. Opens the directory that `qontext adapt` wrote, or see `build`.

    >>> search = Searcher("runs/mine")
    >>> for hit in search("how do I reset my password?", k=2):
    ...     print(hit.rank, hit.id, hit.score, hit.title, hit.text)
    1 ...
    2 ...

    Args:
        directory: Output directory of `qontext adapt`.
        device: Device of the encoder: auto, cpu, cuda, cuda:N or mps.
        encoder: An unchanged copy of the encoder, if it is no longer where `adapt` found it.
        trust: Allow the code or the server that the directory names for its index; see SECURITY.md.
    """

    @classmethod
    def build(
        cls,
        passages: Iterable[Passage | str],
        encoder: str | os.PathLike[str] | None = None,
        *,
        device: str = "auto",
    ) -> BaseSearcher:
        """Index passages or plain texts in memory, for BM25 and, with an encoder, vector search.

        With both, a passage's score is the mean of the two, each in standard deviations of the query's hits.

        Args:
            passages: Passages, or texts, which get their numbers from 0 as ids.
            encoder: A model folder, or the name of a model on the Hugging Face Hub.
            device: Where the encoder runs: auto, cpu, cuda, cuda:N or mps.

        >>> search = Searcher.build(load_passages("docs.jsonl"), "sentence-transformers/all-MiniLM-L6-v2")
        >>> [hit.rank for hit in search("which document is this?", k=3)]
        [1, 2, 3]
        """
        from qontext.retrieve.in_memory import InMemory

        return InMemory(passages, encoder, device)

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        device: str = "auto",
        encoder: str | None = None,
        trust: bool = False,
    ) -> None:
        self._is_trusted = trust
        self.root, self.device, self._given = Path(directory), device, encoder
        if not is_adapted(self.root):
            raise QontextError(
                f"not a finished 'qontext adapt' directory: it has no {ADAPTED}",
                place=self.root,
                remedy="Finish 'qontext adapt DOCUMENTS --out DIR' first.",
            )
        about, self._reading, self._folder = open_adapted(self.root)
        self.system, self.weights = System.parse(about["system"]), about["weights"]
        self.read_tokens = about["read_tokens"]
        self.token_weight = about.get("token_weight", TOKEN_WEIGHT)
        self._where: tuple[str, ...] = ()
        self._masks: dict[int, Mask] = {}

    def _passages(self, ids: set[str]) -> Mapping[str, Found]:
        return find_passages(self._folder / "passages", ids)

    def _dense_parts(self, queries: int) -> tuple[Any, Any]:
        is_light = queries <= FEW and self._light is not None
        encoder = self._light if is_light else self._retriever
        return encoder, self._built or (self._scan if is_light else self._index)

    def _reranked(self, queries: Mapping[str, str], found: Run) -> Run:
        if not self.system.tokens:
            return found
        is_light = len(queries) <= FEW and self._light is not None
        encoder = self._light if is_light else self._retriever
        vectors = encoder.encode_tokens_of_queries([queries[query] for query in found.queries])
        reranked: Run = self._tokens.reranked(found, vectors, self.token_weight)
        return reranked

    def _rows(self, where: tuple[str, ...], index: Any) -> Mask | None:
        """Which passages of an index meet the conditions; the last result is cached."""
        from qontext.retrieve.where import mask

        if not where:
            return None
        if self._where != where:
            self._masks, self._where = {}, where
        if id(index) not in self._masks:
            self._masks[id(index)] = mask(where, index.ids, self._folder / "passages")
        return self._masks[id(index)]

    @cached_property
    def lexical(self) -> Any:
        from qontext.retrieve.bm25 import Bm25

        artifact = open_artifact(self._folder / "bm25", verb="index")
        artifact.check_content()
        return Bm25.load(artifact.path / "bm25")

    @cached_property
    def _built(self) -> Any:
        """The index of the vectors; None if they are searched themselves."""
        from qontext.retrieve.index.load import open_index

        place = dense_index(self._folder)
        with trusting(self._is_trusted):
            return open_index(place)[0] if place.name == DENSE else None

    @cached_property
    def _index(self) -> Any:
        from qontext.retrieve.index import How
        from qontext.retrieve.index.load import exact_index

        return exact_index(self._vectors, How(self.device))

    @cached_property
    def _scan(self) -> Any:
        from qontext.retrieve.index.scan import ScanIndex

        return ScanIndex(self._vectors)

    @cached_property
    def _vectors(self) -> Any:
        from qontext.retrieve.packed import open_stored

        open_artifact(self._folder / "vectors").check_content()
        return open_stored(self._folder / "vectors")

    @cached_property
    def _tokens(self) -> Any:
        from qontext.retrieve.token_bits import TokenBits

        open_artifact(self._folder / TOKENS).check_content()
        return TokenBits(self._folder / TOKENS)

    @cached_property
    def model(self) -> str:
        """The encoder: a folder or a Hub name."""
        return model_of(self.root, self._given)

    @cached_property
    def _light(self) -> Any:
        """The encoder in NumPy; None if it needs torch."""
        from qontext.models.light import open_light

        return open_light(self.model, self.read_tokens) if self.device in ("auto", "cpu") else None

    @cached_property
    def _retriever(self) -> Any:
        from qontext.models.retriever import Retriever

        return Retriever(self.model, device=self.device, max_length=self.read_tokens)
