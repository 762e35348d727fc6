"""The token store: texts tokenised once, in flat arrays that are mapped into memory.

    ids          [T]    token ids of all texts, one after the other, without special tokens (uint16 where they fit)
    word_starts  [T]    whether the token starts a word
    sentences    [S]    where sentences start in `ids`; every text starts one
    offsets      [N+1]  text i is ids[offsets[i] : offsets[i + 1]]
    groups       [G+1]  texts groups[g] … groups[g + 1] - 1 stand together: the passages of one document, in
                        order, or the queries of one passage
    names               each text's id (passages, [N]), or each group's (the passages of queries, [G])

Because a document's passages stand together, any stretch of it, across passages too, is one slice of `ids`.
No tokenizer runs while training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qontext import artifacts
from qontext.artifacts import Workdir
from qontext.corpus.sentences import pieces
from qontext.errors import QontextError

ARRAYS = ("ids", "word_starts", "sentences", "offsets", "groups")


@dataclass(frozen=True)
class TokenStore:
    """The arrays of this module's head."""

    ids: NDArray[Any]
    word_starts: NDArray[np.bool_]
    sentences: NDArray[np.int64]
    offsets: NDArray[np.int64]
    groups: NDArray[np.int64]
    names: pa.Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @functools.cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[N] tokens of each text."""
        return np.diff(self.offsets)

    @functools.cached_property
    def group_of(self) -> NDArray[np.int32]:
        """[N] which group each text belongs to."""
        return np.repeat(np.arange(len(self.groups) - 1, dtype=np.int32), np.diff(self.groups))


def open_store(directory: Path | str) -> TokenStore:
    """Map a store's arrays into memory; nothing is read until it is used."""
    artifact = artifacts.open_artifact(directory, verb="tokens")
    return load_arrays(artifact.path)


def load_arrays(path: Path) -> TokenStore:
    arrays = {}
    for name in ARRAYS:
        try:
            arrays[name] = np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise QontextError(f"not a readable array: {error}", place=path / f"{name}.npy") from None
    return TokenStore(**arrays, names=pq.read_table(path / "names.parquet")["name"].combine_chunks())


def tokenise(texts: Iterable[tuple[str, list[int]]], tokenizer: Any) -> dict[str, NDArray[Any]]:
    """Texts with their sentence starts → `ids`, `word_starts`, `sentences` (in this block), `lengths` (of texts).

    Each sentence is tokenised by itself, so that it is a run of whole tokens.
    """
    sentences: list[str] = []
    counts: list[int] = []
    for text, starts in texts:
        sentences += pieces(text, starts)
        counts.append(len(starts))
    encoded = tokenizer.encode_batch_fast(sentences, add_special_tokens=False)
    lengths = np.fromiter((len(e) for e in encoded), np.int64, len(encoded))
    begins = np.cumsum(lengths) - lengths
    ids = np.fromiter((i for e in encoded for i in e.ids), np.int64, int(lengths.sum()))
    is_start = word_starts(tokenizer)(encoded, ids)
    is_start[begins[lengths > 0]] = True
    per_text = (
        np.add.reduceat(lengths, np.cumsum(counts) - np.array(counts)) if counts else np.zeros(0, np.int64)
    )
    return {"ids": ids, "word_starts": is_start, "sentences": begins[lengths > 0], "lengths": per_text}


def word_starts(tokenizer: Any) -> Callable[[list[Any], NDArray[np.int64]], NDArray[np.bool_]]:
    """What tells the tokens that start a word from those that continue one.

    WordPiece marks continuations in the vocabulary, so a table of its entries is enough; any other tokenizer is
    asked for the word that each token belongs to.
    """
    prefix = getattr(tokenizer.model, "continuing_subword_prefix", None)
    if type(tokenizer.model).__name__ == "WordPiece" and prefix:
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        starts = np.ones(max(vocabulary.values()) + 1, bool)
        starts[[i for token, i in vocabulary.items() if token.startswith(prefix)]] = False
        return lambda encoded, ids: starts[ids]

    def by_word(encoded: list[Any], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        words = np.fromiter((-1 if w is None else w for e in encoded for w in e.word_ids), np.int64, len(ids))
        return np.concatenate([[True], words[1:] != words[:-1]]) if len(words) else np.zeros(0, bool)

    return by_word


def write_store(
    work: Workdir, chunks: list[Path], groups: NDArray[np.int64], names: pa.Array, vocabulary: int
) -> None:
    """Join the chunks' arrays into the store's flat ones, one chunk in memory at a time."""
    kinds = {
        "ids": np.uint16 if vocabulary <= 1 << 16 else np.uint32,
        "word_starts": np.bool_,
        "sentences": np.int64,
    }
    lengths = [_load_chunk(chunk)["lengths"] for chunk in chunks]
    shifts = np.cumsum([0, *(int(part.sum()) for part in lengths)])
    for name, kind in kinds.items():
        sizes = [len(_load_chunk(chunk)[name]) for chunk in chunks]
        with work.write(f"{name}.npy") as path:
            flat = _create(path, np.dtype(kind), sum(sizes))
            position = 0
            for chunk, size, shift in zip(chunks, sizes, shifts):
                values = _load_chunk(chunk)[name]
                flat[position : position + size] = values + shift if name == "sentences" else values
                position += size
            del flat
    _save(work, "offsets", np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64))
    _save(work, "groups", groups.astype(np.int64))
    with work.write("names.parquet") as path:
        pq.write_table(pa.table({"name": names}), path, compression="zstd", write_statistics=False)


def save_chunk(work: Workdir, name: str, arrays: dict[str, NDArray[Any]]) -> None:
    with work.write(name) as path, path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _load_chunk(path: Path) -> Any:
    return np.load(path, allow_pickle=False)


def _save(work: Workdir, name: str, array: NDArray[Any]) -> None:
    with work.write(f"{name}.npy") as path, path.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def _create(path: Path, kind: np.dtype[Any], size: int) -> NDArray[Any]:
    """A new .npy file of that size, mapped for writing."""
    if size == 0:  # an empty file cannot be mapped
        with path.open("wb") as file:
            np.save(file, np.zeros(0, kind), allow_pickle=False)
        return np.zeros(0, kind)
    return np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=(size,))
