"""`qontext split`: documents → passages.

A source's records are read one after the other, split in parallel, and written as Parquet parts of 4,096
records each. Part k depends on the records from 4096·k on alone, so a killed run resumes after its last part,
and the result is the same bytes for any number of workers.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from qontext import log, records
from qontext.artifacts import Workdir
from qontext.config import Input, Machine, StageConfig
from qontext.corpus import counting, parallel, spans
from qontext.corpus.seen import SeenIds
from qontext.corpus.sentences import SPLITTERS, pieces
from qontext.corpus.sources import FieldNames, Problem, Source, open_source
from qontext.errors import QontextError
from qontext.records import PASSAGES, Document
from qontext.stages import Stage

RECORDS_PER_BLOCK, BLOCKS_PER_PART = 128, 32
_COUNTS = b"qontext.counts"


class SplitConfig(StageConfig):
    source: Annotated[str, Input(positional=True)]
    """Documents: a file (.jsonl, .tsv, .parquet; .gz and .zst too), a folder of such files or of text files,
    a BEIR folder, ir_datasets:NAME, hf:NAME, or pydocs: for the documentation of the installed Python packages."""

    keep: bool = False
    """Keep the passages and ids that the source itself has (BEIR, DPR, MS MARCO passages, paragraphs)."""

    max_tokens: int = Field(144, ge=3, le=100_000)
    """Longest passage in tokens, the two special tokens included (144 in query-as-context, 128 in CoT-MAE)."""

    short_span_probability: float = Field(0.0, ge=0, le=1)
    """Share of passages whose length limit is drawn anew from 2 to max_tokens (0.15 in CoT-MAE's code)."""

    tokenizer: Annotated[str, Input()] = counting.WORDS
    """What counts tokens: a model folder, a hub name, or 'words', a built-in rule that needs nothing."""

    sentences: Literal["sentencex", "punkt", "newline"] = "sentencex"
    """How sentences are found: by rules, by NLTK's punkt (its data must be here), or one a line."""

    language: str = Field("en", min_length=2)
    """Language of the text, as a two-letter code; it chooses the abbreviations that sentence splitting knows."""

    title: Literal["column", "text"] = "column"
    """Keep a document's title in its column, or put it before the text, as MS MARCO's documents are read."""

    on_error: Literal["stop", "skip"] = "stop"
    """At a record that cannot be used: stop and say where, or leave it out and count it."""

    id_field: str = "_id|id|docid|doc_id"
    """Names of the id field in JSON and Parquet records; the first that is there counts."""

    title_field: str = "title"
    """Names of the title field."""

    text_field: str = "text|contents|body"
    """Names of the text field."""

    paragraphs_field: str = "paragraphs"
    """Names of a field with a list of paragraphs, used in place of a text."""

    doc_field: str = "doc_id"
    """Names of the field that says which document a passage belongs to."""

    encoding: str = "utf-8"
    """Character encoding of text files."""

    seed: int = Field(42, ge=0, lt=2**63)
    """Seed of the short spans' lengths."""

    workers: Annotated[int, Machine()] = Field(0, ge=0)
    """Processes that split; 0 means one per core. The result does not depend on it."""


@dataclass
class Block:
    """The usable documents among some consecutive records, and what became of the others."""

    documents: list[Document] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def run(config: SplitConfig, work: Workdir) -> dict[str, Any]:
    names = FieldNames(
        config.id_field, config.title_field, config.text_field, config.paragraphs_field, config.doc_field
    )
    source = open_source(config.source, fields=names, encoding=config.encoding)
    if config.keep and not source.has_passages:
        raise QontextError(
            f"{source.name} has documents, not passages, so there is nothing to keep",
            place=config.source,
            remedy="Leave --keep out.",
        )
    counting.counter(config.tokenizer)  # what is wrong with it shows here, not in a worker
    SPLITTERS[config.sentences]("One. Two.", config.language)
    totals: Counter[str] = Counter()
    done = 0
    while work.has(_part(done)):
        totals.update(json.loads(pq.read_schema(work.path / _part(done)).metadata[_COUNTS]))
        done += 1
    with log.progress("split", source.bytes_total, "bytes") as advance:
        blocks = _blocks(source, config, advance)
        for _ in range(done * BLOCKS_PER_PART):  # read again, but only to know which ids came before
            next(blocks, None)
        splits = parallel.ordered_map(functools.partial(split_block, config=config), blocks, config.workers)
        for number in itertools.count(done):
            part = list(itertools.islice(splits, BLOCKS_PER_PART))
            if not part:
                break
            counts = sum((counts for _, counts in part), Counter[str]())
            table = pa.concat_tables([table for table, _ in part])
            with work.write(_part(number)) as path:
                records.write_table(
                    path, table.replace_schema_metadata({_COUNTS: json.dumps(counts, sort_keys=True)})
                )
            totals.update(counts)
    return _summary(totals, config)


def split_block(block: Block, config: SplitConfig) -> tuple[pa.Table, Counter[str]]:
    """Documents → passages and counts; pure, so that it can run in any process."""
    rows: dict[str, list[Any]] = {name: [] for name in PASSAGES.names}
    texts = [
        (document, name, text) for document in block.documents for name, text in _texts(document, config)
    ]
    starts = [SPLITTERS[config.sentences](text, config.language) for _, _, text in texts]
    sentences = [piece for (_, _, text), at in zip(texts, starts) for piece in pieces(text, at)]
    tokens = iter(counting.counter(config.tokenizer)(sentences))
    positions: Counter[str] = Counter()
    for (document, name, text), at in zip(texts, starts):
        lengths = list(itertools.islice(tokens, len(at)))
        if name is None:
            key = f"{config.seed} {document.id}"
            found = spans.group(lengths, config.max_tokens, config.short_span_probability, key)
        else:
            found = [spans.Span(0, len(at), sum(lengths) + spans.SPECIAL_TOKENS)]
        for first, last, count in found:
            begin, end = at[first], at[last] if last < len(at) else len(text)
            passage = text[begin:end]
            begin += len(passage) - len(passage.lstrip())
            position = positions[document.id]
            positions[document.id] += 1
            rows["id"].append(f"{document.id}#{position}" if name is None else name)
            rows["doc"].append(document.id)
            rows["position"].append(position)
            rows["title"].append(document.title)
            rows["text"].append(passage.strip())
            rows["sentences"].append([max(start - begin, 0) for start in at[first:last]])
            rows["tokens"].append(count)
            rows["overlong"].append(count > config.max_tokens)
    made = Counter(
        documents=len(block.documents),
        passages=len(rows["id"]),
        tokens=sum(rows["tokens"]),
        overlong=sum(rows["overlong"]),
    )
    return pa.table(rows, schema=PASSAGES), block.counts + made


def _texts(document: Document, config: SplitConfig) -> Iterator[tuple[str | None, str]]:
    """What is to be split, with None for its id; or the passages to be kept, with their ids."""
    if config.keep:
        yield from document.passages or ((document.id, document.text),)
    else:
        text = document.text or "\n\n".join(text for _, text in document.passages)
        yield None, f"{document.title}\n\n{text}" if config.title == "text" and document.title else text


def _blocks(source: Source, config: SplitConfig, advance: Callable[[float], None]) -> Iterator[Block]:
    """The source's records, a fixed number at a time, without those that cannot be used."""
    seen, items, read = SeenIds(), source.documents(), 0
    while batch := list(itertools.islice(items, RECORDS_PER_BLOCK)):
        advance(source.bytes_read - read)
        read = source.bytes_read
        yield _usable(batch, seen, config)


def _usable(batch: list[Document | Problem], seen: SeenIds, config: SplitConfig) -> Block:
    """Leave out, and count, what cannot be used; or stop at it."""
    block = Block()

    def reject(problem: Problem) -> None:
        if config.on_error == "stop":
            remedy = "Mend it, or leave such records out with --on-error skip."
            raise QontextError(problem.message, place=problem.place, remedy=remedy)
        log.detail(f"left out: {problem.place}: {problem.message}")
        block.counts[f"skipped: {problem.kind}"] += 1

    documents = []
    for item in batch:
        problem = item if isinstance(item, Problem) else _problem(item, config)
        if isinstance(item, Document) and problem is None:
            documents.append(item)
        elif problem is not None:
            reject(problem)
    ids = [_ids(document, config) for document in documents]
    block.counts["records"] = len(batch) - len(documents) + sum(map(len, ids))
    repeated = iter(seen.repeated(list(itertools.chain.from_iterable(ids))))
    for document, its_ids in zip(documents, ids):
        is_new = [not next(repeated) for _ in its_ids]
        for name, new in zip(its_ids, is_new):
            if not new:
                reject(Problem(document.place, "duplicate id", f"the id {name!r} came before"))
        if all(is_new):
            block.documents.append(document)
        elif any(is_new):
            kept = tuple(itertools.compress(document.passages, is_new))
            block.documents.append(dataclasses.replace(document, passages=kept))
    if config.keep:
        texts = (text for document in block.documents for _, text in _texts(document, config))
        block.counts["empty but kept"] = sum(not text.strip() for text in texts)
    return block


def _problem(document: Document, config: SplitConfig) -> Problem | None:
    texts = [document.id, document.title, document.text, *itertools.chain.from_iterable(document.passages)]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        message = f"the text of {document.id!a} has half a character (a lone surrogate)"
        return Problem(document.place, "wrong encoding", message)
    # Kept passages may be empty: their ids are the collection's, and judgements name them.
    if not config.keep and not any(
        text.strip() for text in (document.text, *(t for _, t in document.passages))
    ):
        return Problem(document.place, "empty text", f"the text of {document.id!r} is empty")
    return None


def _ids(document: Document, config: SplitConfig) -> list[str]:
    """The ids that must not come twice: the passages' where these are kept, else the document's."""
    return [name for name, _ in document.passages] if config.keep and document.passages else [document.id]


def _summary(totals: Counter[str], config: SplitConfig) -> dict[str, Any]:
    if not totals["passages"]:
        raise QontextError("no passages came out of it: the source has no usable text", place=config.source)
    skipped = {name.removeprefix("skipped: "): count for name, count in sorted(totals.items()) if ":" in name}
    summary: dict[str, Any] = {name: totals[name] for name in ("records", "documents", "passages", "tokens")}
    summary["tokens per passage"] = round(totals["tokens"] / totals["passages"], 1)
    for name in ("overlong", "empty but kept"):
        if totals[name]:
            summary[name] = totals[name]
    return {**summary, "skipped": skipped} if skipped else summary


def _part(number: int) -> str:
    return f"part-{number:05}.parquet"


STAGE = Stage(
    verb="split",
    config=SplitConfig,
    run=run,
    examples="""
        qontext split docs.jsonl.gz --out passages
        qontext split pydocs: --out passages --keep
        qontext split beir/scifact --keep --out passages
        qontext split msmarco-docs.tsv --tokenizer bert-base-uncased --title text --out passages
        qontext split dirty.jsonl --on-error skip --out passages
    """,
)
