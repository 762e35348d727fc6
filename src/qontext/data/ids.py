"""Ids: which values are ids, how they are numbered and repeated ones are found, and how ids are escaped in TREC and
tab-separated files, whose columns end at white space.

There, each white-space and control character of an id is written as a visible one, and converted back on reading:

    U+0000 … U+001F, space, DEL     its control picture, U+2400 … U+2421: a space is ␠, a tab ␉, a newline ␊
    other white space, U+001B, and  ␛, the code point in hexadecimal, and a semicolon: a non-breaking space is ␛a0;
    U+2400 … U+2421 themselves

Ids without such characters are written as they are. Nothing else is special: ``a%20b`` and ``C:\\x`` are
written unchanged. JSON and Parquet hold ids verbatim.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qontext.frame.errors import QontextError
from qontext.frame.files import hash64

_PICTURES = "\u2400-\u2421"
_SPECIAL = f"[\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f{_PICTURES}\u3000\ufeff]"
"""Escaped characters, including the byte order mark, which readers remove from the start of a file."""
_ESCAPE, _ESC = "\u241b", "\x1b"
_ESCAPED = rf"[\u2400-\u241a\u241c-\u2421]|{_ESCAPE}[0-9a-f]{{1,6}};"

Array = np.ndarray[Any, Any]
_special, _escaped = re.compile(_SPECIAL), re.compile(_ESCAPED)


def id_of(value: object, place: str, what: str = "id") -> str:
    """The id in a JSON or Parquet value: a string or an integer. Other types are an error."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        kinds = {bool: "a boolean", float: "a floating-point number", dict: "an object", list: "a list"}
        kind = kinds.get(type(value), "missing" if value is None else type(value).__name__)
        raise QontextError(f"the {what} is {kind}, expected a string or an integer", place=place)
    if value == "":
        raise QontextError(f"the {what} is empty", place=place)
    return str(value)


def escape(id: str) -> str:
    """The id as written in files with white space between columns."""
    return _special.sub(lambda match: _escape_character(match[0]), id)


def unescape(text: str) -> str:
    """The inverse of `escape`. Text that `escape` cannot have written is returned unchanged."""
    return text if text.isascii() else _escaped.sub(lambda match: _unescape_sequence(match[0]), text)


def escape_all(ids: pa.StringArray) -> pa.StringArray:
    """`escape` for an array: the same array if no id has such characters, which a scan of all bytes nearly
    always shows."""
    return ids if _is_visible_ascii(ids) else _replace(ids, _SPECIAL, escape)


def unescape_all(texts: pa.StringArray) -> pa.StringArray:
    """`unescape` for an array: the same array if nothing in it is escaped."""
    return texts if pc.all(pc.string_is_ascii(texts)).as_py() else _replace(texts, f"[{_PICTURES}]", unescape)


def _escape_character(character: str) -> str:
    code = ord(character)
    if code <= 0x20 and character != _ESC:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"{_ESCAPE}{code:x};"


def _unescape_sequence(text: str) -> str:
    if text[0] != _ESCAPE:
        return "\x7f" if text == "\u2421" else chr(ord(text) - 0x2400)
    code = int(text[1:-1], 16)
    # Only what `_escape_character` writes: everything else is literal text.
    is_ours = code <= 0xFFFF and _special.match(chr(code)) and _escape_character(chr(code)) == text
    return chr(code) if is_ours else text


def _is_visible_ascii(ids: pa.StringArray) -> bool:
    letters = np.frombuffer(ids.buffers()[2] or b"", dtype=np.uint8)
    return bool(((letters - np.uint8(0x21)) < 0x7F - 0x21).all())


def _replace(texts: pa.StringArray, pattern: str, change: Any) -> pa.StringArray:
    matches = pc.match_substring_regex(texts, pattern)
    if not pc.any(matches).as_py():
        return texts
    changed = pa.array(map(change, texts.filter(matches).to_pylist()), texts.type)
    return pc.replace_with_mask(texts, matches, changed)


class SeenIds:
    """Finds repeated ids in a stream of batches.

    Ids are kept as 64-bit hashes in sorted runs that are merged as they grow, so a hundred million ids take
    800 MB where a set of strings would take ten times that. The chance that two different ids among
    n share a hash is n²/2⁶⁵: 3 in 10,000 for a hundred million.
    """

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def repeated(self, ids: list[str]) -> list[bool]:
        """For each id of the batch, whether it occurred before (in this batch or an earlier one)."""
        hashes = _hashes(ids)
        unique, first = np.unique(hashes, return_index=True)
        is_repeated = np.ones(len(ids), bool)
        is_repeated[first] = False
        for run in self._runs:
            position = np.searchsorted(run, hashes)
            is_repeated |= run[np.minimum(position, len(run) - 1)] == hashes
        self._add(unique)
        return [bool(x) for x in is_repeated]

    def _add(self, run: NDArray[np.uint64]) -> None:
        # Runs at least double in size from newest to oldest, so there are only log n of them.
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.union1d(self._runs.pop(), run)
        if len(run):
            self._runs.append(run)


def _hashes(ids: list[str]) -> NDArray[np.uint64]:
    return np.fromiter(map(hash64, ids), np.uint64, len(ids))


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
    """(number of each string [N] int32, the different strings in ascending order). Ids of up to eight letters are sorted
    as numbers, which is several times faster."""
    names = _whole(values) if isinstance(values, pa.ChunkedArray) else pa.array(values, pa.string())
    if _are_words(names):
        padded = pc.ascii_rpad(names.cast(pa.large_string()), 8, "\0")
        words = np.frombuffer(padded.buffers()[2], dtype=">u8", count=len(names)).astype(np.uint64)
        different, number = np.unique(words, return_inverse=True)
        return number.astype(np.int32), pa.array(different.astype(">u8").view("S8")).cast(pa.string())
    encoded = names.dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()  # by bytes of UTF-8, which is by code points
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return place[encoded.indices.to_numpy()], encoded.dictionary.take(pa.array(order))


def _are_words(names: pa.StringArray) -> bool:
    """True if the strings are ASCII of at most eight letters, without NUL, which fills them up."""
    if not len(names) or pc.max(pc.binary_length(names)).as_py() > 8:
        return False
    letters = np.frombuffer(names.buffers()[2] or b"", dtype=np.uint8)
    return bool(((letters > 0) & (letters < 0x80)).all())


def _whole(column: pa.ChunkedArray) -> Any:
    """The column in one piece; more than 2 GiB of text need offsets of 64 bits."""
    if pa.types.is_string(column.type) and column.nbytes >= 2**31:
        column = column.cast(pa.large_string())
    whole = column.combine_chunks()
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
