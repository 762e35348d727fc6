"""Document expansion: passages with their queries appended, so that BM25 finds them by words that they do not contain.

Nogueira and Lin, "From doc2query to docTTTTTquery". The result has the columns of passages, with their places and metadata,
and can be used in their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, field_validator, model_validator

from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input
from qontext.frame.errors import QontextError
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig, slices
from qontext.frame.stages import Stage
from qontext.queries.appended import Appended, Words

if TYPE_CHECKING:
    from qontext.data.passage import Passage
    from qontext.data.rows import PassageRows, TableRows

PART = 65_536


class _Rows(NamedTuple):
    """Passages, and the values of their place columns; none if their files have no such columns."""

    passages: list[Passage]
    places: Mapping[str, list[Any]]


class ExpandConfig(PartsConfig):
    queries: Annotated[str, Input(positional=True)]
    """Output of generate or filter."""
    passages: Annotated[str, Input()]
    """The passages from which the queries were generated."""
    at_most: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of a passage's queries that are read. Default: all."""
    words: Words = "all"
    """Words of the queries that are appended: all; those that the passage has (seen); or those that it lacks (new)."""
    analyzer: str | None = None
    """With --words seen or new: how words are compared, as in 'qontext index --backend bm25'. Default: english."""

    def identity(self) -> dict[str, Any]:
        """Without a choice of words, its settings are omitted."""
        if self.words == "all":
            return {
                name: value for name, value in super().identity().items() if name not in ("words", "analyzer")
            }
        return {**super().identity(), "analyzer": self.analyzer or "english"}

    @field_validator("analyzer")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        from qontext.retrieve.analysis import term_of

        if name is not None:
            term_of(name)
        return name

    @model_validator(mode="after")
    def _is_read(self) -> ExpandConfig:
        if self.analyzer is not None and self.words == "all":
            raise ValueError("analyzer is read with --words seen or --words new only. Leave it out")
        return self


class Expand(Parts[ExpandConfig]):
    unit = "passages"

    def __init__(self, config: ExpandConfig, work: Workdir) -> None:
        from qontext.data.rows import PassageRows

        super().__init__(config, work)
        self.passages = PassageRows(config.passages)
        self.places = _places(self.passages)

    def plan(self) -> list[Part]:
        return slices(self.passages.count(), PART, lambda number: f"part-{number:05d}.parquet")

    def open(self) -> None:
        from qontext.data import records

        self.of: dict[str, list[str]] = {}
        self.appended = Appended(self.config.words, self.config.analyzer or "english")
        columns = ["passage", "query"]
        for batch in records.read_table(self.config.queries, records.QUERIES, columns=columns):
            for passage, query in zip(*(batch[name].to_pylist() for name in columns)):
                self.of.setdefault(passage, []).append(query)

    def read(self, part: Part) -> _Rows:
        passages = self.passages.read(part.first, part.last)
        if self.places is None:
            return _Rows(passages, {})
        batches = self.places.read(part.first, part.last)
        names = self.places.schema.names
        return _Rows(passages, {name: [v for b in batches for v in b[name].to_pylist()] for name in names})

    def make(self, part: Part, content: _Rows) -> dict[str, int]:
        import pyarrow as pa

        from qontext.data import records

        rows = list(self._rows(content.passages))
        table = records.table_of(rows, records.PASSAGES)
        for name, values in content.places.items():
            field = records.PLACES.field(name)
            table = table.append_column(field, pa.array(values, field.type))
        with self.work.write(part.name) as path:
            records.write_table(path, table)
        self.advance(len(rows))
        return {}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        from qontext.data import records

        sentences = pa.schema([records.PASSAGES.field("sentences")])
        expanded = appended = 0
        for part in outcome.parts:
            table = records.read_part(self.work.path / part.name, sentences)
            queries = pc.subtract(pc.list_value_length(table["sentences"]), 1)
            expanded += pc.sum(pc.greater(queries, 0)).as_py()
            appended += pc.sum(queries).as_py()
        if not expanded:
            for name in self.work.names():  # a corrected command starts afresh
                self.work.remove(name)
            message, remedy = _NOTHING[self.config.words]
            raise QontextError(message, place=self.config.queries, remedy=remedy)
        return {"passages": outcome.parts[-1].last, "expanded": expanded, "queries_appended": appended}

    def _rows(self, passages: list[Passage]) -> Iterator[dict[str, Any]]:
        """Rows with the passage as the first sentence and each query as one more."""
        positions: dict[str, int] = {}
        for passage in passages:
            text, starts = passage.text, [0]
            queries = self.of.get(passage.id, [])[: self.config.at_most]
            for query in self.appended(f"{passage.title} {passage.text}", queries):
                starts.append(len(text) + 1)
                text = f"{text}\n{query}"
            position = positions[passage.doc] = positions.get(passage.doc, -1) + 1
            yield {
                "id": passage.id, "doc": passage.doc, "position": position, "title": passage.title,
                # These are for search, not for training: their tokens are not counted.
                "text": text, "sentences": starts, "tokens": 0, "overlong": False,
            }  # fmt: skip


_NOTHING = {
    "all": ("contains no query of these passages", "Check that they belong together."),
    "seen": ("contains no query with a word that its passage has", "Check that they belong together."),
    "new": (
        "contains no query with a word that its passage lacks",
        "Set --words all, or choose another generator.",
    ),
}


def _places(passages: PassageRows) -> TableRows | None:
    """The place columns that all files of the passages have."""
    from qontext.data import records
    from qontext.data.rows import TableRows

    if passages.table is None:
        return None
    there = [{*records.open_parquet(file).schema_arrow.names} for file in passages.table.files]
    names = [name for name in records.PLACES.names if all(name in columns for columns in there)]
    return TableRows(passages.source, records.PLACES, names) if names else None


STAGE = Stage(
    "expand",
    ExpandConfig,
    Expand,
    examples="""
        qontext expand queries --passages passages --out expanded
        qontext expand filtered --passages passages --at-most 20 --out expanded
        qontext expand queries --passages passages --words seen --out weighted
    """,
    format=2,
)
