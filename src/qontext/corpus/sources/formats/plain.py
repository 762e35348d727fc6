"""Plain text: one document, unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qontext.corpus.sources.formats.base import Text, read_text, stem
from qontext.data.records import Block


def read(path: Path, encoding: str) -> Iterator[Text]:
    yield Text(stem(path), (Block(read_text(path, encoding), line=1),))
