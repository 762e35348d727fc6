"""Opens what is searched: vectors, an index or packed representations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qontext.frame.artifacts import META, Artifact, InputEntry, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.inputs import digest_of, find
from qontext.frame.kinds import resolve
from qontext.models.packed import Packed
from qontext.models.representations import REPRESENTATIONS
from qontext.retrieve.index import BACKENDS, Array, Backend, How, Index
from qontext.retrieve.index.flat import FlatIndex
from qontext.retrieve.stored import ArrayVectors, form_of, open_stored, representation_of


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
    return FlatIndex(ArrayVectors([encoded], ids))


def open_index(path: Path | str, how: How | None = None) -> tuple[Index, dict[str, str] | None]:
    """The index at `path`, and the encoder that made its vectors, as its description has it; None for an index of texts."""
    return _open(open_artifact(path), how or How())


def _open(artifact: Artifact, how: How) -> tuple[Index, dict[str, str] | None]:
    if artifact.verb == "encode":
        if artifact.config["kind"] != "passage":
            raise QontextError("holds vectors of queries, not of passages", place=artifact.path)
        stored = open_stored(artifact.path)
        if form_of(artifact) not in ("vector", "windows"):
            return packed_index(representation_of(artifact)).open(stored, how), stored.encoder
        if how.few:
            return FlatIndex(stored, how), stored.encoder
        from qontext.retrieve.index.exact import ExactIndex

        return ExactIndex.open(stored, how), stored.encoder
    if artifact.verb != "index":
        raise QontextError(
            f"not searchable: it was written by 'qontext {artifact.verb}'",
            place=artifact.path,
            remedy="Give the output of 'qontext encode' or 'qontext index'.",
        )
    backend = _backend(artifact)
    if not backend.changes_files:
        artifact.parts()
    encoder = None if backend.reads == "texts" else artifact.summary.take("encoder", InputEntry)
    return backend.load(artifact), encoder


def encoder_of(
    entry: Mapping[str, str], path: Path | str, encoder: str | None = None, *, untied: bool = False
) -> str:
    """The encoder of an opened index: where its description has it, or `encoder`. Only an `untied` one may be another than
    that of the passages."""
    if encoder is None:
        remedy = "Name it with --encoder, or encode the passages again."
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
    representation, remedy = (
        retriever.layout.representation,
        "Search with the encoder that encoded the passages.",
    )
    searched = index.tag if index.reads == "packed" else "vector"
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
    artifact = open_artifact(path)
    return artifact.verb == "index" and _backend(artifact).is_for_one_process(artifact)


def _backend(artifact: Artifact) -> type[Backend]:
    name = artifact.config.take("backend", str)
    backend: type[Backend] = BACKENDS.load(name, place=artifact.path / META)
    return backend
