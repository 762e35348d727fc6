"""`qontext fuse`: several runs → one.

    rrf:      score(q, p) = Σ_runs  w · 1 / (60 + rank)          (Cormack, Clarke and Büttcher, 2009)
    minmax:   score(q, p) = Σ_runs  w · (s - min) / (max - min)
    zscore:   score(q, p) = Σ_runs  w · (s - min) / std

with min, max and std over the run's results for q. A passage that is not in a run gets 0 from it, as does the
run's last result; results of a run with equal scores all get 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field, FiniteFloat

from qontext.frame import artifacts
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError, choose
from qontext.frame.stages import Stage

if TYPE_CHECKING:
    import numpy as np

    from qontext.data.load import AnyRun
    from qontext.data.runs import Run

Method = Literal["rrf", "minmax", "zscore"]
RUN, STEPS = "run.trec", 10
"""STEPS is the resolution of weights in tuning."""


class FuseConfig(StageConfig):
    runs: Annotated[tuple[str, ...], Input(positional=True)] = Field(min_length=2)
    """Runs: TREC files, or output directories of a search."""

    method: Method = "rrf"
    """Reciprocal rank fusion, or fusion of scores with min-max or z-score normalization."""

    weights: tuple[float, ...] = ()
    """Weight of each run, in order. Default: equal weights."""

    tune: Annotated[str | None, Input()] = None
    """Judgments to tune the weights on. Use those of dev, then pass the result to --weights-from."""

    weights_from: Annotated[str | None, Input()] = None
    """Output of an earlier `fuse --tune`, whose weights are used."""

    measure: str = "nDCG@10"
    """Measure to maximize in tuning."""

    k: int = Field(1_000, ge=1)
    """Passages per query."""


def run(config: FuseConfig, work: Workdir) -> dict[str, Any]:
    from qontext.data.runs import read_run, write_run

    rows = RankedRows([read_run(path) for path in config.runs], config.method)
    weights, tuning = config.weights, dict[str, Any]()
    if config.tune:
        weights, tuning = tuned(rows, config)
    elif config.weights_from:
        fusion = artifacts.open_artifact(config.weights_from, verb="fuse")
        weights = tuple(fusion.summary.take("weights", list[FiniteFloat]))
        if fusion.config["method"] != config.method:
            raise QontextError(
                f"its weights are for --method {fusion.config['method']}", place=config.weights_from
            )
    weights = _checked(weights, len(config.runs))
    fused = rows.fused(weights, config.k)
    with work.write(RUN) as path:
        write_run(fused, path, tag=config.method)
    return {"queries": len(fused), "results": fused.size, "weights": [round(w, 6) for w in weights], **tuning}


def fuse(
    runs: Sequence[AnyRun],
    weights: Sequence[float] = (),
    *,
    method: Method = "rrf",
    k: int = 1_000,
) -> Run:
    """Fuse several runs into one.

    Args:
        runs: Runs, as a `Run` or query → passage → score, TREC run files, or output directories of a search.
        weights: Weight of each run. Default: equal weights.
        method: ``rrf``, reciprocal rank fusion, or fusion of scores with ``minmax`` or ``zscore`` normalization.
        k: Passages per query.

    >>> bm25 = Run.of([Hit("q", "p1", 9.0), Hit("q", "p2", 8.0)])
    >>> dense = Run.of([Hit("q", "p2", 0.7), Hit("q", "p3", 0.6)])
    >>> [hit.passage for hit in fuse([bm25, dense])["q"]]
    ['p2', 'p1', 'p3']
    """
    from qontext.data.load import as_run

    rows = RankedRows([as_run(one) for one in runs], choose(method, get_args(Method), "method"))
    return rows.fused(_checked(tuple(weights), len(runs)), k)


class RankedRows:
    """The rows of all runs, normalized once, so that many weights can be tried. R rows of all runs, G
    distinct (query, passage) pairs.
    """

    def __init__(self, runs: Sequence[Run], method: str) -> None:
        import numpy as np

        self.queries = list(dict.fromkeys(itertools.chain.from_iterable(runs)))
        self.ids = np.array(sorted(set().union(*(r.ids.tolist() for r in runs))), dtype=object)
        number = {query: q for q, query in enumerate(self.queries)}
        place = {id: i for i, id in enumerate(self.ids)}
        pairs = []
        for one in runs:
            query = np.array([number[q] for q in one.queries], np.int64)[one.row_queries()]
            passage = np.array([place[id] for id in one.ids], np.int64)[one.codes]
            pairs.append(query * len(self.ids) + passage)
        self.pairs, group = np.unique(np.concatenate(pairs), return_inverse=True)  # [G], [R]
        self.groups = np.split(group, np.cumsum([len(p) for p in pairs])[:-1])
        self.scores = [_comparable(one, method) for one in runs]

    def fused(self, weights: Sequence[float], k: int) -> Run:
        import numpy as np

        from qontext.data.runs import Run

        total = np.zeros(len(self.pairs))
        for weight, group, scores in zip(weights, self.groups, self.scores):
            total[group] += weight * scores
        queries, passages = np.divmod(self.pairs, len(self.ids))
        return Run.from_codes(queries, self.queries, passages, self.ids, total).top(k)


def hybrid(runs: Sequence[Run], weights: Sequence[float], k: int) -> Run:
    """The runs of different systems for the same queries, fused by standardized scores."""
    return RankedRows(runs, "zscore").fused(weights, k)


def tuned(rows: RankedRows, config: FuseConfig) -> tuple[tuple[float, ...], dict[str, Any]]:
    """The weights that maximize the measure, of all multiples of .1 with sum one; of equal ones, the most even."""
    import numpy as np

    from qontext.data.collection import read_qrels
    from qontext.evaluation.measures import measure, parse

    qrels, measures, runs = read_qrels(str(config.tune)), parse(config.measure), len(config.runs)
    name = next(iter(measures))
    trials = []
    for bars in itertools.combinations(range(STEPS + runs - 1), runs - 1):
        # Bars split STEPS stars into a part for each run.
        parts = np.diff([-1, *bars, STEPS + runs - 1]) - 1
        weights = tuple((parts / STEPS).tolist())
        value = measure(rows.fused(weights, config.k), qrels, measures).means[name]
        trials.append((value, -float(np.std(weights)), weights))
    value, _, weights = max(trials)
    alone = {path: next(v for v, _, w in trials if w[i] == 1.0) for i, path in enumerate(config.runs)}
    return weights, {"tuned_on": config.tune, name: round(value, 6), "alone": alone}


def _checked(weights: tuple[float, ...], runs: int) -> tuple[float, ...]:
    """The weights, by default equal ones; refused if they do not fit the number of runs."""
    weights = weights or (1.0,) * runs
    if len(weights) != runs:
        raise QontextError(f"got {len(weights)} weights for {runs} runs")
    if min(weights) < 0 or max(weights) == 0:
        raise QontextError("weights must not be negative, and not all 0")
    return weights


def _comparable(one: Run, method: str) -> np.ndarray[Any, Any]:
    """[R] the normalized score of each row of the run."""
    import numpy as np

    if method == "rrf":
        ranked: np.ndarray[Any, Any] = 1.0 / (61 + one.row_ranks())
        return ranked
    starts, counts = one.starts[:-1], np.diff(one.starts)
    least, greatest = one.scores[one.starts[1:] - 1], one.scores[starts]
    if method == "minmax":
        scale = greatest - least
    else:
        mean = np.add.reduceat(one.scores, starts) / counts
        scale = np.sqrt(np.add.reduceat((one.scores - np.repeat(mean, counts)) ** 2, starts) / counts)
    flat = np.repeat(greatest == least, counts)
    scaled = (one.scores - np.repeat(least, counts)) / np.repeat(np.where(scale > 0, scale, 1), counts)
    return np.where(flat, 1.0, scaled)


STAGE = Stage(
    "fuse",
    FuseConfig,
    run,
    """
        qontext fuse bm25.trec dense.trec --out hybrid.trec
        qontext fuse dev-bm25.trec dev-dense.trec --method minmax --tune data/qrels/dev.tsv --out tuned
        qontext fuse bm25.trec dense.trec --method minmax --weights-from tuned --out hybrid.trec
    """,
    file=RUN,
)
