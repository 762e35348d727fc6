"""Opens what `search` is given: vectors, an index or packed representations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qontext.frame.artifacts import CLAIM, META, Artifact, InputEntry, is_artifact, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.inputs import digest_of, find
from qontext.frame.kinds import resolve
from qontext.models.packed import Packed
from qontext.models.representations import REPRESENTATIONS
from qontext.retrieve.encoded.packed import open_packed, open_stored
from qontext.retrieve.encoded.vectors import TOKEN_BITS, ArrayVectors, representation_of
from qontext.retrieve.index import BACKENDS, Array, Backend, How, Index
from qontext.retrieve.index.flat import ScanIndex, exact_index


def open_searchable(path: Path | str) -> Artifact:
    """The artifact at `path`, which is at least a directory that qontext made."""
    place = Path(path)
    if place.is_file() or (place.is_dir() and not is_artifact(place) and not (place / CLAIM).exists()):
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
    """True if the index takes queries of this representation."""
    kind = REPRESENTATIONS.load(representation)
    if index.reads != "packed":
        return bool(kind.stored == "vector")
    return (index.approximates or type(index)) is resolve(kind.index)


def index_of_arrays(ids: Array, encoded: Array | Packed, representation: str, dimension: int) -> Index:
    """The index over representations in memory; ids ascend."""
    if isinstance(encoded, Packed):
        index: Index = packed_index(representation).of(ids, encoded, dimension)
        return index
    return ScanIndex(ArrayVectors([encoded], ids))


def open_index(path: Path | str, how: How | None = None) -> tuple[Index, dict[str, str] | None]:
    """The index at `path`, and the encoder that made its vectors, as its description has it; None for an index of texts."""
    return _open(open_searchable(path), how or How())


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


def encoder_of(
    entry: Mapping[str, str],
    path: Path | str,
    encoder: str | None = None,
    *,
    untied: bool = False,
    remedy: str = "Restore it, or encode the passages again.",
) -> str:
    """The encoder of an opened index: where its description has it, or `encoder`. Only an `untied` one may be another than
    that of the passages."""
    if encoder is None:
        return find(entry, Path(path), "the encoder of the passages", remedy=remedy)
    if not untied and digest_of(encoder, "encoder") != entry["digest"]:
        raise QontextError(
            f"is not the encoder that encoded the passages ({entry['path']})",
            place=encoder,
            remedy="Encode the passages with it first, or pass --untied if the two were trained as a pair.",
        )
    return encoder


def passage_length(artifact: Artifact) -> int | None:
    """The maximum passage length in `encode`; for an index without its vectors, the encoder's limit."""
    if artifact.verb == "index":
        try:
            remedy = "Restore it."
            artifact = open_artifact(find(artifact.inputs["source"], artifact.path, "vectors", remedy=remedy))
        except QontextError:
            return None
    length: int | None = artifact.config.get("max_length")
    return length


def fit(retriever: Any, index: Index, name: str, *, untied: bool = False) -> None:
    """Cut the vectors of a retriever to the dimensions of an index; refuse one whose queries the index cannot search."""
    remedy = "Search with the encoder that encoded the passages."
    searched = index.tag if index.reads == "packed" else "vector"
    representation = retriever.layout.representation
    if not reads(index, representation):
        raise QontextError(
            f"is an encoder of the representation {representation!r}, the index is of {searched!r}",
            place=name,
            remedy=remedy,
        )
    if index.dimension < retriever.dimension and searched == "vector" and not untied:
        retriever.cut(index.dimension)  # as the passages, whose encoder it is
    if retriever.dimension != index.dimension:
        raise QontextError(
            f"the encoder has {retriever.dimension} dimensions, the index has {index.dimension}",
            place=name,
            remedy=remedy,
        )


def is_for_one_process(path: Path | str) -> bool:
    """True if only one process at a time can search what is at `path`."""
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
