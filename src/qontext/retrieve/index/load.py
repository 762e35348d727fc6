"""What `search` is given → something that can be searched."""

from __future__ import annotations

import importlib
from pathlib import Path

from qontext.artifacts import CLAIM, META, Artifact, open_artifact
from qontext.errors import QontextError
from qontext.retrieve.index import BACKENDS, Index
from qontext.retrieve.index.exact import ExactIndex
from qontext.retrieve.vectors import open_vectors


def open_searchable(path: Path | str) -> Artifact:
    """The artifact at `path`, which is at least a directory that qontext made."""
    place = Path(path)
    if place.is_file() or (place.is_dir() and not any((place / name).exists() for name in (META, CLAIM))):
        raise QontextError(
            "is nothing to search",
            place=path,
            remedy="Name what 'qontext encode' or 'qontext index' wrote; --bm25 searches passages by words.",
        )
    return open_artifact(path)


def open_index(path: Path | str) -> tuple[Index, dict[str, str]]:
    """The index at `path`, and path and digest of the encoder that made its vectors."""
    artifact = open_searchable(path)
    if artifact.verb == "encode":
        if artifact.config["kind"] != "passage":
            raise QontextError("holds vectors of queries, not of passages", place=path)
        vectors = open_vectors(path)
        return ExactIndex(vectors), vectors.encoder
    if artifact.verb != "index" or artifact.config["backend"] not in BACKENDS:
        raise QontextError(
            f"was made by 'qontext {artifact.verb}', which is nothing to search",
            place=path,
            remedy="Name what 'qontext encode' or 'qontext index' wrote.",
        )
    backend = importlib.import_module(BACKENDS[artifact.config["backend"]])
    index: Index = backend.load(artifact.path)
    return index, dict(artifact.summary["encoder"])
