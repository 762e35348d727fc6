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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qontext import artifacts
from qontext.artifacts import Workdir
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
        except (OSError, ValueError, EOFError):  # whose texts propose to read it as a pickle
            raise QontextError(
                "not a readable array: missing, cut off or no .npy file",
                place=path / f"{name}.npy",
                remedy="Make the token store again.",
            ) from None
    try:
        names = pq.read_table(path / "names.parquet")["name"].combine_chunks()
    except (OSError, ValueError, KeyError) as error:
        raise QontextError(f"not a readable Parquet file: {error}", place=path / "names.parquet") from None
    store = TokenStore(**arrays, names=names)
    offsets, groups = store.offsets, store.groups
    fits = (
        all(array.ndim == 1 for array in arrays.values())
        and len(offsets) > 0 < len(groups)
        and offsets[-1] == len(store.ids) == len(store.word_starts)
        and groups[-1] == len(store)
        and len(names) in (len(store), len(groups) - 1)
    )
    if not fits:
        raise QontextError(
            "its arrays do not belong together", place=path, remedy="Make the token store again."
        )
    return store


def tokenise(texts: list[tuple[str, list[int]]], tokenizer: Any) -> dict[str, NDArray[Any]]:
    """Texts with their sentence starts → `ids`, `word_starts`, `sentences` (in this block), `lengths` (of texts)."""
    encoded = tokenizer.encode_batch([text for text, _ in texts], add_special_tokens=False)
    lengths = np.fromiter((len(e) for e in encoded), np.int64, len(encoded))
    begins = np.cumsum(lengths) - lengths
    ids = np.fromiter((i for e in encoded for i in e.ids), np.int64, int(lengths.sum()))
    firsts = [
        begin + _first_tokens(e, starts) for e, begin, (_, starts) in zip(encoded, begins, texts) if len(e)
    ]
    continues = _continuations(tokenizer)
    is_start = _first_of_words(encoded, len(ids)) if continues is None else ~continues[ids]
    is_start[begins[lengths > 0]] = True
    sentences = np.concatenate([np.zeros(0, np.int64), *firsts])
    return {"ids": ids, "word_starts": is_start, "sentences": sentences, "lengths": lengths}


def _first_tokens(encoded: Any, starts: list[int]) -> NDArray[np.int64]:
    """The tokens in which the sentences begin: each is the first that ends behind its sentence's start."""
    ends = np.fromiter((end for _, end in encoded.offsets), np.int64, len(encoded))
    found = np.unique(np.searchsorted(ends, starts[1:], side="right"))
    return np.concatenate([[0], found[(found > 0) & (found < len(ends))]])


def _continuations(tokenizer: Any) -> NDArray[np.bool_] | None:
    """[V] the entries of a vocabulary that continue a word, where it marks them, as WordPiece's does."""
    prefix = getattr(tokenizer.model, "continuing_subword_prefix", None)
    if type(tokenizer.model).__name__ != "WordPiece" or not prefix:
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    marked = np.zeros(max(vocabulary.values()) + 1, np.bool_)
    marked[[i for token, i in vocabulary.items() if token.startswith(prefix)]] = True
    return marked


def _first_of_words(encoded: list[Any], size: int) -> NDArray[np.bool_]:
    """[T] the tokens whose word, as the tokenizer says, is not that of the token before."""
    words = np.fromiter((-1 if w is None else w for e in encoded for w in e.word_ids), np.int64, size)
    is_first: NDArray[np.bool_] = np.diff(words, prepend=-2) != 0
    return is_first


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
        with work.write(f"{name}.npy") as path, path.open("wb") as file:
            # Written, not mapped: when the disk fills up, a write says so, while a mapped page kills the process.
            described = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": (sum(sizes),)}
            np.lib.format.write_array_header_1_0(file, described)
            for chunk, shift in zip(chunks, shifts):
                values = _load_chunk(chunk)[name]
                file.write((values + shift if name == "sentences" else values).astype(kind).data)
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
