"""`qontext search`: queries → a TREC run, from vectors, an index or BM25.

Queries are searched in blocks, one part each: a killed run resumes after its last block, and several processes or
machines can share the blocks. Vectors and indexes on disk are mapped by all of them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from qontext.frame import log
from qontext.frame.damage import read_json
from qontext.frame.errors import QontextError
from qontext.frame.parts import Outcome, Part, Parts, slices
from qontext.frame.stages import Report, Stage
from qontext.retrieve import answers
from qontext.retrieve.answers import PROMPT
from qontext.retrieve.search_config import SearchConfig
from qontext.retrieve.searcher import Answer, is_adapted
from qontext.retrieve.systems import WORDS, open_system

RUN, PARTIAL = "run.trec", "partial"
BLOCK, PARTS, RESULTS = 1_024, 8, 1 << 24
"""Queries that exact search multiplies together; for many queries, parts to aim at; and results of the largest part."""


class Search(Parts[SearchConfig]):
    """Slices of the queries, each a run of its own; the result is these runs one after the other."""

    unit = "queries"

    @cached_property
    def queries(self) -> list[tuple[str, str]]:
        return list(_queries(self.config).items())

    @property
    def uses_gpu(self) -> bool:
        return super().uses_gpu and not self.config.bm25

    def plan(self) -> list[Part]:
        count = len(self.queries)
        size = max(count, 1) if self._is_for_one_process() else size_for(count, self.config.k)
        return slices(count, size, lambda number: f"{PARTIAL}/{number:05d}.trec")

    def open(self) -> None:
        self.system = open_system(self.config, self.work)

    def make(self, part: Part, content: None) -> dict[str, int]:
        from qontext.data.runs import write_run

        queries = dict(self.queries[part.first : part.last])
        done = 0.0

        def advance(share: float) -> None:
            nonlocal done
            done += share * len(queries)
            self.advance(share * len(queries))

        hits = self.system.run(queries, advance)
        self.work.write_json(_counts_name(part), {"queries": len(hits), "results": hits.size})
        with self.work.write(part.name) as path:
            write_run(hits, path, tag=self.system.tag)
        self.advance(len(queries) - done)
        return {"queries": len(queries)}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        counts = Counter[str]()
        with self.work.write(RUN) as path, path.open("wb") as run:
            for part in outcome.parts:
                counts.update(read_json(self.work.path / _counts_name(part), dict[str, int]))
                with (self.work.path / part.name).open("rb") as file:
                    shutil.copyfileobj(file, run)
        self.work.remove(PARTIAL)
        self.work.remove(WORDS)
        if counts["queries"] < len(self.queries):
            log.note(f"{len(self.queries) - counts['queries']:,} queries have no result.")
        return {
            "queries": len(self.queries),
            "queries_with_results": counts["queries"],
            "results": counts["results"],
            "seconds": round(outcome.seconds, 3),
            "queries_per_second": round(outcome.counts["queries"] / outcome.seconds, 1),
        }

    def _is_for_one_process(self) -> bool:
        """Whether two processes cannot open the index at a time."""
        from qontext.retrieve.index.load import is_for_one_process

        index = self.config.index
        return index is not None and not is_adapted(index) and is_for_one_process(index)


def size_for(queries: int, k: int) -> int:
    """The queries of a part: a whole number of the blocks that exact search multiplies. Each part reads all vectors, so
    there are few parts, as far as their results fit into memory."""
    largest = max(1, RESULTS // (k * BLOCK))
    return BLOCK * min(largest, max(1, -(-queries // (BLOCK * PARTS))))


def _counts_name(part: Part) -> str:
    return f"{PARTIAL}/{part.number:05d}.json"


def ask(config: SearchConfig) -> dict[str, Any]:
    """Print the best passages for one question, or for those from a prompt."""
    if config.question is None:
        raise QontextError("search needs --out, the output directory")
    from qontext.retrieve.searcher import Searcher

    searcher = Searcher(config.index or "", device=config.device, encoder=config.encoder)
    k = config.k if "k" in config.model_fields_set else answers.SHOWN
    if config.question != PROMPT:
        return {"answers": answers.answer(searcher, config.question, k, config.where)}
    return answers.converse(searcher, k, config.where)


def _queries(config: SearchConfig) -> dict[str, str]:
    from qontext.retrieve.inputs import select_queries
    from qontext.training.randomness import sample_names

    if config.question not in (None, PROMPT):
        raise QontextError(
            "a question is answered without --out",
            remedy="Leave out --out, or pass the queries with --data FOLDER or --queries FILE.",
        )
    queries = select_queries(config.data, config.split, config.queries)
    if config.limit is not None:
        queries = {name: queries[name] for name in sample_names(queries, config.limit, config.seed)}
    return queries


def _returned(summary: Mapping[str, Any]) -> list[Answer]:
    """The answers to a question as objects."""
    return [Answer.from_json(answer) for answer in summary.get("answers", ())]


EXAMPLES = """
        qontext search --bm25 --data data --split test --out bm25.trec
        qontext search vectors --data data --split test --out dense.trec
        qontext search index --queries data/queries.jsonl --k 100 --out run.trec
        qontext search index --queries data/queries.jsonl --where lang=de --out german.trec
        qontext search runs/mine "how do I reset my password?"
        qontext search runs/mine --queries data/queries.jsonl --out run.trec
        qontext search vectors --data data --split test --on ray --out dense
"""

STAGE = Stage(
    "search",
    SearchConfig,
    Search,
    EXAMPLES,
    without_out=Report("search", SearchConfig, ask, EXAMPLES, returned=_returned),
    file=RUN,
    format=3,
)
