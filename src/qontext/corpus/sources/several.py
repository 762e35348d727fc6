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
from typing import Annotated, Any, NotRequired, Self

from pydantic import Field
from typing_extensions import TypedDict

from qontext.corpus import sources
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.corpus.sources.files import is_entered, is_shown, walk
from qontext.corpus.sources.formats import endings, format_of
from qontext.corpus.sources.lines import ending
from qontext.data.passage import as_json
from qontext.data.records import Document
from qontext.frame import files
from qontext.frame.artifacts import is_artifact
from qontext.frame.errors import QontextError
from qontext.frame.files import content_hash, json_digest, read_json
from qontext.frame.fingerprint import fingerprint, places, relative, stamp

SCHEME, FILE, FIELD = "sources", "sources.json", "source"
"""The scheme of such a source, the name of its file in a directory of `adapt`, and the field of the metadata."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RECORDS = (".jsonl", ".json", ".tsv", ".parquet")


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
        raise QontextError(
            f"{name!r} cannot be the name of a source",
            place=place,
            remedy="Use letters, digits, '.', '_' and '-'.",
        )
    return name


def listed(path: str, root: Path, *, about: str = "", ids: str = "") -> Listed:
    """A source as the file in `root` names it."""
    is_file = sources.scheme_of(path) is None
    entry: Listed = {"path": str(Path(path).expanduser().absolute()) if is_file else path}
    if about:
        entry["about"] = about
    if ids:
        entry["ids"] = ids
    if is_file and (beside := relative(entry["path"], root)):
        entry["beside"] = beside["beside"]
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
    own: dict[str, str] = {"path": entry["path"]}
    if "beside" in entry:
        own["beside"] = entry["beside"]
    there = [place for place in places(own, root) if place.exists()]
    return str(there[0]) if there else entry["path"]


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
        digests: dict[str, list[Any]] = {}
        for name, entry in listing.items():
            read_as = entry.get("read_as", [])
            digest = digest_of(place_of(entry, file.parent), read_as)
            digests[name] = [entry.get("ids", ""), digest, *([read_as] if read_as else [])]
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


def digest_of(path: str, read_as: Iterable[str] = ()) -> str:
    """The hash of a source's content; of a folder of documents, of those files that are read. `read_as` has ENDING=FORMAT
    pairs."""
    if sources.scheme_of(path) is not None:
        return sources.fingerprint(path) or f"name:{path}"
    folder = Path(path)
    if not folder.exists():
        raise QontextError("the source is no longer there", place=path, remedy="Restore it, or remove it.")
    if not _is_read_below(folder):
        return fingerprint(folder)
    chosen = endings(read_as)
    files = (file for file in walk(folder, chosen) if isinstance(file, Path) and file.is_file())
    read = (file for file in files if ending(file) in _RECORDS or format_of(file, chosen) is not None)
    return json_digest({str(file.relative_to(folder)): content_hash(file) for file in read})


def stamp_of(path: str) -> str:
    """A hash of the stamps of a source's files: one that is the same has the same content. Empty if that is unknown."""
    if sources.scheme_of(path) is not None:
        return sources.stamp(path)
    folder = Path(path)
    if not folder.is_dir() or not _is_read_below(folder):
        return stamp(folder)
    return json_digest(sorted(_stamps(folder)))


def _stamps(folder: Path) -> Iterator[str]:
    for entry in files.walk(folder, enter=is_entered):
        if isinstance(entry, OSError):
            yield f"{entry.filename} {entry.errno}"
        elif is_shown(entry):
            try:
                now = entry.stat()
            except OSError as error:  # a link to nothing
                yield f"{entry.path} {error.errno}"
                continue
            yield f"{entry.path} {now.st_ino} {now.st_size} {now.st_mtime_ns} {now.st_ctime_ns}"


def _is_read_below(folder: Path) -> bool:
    return folder.is_dir() and not is_artifact(folder) and sources.reads_below(folder)


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
    names = [short, *(f"{short}-{number}" for number in range(2, 100))]
    same = next((one for one in names if one not in taken), short)
    return check_name(same), text
