"""Numbering strings: sort, deduplicate and number millions of ids without a Python object for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = np.ndarray[Any, Any]
_WIDEST = 64  # bytes of an id up to which it is sorted as machine words


def by_occurrence(values: Any) -> tuple[Array, list[str]]:
    """(number of each string, the different strings in order of first occurrence)."""
    column = (
        values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([pa.array(values, pa.string())])
    )
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = _whole(column.unify_dictionaries())
    return whole.indices.to_numpy(), whole.dictionary.to_pylist()


def ascending(values: Any) -> tuple[Array, pa.StringArray]:
    """(number of each string [N] int32, the different strings in ascending order).

    Ids that fit into a machine word are sorted as numbers, which is fastest. Longer ones are deduplicated by
    hashing first, since sorting them costs more.
    """
    names = _whole(values) if isinstance(values, pa.ChunkedArray) else pa.array(values, pa.string())
    if len(names) == 0:
        return np.zeros(0, np.int32), names
    if _width(names) <= 8 and _fits_words(names):
        return _sorted(names)
    encoded = names.dictionary_encode()
    place, ids = _sorted(encoded.dictionary)
    return place[encoded.indices.to_numpy()], ids


def first_with_space(names: pa.StringArray) -> str | None:
    """The first string that is empty or contains white space, if any."""
    letters = np.frombuffer(names.buffers()[2] or b"", dtype=np.uint8)
    if not (letters <= 32).any() and _is_ascii(names) and pc.min(pc.binary_length(names)).as_py():
        return None  # a scan of all characters at once nearly always decides
    index = pc.index(pc.match_substring_regex(names, r"^$|[\s\x0b\x1c-\x1f\x{85}]|\p{Z}"), True).as_py()
    return None if index < 0 else str(names[index])


def _sorted(names: pa.StringArray) -> tuple[Array, pa.StringArray]:
    width = _width(names)
    if width > _WIDEST or not _fits_words(names):
        order = pc.array_sort_indices(names).to_numpy()  # by bytes of UTF-8, which is by code points
        ordered = names.take(pa.array(order))
        is_new = np.append(True, pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False))
        ids = ordered.filter(pa.array(is_new))
    else:
        words = _words(names, max(1, -(-width // 8)))
        order = np.argsort(words[0]) if len(words) == 1 else np.lexsort(words[::-1])
        words = [word[order] for word in words]
        is_new = np.ones(len(order), bool)
        is_new[1:] = np.any([word[1:] != word[:-1] for word in words], axis=0)
        ids = _strings([word[is_new] for word in words])
    place = np.empty(len(order), np.int32)
    place[order] = np.cumsum(is_new, dtype=np.int32) - 1
    return place, ids


def _words(names: pa.StringArray, count: int) -> list[Array]:
    """ASCII strings as numbers [N] of eight letters each, the first the most significant; short ones end in zeros."""
    padded = pc.ascii_rpad(names.cast(pa.large_string()), 8 * count, "\0")
    letters = np.frombuffer(padded.buffers()[2], dtype=">u8", count=len(names) * count)
    return [column.astype(np.uint64) for column in letters.reshape(len(names), count).T]


def _strings(words: list[Array]) -> pa.LargeStringArray:
    """The inverse of `_words`."""
    letters = np.stack(words, axis=1).astype(">u8")
    ends = np.arange(0, letters.nbytes + 1, 8 * len(words), dtype=np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(letters)]
    return pc.ascii_rtrim(pa.Array.from_buffers(pa.large_string(), len(letters), buffers), "\0")


def _width(names: pa.StringArray) -> int:
    return int(pc.max(pc.binary_length(names)).as_py() or 0)


def _fits_words(names: pa.StringArray) -> bool:
    """True if the strings are ASCII without NUL, the padding of `_words`."""
    return _is_ascii(names) and not pc.any(pc.match_substring(names, "\0")).as_py()


def _is_ascii(names: pa.StringArray) -> bool:
    return bool(pc.all(pc.string_is_ascii(names)).as_py())


def _whole(column: pa.ChunkedArray) -> Any:
    """The column in one piece; more than 2 GiB of text need offsets of 64 bits."""
    if pa.types.is_string(column.type) and column.nbytes >= 2**31:
        column = column.cast(pa.large_string())
    whole = column.combine_chunks()
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
