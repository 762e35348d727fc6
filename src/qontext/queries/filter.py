"""Which generated queries belong to their passage: scores for all, and the worst left out.

A round trip asks the question that matters for retrieval: searched for with the query, does the passage
come back? Every signal becomes a column; `score`, between 0 and 1, is what pre-training can sample by.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from qontext import log, records
from qontext.artifacts import Workdir
from qontext.collection import read_passages
from qontext.config import Input, Machine, StageConfig
from qontext.errors import QontextError
from qontext.stages import Stage

Array = np.ndarray[Any, Any]
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
    """reranker: a cross-encoder (sequence classification with one or two labels)."""
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
    ids, texts = read_texts(config.passages)
    number = {id: n for n, id in enumerate(ids)}
    parts = records.parquet_parts(config.queries)
    names = [f"part-{n:05d}.parquet" for n in range(len(parts))]
    if not all(map(work.has, names)):
        judge = _judge(config, texts, parts, number)
        with log.progress("filter", records.count_rows(config.queries), "queries") as advance:
            for part, name in zip(parts, names):
                if not work.has(name):
                    table = read_part(part)
                    owner = owners(table, number, str(part))
                    scores = judge(table["query"].to_pylist(), owner)
                    with work.write(name) as path:
                        records.write_table(path, _kept(table, scores, owner, ids, config.keep_at_least))
                    advance(table.num_rows)
    return _summarise(config, work, names)


Judge = Callable[[list[str], Array], dict[str, Array]]
"""(queries, numbers of their passages) → columns, with `score` and `passed` among them."""


def _judge(config: FilterConfig, texts: list[str], parts: list[Any], number: dict[str, int]) -> Judge:
    from qontext.queries import signals

    if config.by == "overlap":
        low = 0.4 if config.at_least is None else config.at_least

        def by_overlap(queries: list[str], owner: Array) -> dict[str, Array]:
            shares = signals.overlap(queries, [texts[n] for n in owner.tolist()])
            passed = (shares >= low) & (shares <= config.at_most)
            return {"overlap": shares, "score": shares, "passed": passed}

        return by_overlap
    if config.by == "reranker":
        if config.reranker is None:
            raise QontextError(
                "filtering by reranker needs a cross-encoder", remedy="Name it with --reranker."
            )
        reranker = signals.Reranker(config.reranker, config.device)
        floor = 0.5 if config.at_least is None else config.at_least

        def by_reranker(queries: list[str], owner: Array) -> dict[str, Array]:
            chance = reranker.probabilities(queries, [texts[n] for n in owner.tolist()])
            return {"rerank": chance, "score": chance, "passed": chance >= floor}

        return by_reranker
    forward = open_searcher(config.retriever, config.device, texts, "passage", "query")
    depth = max(config.depth, config.top)

    def by_rank(queries: list[str], owner: Array) -> dict[str, Array]:
        ranks = signals.rank(queries, owner, forward, depth)
        return {"rank": ranks, "score": reciprocal(ranks), "passed": (ranks > 0) & (ranks <= config.top)}

    if config.by == "retrieval":
        return by_rank
    tables = [read_part(part) for part in parts]
    everything = [query for table in tables for query in table["query"].to_pylist()]
    owner_of_all = np.concatenate([owners(table, number, str(part)) for table, part in zip(tables, parts)])
    backward = open_searcher(config.retriever, config.device, everything, "query", "passage")
    own = np.bincount(owner_of_all, minlength=len(texts))
    back = signals.back_ranks(everything, owner_of_all, texts, backward, depth * int(own.max()))
    first_row = {int(owner): row for row, owner in reversed(list(enumerate(owner_of_all.tolist())))}

    def by_both(queries: list[str], owner: Array) -> dict[str, Array]:
        found = by_rank(queries, owner)
        start = first_row[int(owner[0])]
        back_rank = back[start : start + len(owner)]
        returns = (back_rank > 0) & (back_rank <= config.top * own[owner])
        # Both ways count alike; a passage's best-placed own query has the full score.
        there = found["score"]
        again = reciprocal(-(-back_rank // np.maximum(own[owner], 1)))
        both = np.where((there > 0) & (again > 0), 2 * there * again / np.maximum(there + again, 1e-9), 0.0)
        return {
            "rank": found["rank"], "back_rank": back_rank,
            "score": both.astype(np.float32), "passed": found["passed"] & returns,
        }  # fmt: skip

    return by_both


def open_searcher(retriever: str | None, device: str, texts: list[str], kind: str, asked: str) -> Any:
    """BM25 over the texts, or a dense retriever that encodes them as `kind` and what is asked as `asked`."""
    from qontext.queries.signals import Dense, Lexical

    if retriever is None:
        return Lexical(texts)
    from qontext.retrieve.retriever import Retriever

    return Dense(Retriever(retriever, device=device), texts, kind, asked)


def reciprocal(ranks: Array) -> Array:
    """1 for the first place, 1/2 for the second …, 0 for rank 0."""
    return np.where(ranks > 0, 1.0 / np.maximum(ranks, 1), 0.0).astype(np.float32)


def read_texts(source: str) -> tuple[list[str], list[str]]:
    """Ids of the passages, and their titles and texts as one."""
    ids, texts = [], []
    for passage in read_passages(source):
        ids.append(passage.id)
        texts.append(passage.content)
    if not ids:
        raise QontextError("holds no passages", place=source)
    if len(set(ids)) < len(ids):
        raise QontextError("some passage ids occur twice", place=source)
    return ids, texts


def read_part(part: Any) -> pa.Table:
    """A part of queries with all its columns."""
    return pa.Table.from_batches(list(records.read_table(part, records.QUERIES)), pq.read_schema(part))


def owners(table: pa.Table, number: dict[str, int], place: str) -> Array:
    """[N] the number of each query's passage."""
    try:
        return np.array([number[id] for id in table["passage"].to_pylist()], dtype=np.int64)
    except KeyError as error:
        raise QontextError(
            f"names the passage {error.args[0]!r}, which is not among the passages",
            place=place,
            remedy="Check that queries and passages belong together.",
        ) from None


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
