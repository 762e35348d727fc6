"""`qontext.evaluate` and `qontext.compare`: what the commands of these names compute, as Python objects."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from qontext.data.collection import Qrels
from qontext.data.runs import Run, read_run
from qontext.evaluation import checks
from qontext.evaluation.comparison import Pair, System, compare_systems
from qontext.evaluation.datasets import Judged, load_judgments, recognize
from qontext.evaluation.evaluate import score
from qontext.evaluation.measures import Scores
from qontext.frame.errors import QontextError

Source = str | os.PathLike[str]


def evaluate(
    run: Run | Source,
    qrels: Qrels | Source,
    measures: str | Sequence[str] = (),
    *,
    split: str = "test",
    relevant: int | None = None,
) -> Scores:
    """Score a run by judgments.

    Args:
        run: A `Run`, a TREC run file, or the output directory of a search. qrels: Query → passage → grade, a
        qrels file, a folder in BEIR's layout, or the name of a benchmark. measures: Measures in the notation
        of ir_measures, such as ``"MRR@10 nDCG@10 R@100"``. Default: the usual ones. split: Split of the
        judgments of a folder in BEIR's layout. relevant: Minimum relevant grade for all measures except
        nDCG. Default: the benchmark's, else 1.

    >>> run = Run.of([Hit("q1", "p1", 2.0), Hit("q1", "p2", 1.0), Hit("q2", "p3", 1.0)])
    >>> scores = evaluate(run, {"q1": {"p2": 1}, "q2": {"p3": 1}}, "MRR@10 R@100")
    >>> scores.means
    {'MRR@10': 0.75, 'R@100': 1.0}
    >>> dict(zip(scores.queries, scores.values["MRR@10"].tolist()))
    {'q1': 0.5, 'q2': 1.0}
    """
    return _score("run", run, _judged(qrels, split), measures, relevant)


def compare(
    runs: Mapping[str, Run | Source],
    qrels: Qrels | Source,
    measures: str | Sequence[str] = (),
    *,
    split: str = "test",
    relevant: int | None = None,
    permutations: int = 10_000,
    seed: int = 42,
) -> list[Pair]:
    """Test the difference of every two systems on every measure.

    Each `Pair` has the mean difference, its bootstrap interval and the p value of a paired randomization test,
    corrected by Holm's procedure for all pairs of systems, for each measure by itself.

    Args:
        runs: System name → run.
        qrels, measures, split, relevant: As for `evaluate`.
        permutations: Draws of the randomization test and of the bootstrap.
        seed: Seed of the draws.

    >>> qrels = {f"q{n}": {"p": 1} for n in range(8)}
    >>> best = Run.of([Hit(query, "p", 1.0) for query in qrels])
    >>> worse = Run.of([Hit(query, id, score) for query in qrels for id, score in (("other", 2.0), ("p", 1.0))])
    >>> (pair,) = compare({"worse": worse, "best": best}, qrels, "MRR@10")
    >>> pair.a, pair.b, pair.difference.mean, pair.is_significant()
    ('worse', 'best', 0.5, True)
    """
    if len(runs) < 2:
        raise QontextError("a comparison needs at least two systems", remedy="Add another run.")
    judged = _judged(qrels, split)
    scores = {name: _score(name, run, judged, measures, relevant) for name, run in runs.items()}
    systems = [System(name, [one.values]) for name, one in scores.items()]
    tested = [name for name in systems[0].seeds[0] if not name.startswith("Judged")]
    return compare_systems(systems, tested, permutations=permutations, seed=seed)


def _judged(qrels: Qrels | Source, split: str) -> Judged:
    if isinstance(qrels, str | os.PathLike):
        return load_judgments(os.fspath(qrels), split=split)
    if not qrels:
        raise QontextError("no judgments are specified")
    return Judged(qrels, "the judgments", recognize(qrels))


def _score(
    name: str, run: Run | Source, judged: Judged, measures: str | Sequence[str], relevant: int | None
) -> Scores:
    place = name if isinstance(run, Run) else os.fspath(run)
    results = run if isinstance(run, Run) else read_run(Path(run))
    checks.check_ids(results, judged.qrels, place, judged.place)
    names = measures if isinstance(measures, str) else " ".join(measures)
    return score(results, judged, names, relevant)[0]
