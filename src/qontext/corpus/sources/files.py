"""A folder of documents in files of any format, or one such file: a file is a document, a mailbox several. A
document's id is its path in the folder; its title is the title in the file, or else the file name.
"""

from __future__ import annotations

import lzma
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from qontext.corpus import parallel
from qontext.corpus.sources.base import Problem, Source
from qontext.corpus.sources.formats import (
    FORMATS,
    TEXTS,
    format_of,
    is_installed,
    is_other_text,
    reader,
    shown_ending,
)
from qontext.corpus.sources.formats.base import FileText, Unreadable
from qontext.corpus.sources.formats.plain import read_other
from qontext.corpus.sources.lines import ending
from qontext.data.passage import as_json
from qontext.data.records import Block, Document
from qontext.frame import files, log
from qontext.frame.errors import printable

NOT_ENTERED = ("__pycache__", "node_modules", "_static", "_sources")
"""Folders without documents: program folders, and Sphinx's copies of sources."""
_FILES_PER_BLOCK, _BYTES_PER_BLOCK = 16, 4 << 20
_SMALL = 8 << 20
"""Maximum total size of files to read in a single process."""

File = tuple[Path, str]


class Files(Source):
    """The documents of a folder and its subfolders in sorted order, or of one file."""

    def __init__(self, name: str, path: Path, encoding: str, read_as: Mapping[str, str]) -> None:
        others: Counter[str] = Counter()
        texts: Counter[str] = Counter()
        size = 0
        for file in _files(path, read_as):
            if isinstance(file, Path):
                kind = format_of(file, read_as)
                if kind is not None and is_installed(kind):
                    size += file.stat().st_size if file.exists() else 0
                    if is_other_text(file, read_as):
                        texts[printable(shown_ending(file))] += 1
                else:
                    others[printable(shown_ending(file))] += 1
        super().__init__(name, has_passages=False, bytes_total=size)
        self.path, self.encoding, self.read_as = path, encoding, read_as
        self.unread = dict(others.most_common())
        self.as_text = dict(texts.most_common())

    def documents(self) -> Iterator[Document | Problem]:
        root = self.path if self.path.is_dir() else self.path.parent
        several = (self.bytes_total or 0) > _SMALL
        for block in _grouped(self._items(root)):
            if isinstance(block, Problem):
                yield block
            elif isinstance(block, tuple):  # a mailbox is read as a stream
                yield from _read_file(*block, self.encoding, self.read_as)
                self.advance(block[0].stat().st_size if block[0].exists() else 0)
            else:
                yield from self._read(block, several)

    def _read(self, files: list[File], several: bool) -> Iterator[Document | Problem]:
        blocks = list(_portions(files))
        tasks = [(block, self.encoding, self.read_as) for block in blocks]
        workers = 0 if several and len(tasks) > 1 else 1
        for block, items in zip(blocks, parallel.ordered_map(_read_files, tasks, workers)):
            yield from items
            self.advance(sum(file.stat().st_size for file, _ in block if file.exists()))

    def _items(self, root: Path) -> Iterator[File | Problem]:
        for file in _files(self.path, self.read_as):
            if isinstance(file, Problem):
                yield file
            elif (kind := format_of(file, self.read_as)) is not None and is_installed(kind):
                yield file, printable(file.relative_to(root).as_posix())


def announce(source: Source, uri: str) -> None:
    """Log which files of the source are not read, and which are read as text."""
    if source.unread:
        log.note(f"{uri}: {unread(source.unread)}.")
    if source.as_text:
        log.note(f"{uri}: {read_as_text(source.as_text)}.")


def unread(counts: Mapping[str, int]) -> str:
    """A sentence about files that are not read, by extension, with the remedy, if any."""
    total = sum(counts.values())
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in list(counts.items())[:6])
    more = ", …" if len(counts) > 6 else ""
    endings = {suffix for kind in FORMATS.values() if kind.package for suffix in kind.endings}
    needing = sorted(kind for kind in counts if ending(Path(f"x{kind}")) in endings)  # also .pdf.gz
    remedy = f"; for {', '.join(needing)}: pip install 'qontext[docs]'" if needing else ""
    files = "1 file is" if total == 1 else f"{total:,} files are"
    return f"{files} not read ({kinds}{more}){remedy}"


def read_as_text(counts: Mapping[str, int]) -> str:
    """A sentence about files that are read because their content is text, by extension."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in list(counts.items())[:6])
    more = ", …" if len(counts) > 6 else ""
    total = sum(counts.values())
    files = "1 file of an unknown kind is" if total == 1 else f"{total:,} files of unknown kinds are"
    return f"{files} read as text ({kinds}{more})"


def _grouped(items: Iterable[File | Problem]) -> Iterator[list[File] | File | Problem]:
    """The items in order: consecutive files in groups, mailboxes and problems separately."""
    files: list[File] = []
    for item in items:
        if isinstance(item, Problem) or ending(item[0]) == ".mbox":
            if files:
                yield files
                files = []
            yield item
        else:
            files.append(item)
    if files:
        yield files


def _portions(files: list[File]) -> Iterator[list[File]]:
    portion: list[File] = []
    size = 0
    for file in files:
        portion.append(file)
        size += file[0].stat().st_size if file[0].exists() else 0
        if len(portion) >= _FILES_PER_BLOCK or size >= _BYTES_PER_BLOCK:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _read_files(task: tuple[list[File], str, Mapping[str, str]]) -> list[Document | Problem]:
    files, encoding, read_as = task
    return [item for file, name in files for item in _read_file(file, name, encoding, read_as)]


def _read_file(
    file: Path, name: str, encoding: str, read_as: Mapping[str, str]
) -> Iterator[Document | Problem]:
    """The documents of a file, or a problem. `name` is its path in the source."""
    kind = format_of(file, read_as)
    assert kind is not None
    try:
        for text in (read_other if is_other_text(file, read_as) else reader(kind))(file, encoding):
            yield _document(text, file, name, kind)
    except Unreadable as error:
        place = printable(file)
        yield Problem(place if error.line is None else f"{place}:{error.line}", error.kind, error.message)
    except OSError as error:
        yield Problem(printable(file), "damaged file", f"cannot be read: {error.strerror or error}")
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        yield Problem(printable(file), "damaged file", f"cannot be decompressed: {error}")
    except MemoryError:
        yield Problem(printable(file), "too large", "needs more memory than is available")


def _document(text: FileText, file: Path, name: str, kind: str) -> Document:
    parent = PurePosixPath(name).parent.as_posix()
    metadata = {**text.metadata, "folder": "" if parent == "." else parent, "format": kind}
    id = f"{name}#{text.name}" if text.name else name
    title = text.title
    if title.lower() in TEXTS and metadata["folder"]:  # a README says little without its folder
        title = f"{PurePosixPath(name).parent.name} {title}"
    return Document(
        _writable(id),
        _writable(title),
        "",
        printable(file),
        blocks=tuple(map(_clean, text.blocks)),
        file=_writable(name),
        metadata=as_json(metadata),
    )


def _clean(block: Block) -> Block:
    if all(part.isascii() and "\0" not in part for part in (block.text, *block.headings)):
        return block
    headings = tuple(map(_writable, block.headings))
    return replace(block, text=_writable(block.text), headings=headings)


def _writable(text: str) -> str:
    """The text without NUL and with a question mark for each lone surrogate, which names and files may contain."""
    return (
        text
        if text.isascii() and "\0" not in text
        else text.replace("\0", "").encode("utf-8", "replace").decode()
    )


def _files(path: Path, read_as: Mapping[str, str]) -> Iterator[Path | Problem]:
    return walk(path, read_as) if path.is_dir() else iter([path])


def walk(path: Path, read_as: Mapping[str, str]) -> Iterator[Path | Problem]:
    """The files under `path` in sorted order, without hidden ones. A pipe is a problem."""
    for entry in files.walk(path, enter=is_entered):
        if isinstance(entry, OSError):
            yield Problem(printable(entry.filename), "damaged file", f"cannot be read: {entry.strerror}")
        elif is_shown(entry):
            file = Path(entry.path)
            if format_of(file, read_as) and file.exists() and not file.is_file():
                yield Problem(
                    printable(file), "damaged file", "is a pipe, a socket or a device, not a regular file"
                )
            else:
                yield file


def is_shown(entry: os.DirEntry[str]) -> bool:
    """True for what is not hidden."""
    return not entry.name.startswith(".")


def is_entered(entry: os.DirEntry[str]) -> bool:
    """True for a folder in which there may be documents."""
    return is_shown(entry) and entry.name not in NOT_ENTERED
