"""`qontext rerank`: compare queries once more with the top k of a run, by a scorer (see `scorers`).

Queries are scored in blocks, one part each, so that a killed run resumes after its last block and several
processes can share the work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from qontext.data.passage import Passage, TitleRule
from qontext.frame import artifacts
from qontext.frame.config import ComputeConfig, Input, Machine
from qontext.frame.errors import QontextError
from qontext.frame.files import read_array
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig
from qontext.frame.stages import Stage
from qontext.retrieve.inputs import select_passages, select_queries
from qontext.retrieve.query_encoder import Opening

if TYPE_CHECKING:
    from qontext.data.load import AnyRun
    from qontext.data.runs import Run
    from qontext.models.cross_encoder import CrossEncoder
    from qontext.retrieve.scorers import PairScorer, TokenScorer

RUN, BLOCK = "run.trec", 64


class RerankConfig(PartsConfig, ComputeConfig):
    run: Annotated[str, Input(positional=True)]
    """Run to rerank: a TREC file, or the output of a search; or training groups from 'qontext mine', of which
    all passages are scored, for distillation."""

    reranker: Annotated[tuple[str, ...], Input()] = ()
    """Cross-encoder: a directory or Hub name of a sequence classifier with one logit. Repeat the option for
    the mean of several."""

    tokens: Annotated[str | None, Input()] = None
    """Instead of a cross-encoder: what 'qontext encode' stored of the passages' tokens: bits ('encode --tokens') or the
    vectors of an encoder that was trained for it, which are compared by MaxSim, or a SPLADE retriever's weights of words."""

    data: Annotated[str | None, Input()] = None
    """A BEIR folder with the queries and passages."""

    queries: Annotated[str | None, Input()] = None
    """Queries, instead of --data."""

    passages: Annotated[str | None, Input()] = None
    """Passages, instead of --data."""

    k: int = Field(100, ge=1)
    """Number of results to rerank per query."""

    keep_rest: bool = False
    """Append the run's other results after the reranked ones, in their order: recall beyond rank k does not
    change."""

    max_length: int | None = Field(None, ge=8, le=100_000)
    """Maximum tokens of a pair; longer passages are truncated. Default: the cross-encoder's limit."""

    title: TitleRule | None = None
    """The title of a passage: prepend it to the text, put it before the tokenizer's separator and the text (sep), or leave
    it out. Default: as the cross-encoder was trained, else prepend."""

    batch_tokens: Annotated[int | None, Machine()] = Field(None, ge=1)
    """Tokens per batch. Default: chosen for the device."""

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if bool(self.reranker) == bool(self.tokens):
            raise QontextError("pass either --reranker or --tokens")
        return self


def rerank(
    run: AnyRun,
    queries: Mapping[str, str],
    passages: Iterable[Passage | str],
    reranker: CrossEncoder | str | os.PathLike[str] | Sequence[CrossEncoder | str | os.PathLike[str]],
    *,
    k: int = 100,
    keep_rest: bool = False,
    device: str = "auto",
) -> Run:
    """Rescore the top of a run with a cross-encoder, or with the mean of several.

    Args:
        run: A `Run`, query → passage → score, a TREC run file, or the output directory of a search.
        queries: Query id → text.
        passages: The passages, or texts, whose ids are their numbers from 0.
        reranker: A `CrossEncoder`, a model folder or Hub name, or several of them.
        k: Number of results to rerank per query.
        keep_rest: Append the run's other results after the reranked ones, in their order.
        device: Device of models that are opened: auto, cpu, cuda, cuda:N or mps.

    >>> run = Run.of([Hit("q", "0", 2.0), Hit("q", "1", 1.0)])
    >>> rerank(run, {"q": "who grinds flour?"}, ["The mill grinds flour.", "A boat."], "reranker")
    Run of 1 queries and 2 hits
    """
    from qontext.data.load import as_passages, as_run
    from qontext.data.places import Found
    from qontext.data.runs import Run
    from qontext.models.cross_encoder import CrossEncoder
    from qontext.retrieve.scorers import PairScorer

    opened = as_run(run)
    top = opened.top(k)
    several = [reranker] if isinstance(reranker, CrossEncoder | str | os.PathLike) else reranker
    models = [one if isinstance(one, CrossEncoder) else CrossEncoder(one, device=device) for one in several]
    if unknown := next((query for query in top.queries if query not in queries), None):
        raise QontextError(f"the run names the query {unknown!r}, which is not in the queries")
    needed = {*top.ids[top.codes]}
    found = {one.id: Found(one) for one in as_passages(passages) if one.id in needed}
    if missing := needed - found.keys():
        raise QontextError(f"the run names the passage {min(missing)!r}, which is not in the passages")
    scores = PairScorer(models, lambda ids: found).score(queries, top)
    result = Run.from_codes(top.row_queries(), top.queries, top.codes, top.ids, scores)
    return _with_rest(result, opened, k) if keep_rest else result


class Rerank(Parts[RerankConfig]):
    unit = "pairs"

    @cached_property
    def candidates(self) -> tuple[Run, Run | None]:
        """The top of the run, or all passages of groups; and the run whose other results are kept, if they are."""
        from qontext.data.runs import read_run
        from qontext.finetune.negatives.groups import candidates_of

        path = self.config.run
        if artifacts.is_artifact(path) and artifacts.open_artifact(path).verb == "mine":
            return candidates_of(path), None
        run = read_run(path)
        return run.top(self.config.k), run if self.config.keep_rest else None

    def plan(self) -> list[Part]:
        top = self.candidates[0]
        ends = [*top.starts[: len(top) : BLOCK].tolist(), top.size]
        models = len(self.config.reranker) or 1
        return [
            Part(number, f"scores-{number:05d}.npy", first, last, (last - first) * models)
            for number, (first, last) in enumerate(pairwise(ends))
        ]

    def open(self) -> None:
        from qontext.models.precision import own_device, resolve_device, settle_precision

        config, top = self.config, self.candidates[0]
        self.queries = select_queries(config.data, None, config.queries)
        if unknown := next((query for query in top.queries if query not in self.queries), None):
            raise QontextError(f"names the query {unknown!r}, which is not in the queries", place=config.run)
        device = own_device(config.device)
        precision = settle_precision(self.work, config.precision, resolve_device(device))
        form = {"device": device, "precision": precision}
        self.scorer = _by_tokens(config, form) if config.tokens else self._by_pairs(top, form)

    def _by_pairs(self, top: Run, form: dict[str, Any]) -> PairScorer:
        """The cross-encoders, with the passages that they read."""
        import numpy as np

        from qontext.data.places import find_passages
        from qontext.models.cross_encoder import CrossEncoder
        from qontext.retrieve.scorers import PairScorer

        config, needed = self.config, {*top.ids[np.unique(top.codes)]}
        found = find_passages(select_passages(config.data, config.passages), needed)
        if missing := needed - found.keys():
            raise QontextError(
                f"names the passage {min(missing)!r}, which is not in the passages", place=config.run
            )
        form |= {"max_length": config.max_length, "batch_tokens": config.batch_tokens, "title": config.title}
        return PairScorer([CrossEncoder(name, **form) for name in config.reranker], lambda ids: found)

    def make(self, part: Part, content: None) -> dict[str, int]:
        import numpy as np

        from qontext.data.runs import Run

        top, rows = self.candidates[0], slice(part.first, part.last)
        first, last = np.searchsorted(top.starts, (part.first, part.last)).tolist()
        starts = top.starts[first : last + 1] - part.first
        block = Run(top.queries[first:last], starts, top.ids, top.codes[rows], top.scores[rows])
        scores = self.scorer.score(self.queries, block, advance=self.advance)
        with self.work.write(part.name) as path, path.open("wb") as file:
            np.save(file, scores, allow_pickle=False)
        return {}

    def facts(self) -> dict[str, Any]:
        return {"max_length": self.scorer.max_length}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        import numpy as np

        from qontext.data.runs import Run, write_run

        top, rest = self.candidates
        parts = [
            read_array(self.work.path / part.name, "f", shape=(part.last - part.first,))
            for part in outcome.parts
        ]
        scores = np.concatenate([np.zeros(0), *parts])
        reranked = Run.from_codes(top.row_queries(), top.queries, top.codes, top.ids, scores)
        if rest is not None:
            reranked = _with_rest(reranked, rest, self.config.k)
        with self.work.write(RUN) as path:
            write_run(reranked, path, tag="rerank")
        for part in outcome.parts:
            self.work.remove(part.name)
        return {
            "queries": len(top),
            "pairs": top.size,
            "models": len(self.config.reranker) or 1,
            **(outcome.facts or {}),
            "seconds": round(outcome.seconds, 3),
        }


def _by_tokens(config: RerankConfig, form: dict[str, Any]) -> TokenScorer:
    """The stored tokens of the passages, with the encoder that made them."""
    from qontext.frame.inputs import find
    from qontext.retrieve.scorers import TokenScorer, stored_form

    place = str(config.tokens)
    artifact = artifacts.open_artifact(place, verb="encode")
    remedy = "Restore it, or encode the passages again."
    name = find(artifact.inputs["encoder"], Path(place), "the encoder of the passages", remedy=remedy)
    opening = Opening(**form, is_resident=True)
    packed, title = stored_form(place) != "bits", artifact.summary.get("title")
    return TokenScorer(place, opening.query_encoder(name, artifact, packed=packed, title=title))


def _with_rest(reranked: Run, run: Run, k: int) -> Run:
    """Append each query's results beyond rank k below the reranked ones, with scores one apart."""
    import numpy as np

    from qontext.data.runs import Run

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


STAGE = Stage(
    "rerank",
    RerankConfig,
    Rerank,
    """
        qontext rerank run.trec --reranker reranker --data data --k 100 --out reranked.trec
        qontext rerank groups --reranker reranker --data data --out teacher
        qontext rerank run.trec --tokens token-vectors --data data --out reranked.trec
        qontext rerank run.trec --reranker reranker-1 --reranker reranker-2 --data data --out reranked.trec
    """,
    file=RUN,
    format=2,
)
