"""Passages → queries, part by part.

A part holds the queries of a fixed slice of passages, so its content does not depend on who makes it: any
process, in any order, after any number of kills. What was dropped is counted in the part's own footer.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from qontext import log, records, stages
from qontext.artifacts import Workdir
from qontext.collection import Passage, read_passages
from qontext.config import Input, Machine, StageConfig
from qontext.errors import QontextError, choose
from qontext.queries.cleaning import clean
from qontext.queries.file import FileOptions
from qontext.queries.generators import GENERATORS, Generator, unread
from qontext.queries.llm import LlmOptions
from qontext.queries.t5 import DEFAULT_MODEL, T5Options
from qontext.queries.words import batches
from qontext.stages import Stage

PART_PASSAGES = 2048
FOOTER = b"qontext"


class CommonOptions(StageConfig):
    """What every generator reads."""

    passages: Annotated[str, Input(positional=True)]
    """The passages: what split wrote, a Parquet file, a BEIR folder, or lines of id<tab>text."""
    generator: str = "t5"
    """t5 (sequence-to-sequence model), llm (chat endpoint), keyphrase (no model), file (existing queries)."""
    per_passage: Annotated[int, Field(ge=1, le=1000)] = 5
    """Queries per passage; fewer are left where a generator repeats itself."""
    seed: int = 42
    """The same seed gives a passage the same queries, in whatever part, process or order it is read."""
    part_passages: Annotated[int, Field(ge=1)] | None = None
    """Passages per part: a kill costs at most one part of work per process. If not given 2048, for llm 128."""
    shard: Annotated[str | None, Machine()] = None
    """i/n: make every n-th part from the i-th on, so that n machines share the work (i from 0)."""


class GenerateConfig(FileOptions, LlmOptions, T5Options, CommonOptions):
    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        generator = values.get("generator", "t5")
        filled: dict[str, Any] = {"part_passages": 128 if generator == "llm" else PART_PASSAGES}
        if generator == "t5":
            filled["model"] = DEFAULT_MODEL
        return {**values, **{name: value for name, value in filled.items() if values.get(name) is None}}

    @model_validator(mode="after")
    def _only_what_is_read(self) -> Self:
        choose(self.generator, GENERATORS, "generator")
        stages.share(self.shard)
        for name in unread(self.generator):
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                raise ValueError(f"{name!r} is not read by the generator {self.generator!r}")
        return self

    def identity(self) -> dict[str, Any]:
        skip = unread(self.generator)
        return {name: value for name, value in super().identity().items() if name not in skip}


def run(config: GenerateConfig, work: Workdir) -> dict[str, Any] | None:
    index, count = stages.share(config.shard)
    total = count_passages(config.passages)
    if not total:
        raise QontextError("holds no passages", place=config.passages)
    size = config.part_passages or PART_PASSAGES
    parts = -(-total // size)
    todo = {part for part in range(index, parts, count) if not work.has(part_name(part))}
    started, made = time.monotonic(), 0
    if todo:
        generator = GENERATORS[config.generator].open(config)
        waiting = sum(min(size, total - part * size) for part in todo)
        with log.progress("generate", waiting * config.per_passage, "queries") as advance:
            for part, passages in enumerate(batches(read_passages(config.passages), size)):
                if part in todo:
                    table = _make_part(generator, passages, config.per_passage, advance)
                    made += table.num_rows
                    with work.write(part_name(part)) as path:
                        records.write_table(path, table)
    missing = sum(not work.has(part_name(part)) for part in range(parts))
    if missing:
        log.note(f"This share is done; {missing} of {parts} parts are still to come from other processes.")
        return None
    seconds = time.monotonic() - started
    summary = _summarise(config, [work.path / part_name(part) for part in range(parts)], total)
    if made:
        summary["queries_per_second"] = round(made / seconds, 1)
    return summary


def part_name(part: int) -> str:
    return f"part-{part:05d}.parquet"


def count_passages(source: str) -> int:
    """How many there are: from the footers where they are Parquet, else by reading."""
    path = Path(source).expanduser()
    if path.suffix == ".parquet" or (path.is_dir() and any(path.glob("*.parquet"))):
        return records.count_rows(path)
    return sum(1 for _ in read_passages(source))


def _make_part(generator: Generator, passages: list[Passage], per_passage: int, advance: Any) -> pa.Table:
    """The part's rows in passage order, with the counts in the footer."""
    generator.tally = tally = Counter[str]()
    kept: list[list[str]] = [[] for _ in passages]
    full = [i for i, passage in enumerate(passages) if passage.text.strip()]
    tally["empty_passages"] = len(passages) - len(full)
    for place, queries in generator([passages[i] for i in full]):
        kept[full[place]] = clean(queries[:per_passage], passages[full[place]], tally)
        advance(per_passage)
    tally["without_queries"] = sum(not queries for queries in kept)
    columns = {
        "passage": [passage.id for passage, queries in zip(passages, kept) for _ in queries],
        "query": [query for queries in kept for query in queries],
        "number": [number for queries in kept for number in range(len(queries))],
    }
    table = pa.table(columns, records.QUERIES)
    return table.replace_schema_metadata({FOOTER: json.dumps(dict(sorted(tally.items())))})


def _summarise(config: GenerateConfig, parts: list[Path], passages: int) -> dict[str, Any]:
    tally: Counter[str] = Counter()
    queries = 0
    for part in parts:
        footer = pq.read_metadata(part)
        queries += footer.num_rows
        tally.update(json.loads(footer.metadata[FOOTER]))
    if not queries:
        raise QontextError(
            "not one query came out", place=parts[0].parent, remedy=f"What was counted: {dict(tally)}"
        )
    dropped = {name: tally.pop(name, 0) for name in ("empty", "duplicates", "echoes")}
    return {
        "passages": passages,
        "queries": queries,
        "queries_per_passage": round(queries / passages, 3),
        "passages_without_queries": tally.pop("without_queries", 0),
        "empty_passages": tally.pop("empty_passages", 0),
        "dropped": dropped,
        **dict(sorted(tally.items())),
        **_cost(config, tally),
    }


def _cost(config: GenerateConfig, tally: Counter[str]) -> dict[str, float]:
    """What the tokens cost, if prices are known."""
    if not config.price_in and not config.price_out:
        return {}
    read, written = tally["prompt_tokens"], tally["completion_tokens"]
    return {"cost": round((read * config.price_in + written * config.price_out) / 1e6, 6)}


STAGE = Stage(
    "generate",
    GenerateConfig,
    run,
    examples="""
        qontext generate passages --out queries --generator keyphrase
        qontext generate passages --out queries --per-passage 5 --engine ctranslate2
        qontext generate passages --out queries --generator t5 --model runs/generator
        qontext generate passages --out queries --generator llm --endpoint http://host:8000/v1 --chat-model M
        qontext generate passages --out queries --generator file --queries predicted.jsonl.gz
        torchrun --nproc-per-node 8 -m qontext generate passages --out queries
        qontext generate passages --out queries --shard 0/4
    """,
)
