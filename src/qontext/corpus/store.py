"""The token store: tokenized texts in flat, memory-mapped arrays.

    ids [T] token ids of all texts, concatenated, without special tokens (uint16 where they fit)
    word_starts  [T]    whether the token starts a word
    sentences    [S]    where sentences start in `ids`; every text starts one
    offsets      [N+1]  text i is ids[offsets[i] : offsets[i + 1]]
    groups       [G+1]  texts groups[g] … groups[g + 1] - 1 stand together: the passages of one document, in
                        order, or the queries of one passage
    names               each text's id (passages, [N]), or each group's (the passages of queries, [G])
    title_ids [U], title_starts [U], title_offsets [N+1]
                        the same of the titles that stand before the texts, with their separators, if titles are read

Because a document's passages are consecutive, any span of it, also across passages, is one slice of `ids`. Titles are apart,
so that none stands inside a span, and every span can have one.
No tokenizer runs while training.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qontext.data import records
from qontext.frame import artifacts
from qontext.frame.artifacts import Workdir
from qontext.frame.files import damaged, read_array

ARRAYS = {"ids": "u", "word_starts": "b", "sentences": "i", "offsets": "i", "groups": "i"}
"""The arrays and their dtype kinds (numpy letters)."""
TITLE_ARRAYS = {"title_ids": "u", "title_starts": "b", "title_offsets": "i"}
"""The arrays of titles, which a store without titles lacks."""
_NAMES = pa.schema([pa.field("name", pa.string(), nullable=False)])
_STRETCH = 1 << 26


@dataclass(frozen=True)
class TokenStore:
    """The arrays of a token store; see the module docstring."""

    ids: NDArray[Any]
    word_starts: NDArray[np.bool_]
    sentences: NDArray[np.int64]
    offsets: NDArray[np.int64]
    groups: NDArray[np.int64]
    names: pa.Array
    title_ids: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.uint16))
    title_starts: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    title_offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @functools.cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[N] number of tokens of each text."""
        return np.diff(self.offsets)

    @functools.cached_property
    def title_lengths(self) -> NDArray[np.int64]:
        """[N] number of tokens of each text's title."""
        return np.diff(self.title_offsets) if len(self.title_offsets) else np.zeros(len(self), np.int64)

    @functools.cached_property
    def group_of(self) -> NDArray[np.int32]:
        """[N] the group of each text."""
        return np.repeat(np.arange(len(self.groups) - 1, dtype=np.int32), np.diff(self.groups))


def open_store(directory: Path | str) -> TokenStore:
    """Memory-map a store's arrays; data is read on use."""
    artifact = artifacts.open_artifact(directory, verb="tokens")
    artifact.parts()
    return load_arrays(artifact.path)


def load_arrays(path: Path) -> TokenStore:
    """The arrays at `path`, checked for consistency; `ids` are not checked."""
    kinds = ARRAYS | (TITLE_ARRAYS if (path / "title_offsets.npy").exists() else {})
    arrays = {name: read_array(path / f"{name}.npy", kind) for name, kind in kinds.items()}
    names = records.read_part(path / "names.parquet", _NAMES)["name"].combine_chunks()
    store = TokenStore(**arrays, names=names)
    ends = {"offsets": len(store.ids), "groups": len(store), "title_offsets": len(store.title_ids)}
    for name, last in ends.items():
        if name not in arrays:
            continue
        array = arrays[name]
        if not len(array) or array[0] or array[-1] != last or not _ascends(array):
            raise damaged(path / f"{name}.npy", f"not ascending from 0 to {last:,}")
    starts = store.sentences
    if len(starts) and (starts[0] < 0 or starts[-1] >= len(store.ids) or not _ascends(starts)):
        raise damaged(path / "sentences.npy", f"not ascending from 0 to below {len(store.ids):,}")
    for name, size, expected in (
        ("word_starts", len(store.word_starts), len(store.ids)),
        ("title_starts", len(store.title_starts), len(store.title_ids)),
        ("title_offsets", len(store.title_lengths), len(store)),
    ):
        if size != expected:
            raise damaged(path / f"{name}.npy", f"it has {size:,} of {expected:,} entries")
    if len(names) not in (len(store), len(store.groups) - 1):
        raise damaged(path / "names.parquet", f"it has {len(names):,} names for {len(store):,} texts")
    return store


def check_ids(store: TokenStore, vocabulary: int, path: Path) -> None:
    """Refuse token ids outside an encoder's vocabulary."""
    for name, ids in (("ids", store.ids), ("title_ids", store.title_ids)):
        highest = max((int(part.max()) for part in _stretches(ids)), default=0)
        if highest >= vocabulary:
            raise damaged(
                path / f"{name}.npy",
                f"it contains the token id {highest:,}, the vocabulary has {vocabulary:,} entries",
            )


def _ascends(array: NDArray[Any]) -> bool:
    return all((part[1:] >= part[:-1]).all() for part in _stretches(array))


def _stretches(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The array in chunks that fit into memory; each begins with the last entry of the previous one."""
    return (array[start : start + _STRETCH + 1] for start in range(0, len(array), _STRETCH))


def tokenize(
    texts: list[tuple[str, list[int]]],
    tokenizer: Any,
    titles: Sequence[str] = (),
    separator: int | None = None,
) -> dict[str, NDArray[Any]]:
    """Texts with their sentence starts → `ids`, `word_starts`, `sentences` (in this block), `lengths` (of texts). With
    `titles` of the texts, also `title_ids`, `title_starts` and `title_lengths`: of a title and a space as they are tokenized
    before the text, or of the title alone and a `separator`."""
    if not titles:
        return _tokenized(texts, tokenizer)
    if separator is None:
        cuts = [len(title) + 1 if title else 0 for title in titles]
        joined = [
            (f"{title} {text}", [0, cut, *(cut + start for start in starts[1:])]) if cut else (text, starts)
            for title, (text, starts), cut in zip(titles, texts, cuts)
        ]
        return _cut(_tokenized(joined, tokenizer, cuts))
    heads = _tokenized([(title, [0]) for title in titles], tokenizer)
    is_titled = np.array([bool(title) for title in titles])
    ends = np.cumsum(heads["lengths"])[is_titled]
    return _tokenized(texts, tokenizer) | {
        "title_ids": np.insert(heads["ids"], ends, separator),
        "title_starts": np.insert(heads["word_starts"], ends, True),
        "title_lengths": heads["lengths"] + is_titled,
    }


def _cut(joined: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Titles and texts that were tokenized together, taken apart."""
    lengths, sentences, heads = joined["lengths"], joined["sentences"], joined["heads"]
    begins = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(len(lengths)), lengths)
    is_head = np.arange(len(row)) < (begins + heads)[row]
    before = np.concatenate([[0], np.cumsum(is_head)])  # tokens of titles before each place
    own = ~is_head[sentences]
    starts = joined["word_starts"].copy()
    bodies = (begins + heads)[lengths > heads]
    starts[bodies] = True
    return {
        "ids": joined["ids"][~is_head],
        "word_starts": starts[~is_head],
        "sentences": sentences[own] - before[sentences[own]],
        "lengths": lengths - heads,
        "title_ids": joined["ids"][is_head],
        "title_starts": starts[is_head],
        "title_lengths": heads,
    }


def _tokenized(
    texts: list[tuple[str, list[int]]], tokenizer: Any, cuts: Sequence[int] = ()
) -> dict[str, NDArray[Any]]:
    """With `cuts` (characters of each text), also `heads`: the tokens before them."""
    encoded = tokenizer.encode_batch([text for text, _ in texts], add_special_tokens=False)
    lengths = np.fromiter((len(e) for e in encoded), np.int64, len(encoded))
    begins = np.cumsum(lengths) - lengths
    ids = np.fromiter((i for e in encoded for i in e.ids), np.int64, int(lengths.sum()))
    ends = [np.fromiter((end for _, end in e.offsets), np.int64, len(e)) for e in encoded]
    firsts = [
        begin + _first_tokens(own, starts) for own, begin, (_, starts) in zip(ends, begins, texts) if len(own)
    ]
    continues = _continuations(tokenizer)
    is_start = _first_of_words(encoded, len(ids)) if continues is None else ~continues[ids]
    is_start[begins[lengths > 0]] = True
    sentences = np.concatenate([np.zeros(0, np.int64), *firsts])
    arrays = {"ids": ids, "word_starts": is_start, "sentences": sentences, "lengths": lengths}
    if cuts:
        heads = (np.searchsorted(own, cut, "right") if cut else 0 for own, cut in zip(ends, cuts))
        arrays["heads"] = np.fromiter(heads, np.int64, len(cuts))
    return arrays


def _first_tokens(ends: NDArray[np.int64], starts: list[int]) -> NDArray[np.int64]:
    """The first token of each sentence: the first one that ends after the sentence's start. `ends` are those of tokens."""
    tokens = np.unique(np.searchsorted(ends, starts[1:], side="right"))
    return np.concatenate([[0], tokens[(tokens > 0) & (tokens < len(ends))]])


def _continuations(tokenizer: Any) -> NDArray[np.bool_] | None:
    """[V] the vocabulary entries that continue a word, if they are marked, as in WordPiece."""
    prefix = getattr(tokenizer.model, "continuing_subword_prefix", None)
    if type(tokenizer.model).__name__ != "WordPiece" or not prefix:
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    marked = np.zeros(max(vocabulary.values()) + 1, np.bool_)
    marked[[i for token, i in vocabulary.items() if token.startswith(prefix)]] = True
    return marked


def _first_of_words(encoded: list[Any], size: int) -> NDArray[np.bool_]:
    """[T] whether the token starts a new word, according to the tokenizer."""
    words = np.fromiter((-1 if w is None else w for e in encoded for w in e.word_ids), np.int64, size)
    is_first: NDArray[np.bool_] = np.diff(words, prepend=-2) != 0
    return is_first


def write_store(
    work: Workdir, chunks: list[Path], groups: NDArray[np.int64], names: pa.Array, vocabulary: int
) -> None:
    """Concatenate the chunks' arrays into the store's, with one chunk in memory at a time."""
    kinds: dict[str, Any] = {
        "ids": np.uint16 if vocabulary <= 1 << 16 else np.uint32,
        "word_starts": np.bool_,
        "sentences": np.int64,
    }
    lengths = [np.load(chunk)["lengths"] for chunk in chunks]
    has_titles = bool(chunks) and "title_lengths" in np.load(chunks[0])
    if has_titles:
        kinds |= {"title_ids": kinds["ids"], "title_starts": np.bool_}
        of_titles = np.concatenate([np.load(chunk)["title_lengths"] for chunk in chunks])
    shifts = np.cumsum([0, *(int(part.sum()) for part in lengths)])
    for name, kind in kinds.items():
        sizes = [len(np.load(chunk)[name]) for chunk in chunks]
        with work.write(f"{name}.npy") as path, path.open("wb") as file:
            # Written, not mapped: on a full disk a write raises an error, while a mapped page kills the process.
            described = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": (sum(sizes),)}
            np.lib.format.write_array_header_1_0(file, described)
            for chunk, shift in zip(chunks, shifts):
                values = np.load(chunk)[name]
                file.write((values + shift if name == "sentences" else values).astype(kind).data)
    _save(work, "offsets", np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64))
    if has_titles:
        _save(work, "title_offsets", np.concatenate([[0], np.cumsum(of_titles)]).astype(np.int64))
    _save(work, "groups", groups.astype(np.int64))
    with work.write("names.parquet") as path:
        pq.write_table(pa.table({"name": names}), path, compression="zstd", write_statistics=False)


def save_chunk(work: Workdir, name: str, arrays: dict[str, NDArray[Any]]) -> None:
    with work.write(name) as path, path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _save(work: Workdir, name: str, array: NDArray[Any]) -> None:
    with work.write(f"{name}.npy") as path, path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
