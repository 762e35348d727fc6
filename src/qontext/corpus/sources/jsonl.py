"""JSON Lines: one object per line: a document, a document with paragraphs, or a passage of a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from json import JSONDecodeError, JSONDecoder
from pathlib import Path

from qontext.corpus.sources import fields
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.corpus.sources.fields import Fields, Record
from qontext.corpus.sources.lines import read_lines
from qontext.data.records import Document

_decode = JSONDecoder().decode


class JsonLines(Source):
    """The records of one or more files, read as if concatenated."""

    def __init__(self, name: str, files: Sequence[Path], names: FieldNames, encoding: str) -> None:
        super().__init__(name, has_passages=True, bytes_total=sum(file.stat().st_size for file in files))
        self.files, self.fields, self.encoding = files, Fields(names), encoding

    def documents(self) -> Iterator[Document | Problem]:
        return fields.documents(self._records())

    def _records(self) -> Iterator[Record | Problem]:
        for path in self.files:
            for number, line in read_lines(path, self.encoding, self.advance):
                if isinstance(line, Problem):
                    yield line
                elif line and not line.isspace():
                    yield self._record(line, f"{path}:{number}")

    def _record(self, line: str, place: str) -> Record | Problem:
        try:
            value = _decode(line)
        except JSONDecodeError as error:
            return Problem(
                place,
                "broken JSON",
                f"{error.msg} at character {error.pos}; each line must hold one JSON object",
            )
        except (ValueError, RecursionError) as error:
            return Problem(place, "broken JSON", str(error))
        if not isinstance(value, dict):
            return Problem(place, "not an object", f"expected a JSON object, found {type(value).__name__}")
        # NUL and lone surrogates pass decoding only as JSON escapes (\u…).
        return self.fields.read(value, place, clean="\\u" not in line)
