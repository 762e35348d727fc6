"""The results of a study: how often contexts are strongly related to their passages, and inter-annotator agreement."""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from qontext.serve.annotate.store import VERDICTS, Vote
from qontext.serve.annotate.study import Study, StudyPair

PAPER = {"passage-passage": 0.355, "passage-query": 0.565}
"""Table 5 of "Query-as-context Pre-training"."""
_Z = 1.959964
"""The normal distribution's quantile for 95 %."""


def results(study: Study, votes: Sequence[Vote]) -> dict[str, Any]:
    """The content of the results page."""
    by_pair: dict[int, list[Vote]] = defaultdict(list)
    for vote in votes:
        by_pair[vote.pair].append(vote)
    size = study.settings["annotators"]
    verdicts = {
        pair.number: majority([v.verdict for v in by_pair[pair.number]], size) for pair in study.pairs
    }
    kinds = {
        kind: _of_kind([p for p in study.pairs if p.kind == kind], verdicts, by_pair, size)
        | {"paper": PAPER.get(kind)}
        for kind in study.kinds
    }
    tables = {
        str(group): fleiss_kappa([_counts(by_pair[p.number]) for p in study.pairs if p.group == group], size)
        for group in sorted({pair.group for pair in study.pairs})
    }
    return {
        "pairs": len(study.pairs),
        "votes": len(votes),
        "votes_expected": len(study.pairs) * size,
        "kinds": kinds,
        "kappa": fleiss_kappa([_counts(by_pair[p.number]) for p in study.pairs], size),
        "kappa_by_group": {"AB"[int(group)]: value for group, value in tables.items()},
        "annotators": {
            a.name: {
                "votes": sum(vote.annotator == a.name for vote in votes),
                "of": sum(pair.group == a.group for pair in study.pairs),
            }
            for a in study.annotators
        },
        "signals": _signals(study.pairs, verdicts),
        "disagreements": [
            pair.number for pair in study.pairs if len({vote.verdict for vote in by_pair[pair.number]}) > 1
        ],
    }


def judgments(study: Study, votes: Sequence[Vote]) -> Iterator[tuple[str, str, int]]:
    """(question, passage, grade) of the judged pairs of a study of answers."""
    for vote in votes:
        pair = study.pairs[vote.pair]
        if pair.group == 0:
            yield (*pair.ids, int(vote.verdict == "high"))


def majority(verdicts: Sequence[str], annotators: int) -> str | None:
    """The majority verdict of the group, if any."""
    return next((v for v in VERDICTS if 2 * sum(x == v for x in verdicts) > annotators), None)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share, by Wilson's score.

    (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n)
    """
    if not trials:
        return 0.0, 1.0
    p, z2 = successes / trials, _Z**2 / trials
    middle, spread = p + z2 / 2, _Z * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials))
    return (middle - spread) / (1 + z2), (middle + spread) / (1 + z2)


def fleiss_kappa(counts: Sequence[tuple[int, int]], annotators: int) -> float | None:
    """Agreement beyond chance of the pairs that everyone in the group has judged; None if it is not defined.

    κ = (P - Pₑ) / (1 - Pₑ), P the mean over pairs of Σⱼ nⱼ(nⱼ - 1) / n(n - 1), Pₑ = Σⱼ pⱼ² (Fleiss, 1971)
    """
    whole = [row for row in counts if sum(row) == annotators]
    if not whole or annotators < 2:
        return None
    n = annotators
    agreement = sum(sum(x * (x - 1) for x in row) / (n * (n - 1)) for row in whole) / len(whole)
    shares = [sum(row[j] for row in whole) / (n * len(whole)) for j in range(len(VERDICTS))]
    chance = sum(share**2 for share in shares)
    return None if chance == 1 else (agreement - chance) / (1 - chance)


def to_csv(study: Study, votes: Sequence[Vote]) -> str:
    """One line per pair: its kind, every vote, the majority, the signals, the texts."""
    names = [annotator.name for annotator in study.annotators]
    signals = sorted({name for pair in study.pairs for name in pair.signals})
    cast = {(vote.pair, vote.annotator): vote.verdict for vote in votes}
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["pair", "kind", "group", "majority", *names, *signals, "passage", "context"])
    for pair in study.pairs:
        mine = [cast.get((pair.number, name), "") for name in names]
        decided = majority([v for v in mine if v], study.settings["annotators"]) or ""
        verdicts = ["yes" if pair.signals.get(name) else "no" for name in signals]
        row = [pair.number, pair.kind, "AB"[pair.group], decided, *mine, *verdicts]
        writer.writerow([*row, _cell(pair.passage), _cell(pair.context)])
    return file.getvalue()


def _of_kind(
    pairs: list[StudyPair], verdicts: dict[int, str | None], by_pair: dict[int, list[Vote]], size: int
) -> dict[str, Any]:
    decided = [verdicts[pair.number] for pair in pairs if verdicts[pair.number]]
    high = sum(verdict == "high" for verdict in decided)
    return {
        "pairs": len(pairs),
        "decided": len(decided),
        "high": high,
        "rate": high / len(decided) if decided else None,
        "interval": wilson(high, len(decided)),
        "kappa": fleiss_kappa([_counts(by_pair[pair.number]) for pair in pairs], size),
    }


def _signals(pairs: list[StudyPair], verdicts: dict[int, str | None]) -> dict[str, Any]:
    """By signal: the share of pairs judged related, by kind, and its agreement with the majority."""
    shares: dict[str, Any] = {}
    for name in sorted({name for pair in pairs for name in pair.signals}):
        of_kinds = {
            kind: sum(p.signals[name] for p in mine) / max(1, len(mine))
            for kind in dict.fromkeys(pair.kind for pair in pairs)
            for mine in [[pair for pair in pairs if pair.kind == kind]]
        }
        decided = [
            (pair.signals[name], verdicts[pair.number] == "high") for pair in pairs if verdicts[pair.number]
        ]
        same = sum(signal == human for signal, human in decided)
        shares[name] = {**of_kinds, "agreement": same / len(decided) if decided else None}
    return shares


def _counts(votes: Sequence[Vote]) -> tuple[int, int]:
    return sum(v.verdict == "high" for v in votes), sum(v.verdict == "low" for v in votes)


def _cell(text: str) -> str:
    """Escape text that a spreadsheet would interpret as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
