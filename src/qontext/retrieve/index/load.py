"""What `search` is given → something that can be searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qontext.frame.artifacts import CLAIM, META, Artifact, InputEntry, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.kinds import resolve
from qontext.models.representations import REPRESENTATIONS
from qontext.retrieve.index import BACKENDS, Backend, How, Index
from qontext.retrieve.packed import Windows, open_packed, open_stored
from qontext.retrieve.vectors import TOKEN_BITS, Vectors, representation_of


def open_searchable(path: Path | str) -> Artifact:
    """The artifact at `path`, which is at least a directory that qontext made."""
    place = Path(path)
    if place.is_file() or (place.is_dir() and not any((place / name).exists() for name in (META, CLAIM))):
        raise QontextError(
            "not searchable",
            place=path,
            remedy="Give the output of 'qontext encode' or 'qontext index'; --bm25 searches passages by words.",
        )
    return open_artifact(path)


def packed_index(representation: str) -> Any:
    """The class of the index over a packed representation."""
    return resolve(REPRESENTATIONS.load(representation).index)


def reads(index: Index, representation: str) -> bool:
    """Whether the index takes queries of this representation."""
    kind = REPRESENTATIONS.load(representation)
    return type(index) is resolve(kind.index) if index.reads == "packed" else kind.stored == "vector"


def exact_index(vectors: Vectors | Windows, how: How) -> Index:
    """The index over vectors of passages, or of their windows."""
    from qontext.retrieve.index.exact import ExactIndex
    from qontext.retrieve.index.windows import WindowIndex

    if isinstance(vectors, Windows):
        return WindowIndex.open(vectors, how)
    return ExactIndex.open(vectors, how)


def open_index(path: Path | str, how: How | None = None) -> tuple[Index, dict[str, str] | None]:
    """The index at `path`, and the encoder that made its vectors, as its description has it; None for an index of texts."""
    artifact = open_searchable(path)
    opened = _open(artifact, how or How())
    if artifact.verb == "encode" or not _backend(artifact).changes_files:
        artifact.check_content()  # after its readers, which say more
    return opened


def _open(artifact: Artifact, how: How) -> tuple[Index, dict[str, str] | None]:
    path = artifact.path
    if artifact.verb == "encode":
        if artifact.config["kind"] != "passage":
            raise QontextError("holds vectors of queries, not of passages", place=path)
        if (representation := representation_of(artifact)) in ("vector", "windows"):
            vectors = open_stored(path)
            return exact_index(vectors, how), vectors.encoder
        if representation == TOKEN_BITS:
            raise QontextError(
                "holds bits of tokens, which are too many to search",
                place=path,
                remedy="Rerank the results of another search: 'qontext rerank RUN --tokens PATH'.",
            )
        encoded = open_packed(path)
        return packed_index(representation).open(encoded, how), encoded.encoder
    if artifact.verb != "index":
        raise QontextError(
            f"not searchable: it was written by 'qontext {artifact.verb}'",
            place=path,
            remedy="Give the output of 'qontext encode' or 'qontext index'.",
        )
    backend = _backend(artifact)
    if not backend.changes_files:
        artifact.parts()
    encoder = None if backend.reads == "texts" else artifact.summary.take("encoder", InputEntry)
    return backend.load(artifact), encoder


def is_for_one_process(path: Path | str) -> bool:
    """Whether only one process at a time can search what is at `path`."""
    artifact = open_searchable(path)
    return artifact.verb == "index" and _backend(artifact).is_for_one_process(artifact)


def _backend(artifact: Artifact) -> type[Backend]:
    try:
        backend: type[Backend] = BACKENDS.load(
            artifact.config.take("backend", str), place=artifact.path / META
        )
    except QontextError as error:
        place = error.place or artifact.path
        raise type(error)(error.message, place=place, remedy=error.remedy) from None
    return backend
