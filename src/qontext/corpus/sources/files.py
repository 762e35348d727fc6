"""A folder of documents in files of any format, or one such file: a file is a document, a mailbox several. A
document's id is its path in the folder; its title is the title in the file, or else the file name.
"""

from __future__ import annotations

import itertools
import lzma
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from qontext.corpus import parallel
from qontext.corpus.sources.base import Problem, Source
from qontext.corpus.sources.formats import (
    FORMATS,
    TEXTS,
    FileText,
    Unreadable,
    format_of,
    is_installed,
    is_other_text,
    reader,
    shown_ending,
)
from qontext.data.lines import ending
from qontext.data.passage import as_json
from qontext.data.records import Document
from qontext.frame import files, log
from qontext.frame.errors import printable

NOT_ENTERED = ("__pycache__", "node_modules", "_static", "_sources")
"""Folders without documents: program folders, and Sphinx's copies of sources."""
_FILES_PER_BLOCK = 16
_SMALL = 8 << 20
"""Maximum total size of files to read in a single process."""

File = tuple[Path, str, str]
"""A file, its path in the source, and its format."""


class Files(Source):
    """The documents of a folder and its subfolders in sorted order, or of one file."""

    def __init__(self, name: str, path: Path, encoding: str, read_as: Mapping[str, str]) -> None:
        super().__init__(name, has_passages=False)
        self.encoding, self.read_as = encoding, read_as
        root = path if path.is_dir() else path.parent
        self.items: list[File | Problem] = []
        unread, as_text = Counter[str](), Counter[str]()
        for file in walk(path):
            kind = None if isinstance(file, Problem) else format_of(file, read_as)
            if isinstance(file, Problem):
                self.items.append(file)
            elif kind is None or not is_installed(kind):
                unread[printable(shown_ending(file))] += 1
            elif not file.is_file():
                self.items.append(Problem(printable(file), "damaged file", "is not a regular file"))
            else:
                self.items.append((file, printable(file.relative_to(root).as_posix()), kind))
                as_text[printable(shown_ending(file))] += is_other_text(file, read_as)
        self.unread, self.as_text = dict(unread.most_common()), dict((+as_text).most_common())
        self.bytes_total = sum(item[0].stat().st_size for item in self.items if not isinstance(item, Problem))

    def documents(self) -> Iterator[Document | Problem]:
        for is_alone, group in itertools.groupby(self.items, _is_alone):
            if is_alone:
                yield from itertools.chain.from_iterable(map(self._alone, group))
            else:
                yield from self._together(group)  # type: ignore[arg-type]

    def _alone(self, item: File | Problem) -> Iterator[Document | Problem]:
        if isinstance(item, Problem):
            yield item
        else:
            yield from _read(item, self.encoding, self.read_as)
            self.advance(item[0].stat().st_size)

    def _together(self, files: Iterator[File]) -> Iterator[Document | Problem]:
        workers = 0 if (self.bytes_total or 0) > _SMALL else 1
        blocks = iter(lambda: list(itertools.islice(files, _FILES_PER_BLOCK)), [])
        tasks = ((block, self.encoding, self.read_as) for block in blocks)
        for items, size in parallel.ordered_map(_read_block, tasks, workers):
            yield from items
            self.advance(size)


def announce(source: Source, uri: str) -> None:
    """Log which files of the source are not read, and which are read as text."""
    if source.unread:
        log.note(f"{uri}: {unread(source.unread)}.")
    if source.as_text:
        log.note(f"{uri}: {_counted(source.as_text)} of unknown kinds read as text.")


def unread(counts: Mapping[str, int]) -> str:
    """A sentence about the files that are not read, by extension, with the remedy, if any."""
    endings = {suffix for kind in FORMATS.values() if kind.package for suffix in kind.endings}
    needing = sorted(kind for kind in counts if ending(Path(f"x{kind}")) in endings)  # also .pdf.gz
    remedy = f"; for {', '.join(needing)}: pip install 'qontext[docs]'" if needing else ""
    return f"{_counted(counts)} not read{remedy}"


def _counted(counts: Mapping[str, int]) -> str:
    """The number of files, and of those with the most common extensions."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in itertools.islice(counts.items(), 6))
    total = sum(counts.values())
    return f"{total:,} {'file' if total == 1 else 'files'} ({kinds}{', …' if len(counts) > 6 else ''})"


def _is_alone(item: File | Problem) -> bool:
    """True for a problem and for a mailbox, which is read as a stream."""
    return isinstance(item, Problem) or ending(item[0]) == ".mbox"


def _read_block(task: tuple[list[File], str, Mapping[str, str]]) -> tuple[list[Document | Problem], int]:
    """The documents of some files, and the size of the files."""
    files, encoding, read_as = task
    items = [item for file in files for item in _read(file, encoding, read_as)]
    return items, sum(file.stat().st_size for file, *_ in files if file.exists())


def _read(item: File, encoding: str, read_as: Mapping[str, str]) -> Iterator[Document | Problem]:
    """The documents of a file, or a problem."""
    file, name, kind = item
    place = printable(file)
    try:
        for text in reader(file, kind, read_as)(file, encoding):
            yield _document(text, file, name, kind)
    except Unreadable as error:
        yield Problem(f"{place}:{error.line}" if error.line else place, error.kind, error.message)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        yield Problem(place, "damaged file", f"cannot be read: {error}")
    except MemoryError:
        yield Problem(place, "too large", "needs more memory than is available")


def _document(text: FileText, file: Path, name: str, kind: str) -> Document:
    parent = PurePosixPath(name).parent.as_posix()
    metadata = {**text.metadata, "folder": "" if parent == "." else parent, "format": kind}
    title = text.title
    if title.lower() in TEXTS and metadata["folder"]:  # a README says little without its folder
        title = f"{PurePosixPath(name).parent.name} {title}"
    blocks = (
        replace(block, text=_writable(block.text), headings=tuple(map(_writable, block.headings)))
        for block in text.blocks
    )
    return Document(
        _writable(f"{name}#{text.name}" if text.name else name),
        _writable(title),
        "",
        printable(file),
        blocks=tuple(blocks),
        file=_writable(name),
        metadata=as_json(metadata),
    )


def _writable(text: str) -> str:
    """The text without NUL and with a question mark for each lone surrogate, which names and files may contain."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def walk(path: Path) -> Iterator[Path | Problem]:
    """The files under `path` in sorted order, without hidden ones, or the file itself."""
    for entry in files.walk(path, enter=is_entered) if path.is_dir() else [path]:
        if isinstance(entry, OSError):
            yield Problem(printable(entry.filename), "damaged file", f"cannot be read: {entry.strerror}")
        elif isinstance(entry, Path) or is_shown(entry):
            yield Path(entry)


def is_shown(entry: os.DirEntry[str]) -> bool:
    """True for what is not hidden."""
    return not entry.name.startswith(".")


def is_entered(entry: os.DirEntry[str]) -> bool:
    """True for a folder in which there may be documents."""
    return is_shown(entry) and entry.name not in NOT_ENTERED
