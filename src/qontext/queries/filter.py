"""Which generated queries belong to their passage: scores for all, and the worst left out.

A round trip asks the question that matters for retrieval: searched for with the query, does the passage
come back? Every signal becomes a column; `score`, between 0 and 1, is what pre-training can sample by.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from qontext import log, records
from qontext.artifacts import Workdir
from qontext.config import Input, Machine, StageConfig
from qontext.errors import QontextError
from qontext.queries.judges import Part, open_judge
from qontext.queries.lookup import Lookup
from qontext.queries.searchers import remove_vectors
from qontext.queries.words import Array
from qontext.stages import Stage

FOOTER = b"qontext"


class FilterConfig(StageConfig):
    queries: Annotated[str, Input(positional=True)]
    """What generate (or filter) wrote."""
    passages: Annotated[str, Input()]
    """The passages that the queries were made from."""
    by: Literal["overlap", "retrieval", "reranker", "mutual"] = "retrieval"
    """overlap: words in common; retrieval: the query finds its passage; reranker: a cross-encoder likes the
    pair; mutual: the query finds its passage, and the passage finds its query."""
    retriever: Annotated[str | None, Input()] = None
    """retrieval, mutual: a dense retriever; if not given, BM25."""
    reranker: Annotated[str | None, Input()] = None
    """reranker: a cross-encoder: a sequence classifier with one logit, as `rerank` takes it."""
    top: Annotated[int, Field(ge=1)] = 10
    """retrieval, mutual: the passage must be among so many. On the way back, a passage may find so many
    times its own number of queries."""
    depth: Annotated[int, Field(ge=1)] = 100
    """retrieval, mutual: ranks are looked up to this depth; beyond it, rank and score are 0."""
    at_least: Annotated[float, Field(ge=0, le=1)] | None = None
    """overlap, reranker: the lowest value that is kept; if not given, 0.4 for overlap and 0.5 for reranker."""
    at_most: Annotated[float, Field(ge=0, le=1)] = 1.0
    """overlap: the highest value that is kept; below 1, queries that only copy are left out."""
    keep_at_least: Annotated[int, Field(ge=0)] = 1
    """So many queries of a passage are kept however bad they are, the best first."""
    device: Annotated[str, Machine()] = "auto"
    """auto, cpu, cuda or cuda:N."""


def run(config: FilterConfig, work: Workdir) -> dict[str, Any]:
    parts = records.parquet_parts(config.queries)
    names = [f"part-{n:05d}.parquet" for n in range(len(parts))]
    if not all(map(work.has, names)):
        passages = Lookup(config.passages)
        judge = open_judge(config, passages, work)
        sizes = [records.open_parquet(part).metadata.num_rows for part in parts]
        todo = sum(size for size, name in zip(sizes, names) if not work.has(name))
        with log.progress("filter", todo, "queries") as advance:
            for part, name, first in zip(parts, names, accumulate(sizes, initial=0)):
                if not work.has(name):
                    table = pa.Table.from_batches(
                        list(records.read_table(part, records.QUERIES)), pq.read_schema(part)
                    )
                    ids, rows = look_up(table, passages, str(part), first)
                    scores = judge(rows)
                    with work.write(name) as path:
                        records.write_table(path, _kept(table, scores, rows.owner, ids, config.keep_at_least))
                    advance(table.num_rows)
    remove_vectors(work)
    return _summarise(config, work, names)


def look_up(table: pa.Table, passages: Lookup, place: str, first: int) -> tuple[list[str], Part]:
    """The ids of the passages that a part's queries belong to, and the part as judges read it."""
    names = table["passage"].to_pylist()
    found = passages.find(names)
    if stranger := next((id for id in names if id not in found), None):
        raise QontextError(
            f"names the passage {stranger!r}, which is not among the passages",
            place=place,
            remedy="Check that queries and passages belong together.",
        )
    ids = [*dict.fromkeys(names)]
    place_of = {id: n for n, id in enumerate(ids)}
    return ids, Part(
        queries=table["query"].to_pylist(),
        owner=np.array([place_of[id] for id in names], np.int64),
        contents=[found[id].content for id in ids],
        numbers=np.array([found[id].number for id in ids], np.int64),
        first=first,
    )


def _kept(table: pa.Table, scores: dict[str, Array], owner: Array, ids: list[str], least: int) -> pa.Table:
    """The part's rows that stay, with their scores; the counts go into the footer."""
    for name, column in scores.items():
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, pa.array(column))
    passed, score = scores["passed"], scores["score"]
    # Place of each query among its passage's, those that passed first, then by score.
    order = np.lexsort((-score, ~passed, owner))
    place = np.empty(len(owner), np.int64)
    place[order] = np.arange(len(owner)) - np.searchsorted(owner[order], owner[order])
    keep = passed | (place < least)
    counts = {
        "queries": len(owner),
        "passed": int(passed.sum()),
        "score": float(score.sum(dtype=np.float64)),
        "lost": [ids[n] for n in sorted(set(owner.tolist()) - set(owner[keep].tolist()))],
        "failed": len(set(owner.tolist()) - set(owner[passed].tolist())),
        "passages": len(set(owner.tolist())),
    }
    return table.filter(pa.array(keep)).replace_schema_metadata({FOOTER: json.dumps(counts)})


def _summarise(config: FilterConfig, work: Workdir, names: list[str]) -> dict[str, Any]:
    footers = [pq.read_metadata(work.path / name) for name in names]
    counts = [json.loads(footer.metadata[FOOTER]) for footer in footers]

    def total(name: str) -> float:
        return float(sum(count[name] for count in counts))

    lost = [id for count in counts for id in count["lost"]]
    if lost:
        work.write_json("lost.json", lost)
        log.warn(f"{len(lost):,} passages lost all their queries; lost.json names them.")
    queries = int(total("queries"))
    return {
        "by": config.by,
        "queries": queries,
        "passed": int(total("passed")),
        "passed_share": round(total("passed") / max(queries, 1), 4),
        "kept": sum(footer.num_rows for footer in footers),
        "mean_score": round(total("score") / max(queries, 1), 4),
        "passages": int(total("passages")),
        "passages_where_none_passed": int(total("failed")),
        "passages_that_lost_all": len(lost),
    }


STAGE = Stage(
    "filter",
    FilterConfig,
    run,
    examples="""
        qontext filter queries --passages passages --out filtered
        qontext filter queries --passages passages --out filtered --by mutual --retriever runs/retriever
        qontext filter queries --passages passages --out filtered --by overlap --at-least 0.5 --at-most 0.9
        qontext filter queries --passages passages --out filtered --by reranker --reranker runs/reranker
    """,
)
