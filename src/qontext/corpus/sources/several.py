"""Several sources as one, ``sources:FILE``: a file names each of them, says what it is about, and begins the ids of its
documents. A document's metadata has the name of its source, so that hits carry it and searches can be restricted to it.

    {"handbook": {"path": "docs", "about": "How we work", "ids": ""},
     "tickets":  {"path": "tickets.jsonl", "about": "What customers asked", "ids": "tickets/"}}
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NotRequired, Self

from pydantic import Field
from typing_extensions import TypedDict

from qontext.corpus import sources
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.data.passage import as_json
from qontext.data.records import Document
from qontext.frame.errors import QontextError
from qontext.frame.files import json_digest, read_json
from qontext.frame.inputs import fingerprint, places, relative

SCHEME, FILE, FIELD = "sources", "sources.json", "source"
"""The scheme of such a source, the name of its file in a directory of `adapt`, and the field of the metadata."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Listed(TypedDict):
    """One of several sources; `beside` is its path relative to the file, if it is a file or folder."""

    path: Annotated[str, Field(min_length=1)]
    about: NotRequired[str]
    ids: NotRequired[str]
    """The prefix of its documents' ids."""
    beside: NotRequired[str]
    read_as: NotRequired[list[str]]
    """ENDING=FORMAT pairs, of a file or folder."""


Listing = dict[str, Listed]
"""Name → source."""


def read_listing(file: Path) -> Listing:
    """The sources that a file names."""
    listing: Listing = read_json(file, Listing)
    if not listing:
        raise QontextError("names no source", place=file)
    for name in listing:
        check_name(name, file)
    return listing


def check_name(name: str, place: Path | str | None = None) -> str:
    """The name of a source, which conditions and tools repeat."""
    if not _NAME.fullmatch(name):
        remedy = "Use letters, digits, '.', '_' and '-'."
        raise QontextError(f"{name!r} cannot be the name of a source", place=place, remedy=remedy)
    return name


def listed(path: str, root: Path, *, about: str = "", ids: str = "") -> Listed:
    """A source as the file in `root` names it."""
    entry: Listed = {"path": path}
    if sources.scheme_of(path) is None:
        entry["path"] = str(Path(path).expanduser().absolute())
        entry.update(relative(path, root))  # type: ignore[typeddict-item]
    if about:
        entry["about"] = about
    if ids:
        entry["ids"] = ids
    return entry


def set_read_as(listing: Listing, read_as: Iterable[str]) -> None:
    """Have all files and folders read like this; `read_as` has ENDING=FORMAT pairs."""
    for entry in listing.values():
        entry.pop("read_as", None)
        if read_as and sources.scheme_of(entry["path"]) is None:
            entry["read_as"] = [*read_as]


def place_of(entry: Listed, root: Path) -> str:
    """The current place of the source: it or its directory may have been moved."""
    if sources.scheme_of(entry["path"]) is not None:
        return entry["path"]
    own: dict[str, str] = {"path": entry["path"], "beside": entry.get("beside", entry["path"])}
    return next((str(place) for place in places(own, root) if place.exists()), entry["path"])


class Several(Source):
    """The documents of several sources, one source after the other. Files are read as the listing says, or as `read_as`."""

    def __init__(self, name: str, file: Path, fields: FieldNames, read_as: Iterable[str] = ()) -> None:
        listing = read_listing(file)
        if read_as:
            set_read_as(listing, read_as)
        self.opened = {
            one: sources.open_source(
                place_of(entry, file.parent), fields=fields, read_as=entry.get("read_as", ())
            )
            for one, entry in listing.items()
        }
        self.ids = {one: entry.get("ids", "") for one, entry in listing.items()}
        totals = [source.bytes_total for source in self.opened.values()]
        total = sum(size or 0 for size in totals) if None not in totals else None
        super().__init__(name, has_passages=False, bytes_total=total)
        for source in self.opened.values():
            self.unread = dict(Counter(self.unread) + Counter(source.unread))
            self.as_text = dict(Counter(self.as_text) + Counter(source.as_text))

    @classmethod
    def open(cls, uri: str, rest: str, fields: FieldNames, read_as: Iterable[str] = ()) -> Self:
        return cls(uri, Path(rest).expanduser(), fields, read_as)

    @classmethod
    def fingerprint(cls, rest: str) -> str | None:
        file = Path(rest).expanduser()
        listing = read_listing(file)
        digests = {
            name: [entry.get("ids", ""), digest_of(place_of(entry, file.parent)), entry.get("read_as", [])]
            for name, entry in listing.items()
        }
        return json_digest(digests)

    def documents(self) -> Iterator[Document | Problem]:
        for name, source in self.opened.items():
            before = self.bytes_read
            for item in source.documents():
                self.bytes_read = before + source.bytes_read
                yield _named(item, name, self.ids[name]) if isinstance(item, Document) else item
            self.bytes_read = before + source.bytes_read


def _named(document: Document, name: str, ids: str) -> Document:
    """The document with the name of its source, and its ids with what they begin with."""

    def with_source(metadata: str) -> str:
        return as_json({**json.loads(metadata), FIELD: name})

    is_path = bool(document.file) and "://" not in document.file
    return replace(
        document,
        id=ids + document.id,
        file=ids + document.file if is_path else document.file,
        metadata=with_source(document.metadata),
        passages=tuple((ids + id, text) for id, text in document.passages),
        passage_metadata=tuple(map(with_source, document.passage_metadata)),
    )


def digest_of(path: str) -> str:
    """The hash of a source's content."""
    if digest := sources.fingerprint(path):
        return digest
    if sources.scheme_of(path) is not None:
        return f"name:{path}"
    if not Path(path).exists():
        raise QontextError("the source is no longer there", place=path, remedy="Restore it, or remove it.")
    return fingerprint(path)


def free_prefix(name: str, listing: Listing, root: Path) -> str:
    """The prefix of the ids of a new source: NAME/, unless ids of another source begin with it."""
    bare = [Path(place_of(entry, root)) for entry in listing.values() if not entry.get("ids")]
    taken = {entry.get("ids") for entry in listing.values()}
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(
        f"{one}/"
        for one in names
        if f"{one}/" not in taken and not any((root / one).exists() for root in bare)
    )


def is_at(place: str, path: str) -> bool:
    """True if both are the same file or folder, or the same name."""
    if sources.scheme_of(place) is not None or sources.scheme_of(path) is not None:
        return place == path
    return os.path.realpath(Path(place).expanduser()) == os.path.realpath(Path(path).expanduser())


def parse(text: str, taken: Container[str]) -> tuple[str, str]:
    """NAME=PATH, or PATH, which is named after its last part, → (name, path)."""
    name, sign, path = text.partition("=")
    if sign and _NAME.fullmatch(name) and path and not Path(text).exists():
        return name, path
    last = Path(os.path.realpath(text)).name if sources.scheme_of(text) is None else text.rstrip("/:")
    stem = re.sub(r"\.[A-Za-z0-9]{1,8}$", "", last.rpartition("/")[2])
    short = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:60] or "documents"
    names = itertools.chain([short], (f"{short}-{number}" for number in itertools.count(2)))
    return check_name(next(one for one in names if one not in taken)), text
