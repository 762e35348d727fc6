"""`qontext retrieve`: queries → a TREC run, from vectors, an index or BM25.

Queries are searched in blocks, one part each: a killed run resumes after its last block, and several processes or
machines can share the blocks. Vectors and indexes on disk are mapped by all of them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from functools import cached_property
from typing import Any

from qontext.frame import log
from qontext.frame.files import read_json
from qontext.frame.parts import Outcome, Part, Parts, slices
from qontext.frame.stages import Stage
from qontext.retrieve.directory import is_adapted
from qontext.retrieve.searched import (
    WORDS,
    Asked,
    Indexed,
    Recommended,
    RetrieveConfig,
)

RUN, PARTIAL = "run.trec", "partial"
BLOCK, PARTS, RESULTS = 1_024, 8, 1 << 24
"""Queries that exact search multiplies together; for many queries, parts to aim at; and results of the largest part."""


class Search(Parts[RetrieveConfig]):
    """Slices of the queries, each a run of its own; the result is these runs one after the other."""

    unit = "queries"

    @cached_property
    def queries(self) -> list[tuple[str, str]]:
        return list(_queries(self.config).items())

    @property
    def uses_gpu(self) -> bool:
        return super().uses_gpu and not self.config.bm25 and self.config.system is None

    def plan(self) -> list[Part]:
        count = len(self.queries)
        is_whole = self.config.system is not None or self._is_for_one_process()
        size = max(count, 1) if is_whole else size_for(count, self.config.k)
        return slices(count, size, lambda number: f"{PARTIAL}/{number:05d}.trec")

    def open(self) -> None:
        self.searched: Recommended | Indexed | Asked
        if self.config.system is not None:
            self.searched = Asked(self.config)
            return
        is_whole = self.config.index is not None and is_adapted(self.config.index)
        self.searched = Recommended(self.config) if is_whole else Indexed(self.config, self.work)

    def make(self, part: Part, content: None) -> dict[str, int]:
        from qontext.data.runs import write_run

        queries = dict(self.queries[part.first : part.last])
        done = 0.0

        def advance(share: float) -> None:
            nonlocal done
            step = min(share * len(queries), len(queries) - done)  # some queries are ranked again, deeper
            done += step
            self.advance(step)

        hits = self.searched.run(queries, advance)
        counts = {"queries": len(hits), "results": hits.size}
        if isinstance(self.searched, Asked):
            counts["unmatched"] = self.searched.unmatched
        self.work.write_json(_counts_name(part), counts)
        with self.work.write(part.name) as path:
            write_run(hits, path, tag=self.searched.tag)
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
        vars(self).pop("searched", None)  # Windows removes no file that is mapped
        self.work.remove(WORDS)
        if counts["queries"] < len(self.queries):
            log.note(f"{len(self.queries) - counts['queries']:,} queries have no result.")
        return {
            "queries": len(self.queries),
            "queries_with_results": counts["queries"],
            "results": counts["results"],
            **({"unmatched_results": counts["unmatched"]} if self.config.system is not None else {}),
            "seconds": round(outcome.seconds, 3),
            "queries_per_second": round(outcome.counts["queries"] / outcome.seconds, 1),
        }

    def _is_for_one_process(self) -> bool:
        """True if two processes cannot open the index at a time."""
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


def _queries(config: RetrieveConfig) -> dict[str, str]:
    from qontext.retrieve.inputs import select_queries
    from qontext.training.randomness import sample_names

    queries = select_queries(config.data, config.split, config.queries)
    if config.limit is not None:
        queries = {name: queries[name] for name in sample_names(queries, config.limit, config.seed)}
    return queries


STAGE = Stage(
    "retrieve",
    RetrieveConfig,
    Search,
    """
        qontext retrieve --bm25 --data data --split test --out bm25.trec
        qontext retrieve vectors --data data --split test --out dense.trec
        qontext retrieve index --queries data/queries.jsonl --k 100 --out run.trec
        qontext retrieve index --queries data/queries.jsonl --where lang=de --out german.trec
        qontext retrieve runs/mine --queries data/queries.jsonl --out run.trec
        qontext retrieve vectors --data data --split test --on ray --out dense
        qontext retrieve --system "python3 my_search.py" --data data --split test --out mine
    """,
    file=RUN,
    format=3,
)
