"""`qontext search`: queries → a TREC run, from vectors, an index or BM25."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from qontext.frame import artifacts, log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, Machine, Seed
from qontext.frame.damage import read_array
from qontext.frame.errors import QontextError
from qontext.frame.stages import Stage
from qontext.retrieve.answers import PROMPT
from qontext.retrieve.index import How, Index, check_found
from qontext.retrieve.index.lexical import Bm25Options
from qontext.retrieve.searcher import Answer, is_adapted

RUN = "run.trec"


class SearchConfig(Bm25Options):
    index: Annotated[str | None, Input(positional=True)] = None
    """What to search: vectors (from `encode`, exact search), an index (from `index`), or a directory of
    `adapt`. Optional with --bm25: the passages are then indexed first."""

    question: Annotated[str | None, Input(positional=True, by_content=False)] = None
    """A question to a directory of `adapt`: prints the best passages; no --out is needed. Without a question
    and queries, questions are read from a prompt, or line by line from a pipe."""

    where: tuple[str, ...] = ()
    """Search only passages whose metadata meet this condition, such as folder=guide, 'date>=2024' or
    'lang=de|fr'. May be repeated; all conditions must hold."""

    data: Annotated[str | None, Input()] = None
    """A BEIR folder with the queries and, with --bm25, the passages."""

    split: str | None = None
    """Split of --data whose judged queries are used. Default: all queries."""

    queries: Annotated[str | None, Input()] = None
    """Queries, instead of --data: BEIR JSON Lines, id<tab>text, or generated queries."""

    limit: int | None = Field(None, ge=1)
    """Maximum number of queries, drawn with the seed; `mine --limit` draws the same ones."""

    seed: Seed = 42
    """Random seed for --limit."""

    passages: Annotated[str | None, Input()] = None
    """Passages for --bm25, instead of --data: output of `split`, Parquet, a BEIR folder or corpus file. With
    --where: passages with the metadata, if the index's own passages no longer exist."""

    encoder: Annotated[str | None, Input()] = None
    """Encoder for the queries. Default: the one that encoded the passages. For a directory of `adapt`: an unchanged copy of
    its encoder, if that is no longer where it was."""

    untied: bool = False
    """Accept an --encoder other than that of the passages: the query half of an untied pair."""

    bm25: bool = False
    """Search with BM25 instead of vectors."""

    k: int = Field(1_000, ge=1)
    """Passages per query."""

    max_length: int | None = Field(None, ge=3, le=100_000)
    """Maximum length of a query in tokens; longer queries are truncated. Default: the encoder's limit."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format for encoding queries; auto is bf16 if the hardware supports it, else fp32."""

    scoring: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the first pass of exact search; candidates from bf16 and fp16 are rescored in fp32."""

    device: Annotated[str, Machine()] = "auto"
    """Device: auto, cpu, cuda, cuda:N or mps."""

    @model_validator(mode="before")
    @classmethod
    def _prompt(cls, values: Any) -> Any:
        """Without a question and queries, questions are read from standard input."""
        if not isinstance(values, dict) or any(
            values.get(n) is not None for n in ("question", "queries", "data")
        ):
            return values
        index = values.get("index")
        return {**values, "question": PROMPT} if index and is_adapted(index) else values


def run(config: SearchConfig, work: Workdir) -> dict[str, Any]:
    if config.question is not None:
        return _answers(config)
    if config.index is not None and is_adapted(config.index):
        return _adapted(config, work)
    if config.bm25 and work.rank:
        return {}  # only rank 0 does it
    queries, started = _queries(config), time.monotonic()
    index, encoder = _open(config, work)
    if work.rank and not index.is_shared:
        return {}
    texts = list(queries.values())
    queries_read = texts if index.reads == "texts" else _encoded(config, index, encoder, texts, work)
    rows = _rows(config, index)
    with log.progress("search", len(index.ids), "passages") as advance:
        index.advance = advance
        numbers, scores = check_found(
            index.search(queries_read, config.k, rows), index, len(queries_read), config.k
        )
    if index.is_shared and work.world > 1:
        merged = _merge(numbers, scores, work, config.k)
        if merged is None:
            return {}
        numbers, scores = merged
    work.remove("partial")
    return _written(run_of(list(queries), numbers, scores, index.ids), index.tag, queries, started, work)


def _answers(config: SearchConfig) -> dict[str, Any]:
    """Print the best passages for one question, or for those from a prompt."""
    from qontext.retrieve import answers
    from qontext.retrieve.searcher import Searcher

    searcher = Searcher(config.index or "", device=config.device, encoder=config.encoder)
    k = config.k if "k" in config.model_fields_set else answers.SHOWN
    if config.question is not None and config.question != answers.PROMPT:
        return {"answers": answers.answer(searcher, config.question, k, config.where)}
    return answers.converse(searcher, k, config.where)


def _adapted(config: SearchConfig, work: Workdir) -> dict[str, Any]:
    """A run of the system that `adapt` recommends."""
    from qontext.retrieve.searcher import Searcher

    assert config.index is not None
    if work.rank:
        return {}
    started = time.monotonic()
    searcher = Searcher(config.index, device=config.device, encoder=config.encoder)
    queries = _queries(config)
    return _written(searcher.run(queries, config.k, config.where), searcher.system, queries, started, work)


def _queries(config: SearchConfig) -> dict[str, str]:
    from qontext.finetune.negatives.draws import sample_names
    from qontext.retrieve.inputs import select_queries

    queries = select_queries(config.data, config.split, config.queries)
    if config.limit is not None:
        queries = {name: queries[name] for name in sample_names(queries, config.limit, config.seed)}
    return queries


def _written(
    results: Any, tag: str, queries: dict[str, str], started: float, work: Workdir
) -> dict[str, Any]:
    """Write the run; returns its summary."""
    from qontext.data.runs import write_run

    seconds = time.monotonic() - started
    with work.write(RUN) as path:
        write_run(results, path, tag=tag)
    if len(results) < len(queries):
        log.note(f"{len(queries) - len(results):,} queries have no result.")
    return {
        "queries": len(queries),
        "queries_with_results": len(results),
        "results": results.size,
        "seconds": round(seconds, 3),
        "queries_per_second": round(len(queries) / seconds, 1),
    }


def _rows(config: SearchConfig, index: Any) -> Any:
    """Which passages of the index meet the conditions; None without conditions."""
    from qontext.retrieve.inputs import select_passages
    from qontext.retrieve.where import mask, passages_of

    if not config.where:
        return None
    passages = config.passages or config.data
    if config.index is not None and config.passages is None:
        passages = passages_of(artifacts.open_artifact(config.index))
    return mask(config.where, index.ids, select_passages(None, passages))


def _open(config: SearchConfig, work: Workdir) -> tuple[Index, dict[str, str] | None]:
    """The index to search, and the encoder of its vectors."""
    from qontext.data.collection import read_passages
    from qontext.retrieve.index.lexical import LexicalIndex
    from qontext.retrieve.index.load import open_index
    from qontext.retrieve.inputs import select_passages

    if config.index is not None:
        how = How(config.device, config.scoring, work.rank, work.world)
        index, encoder = open_index(config.index, how)
        if config.bm25 and index.reads != "texts":
            raise QontextError("is not a BM25 index", place=config.index, remedy="Remove --bm25.")
        return index, encoder
    if not config.bm25:
        raise QontextError(
            "nothing to search is specified", remedy="Name vectors or an index, or pass --bm25."
        )
    passages = read_passages(select_passages(config.data, config.passages))
    return LexicalIndex.of(passages, k1=config.k1, b=config.b, analyzer=config.analyzer), None


def _encoded(
    config: SearchConfig, index: Index, encoder: dict[str, str] | None, texts: list[str], work: Workdir
) -> Any:
    """[Q, D] the queries' vectors, or their packed representations."""
    from qontext.models.precision import own_device, resolve_device, settle_precision
    from qontext.models.representer import open_retriever

    assert encoder is not None
    device = own_device(config.device)
    name = _query_encoder(config, encoder)
    precision = settle_precision(work, config.precision, resolve_device(device))
    retriever: Any = open_retriever(name, device=device, precision=precision, max_length=config.max_length)
    searched = index.tag if index.reads == "packed" else "vector"
    if retriever.layout.representation != searched:
        raise QontextError(
            f"is an encoder of the representation {retriever.layout.representation!r}, the index is of {searched!r}",
            place=name,
            remedy="Search with the encoder that encoded the passages.",
        )
    if index.dimension < retriever.dimension and searched == "vector" and not config.untied:
        retriever.cut(index.dimension)  # as the passages, whose encoder it is
    if retriever.dimension != index.dimension:
        raise QontextError(
            f"the encoder has {retriever.dimension} dimensions, the index has {index.dimension}",
            place=name,
            remedy="Search with the encoder that encoded the passages.",
        )
    return retriever.encode(texts, "query")


def run_of(queries: list[str], numbers: Any, scores: Any, ids: Any) -> Any:
    """The run of an index's results; empty positions are skipped."""
    import numpy as np

    from qontext.data.runs import Run

    hit = numbers >= 0
    query_codes = np.broadcast_to(np.arange(len(queries))[:, None], hit.shape)[hit]
    return Run.from_codes(query_codes, queries, numbers[hit], ids, scores[hit])


def _query_encoder(config: SearchConfig, encoder: dict[str, str]) -> str:
    """The name of the query encoder, checked against the passages' vectors."""
    from qontext.frame.inputs import digest_of, find

    assert config.index is not None
    if config.encoder is None:
        remedy = "Name it with --encoder, or encode the passages again."
        return find(encoder, Path(config.index), "the encoder of the passages", remedy=remedy)
    if not config.untied and digest_of(config.encoder, "encoder") != encoder["digest"]:
        raise QontextError(
            f"is not the encoder that encoded the passages ({encoder['path']})",
            place=config.encoder,
            remedy="Encode the passages with it first, or pass --untied if the two were trained as a pair.",
        )
    return config.encoder


def _merge(numbers: Any, scores: Any, work: Workdir, k: int) -> Any:
    """Each rank writes the best of its parts to disk; rank 0 merges them."""
    import numpy as np

    def name(of: int, what: str) -> str:
        return f"partial/{what}-{of}-of-{work.world}.npy"

    for what, array in (("numbers", numbers), ("scores", scores)):
        with work.write(name(work.rank, what)) as path, path.open("wb") as file:
            np.save(file, array, allow_pickle=False)
    if work.rank:
        return None
    work.wait_for(name(r, "scores") for r in range(work.world))
    numbers, scores = (
        np.concatenate(
            [read_array(work.path / name(r, what), kind, shape=(None, None)) for r in range(work.world)], 1
        )
        for what, kind in (("numbers", "i"), ("scores", "f"))
    )
    order = np.lexsort((numbers, -scores), axis=1)[:, :k]
    return np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)


def _returned(summary: Mapping[str, Any]) -> list[Answer]:
    """The answers to a question as objects."""
    return [Answer.from_json(answer) for answer in summary.get("answers", ())]


STAGE = Stage(
    "search",
    SearchConfig,
    run,
    """
        qontext search --bm25 --data data --split test --out bm25.trec
        qontext search vectors --data data --split test --out dense.trec
        qontext search index --queries data/queries.jsonl --k 100 --out run.trec
        qontext search index --queries data/queries.jsonl --where lang=de --out german.trec
        qontext search runs/mine "how do I reset my password?"
        qontext search runs/mine --queries data/queries.jsonl --out run.trec
    """,
    needs_out=False,
    without_out="question",
    returned=_returned,
    distributed=True,
    file=RUN,
    format=2,
)
