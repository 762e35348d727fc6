"""Representations other than one vector on disk: the memory-mapped output of `encode`.

| file of part k | sparse | matches | tokens, windows |
|---|---|---|---|
| ids-k.parquet | the ids of its N passages | the same | the same |
| vectors-k.npy | [K] weights, by term | [K, D] vectors, by term | [K, D] vectors, by passage |
| starts-k.npy | [V + 1] where each term begins | the same | [N + 1] where each passage begins |
| rows-k.npy | [K] the passages, counted within the part | the same | |

Beside vectors or windows, with `encode --tokens`: token-bits-k.npy [K, B] bytes, by passage, and token-starts-k.npy [N + 1]
where each passage begins.

What has terms is stored as postings, so that search reads only the terms of a query, and nothing has to be indexed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qontext.data import records
from qontext.frame.artifacts import Artifact, Workdir, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.files import damaged, read_array
from qontext.models.packed import Packed
from qontext.retrieve.encoded.postings import Postings
from qontext.retrieve.encoded.vectors import (
    TOKEN_BITS,
    Encoded,
    Vectors,
    open_vectors,
    representation_of,
    stored_as,
)

BITS, BIT_STARTS = "token-bits", "token-starts"


class MultiVectors(Encoded):
    """Several vectors for each passage: those of its tokens, or of its windows."""

    parts: list[Packed]

    @property
    def dimension(self) -> int:
        return int(self.parts[0].values.shape[1])

    def check(self) -> None:
        """Refuse non-finite vectors. Reads all of them."""
        for numbers, part in self.blocks():
            self.check_passages(numbers, part)

    def check_passages(self, numbers: np.ndarray[Any, Any], packed: Packed) -> None:
        """Refuse the first of the passages `numbers` with a vector that is not finite."""
        is_finite = np.isfinite(packed.values).all(axis=1)
        self.check_rows(numbers, np.logical_and.reduceat(is_finite, packed.starts[:-1]))


class Windows(MultiVectors):
    """A vector for each window of a passage, whose best one counts."""


def open_stored(path: Path | str) -> Vectors | Windows:
    """The output of `encode` with an encoder of one vector: a vector for each passage, or for each window of it."""
    if representation_of(open_artifact(path, verb="encode")) != "windows":
        return open_vectors(path)
    windows = open_packed(path)
    assert isinstance(windows, Windows)
    return windows


def open_tokens(path: Path | str) -> MultiVectors:
    """The output of `encode` with a retriever of a vector for each token."""
    artifact = open_artifact(path, verb="encode")
    if stored_as(artifact) != "tokens":
        raise QontextError(
            f"holds the representation {representation_of(artifact)!r}, not a vector of each token",
            place=path,
            remedy="Choose another backend, such as faiss-hnsw, or encode with a retriever of the representation 'tokens'.",
        )
    tokens = open_packed(path)
    assert isinstance(tokens, MultiVectors)
    return tokens


def postings_of(packed: Packed, terms: int) -> Postings:
    """Rows of weights → where each term occurs, passages in order."""
    assert packed.terms is not None
    order = np.argsort(packed.terms, kind="stable")
    row = np.repeat(np.arange(len(packed)), packed.lengths)
    small = np.uint16 if len(packed) <= 1 << 16 else np.int32
    starts = np.concatenate([[0], np.cumsum(np.bincount(packed.terms, minlength=terms))])
    return Postings(packed.values[order], row[order].astype(small), starts, len(packed))


def write_part(work: Workdir, number: int, packed: Packed, width: int, dtype: Any) -> None:
    """The part's arrays, that of its values last."""
    arrays: dict[str, Any] = {"starts": packed.starts, "vectors": packed.values}
    if packed.terms is not None:
        postings = postings_of(packed, width)
        arrays = {"starts": postings.starts, "rows": postings.rows, "vectors": postings.data}
    for name, array in arrays.items():
        with work.write(f"{name}-{number:05d}.npy") as path, path.open("wb") as file:
            np.save(file, array.astype(dtype) if name == "vectors" else array, allow_pickle=False)


def open_packed(path: Path | str) -> Encoded:
    """The postings, or packed vectors of tokens or windows, of each part of an `encode` artifact."""
    artifact = open_artifact(path, verb="encode")
    stored = stored_as(artifact)
    readers = {"sparse": _read_postings, "matches": _read_matches, TOKEN_BITS: _read_bits}
    read = readers.get(stored, _read_vectors)
    ids, parts = artifact.parts(".parquet"), []
    if not ids:
        raise damaged(artifact.path, "it has no files of ids")
    for file in ids:
        number = file.stem.removeprefix("ids-")
        files = {
            name: artifact.part(f"{name}-{number}.npy")
            for name in ("vectors", "starts", "rows")
            if f"{name}-{number}.npy" in artifact.meta["parts"]
        }
        parts.append(read(files, records.open_parquet(file).metadata.num_rows))
    kind = {"windows": Windows, "tokens": MultiVectors}.get(stored, Encoded)
    return kind(artifact, parts, ids)


def has_bits(artifact: Artifact) -> bool:
    """True if `encode` stored bits of tokens: beside vectors, or, as earlier versions did, alone."""
    return "token_bytes" in artifact.summary or representation_of(artifact) == TOKEN_BITS


def open_bits(path: Path | str) -> Encoded:
    """The bits of the tokens of each part of an `encode` artifact."""
    artifact = open_artifact(path, verb="encode")
    if representation_of(artifact) == TOKEN_BITS:
        return open_packed(path)
    if not has_bits(artifact):
        raise QontextError("holds no bits of tokens", place=path, remedy="Encode again with --tokens.")
    ids = artifact.parts(".parquet")
    parts = []
    for file in ids:
        number = file.stem.removeprefix("ids-")
        names = {"vectors": f"{BITS}-{number}.npy", "starts": f"{BIT_STARTS}-{number}.npy"}
        files = {kind: artifact.part(name) for kind, name in names.items()}
        parts.append(_read_bits(files, records.open_parquet(file).metadata.num_rows))
    return Encoded(artifact, parts, ids)


def write_bits(work: Workdir, number: int, bits: Packed) -> None:
    """The part's bits of tokens."""
    for name, array in ((BIT_STARTS, bits.starts), (BITS, bits.values)):
        with work.write(f"{name}-{number:05d}.npy") as path, path.open("wb") as file:
            np.save(file, array, allow_pickle=False)


def take(encoded: Encoded, places: np.ndarray[Any, Any]) -> Packed:
    """The vectors of the passages at these places, which are counted over all parts."""
    ends = np.cumsum([len(part) for part in encoded.parts])
    order = np.argsort(places, kind="stable")
    part_of = np.searchsorted(ends, places[order], side="right")
    parts = [
        encoded.parts[part].take(places[order][part_of == part] - (ends[part] - len(encoded.parts[part])))
        for part in np.unique(part_of)
    ]
    return Packed.join(parts).take(np.argsort(order))


def _read_postings(files: dict[str, Path], rows: int) -> Postings:
    return _postings(read_array(files["vectors"], "f"), files, rows)


def _read_matches(files: dict[str, Path], rows: int) -> Postings:
    return _postings(read_array(files["vectors"], "f", shape=(None, None)), files, rows)


def _postings(values: Any, files: dict[str, Path], rows: int) -> Postings:
    postings = Postings(values, read_array(files["rows"], "iu"), read_array(files["starts"], "i"), rows)
    if fault := postings.fault():
        raise damaged(files["vectors"], fault)
    return postings


def _read_vectors(files: dict[str, Path], rows: int) -> Packed:
    return _by_passage(read_array(files["vectors"], "f", shape=(None, None)), files, rows)


def _read_bits(files: dict[str, Path], rows: int) -> Packed:
    return _by_passage(read_array(files["vectors"], "u", shape=(None, None)), files, rows)


def _by_passage(vectors_KD: Any, files: dict[str, Path], rows: int) -> Packed:
    starts = read_array(files["starts"], "i", shape=(rows + 1,), mapped=False)
    if starts[0] or starts[-1] != len(vectors_KD) or (np.diff(starts) < 1).any():
        raise damaged(files["starts"], "the passages do not cover the vectors")
    return Packed(starts, vectors_KD)
