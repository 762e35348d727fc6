"""`qontext rerank`: the top k of a run, scored anew by one cross-encoder or the mean of several.

Queries are scored in blocks, one part each, so that a killed run goes on after its last block and ranks can
share the work.
"""

from __future__ import annotations

import os
import time
from typing import Annotated, Any, Literal

from pydantic import Field

from qontext import artifacts, log
from qontext.artifacts import Workdir
from qontext.collection import read_passages
from qontext.config import Input, Machine, StageConfig
from qontext.errors import QontextError
from qontext.retrieve.inputs import asked_passages, asked_queries
from qontext.stages import Stage

RUN, BLOCK = "run.trec", 64


class RerankConfig(StageConfig):
    run: Annotated[str, Input(positional=True)]
    """The run to rerank: a TREC file, or a directory that holds one; or training groups from 'qontext mine', whose
    passages are then all scored, for a retriever to learn from."""

    reranker: Annotated[tuple[str, ...], Input()] = Field(min_length=1)
    """Cross-encoder: a directory or hub name of a sequence classifier with one logit. Give the option several
    times for the mean of several."""

    data: Annotated[str | None, Input()] = None
    """A BEIR folder with the queries and passages."""

    queries: Annotated[str | None, Input()] = None
    """Queries instead of --data."""

    passages: Annotated[str | None, Input()] = None
    """Passages instead of --data."""

    k: int = Field(100, ge=1)
    """How many results of each query are reranked."""

    keep_rest: bool = False
    """Let the run's other results follow the reranked ones, in their order, instead of leaving them out: recall at more
    than k stays what it was."""

    max_length: int | None = Field(None, ge=8)
    """Tokens of a pair after which the passage is cut; by default the cross-encoder's own limit."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format of the computation; auto is bf16 where the hardware has it."""

    device: Annotated[str, Machine()] = "auto"
    """Where to compute: auto, cpu, cuda, cuda:N or mps."""

    batch_tokens: Annotated[int | None, Machine()] = Field(None, ge=1)
    """Tokens in a batch; by default what suits the device."""


def run(config: RerankConfig, work: Workdir) -> dict[str, Any] | None:
    import numpy as np

    from qontext.engine.precision import own_device
    from qontext.retrieve.cross_encoder import CrossEncoder
    from qontext.retrieve.runs import Run, write_run

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    top, rest = _asked(config)
    queries, texts = _texts(config, top)
    models = [
        CrossEncoder(
            name,
            device=own_device(config.device),
            precision=config.precision,
            max_length=config.max_length,
            batch_tokens=config.batch_tokens,
        )
        for name in config.reranker
    ]
    names = [f"scores-{number:05d}.npy" for number in range(-(-len(top) // BLOCK))]
    started = time.monotonic()
    with log.progress("rerank", top.size * len(models), "pairs") as advance:
        for number, name in enumerate(names):
            if number % world != rank or work.has(name):
                continue
            first, last = top.starts[number * BLOCK], top.starts[min((number + 1) * BLOCK, len(top))]
            pairs = [
                (queries[top.queries[q]], texts[top.ids[code]])
                for q, code in zip(top.row_queries()[first:last], top.codes[first:last])
            ]
            scores = np.mean(
                [model.score(pairs, advance=advance) for model in models], axis=0, dtype=np.float64
            )
            with work.write(name) as path, path.open("wb") as file:
                np.save(file, scores, allow_pickle=False)
    if rank:
        return None
    while not all(map(work.has, names)):
        time.sleep(0.2)
    scores = np.concatenate([np.load(work.path / name, allow_pickle=False) for name in names])
    reranked = Run.from_codes(top.row_queries(), top.queries, top.codes, top.ids, scores)
    if rest is not None:
        reranked = _with_rest(reranked, rest, config.k)
    with work.write(RUN) as path:
        write_run(reranked, path, tag="rerank")
    for name in names:
        work.remove(name)
    seconds = time.monotonic() - started
    return {
        "queries": len(top),
        "pairs": top.size,
        "models": len(models),
        "max_length": models[0].max_length,
        "seconds": round(seconds, 3),
    }


def _asked(config: RerankConfig) -> tuple[Any, Any]:
    """The top of the run, or all of the groups' passages; and the run whose other results are kept, if they are."""
    from qontext.retrieve.groups import candidates_of
    from qontext.retrieve.runs import read_run

    if artifacts.is_artifact(config.run) and artifacts.open_artifact(config.run).verb == "mine":
        return candidates_of(config.run), None
    run = read_run(config.run)
    return run.top(config.k), run if config.keep_rest else None


def _with_rest(reranked: Any, run: Any, k: int) -> Any:
    """Below each query's reranked results, what the run has from rank k on, a point apart."""
    import numpy as np

    from qontext.retrieve.runs import Run

    ranks = run.row_ranks()
    below = ranks >= k
    queries = run.row_queries()[below]
    lowest = np.minimum.reduceat(reranked.scores, reranked.starts[:-1])
    return Run.from_codes(
        np.concatenate([reranked.row_queries(), queries]),
        run.queries,
        np.concatenate([reranked.codes, run.codes[below]]),
        run.ids,
        np.concatenate([reranked.scores, lowest[queries] - (ranks[below] - k + 1)]),
    )


def _texts(config: RerankConfig, top: Any) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the run's queries and passages, and only of these."""
    import numpy as np

    queries = asked_queries(config.data, None, config.queries)
    if unknown := next((query for query in top.queries if query not in queries), None):
        raise QontextError(f"names the query {unknown!r}, which is not among the queries", place=config.run)
    wanted = set(top.ids[np.unique(top.codes)])
    source = asked_passages(config.data, config.passages)
    texts = {passage.id: passage.content for passage in read_passages(source) if passage.id in wanted}
    if lost := wanted - texts.keys():
        raise QontextError(
            f"names the passage {min(lost)!r}, which is not among the passages", place=config.run
        )
    return queries, texts


STAGE = Stage(
    "rerank",
    RerankConfig,
    run,
    """qontext rerank runs/dense --reranker runs/reranker --data beir/fiqa --k 100 --out run.trec
    qontext rerank groups --reranker runs/reranker --data beir/fiqa --out teacher
    qontext rerank runs/dense --reranker one --reranker two --data beir/fiqa --out runs/ensemble""",
    distributed=True,
    file=RUN,
)
