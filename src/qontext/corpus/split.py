"""`qontext split`: documents → passages.

A source's records are read sequentially, split in parallel, and written as Parquet parts of 4,096 records
each. Part k depends only on the records from 4096·k on, so a killed run resumes after its last part, and the
output is identical for any number of processes and machines.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from qontext.corpus import parallel
from qontext.corpus.sentences import SPLITTERS, WORDS, counter, pieces
from qontext.corpus.sources import FieldNames, ReadAs, Source, demands, fingerprint, open_source, reads_below
from qontext.frame import log
from qontext.frame.config import Asks, Input, Machine, Seed
from qontext.frame.errors import QontextError
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig
from qontext.frame.stages import Stage

if TYPE_CHECKING:
    import pyarrow as pa

    from qontext.corpus.blocks import DocumentBlock

_COUNTS = b"qontext.counts"
WHOLE = ".whole"
"""The hidden file that stands for all parts, if one process makes them."""


class SplitConfig(PartsConfig):
    source: Annotated[
        str, Input(positional=True, fingerprint=fingerprint, reads_below=reads_below), Asks(demands)
    ]
    """Documents: a file or folder of records (.jsonl, .tsv, .parquet) or of documents (text, Markdown, HTML, PDF, DOCX,
    EPUB, notebooks, mail, source code), a BEIR folder, ir_datasets:NAME, hf:NAME, or pydocs: for the documentation of the
    installed Python packages."""

    keep: bool = False
    """Keep the passages and ids of the source (BEIR, DPR, MS MARCO passages, paragraphs); a document of MS MARCO is kept
    as one passage."""

    max_tokens: int = Field(144, ge=3, le=100_000)
    """Maximum passage length in tokens, including two special tokens (144 in query-as-context, 128 in CoT-MAE)."""

    short_span_probability: float = Field(0.0, ge=0, le=1)
    """Share of passages whose length limit is drawn from 2 to max_tokens (0.15 in CoT-MAE's code)."""

    tokenizer: Annotated[str, Input()] = WORDS
    """Tokenizer for counting tokens: a model folder, a Hub name, or 'words', a built-in approximation."""

    sentences: Literal["sentencex", "punkt", "newline"] = "sentencex"
    """Sentence splitter: rules (sentencex), NLTK's punkt (its data must be installed), or one sentence per line."""

    language: str = Field("en", min_length=2)
    """Language of the text, as a two-letter code; selects the abbreviations for sentence splitting."""

    title: Literal["column", "text"] = "column"
    """Keep a document's title in its own column, or prepend it to the text, as is usual for MS MARCO documents."""

    on_error: Literal["stop", "skip"] = "stop"
    """On an invalid record: stop with an error, or skip and count it."""

    fields: Annotated[str, AfterValidator(lambda text: FieldNames.parse(text) and text)] = ""
    """Names of the fields of records that have others than usual, such as id=docno,text=body|abstract: id, title, text,
    paragraphs (a list, used instead of a text), doc (the id of a passage's document)."""

    encoding: str = "utf-8"
    """Character encoding of text files."""

    read_as: ReadAs = ()
    """ENDING=FORMAT: read files with this extension as text, markdown, html, csv, code or another format of documents. May
    be repeated."""

    seed: Seed = 42
    """Random seed for the lengths of short spans."""

    workers: Annotated[int, Machine()] = Field(0, ge=0, le=1024)
    """Number of processes; 0 means one per core. Does not affect the result."""


def open_documents(config: SplitConfig) -> Source:
    """The documents that the settings name."""
    names = FieldNames.parse(config.fields)
    source = open_source(config.source, fields=names, encoding=config.encoding, read_as=config.read_as)
    if config.keep and not source.has_ids:
        raise QontextError(
            f"{source.name} has documents, not passages, so there is nothing to keep",
            place=config.source,
            remedy="Remove --keep.",
        )
    return source


class Split(Parts[SplitConfig]):
    """A part is what 4,096 records become. One process alone does not count them first: it makes all parts as one."""

    unit = "documents"

    @cached_property
    def source(self) -> Source:
        return open_documents(self.config)

    def plan(self) -> list[Part]:
        from qontext.corpus.blocks import spool
        from qontext.corpus.sources.files import announce

        announce(self.source, self.config.source)
        total = self.source.bytes_total
        if self.config.on == "local" and self.work.world == 1:
            self.unit = "bytes"
            return [Part(0, WHOLE, 0, 0, total or 0)]
        with log.progress("read", total, "bytes") as advance:
            sizes = spool(self.work, self._blocks(advance))
        return [Part(number, _part(number), 0, 0, size) for number, size in enumerate(sizes)]

    def open(self) -> None:
        counter(self.config.tokenizer)  # raises errors here, not in a process
        SPLITTERS[self.config.sentences]("One. Two.", self.config.language)

    def make(self, part: Part, content: None) -> dict[str, int]:
        from qontext.corpus.blocks import spooled

        if part.name == WHOLE:
            self._make_all()
        else:
            self._write(part.number, list(self._split(spooled(self.work, part.number))))
            self.advance(part.size)
        return {}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        from qontext.corpus.blocks import SPOOL
        from qontext.data import records

        totals: Counter[str] = Counter()
        for name in self.work.names():
            totals.update(records.read_footer(self.work.path / name, _COUNTS, dict[str, int]))
        for scratch in (WHOLE, SPOOL):
            self.work.remove(scratch)
        left = {"not_read": dict(self.source.unread)} if self.source.unread else {}
        return {**_summary(totals, self.config), **left}

    def _make_all(self) -> None:
        """All parts, while the source is read; those that are there are read again, but only for the ids."""
        from qontext.corpus import blocks

        done = next(number for number in itertools.count() if not self.work.has(_part(number)))
        splits = self._split(
            itertools.islice(self._blocks(self.advance), done * blocks.BLOCKS_PER_PART, None)
        )
        for number in itertools.count(done):
            if not (blocks_of_part := list(itertools.islice(splits, blocks.BLOCKS_PER_PART))):
                break
            self._write(number, blocks_of_part)
        self.work.write_text(WHOLE, "")

    def _blocks(self, advance: Callable[[float], None]) -> Iterator[DocumentBlock]:
        from qontext.corpus.blocks import usable_blocks

        stops = self.config.on_error == "stop"
        return usable_blocks(self.source, keep=self.config.keep, stops=stops, advance=advance)

    def _split(self, blocks: Iterable[DocumentBlock]) -> Iterator[tuple[pa.Table, Counter[str]]]:
        split = functools.partial(split_block, config=self.config)
        return parallel.ordered_map(split, blocks, self.config.workers)

    def _write(self, number: int, blocks: list[tuple[pa.Table, Counter[str]]]) -> None:
        import pyarrow as pa

        from qontext.data import records

        counts = sum((counts for _, counts in blocks), Counter[str]())
        table = pa.concat_tables([table for table, _ in blocks])
        with self.work.write(_part(number)) as path:
            records.write_table(
                path, table.replace_schema_metadata({_COUNTS: json.dumps(counts, sort_keys=True)})
            )


def split_block(block: DocumentBlock, config: SplitConfig) -> tuple[pa.Table, Counter[str]]:
    """Documents → passages and counts; pure, so that it can run in any process."""
    import pyarrow as pa

    from qontext.corpus.sections import Splitting, place_of, spans_of, texts_of, title_of
    from qontext.data.records import PASSAGES, PLACES

    rows: dict[str, list[Any]] = {name: [] for name in (*PASSAGES.names, *PLACES.names)}
    how = Splitting(**{name: getattr(config, name) for name in Splitting._fields})
    texts = [text for document in block.documents for text in texts_of(document, how)]
    sentences = [piece for text in texts for piece in pieces(text.text, text.starts)]
    tokens = iter(counter(config.tokenizer)(sentences))
    positions: Counter[str] = Counter()
    for text in texts:
        document, at = text.document, text.starts
        for (first, last, count), headings in spans_of(text, list(itertools.islice(tokens, len(at))), how):
            begin, end = at[first], at[last] if last < len(at) else len(text.text)
            passage = text.text[begin:end]
            begin += len(passage) - len(passage.lstrip())
            passage = passage.strip()
            position = positions[document.id]
            positions[document.id] += 1
            place = place_of(text, begin, begin + len(passage), headings)
            rows["id"].append(f"{document.id}#{position}" if text.name is None else text.name)
            rows["doc"].append(document.id)
            rows["position"].append(position)
            rows["title"].append(title_of(document.title, headings))
            rows["text"].append(passage)
            rows["sentences"].append([max(start - begin, 0) for start in at[first:last]])
            rows["tokens"].append(count)
            rows["overlong"].append(count > config.max_tokens)
            columns = {**place._asdict(), "file": text.file, "metadata": text.metadata}
            columns["spans"] = [span._asdict() for span in place.spans]
            for name in PLACES.names:
                rows[name].append(columns[name])
    counts = Counter(
        documents=len(block.documents),
        passages=len(rows["id"]),
        tokens=sum(rows["tokens"]),
        overlong=sum(rows["overlong"]),
    )
    return pa.table(rows, schema=pa.schema([*PASSAGES, *PLACES])), block.counts + counts


def _summary(totals: Counter[str], config: SplitConfig) -> dict[str, Any]:
    if not totals["passages"]:
        raise QontextError("the source has no usable text: no passages were created", place=config.source)
    kinds = {name: name.removeprefix("skipped: ") for name in sorted(totals) if ":" in name}
    skipped = {kind.lower().replace(" ", "_"): totals[name] for name, kind in kinds.items()}
    summary: dict[str, Any] = {name: totals[name] for name in ("records", "documents", "passages", "tokens")}
    summary["tokens_per_passage"] = round(totals["tokens"] / totals["passages"], 1)
    for name in ("overlong", "kept_empty"):
        if totals[name]:
            summary[name] = totals[name]
    return {**summary, "skipped": skipped} if skipped else summary


def _part(number: int) -> str:
    return f"part-{number:05}.parquet"


STAGE = Stage(
    verb="split",
    config=SplitConfig,
    run=Split,
    examples="""
        qontext split docs.jsonl --out passages
        qontext split docs.jsonl.gz --on-error skip --out passages
        qontext split docs.tsv --tokenizer bert-base-uncased --title text --out passages
        qontext split data --keep --out passages
        qontext split pydocs: --keep --out passages
        qontext split handbook --out passages
        qontext split docs.jsonl --on ray --out passages
    """,
    format=4,
)
