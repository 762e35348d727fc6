"""`qontext tokens`: passages (or queries) → the token store that training reads."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from qontext import log, records
from qontext.artifacts import Workdir
from qontext.config import Input, Machine, StageConfig
from qontext.corpus import counting, parallel, store
from qontext.errors import QontextError
from qontext.stages import Stage

TEXTS_PER_CHUNK, TEXTS_PER_BLOCK = 65_536, 1024
Texts = list[tuple[str, list[int]]]


class TokensConfig(StageConfig):
    texts: Annotated[str, Input(positional=True)]
    """Passages from 'qontext split', or queries from 'qontext generate' (a directory or a Parquet file)."""

    tokenizer: Annotated[str, Input()]
    """The encoder's tokenizer: a model folder, a tokenizer.json or a hub name."""

    title: Literal["leave", "prepend"] = "leave"
    """Whether a passage's title is put before its text."""

    workers: Annotated[int, Machine()] = Field(0, ge=0)
    """Processes that tokenise; 0 means one per core. The result does not depend on it."""


def run(config: TokensConfig, work: Workdir) -> dict[str, Any]:
    if config.tokenizer == counting.WORDS:
        raise QontextError(
            "'words' counts tokens but makes none", remedy="Name a model folder or a hub model."
        )
    vocabulary = counting.load_tokenizer(config.tokenizer).get_vocab_size(with_added_tokens=True)
    kind = _kind(config.texts)
    total = records.count_rows(config.texts)
    if not total:
        raise QontextError("has no rows, so there is nothing to tokenise", place=config.texts)
    chunks = [f"chunk-{number:05}.npz" for number in range(-(-total // TEXTS_PER_CHUNK))]
    done = next((number for number, name in enumerate(chunks) if not work.has(name)), len(chunks))
    with log.progress("tokens", total, "texts") as advance:
        advance(min(done * TEXTS_PER_CHUNK, total))
        blocks = _blocks(config, kind, done * TEXTS_PER_CHUNK)
        results = parallel.ordered_map(
            functools.partial(_tokenise, tokenizer=config.tokenizer), blocks, config.workers
        )
        for name in chunks[done:]:
            parts: list[dict[str, NDArray[Any]]] = []
            while sum(len(part["lengths"]) for part in parts) < TEXTS_PER_CHUNK:
                part = next(results, None)
                if part is None:
                    break
                parts.append(part)
                advance(len(part["lengths"]))
            store.save_chunk(work, name, _join(parts))
    groups, names = _groups(config.texts, kind)
    store.write_store(work, [work.path / name for name in chunks], groups, names, vocabulary)
    for name in chunks:
        work.remove(name)
    stored = store.load_arrays(work.path)
    return {
        "kind": kind,
        "texts": len(stored),
        "groups": len(groups) - 1,
        "tokens": len(stored.ids),
        "sentences": len(stored.sentences),
        "vocabulary": vocabulary,
        "vocabulary hash": vocabulary_hash(counting.load_tokenizer(config.tokenizer)),
    }


def vocabulary_hash(tokenizer: Any) -> str:
    """Tells two vocabularies apart; takes a `tokenizers.Tokenizer`."""
    words = json.dumps(sorted(tokenizer.get_vocab(with_added_tokens=True).items()))
    return hashlib.blake2b(words.encode(), digest_size=8).hexdigest()


def _tokenise(texts: Texts, tokenizer: str) -> dict[str, NDArray[Any]]:
    return store.tokenise(texts, counting.load_tokenizer(tokenizer))


def _join(parts: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    shifts = np.cumsum([0, *(len(part["ids"]) for part in parts)])
    for part, shift in zip(parts, shifts):
        part["sentences"] = part["sentences"] + shift
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _kind(texts: str) -> str:
    """Whether the rows are passages or queries, by their columns."""
    part = records.parquet_parts(texts)[0]
    names = records.open_parquet(part).schema_arrow.names
    if {"passage", "query"} <= set(names):
        return "queries"
    if {"id", "doc", "text"} <= set(names):
        return "passages"
    raise QontextError(f"holds neither passages nor queries (its columns: {', '.join(names)})", place=part)


def _blocks(config: TokensConfig, kind: str, skip: int) -> Iterator[Texts]:
    """The texts with their sentence starts, from the row `skip` on, a block at a time."""
    block: Texts = []
    columns = ["query"] if kind == "queries" else ["title", "text", "sentences"]
    schema = records.QUERIES if kind == "queries" else records.PASSAGES
    for batch in records.read_table(config.texts, schema, columns=columns):
        if skip >= len(batch):
            skip -= len(batch)
            continue
        rows, skip = batch.slice(skip).to_pydict(), 0
        if kind == "queries":
            block += [(query, [0]) for query in rows["query"]]
        else:
            titles = rows["title"] if config.title == "prepend" else [""] * len(rows["text"])
            block += [_with_title(*row) for row in zip(titles, rows["text"], rows["sentences"])]
        while len(block) >= TEXTS_PER_BLOCK:
            yield block[:TEXTS_PER_BLOCK]
            block = block[TEXTS_PER_BLOCK:]
    if block:
        yield block


def _with_title(title: str, text: str, sentences: list[int]) -> tuple[str, list[int]]:
    if not title:
        return text, sentences or [0]
    shift = len(title) + 1
    return f"{title} {text}", [0, *(start + shift for start in sentences)]


def _groups(texts: str, kind: str) -> tuple[NDArray[np.int64], pa.Array]:
    """Where each document's passages (each passage's queries) begin, and the names of the store."""
    schema = records.QUERIES if kind == "queries" else records.PASSAGES
    column = "passage" if kind == "queries" else "doc"
    name = "passage" if kind == "queries" else "id"
    cuts, names, count, last = [np.zeros(0, np.int64)], [], 0, None
    for batch in records.read_table(texts, schema, columns=sorted({column, name})):
        keys = batch.column(column).to_numpy(zero_copy_only=False)
        changed = np.concatenate([[last is None or keys[0] != last], keys[1:] != keys[:-1]])
        starts = np.flatnonzero(changed)
        cuts.append(starts + count)
        kept = batch.column(name)
        names.append(kept.take(pa.array(starts)) if kind == "queries" else kept)
        count, last = count + len(batch), keys[-1]
    joined = pa.chunked_array(names, pa.string()).combine_chunks()
    if kind == "queries" and (repeated := pc.filter(*_counted(joined))):
        raise QontextError(
            f"the queries of a passage must stand together, but those of {repeated[0]} do not",
            place=texts,
            remedy="Sort the rows by the column 'passage'.",
        )
    return np.concatenate([*cuts, [count]]), joined


def _counted(names: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Each different name, and whether it comes more than once."""
    counts = pc.value_counts(names)
    return counts.field("values"), pc.greater(counts.field("counts"), 1)


STAGE = Stage(
    verb="tokens",
    config=TokensConfig,
    run=run,
    examples="""
        qontext tokens passages --tokenizer bert-base-uncased --out tokens
        qontext tokens queries --tokenizer models/mine --out query-tokens
    """,
)
