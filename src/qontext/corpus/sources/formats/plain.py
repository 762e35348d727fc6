"""Plain text: one document, unchanged. A file that is only known to be text by its content may have another encoding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qontext.corpus.sources.formats.base import (
    LARGEST_MARKUP,
    FileText,
    Unreadable,
    decode,
    read_bytes,
    read_text,
    stem,
)
from qontext.data.records import Block

LONGEST_LINES = 1_000
"""Average characters per line of a file of unknown kind; longer ones are considered generated."""


def read(path: Path, encoding: str) -> Iterator[FileText]:
    yield FileText(stem(path), (Block(read_text(path, encoding), line=1),))


def read_other(path: Path, encoding: str) -> Iterator[FileText]:
    """A text file with an unknown ending."""
    text = decode(read_bytes(path, LARGEST_MARKUP), None, encoding).replace("\r\n", "\n")
    if len(text) > LONGEST_LINES * (text.count("\n") + 1):
        raise Unreadable("generated code", "its lines are too long; it is probably generated")
    yield FileText(path.name, (Block(text, line=1),))
