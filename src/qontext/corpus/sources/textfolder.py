"""A folder of text, Markdown and reStructuredText files: a file is a document.

Its id is its path in the folder, its title the first heading, or else the file's name.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from qontext import log
from qontext.corpus.sources.base import Problem, Source
from qontext.corpus.sources.lines import LONGEST, ending, read_blocks, wrong_encoding
from qontext.records import Document

ENDINGS = (".txt", ".md", ".rst")

_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_HEADING = {
    ".md": re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$|^(\S.*)\n=+[ \t]*$", re.MULTILINE),
    ".rst": re.compile(r"^(?![^\w\s]{3,}[ \t]*$)[ \t]*(\S.*)\n([^\w\s])\2{2,}[ \t]*$", re.MULTILINE),
}


class TextFiles(Source):
    """The text files of a folder and its subfolders in sorted order, or one such file."""

    def __init__(self, name: str, path: Path, encoding: str) -> None:
        size = 0
        others: Counter[str] = Counter()
        for file in _files(path):
            if isinstance(file, Path) and ending(file) in ENDINGS:
                size += file.stat().st_size if file.exists() else 0
            elif isinstance(file, Path):
                others[ending(file) or "without an ending"] += 1
        super().__init__(name, has_passages=False, bytes_total=size)
        self.path, self.encoding = path, encoding
        if others:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in others.most_common(5))
            log.note(f"{path}: {others.total():,} files are no text files and are not read ({kinds}).")

    def documents(self) -> Iterator[Document | Problem]:
        for file in _files(self.path):
            if isinstance(file, Problem):
                yield file
            elif ending(file) in ENDINGS:
                yield self._document(file)

    def _document(self, file: Path) -> Document | Problem:
        content = bytearray()
        try:
            for block in read_blocks(file, self.advance):
                content += block
                if len(content) > LONGEST:
                    return Problem(str(file), "too long", f"the file is longer than {LONGEST >> 20} MiB")
            text = content.decode(self.encoding)
        except OSError as error:
            return Problem(str(file), "damaged file", f"cannot be read: {error}")
        except UnicodeDecodeError as error:
            return wrong_encoding(error, f"{file}:{content[: error.start].count(10) + 1}")
        if "\0" in text:
            return Problem(str(file), "NUL bytes", "its text holds NUL characters")
        text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        id = file.relative_to(self.path).as_posix() if file != self.path else file.name
        return Document(id, title_of(text, file), text, str(file))


def _files(path: Path) -> Iterator[Path | Problem]:
    return walk(path) if path.is_dir() else iter([path])


def walk(path: Path, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path | Problem]:
    """The files under `path` in sorted order, without hidden ones; a link that leads back is not followed."""
    try:
        status = path.stat()
        identity = (status.st_dev, status.st_ino)
        entries = sorted(os.scandir(path), key=lambda entry: entry.name) if identity not in above else []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from walk(Path(entry.path), above | {identity})
            elif entry.is_file() or not Path(entry.path).exists():  # a pipe would wait for ever
                yield Path(entry.path)
    except OSError as error:
        yield Problem(str(path), "damaged file", f"cannot be read: {error.strerror}")


def title_of(text: str, file: Path) -> str:
    """The first heading (of the first 64 KiB), or else the file's name without its ending."""
    heading = _HEADING.get(ending(file))
    found = heading.search(_FENCED.sub("", text[: 1 << 16])) if heading else None
    title = (found[1] or found[2]) if found else ""
    return title.strip() or re.sub(r"\.\w+(\.gz|\.zst)?$", "", file.name)
