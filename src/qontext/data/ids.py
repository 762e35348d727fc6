"""Ids: which values are ids, how repeated ones are found, and how ids are escaped in TREC and tab-separated files, whose
columns end at white space.

There, each white-space and control character of an id is written as a visible one, and converted back on reading:

    U+0000 … U+001F, space, DEL     its control picture, U+2400 … U+2421: a space is ␠, a tab ␉, a newline ␊
    other white space, U+001B, and  ␛, the code point in hexadecimal, and a semicolon: a non-breaking space is ␛a0;
    U+2400 … U+2421 themselves

Ids without such characters are written as they are. Nothing else is special: ``a%20b`` and ``C:\\x`` are
written unchanged. JSON and Parquet hold ids verbatim.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
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


PARTITIONS = 256
"""Files into which `first_repeated` divides hashes: it holds one of them at a time."""
_BUFFER = 1 << 20


def first_repeated(batches: Callable[[], Iterator[list[str]]]) -> tuple[int, str | None]:
    """The number of ids, and the first one that occurs a second time, if any.

    Hashes go to files by their first byte, so memory does not grow with the ids but for a 256th of their hashes.
    `batches` is called again where hashes are equal, to compare the ids themselves.
    """
    count, repeated = 0, []
    with tempfile.TemporaryDirectory(prefix="qontext-ids-") as folder:
        buffer: list[NDArray[np.uint64]] = []
        for ids in batches():
            buffer.append(_hashes(ids))
            count += len(ids)
            if sum(map(len, buffer)) > _BUFFER:
                _spill(Path(folder), np.concatenate(buffer))
                buffer.clear()
        repeated = [_repeated(np.concatenate(buffer))] if buffer else []
        if spilled := sorted(Path(folder).iterdir()):
            _spill(Path(folder), np.concatenate([np.zeros(0, np.uint64), *buffer]))
            repeated = [_repeated(np.fromfile(file, np.uint64)) for file in spilled]
    suspects = np.concatenate([np.zeros(0, np.uint64), *repeated])
    return count, _first_of(batches(), suspects) if len(suspects) else None


def _spill(folder: Path, hashes: NDArray[np.uint64]) -> None:
    hashes = np.sort(hashes)
    bounds = np.arange(1, PARTITIONS, dtype=np.uint64) << np.uint64(56)
    for number, part in enumerate(np.split(hashes, np.searchsorted(hashes, bounds))):
        with (folder / f"{number:03d}").open("ab") as file:
            file.write(part.data)


def _repeated(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    hashes = np.sort(hashes)
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])


def _first_of(batches: Iterator[list[str]], suspects: NDArray[np.uint64]) -> str | None:
    """The first id to occur a second time, among those with these hashes."""
    earlier: set[str] = set()
    for ids in batches:
        for place in np.flatnonzero(np.isin(_hashes(ids), suspects)):
            if ids[place] in earlier:
                return ids[place]
            earlier.add(ids[place])
    return None


def _hashes(ids: list[str]) -> NDArray[np.uint64]:
    return np.fromiter(map(hash64, ids), np.uint64, len(ids))
