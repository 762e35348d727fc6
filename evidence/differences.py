"""Differences of arms over the same questions, by their documents, drawn once and kept beside the cells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
from clusters import Ints

from qontext.evaluation.comparison import Difference, randomization_test
from qontext.evaluation.measures import Floats

COARSE, FINE = 0.002, 200_000
"""Permutations of differences whose p, after the usual number of them, is at most COARSE."""
FIELDS = tuple(field.name for field in fields(Difference))
RESAMPLES, BLOCK = 10_000, 500
DRAWN: dict[str, Difference] = {}
"""Differences by the digest of the values, drawn before or now."""


def precise(a: Floats, b: Floats, clusters: Ints) -> Difference:
    """The difference of one set."""
    return over_sets([(a, b, clusters)])


def over_sets(sets: Sequence[tuple[Floats, Floats, Ints]], level: float = 0.95) -> Difference:
    """The difference averaged over sets, which count equally however many questions they have:

        d = 1/S Σ_s mean over the questions q of s of (b_q - a_q)

    Questions about the same document (`clusters` [Q]) are no independent draws: the randomization test swaps the two scores
    of all questions of a cluster at once, and the bootstrap draws as many clusters from each set as it has. p is drawn more
    finely where it is small: it is multiplied by the number of differences of a claim. Differences of the same values are
    drawn once, and kept beside the cells."""
    content = b"".join(part.tobytes() for of in sets for part in of) + str(level).encode()
    key = hashlib.blake2b(content, digest_size=8).hexdigest()
    if key not in DRAWN:
        random, means, swapped = np.random.default_rng(42), np.zeros(RESAMPLES), []
        for a, b, clusters in sets:
            sums, sizes = np.bincount(clusters, b - a), np.bincount(clusters)
            swapped.append(sums / len(a) / len(sets))
            means += resampled(sums, sizes, random) / len(sets)
        changes, weighted = np.concatenate([b - a for a, b, _ in sets]), np.concatenate(swapped)
        low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
        p = randomization_test(weighted)
        DRAWN[key] = Difference(
            mean=float(weighted.sum()),
            low=float(low),
            high=float(high),
            p=p if p > COARSE else randomization_test(weighted, permutations=FINE),
            wins=int((changes > 0).sum()),
            losses=int((changes < 0).sum()),
            ties=int((changes == 0).sum()),
        )
    return DRAWN[key]


def resampled(sums: Floats, sizes: Ints, random: np.random.Generator) -> Floats:
    """[R] the means of questions of clusters that are drawn with replacement."""
    means = np.empty(RESAMPLES)
    for start in range(0, RESAMPLES, BLOCK):
        drawn = random.integers(0, len(sums), (min(BLOCK, RESAMPLES - start), len(sums)))
        means[start : start + BLOCK] = sums[drawn].sum(1) / sizes[drawn].sum(1)
    return means


def read_drawn(file: Path) -> dict[str, Difference]:
    kept = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return {key: Difference(**dict(zip(FIELDS, values))) for key, values in kept.items()}


def write_drawn(file: Path, used: Mapping[str, Difference]) -> None:
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(list(asdict(used[key]).values()))}" for key in sorted(used)
    )
    file.write_text(f"{{\n{lines}\n}}\n", "utf-8")
