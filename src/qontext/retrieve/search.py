"""`qontext search`: queries → a TREC run, from vectors, an index or BM25."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from qontext import artifacts, log
from qontext.artifacts import Workdir
from qontext.collection import read_passages
from qontext.config import Input, Machine, StageConfig, existing
from qontext.errors import QontextError
from qontext.retrieve.draws import some
from qontext.retrieve.inputs import asked_passages, asked_queries
from qontext.stages import Stage

RUN = "run.trec"


class SearchConfig(StageConfig):
    index: Annotated[str | None, Input(positional=True)] = None
    """What to search: vectors (from `encode`, searched exactly), an index (from `index`), or with a question what
    `adapt` made. With --bm25 it may be left out: the passages are then indexed on the way."""

    question: Annotated[str | None, Input(positional=True, by_content=False)] = None
    """One question to what `adapt` made: its best passages are shown, and no --out is needed."""

    data: Annotated[str | None, Input()] = None
    """A BEIR folder: where the queries come from, and with --bm25 the passages, too."""

    split: str | None = None
    """Which queries of --data: those that this split judges. By default all."""

    queries: Annotated[str | None, Input()] = None
    """Queries instead of --data: BEIR JSON lines, id<tab>text, or generated queries."""

    limit: int | None = Field(None, ge=1)
    """Ask at most so many of the queries, drawn by the seed: those that `mine --limit` draws."""

    seed: int = 42
    """What --limit draws by."""

    passages: Annotated[str | None, Input()] = None
    """Passages for --bm25 instead of --data: what `split` wrote, Parquet, a BEIR folder or corpus file."""

    encoder: Annotated[str | None, Input()] = None
    """What encodes the queries; by default the encoder that encoded the passages."""

    untied: bool = False
    """Accept an --encoder other than that of the passages: the query half of an untied pair."""

    bm25: bool = False
    """Search by words instead of vectors."""

    k1: float = Field(0.9, ge=0)
    """BM25: how fast repeated words saturate."""

    b: float = Field(0.4, ge=0, le=1)
    """BM25: how much long passages are discounted."""

    k: int = Field(1_000, ge=1)
    """Passages per query."""

    max_length: int | None = Field(None, ge=3)
    """Tokens after which a query is cut; by default the encoder's own limit."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format in which queries are encoded; auto is bf16 where the hardware has it."""

    scoring: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of exact search's first pass; survivors of bf16 and fp16 are scored again in fp32."""

    device: Annotated[str, Machine()] = "auto"
    """Where to compute: auto, cpu, cuda, cuda:N or mps."""


def run(config: SearchConfig, work: Workdir) -> dict[str, Any]:
    from qontext.retrieve.index.load import open_searchable
    from qontext.retrieve.runs import write_run

    if config.question is not None:
        return _answers(config)
    words = config.bm25 or (config.index is not None and _is_lexical(open_searchable(config.index)))
    if words and int(os.environ.get("RANK", "0")):
        return {}  # the first rank does it alone
    queries = asked_queries(config.data, config.split, config.queries)
    if config.limit is not None:
        queries = {name: queries[name] for name in some(queries, config.limit, config.seed)}
    started = time.monotonic()
    if words:
        found, tag = _lexical(config, queries), "bm25"
    elif config.index is None:
        raise QontextError("nothing to search is named", remedy="Name vectors or an index, or give --bm25.")
    else:
        found, tag = _dense(config, queries, work), "dense"
    if found is None:
        return {}
    seconds = time.monotonic() - started
    with work.write(RUN) as path:
        write_run(found, path, tag=tag)
    if len(found) < len(queries):
        log.note(f"{len(queries) - len(found):,} queries have no result.")
    return {
        "queries": len(queries),
        "queries_with_results": len(found),
        "results": found.size,
        "seconds": round(seconds, 3),
        "queries_per_second": round(len(queries) / seconds, 1),
    }


def _is_lexical(artifact: artifacts.Artifact) -> bool:
    return artifact.verb == "index" and bool(artifact.config["backend"] == "bm25")


def _answers(config: SearchConfig) -> dict[str, Any]:
    """The best passages for one question, with their texts."""
    from qontext.adapt.searcher import Searcher

    assert config.question is not None
    k = config.k if config.k != type(config).model_fields["k"].default else 5
    found = Searcher(config.index or "", device=config.device).search(config.question, k)
    shown = [
        {"": a.rank, "passage": f"{a.title or a.document}", "text": " ".join(a.text.split())[:300]}
        for a in found
    ]
    log.show_rows(config.question, shown)
    return {"answers": [asdict(answer) for answer in found]}


def _lexical(config: SearchConfig, queries: dict[str, str]) -> Any:
    from qontext.retrieve.bm25 import Bm25

    if config.index is not None:
        artifact = artifacts.open_artifact(config.index, verb="index")
        if artifact.config["backend"] != "bm25":
            raise QontextError("is not a BM25 index", place=config.index, remedy="Leave --bm25 out.")
        return Bm25.load(artifact.path / "bm25").search(queries, config.k)
    source = asked_passages(config.data, config.passages)
    return Bm25.of(read_passages(source), k1=config.k1, b=config.b).search(queries, config.k)


def _dense(config: SearchConfig, queries: dict[str, str], work: Workdir) -> Any:
    import numpy as np
    import torch

    from qontext.engine.precision import own_device
    from qontext.retrieve.index.exact import ExactIndex
    from qontext.retrieve.index.load import open_index
    from qontext.retrieve.retriever import Retriever

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = own_device(config.device)
    assert config.index is not None
    index, encoder = open_index(config.index)
    name = _query_encoder(config, encoder)
    retriever = Retriever(name, device=device, precision=config.precision, max_length=config.max_length)
    if retriever.dimension != index.dimension:
        raise QontextError(
            f"the encoder makes {retriever.dimension} dimensions, the index holds {index.dimension}",
            place=name,
            remedy="Search with the encoder that encoded the passages.",
        )
    vectors = retriever.encode(list(queries.values()), "query")
    with log.progress("search", len(index.ids), "passages") as advance:
        if isinstance(index, ExactIndex):
            scoring = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[config.scoring]
            index = ExactIndex(
                index.vectors, device=device, scoring=scoring, rank=rank, world=world, advance=advance
            )
            numbers, scores = index.search(vectors, config.k)
            if world > 1:
                merged = _merge(numbers, scores, work, rank, world, config.k)
                if merged is None:
                    return None
                numbers, scores = merged
        elif rank:
            return None
        else:
            numbers, scores = index.search(vectors, config.k)
    work.remove("partial")
    return run_of(list(queries), numbers, scores, np.asarray(index.ids))


def run_of(queries: list[str], numbers: Any, scores: Any, ids: Any) -> Any:
    """The run of an index's answer; places without a result are left out."""
    import numpy as np

    from qontext.retrieve.runs import Run

    hit = numbers >= 0
    query_codes = np.broadcast_to(np.arange(len(queries))[:, None], hit.shape)[hit]
    return Run.from_codes(query_codes, queries, numbers[hit], ids, scores[hit])


def _query_encoder(config: SearchConfig, encoder: dict[str, str]) -> str:
    """The name of what encodes the queries, once it is known to fit the passages' vectors."""
    from qontext.stages import digest_of

    name = config.encoder or encoder["path"]
    if config.untied and config.encoder:
        return name
    if config.encoder is None and Path(name).is_absolute():
        existing(name, "the encoder of the passages")
    if digest_of(name, "encoder") != encoder["digest"]:
        raise QontextError(
            f"is not the encoder that encoded the passages ({encoder['path']})"
            if config.encoder
            else "the encoder has changed since it encoded the passages",
            place=name,
            remedy="Encode the passages with it first, or give --untied if the two were trained as a pair."
            if config.encoder
            else "Encode the passages anew.",
        )
    return name


def _merge(numbers: Any, scores: Any, work: Workdir, rank: int, world: int, k: int) -> Any:
    """Each rank leaves the best of its parts on disk; rank 0 takes the best of all."""
    import numpy as np

    def name(of: int, what: str) -> str:
        return f"partial/{what}-{of}-of-{world}.npy"

    for what, array in (("numbers", numbers), ("scores", scores)):
        with work.write(name(rank, what)) as path, path.open("wb") as file:
            np.save(file, array, allow_pickle=False)
    if rank:
        return None
    while not all(work.has(name(r, "scores")) for r in range(world)):
        time.sleep(0.2)
    numbers, scores = (
        np.concatenate([np.load(work.path / name(r, what), allow_pickle=False) for r in range(world)], 1)
        for what in ("numbers", "scores")
    )
    order = np.lexsort((numbers, -scores), axis=1)[:, :k]
    return np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)


STAGE = Stage(
    "search",
    SearchConfig,
    run,
    """qontext search --bm25 --data beir/scifact --split test --out run.trec
    qontext search vectors --data beir/scifact --split test --out runs/dense
    qontext search index --queries queries.tsv --k 100 --out run.trec
    qontext search runs/adapted "how do I reset my password?"
    """,
    needs_out=False,
    without_out="question",
    distributed=True,
    file=RUN,
)
