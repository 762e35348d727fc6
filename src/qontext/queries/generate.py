"""Passages → queries, part by part.

A part holds the queries of a fixed slice of passages, so its content does not depend on which process writes
it, in which order, or on restarts. Dropped queries are counted in the part's footer.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from qontext.data.passage import RowKind
from qontext.frame import artifacts
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, Seed
from qontext.frame.errors import QontextError
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig, slices
from qontext.frame.stages import Stage
from qontext.queries.generators import GENERATORS, Task

if TYPE_CHECKING:
    from qontext.data.collection import Passage

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
        from qontext.queries.generators.t5 import TARGETS, trained

        model = getattr(self.options, self.kind.model_option or "model", None)
        settings = trained(model) if model else {}
        learned = settings.get("learns", "queries")
        # What another model writes is known to the user alone.
        if settings and (learned in TARGETS) != (self.config.of == "queries"):
            reads = "queries" if learned in TARGETS else "passages"
            raise QontextError(
                f"the model writes {learned} for {reads}", place=model, remedy=f"Pass --of {reads}."
            )

    def plan(self) -> list[Part]:
        total = self.passages.count()
        if not total:
            raise QontextError(f"contains no {self.config.of}", place=self.config.passages)
        size = self.config.part_passages or self.kind.part_passages
        return slices(total, size, lambda part: f"part-{part:05d}.parquet", weight=self.config.per_passage)

    def open(self) -> None:
        from qontext.queries.imitation import CANDIDATES, Style

        config, options = self.config, self.options
        if here := self.kind.computes_in(options):
            precision = artifacts.settle(self.work, options.precision, here)
            options = options.model_copy(update={"precision": precision})
        self.style = None if config.like is None else Style.of(config.like, config.seed)
        asked = config.per_passage * (1 if self.style is None else CANDIDATES)
        self.generator = self.kind(options, Task(config.passages, asked, config.seed))

    def read(self, part: Part) -> list[Passage]:
        return self.passages.read(part.first, part.last)

    def make(self, part: Part, content: list[Passage]) -> dict[str, int]:
        import pyarrow as pa

        from qontext.data import records

        self.generator.tally = tally = Counter[str]()
        full = [passage for passage in content if passage.text.strip()]
        tally["empty_passages"] = len(content) - len(full)
        of: dict[int, list[str]] = {}
        for place, generated in self.generator(full):
            of[place] = self._chosen(full[place], generated, tally)
            self.advance(self.config.per_passage)
        rows = [(passage.id, *row) for place, passage in enumerate(full) for row in enumerate(of[place])]
        ids, numbers, queries = zip(*rows) if rows else ((), (), ())
        tally["without_queries"] = len(content) - sum(map(bool, of.values()))
        table = pa.table({"passage": ids, "query": queries, "number": numbers}, records.QUERIES)
        with self.work.write(part.name) as path:
            records.write_table(
                path, table.replace_schema_metadata({FOOTER: json.dumps(dict(sorted(tally.items())))})
            )
        return {"queries": len(rows)}

    def _chosen(self, passage: Passage, generated: list[str], tally: Counter[str]) -> list[str]:
        """A passage's queries; what was dropped is counted."""
        from qontext.queries.generators import clean

        count = self.config.per_passage
        # Queries may repeat the passage if that is meant.
        repeats = self.generator.repeats_passage or self.config.of == "queries"
        if self.style is None:
            return clean(generated[:count], passage, tally, keep_echoes=repeats)
        kept = clean(generated, passage, tally, keep_echoes=repeats)
        return self.style.choose(passage, kept, count)

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        from qontext.data import records

        tally, queries, passages = Counter[str](), 0, outcome.parts[-1].last
        for file in (self.work.path / part.name for part in outcome.parts):
            queries += records.open_parquet(file).metadata.num_rows
            tally.update(records.read_footer(file, FOOTER, dict[str, int]))
        if not queries:
            raise QontextError(
                "no queries were generated", place=self.work.path, remedy=f"Counts: {dict(tally)}"
            )
        summary = {
            "passages": passages,
            "queries": queries,
            "queries_per_passage": round(queries / passages, 3),
            "passages_without_queries": tally.pop("without_queries"),
            "dropped": {name: tally.pop(name, 0) for name in ("empty", "duplicates", "echoes")},
            **dict(sorted(tally.items())),
        }
        if outcome.counts["queries"]:
            summary["queries_per_second"] = round(outcome.counts["queries"] / outcome.seconds, 1)
        return summary


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
