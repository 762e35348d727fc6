"""Passages → queries, part by part.

A part holds the queries of a fixed slice of passages, so its content does not depend on which process writes
it, in which order, or on restarts. Dropped queries are counted in the part's footer.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from qontext.data.passage import RowKind
from qontext.frame import artifacts
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, Seed
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig, slices
from qontext.frame.stages import Stage
from qontext.queries.generators import GENERATORS, Generator, Task

if TYPE_CHECKING:
    import pyarrow as pa

    from qontext.data.collection import Passage
    from qontext.queries.imitation import Style

FOOTER = b"qontext"


class GenerateConfig(PartsConfig):
    kinds: ClassVar = {"generator": GENERATORS}

    passages: Annotated[str, Input(positional=True)]
    """The passages: output of split, a Parquet file, a BEIR folder, or lines of id<tab>text. With --of queries: a BEIR
    folder, or a file of queries in any format that `search` reads."""

    of: RowKind = "passages"
    """The texts to read: passages, or queries, with a model that learned to write what answers them (GAR)."""

    generator: str = "t5"
    """The generator."""

    per_passage: Annotated[int, Field(ge=1, le=1000)] = 5
    """Queries per passage; duplicates are dropped, so there may be fewer."""

    like: Annotated[str | None, Input()] = None
    """Questions that people asked (lines of a .txt or .log file, or queries in any format that `search` reads). More
    queries are generated, and those that resemble them most in length, form and words are kept."""

    seed: Seed = 42
    """Random seed. The queries of a passage do not depend on part, process or order."""

    part_passages: Annotated[int, Field(ge=1)] | None = None
    """Passages per part. An interrupted process loses at most one part. Default: 2048, or fewer for slow
    generators."""


class Generate(Parts[GenerateConfig]):
    unit = "queries"

    def __init__(self, config: GenerateConfig, work: Workdir) -> None:
        from qontext.data.load import PassageRows

        super().__init__(config, work)
        self.kind, self.options = GENERATORS.load(config.generator), config.options("generator")
        self._check_task()
        self.passages = PassageRows(config.passages, config.of)

    def _check_task(self) -> None:
        """Refuse to read queries with a model that learned to write queries, and passages with one that writes what answers
        them."""
        from qontext.queries.generators.t5 import SETTINGS_FILE, TARGETS, Trained

        model = getattr(self.options, self.kind.model_option or "model", None)
        file = Path(model or "") / SETTINGS_FILE
        if not model or not file.is_file():  # what it writes is known to the user alone
            return
        learned = read_json(file, Trained).get("learns", "queries")
        if (learned in TARGETS) != (self.config.of == "queries"):
            reads = "queries" if learned in TARGETS else "passages"
            raise QontextError(
                f"the model writes {learned} for {reads}", place=model, remedy=f"Pass --of {reads}."
            )

    def plan(self) -> list[Part]:
        total = self.passages.count()
        if not total:
            raise QontextError(f"contains no {self.config.of}", place=self.config.passages)
        size = self.config.part_passages or self.kind.part_passages
        return slices(total, size, part_name, weight=self.config.per_passage)

    def open(self) -> None:
        options = self.options
        if here := self.kind.computes_in(options):
            precision = artifacts.settle(self.work, options.precision, here)
            options = options.model_copy(update={"precision": precision})
        config = self.config
        from qontext.queries.imitation import CANDIDATES, Style

        self.style = None if config.like is None else Style.of(config.like, config.seed)
        asked = config.per_passage * (1 if self.style is None else CANDIDATES)
        self.generator = self.kind(options, Task(config.passages, asked, config.seed))

    def read(self, part: Part) -> list[Passage]:
        return self.passages.read(part.first, part.last)

    def make(self, part: Part, content: list[Passage]) -> dict[str, int]:
        from qontext.data import records

        repeats = self.generator.repeats_passage or self.config.of == "queries"
        table = _make_part(
            self.generator, content, self.config.per_passage, self.advance, self.style, repeats=repeats
        )
        with self.work.write(part.name) as path:
            records.write_table(path, table)
        return {"queries": table.num_rows}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        tally, queries = _count([self.work.path / part.name for part in outcome.parts])
        summary = _summarize(tally, queries, outcome.parts[-1].last)
        if outcome.counts["queries"]:
            summary["queries_per_second"] = round(outcome.counts["queries"] / outcome.seconds, 1)
        return summary


def part_name(part: int) -> str:
    return f"part-{part:05d}.parquet"


def _make_part(
    generator: Generator,
    passages: list[Passage],
    per_passage: int,
    advance: Any,
    style: Style | None = None,
    *,
    repeats: bool = False,
) -> pa.Table:
    """The part's rows in passage order, with the counts in the footer. Queries may repeat the passage if that is meant."""
    import pyarrow as pa

    from qontext.data import records
    from qontext.queries.generators import clean

    generator.tally = tally = Counter[str]()
    queries_of: list[list[str]] = [[] for _ in passages]
    full = [i for i, passage in enumerate(passages) if passage.text.strip()]
    tally["empty_passages"] = len(passages) - len(full)
    for place, queries in generator([passages[i] for i in full]):
        passage = passages[full[place]]
        asked = queries[:per_passage] if style is None else queries
        kept = clean(asked, passage, tally, keep_echoes=repeats)
        queries_of[full[place]] = kept if style is None else style.choose(passage, kept, per_passage)
        advance(per_passage)
    tally["without_queries"] = sum(not queries for queries in queries_of)
    columns = {
        "passage": [passage.id for passage, queries in zip(passages, queries_of) for _ in queries],
        "query": [query for queries in queries_of for query in queries],
        "number": [number for queries in queries_of for number in range(len(queries))],
    }
    table = pa.table(columns, records.QUERIES)
    return table.replace_schema_metadata({FOOTER: json.dumps(dict(sorted(tally.items())))})


def _count(parts: list[Path]) -> tuple[Counter[str], int]:
    """The totals of the parts' footers, and the number of queries."""
    from qontext.data import records

    tally: Counter[str] = Counter()
    queries = 0
    for part in parts:
        queries += records.open_parquet(part).metadata.num_rows
        tally.update(records.read_footer(part, FOOTER, dict[str, int]))
    if not queries:
        raise QontextError(
            "no queries were generated", place=parts[0].parent, remedy=f"Counts: {dict(tally)}"
        )
    return tally, queries


def _summarize(tally: Counter[str], queries: int, passages: int) -> dict[str, Any]:
    counts = dict(tally)
    return {
        "passages": passages,
        "queries": queries,
        "queries_per_passage": round(queries / passages, 3),
        "passages_without_queries": counts.pop("without_queries", 0),
        "empty_passages": counts.pop("empty_passages", 0),
        "dropped": {name: counts.pop(name, 0) for name in ("empty", "duplicates", "echoes")},
        **dict(sorted(counts.items())),
    }


STAGE = Stage(
    "generate",
    GenerateConfig,
    Generate,
    format=3,
    examples="""
        qontext generate passages --generator keyphrase --out queries
        qontext generate data --of queries --model title-writer --per-passage 1 --top-k 1 --out titles
        qontext generate passages --generator keyphrase --like questions.txt --out queries
        qontext generate passages --generator t5 --model generator --out queries
        qontext generate passages --generator causal --model language-model --out queries
        qontext generate passages --generator llm --endpoint http://localhost:8000/v1 --chat-model NAME --out queries
        qontext generate passages --generator terms --model weights --per-passage 1 --out weighted-words
        qontext generate passages --generator file --queries predicted.jsonl.gz --out queries
        torchrun --nproc-per-node 8 -m qontext generate passages --out queries
        qontext generate passages --shard 0/4 --out queries
        qontext generate passages --generator keyphrase --on ray --out queries
    """,
)
