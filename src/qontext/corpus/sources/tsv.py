"""Tab-separated files, in the layouts in which collections are published; the first line tells which it is.

- ``id text``: passages (MS MARCO's collection.tsv), no header.
- ``id url title body``: documents (MS MARCO's msmarco-docs.tsv), no header.
- a header that names the columns, as in DPR's psgs_w100.tsv (``id text title``), where consecutive passages
  of one title are a document. Such files are written by a CSV writer, so they may quote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from qontext.corpus.sources import fields
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.corpus.sources.fields import Fields, Record
from qontext.corpus.sources.lines import read_lines
from qontext.errors import QontextError
from qontext.records import Document

_PASSAGES, _DOCUMENTS, _DPR = ["id", "text"], ["id", "url", "title", "text"], ["id", "text", "title"]


class Tsv(Source):
    """The rows of one or more files of the same layout."""

    def __init__(self, name: str, files: Sequence[Path], names: FieldNames, encoding: str) -> None:
        first = next((line for _, line in read_lines(files[0], encoding, lambda amount: None)), "")
        if isinstance(first, Problem):
            raise QontextError(first.message, place=first.place, remedy="Check the file, and --encoding.")
        self.fields = Fields(names)
        self.header = _header(first, self.fields)
        self.columns = self.header or _layout(first, f"{files[0]}:1")
        super().__init__(
            name,
            has_passages=self.columns != _DOCUMENTS,
            bytes_total=sum(file.stat().st_size for file in files),
        )
        self.files, self.encoding = files, encoding

    def documents(self) -> Iterator[Document | Problem]:
        if self.columns == _DOCUMENTS:
            return fields.whole(self._records())
        if self.columns == _DPR:
            return fields.documents(by_title(self._records()))
        return fields.documents(self._records())

    def _records(self) -> Iterator[Record | Problem]:
        reader = self.fields if self.header else Fields(FieldNames("id", "title", "text", doc=""))
        for path in self.files:
            for number, line in read_lines(path, self.encoding, self.advance):
                if isinstance(line, Problem):
                    yield line
                elif line and not (number == 1 and self.header and line.split("\t") == self.header):
                    values = line.split("\t")
                    if self.header and '"' in line:
                        values = unquoted(values)
                    place = f"{path}:{number}"
                    if len(values) == len(self.columns):
                        yield reader.read(dict(zip(self.columns, values)), place)
                    else:
                        expected = f"{len(self.columns)} ({', '.join(self.columns)})"
                        yield Problem(
                            place, "wrong columns", f"has {len(values)} columns, expected {expected}"
                        )


def by_title(records: Iterator[Record | Problem]) -> Iterator[Record | Problem]:
    """Make consecutive passages of one title a document, which is named after its first passage's id."""
    title, doc = "", ""
    for record in records:
        if isinstance(record, Record):
            if record.title != title or not title:
                title, doc = record.title, record.id
            record = record._replace(doc=doc)
        yield record


def unquoted(values: list[str]) -> list[str]:
    """The columns without the quotes that a CSV writer puts around a value with quotes or tabs in it."""
    whole: list[str] = []
    for value in values:
        if whole and whole[-1].startswith('"') and whole[-1].count('"') % 2:
            whole[-1] += "\t" + value
        else:
            whole.append(value)
    return [
        v[1:-1].replace('""', '"') if len(v) > 1 and v.startswith('"') and v.endswith('"') else v
        for v in whole
    ]


def _header(line: str, names: Fields) -> list[str] | None:
    """The columns that a first line names, if it does."""
    columns = line.split("\t")
    return columns if {*columns} & {*names.id} and {*columns} & {*names.text} else None


def _layout(line: str, place: str) -> list[str]:
    found = line.count("\t") + 1 if line else 0
    for layout in (_PASSAGES, _DOCUMENTS):
        if len(layout) == found or not line:
            return layout
    raise QontextError(
        f"its first line has {found} columns and is no header that names an id and a text",
        place=place,
        remedy="Columns are 'id text' or 'id url title body', or named by a header such as 'id text title'.",
    )
