"""Differences of arms over the same questions, drawn once and kept beside the cells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np

from qontext.evaluation.comparison import Difference, difference, randomization_test
from qontext.evaluation.measures import Floats

COARSE, FINE = 0.002, 200_000
"""Permutations of differences whose p, after the usual number of them, is at most COARSE."""
FIELDS = tuple(field.name for field in fields(Difference))
RESAMPLES = 10_000
DRAWN: dict[str, Difference] = {}
"""Differences by the digest of the values, drawn before or now."""


def precise(a: Floats, b: Floats) -> Difference:
    """A difference whose p is drawn more finely where it is small: it is multiplied by the number of differences here.
    Differences of the same values are drawn once, and kept beside the cells."""
    key = hashlib.blake2b(a.tobytes() + b.tobytes(), digest_size=8).hexdigest()
    if key not in DRAWN:
        first = difference(a, b)
        p = first.p if first.p > COARSE else randomization_test(b - a, permutations=FINE)
        DRAWN[key] = replace(first, p=p)
    return DRAWN[key]


def over_sets(sets: Sequence[tuple[Floats, Floats]]) -> Difference:
    """The difference averaged over sets, which count equally however many questions they have:

        d = 1/S Σ_s mean over the questions q of s of (b_q - a_q)

    The randomization test swaps the two scores of single questions; the bootstrap draws from each set as many questions as
    it has. Drawn once, too."""
    key = hashlib.blake2b(b"".join(a.tobytes() + b.tobytes() for a, b in sets), digest_size=8).hexdigest()
    if key not in DRAWN:
        deltas = [b - a for a, b in sets]
        weighted = np.concatenate([delta / len(delta) / len(deltas) for delta in deltas])
        random, means = np.random.default_rng(42), np.zeros(RESAMPLES)
        for delta in deltas:
            n = len(delta)
            means += [delta[random.integers(0, n, n, dtype=np.int32)].mean() for _ in range(RESAMPLES)]
        low, high = np.quantile(means / len(deltas), [0.025, 0.975])
        p = randomization_test(weighted)
        DRAWN[key] = Difference(
            mean=float(weighted.sum()),
            low=float(low),
            high=float(high),
            p=p if p > COARSE else randomization_test(weighted, permutations=FINE),
            wins=int((weighted > 0).sum()),
            losses=int((weighted < 0).sum()),
            ties=int((weighted == 0).sum()),
        )
    return DRAWN[key]


def read_drawn(file: Path) -> dict[str, Difference]:
    kept = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return {key: Difference(**dict(zip(FIELDS, values))) for key, values in kept.items()}


def write_drawn(file: Path, used: Mapping[str, Difference]) -> None:
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(list(asdict(used[key]).values()))}" for key in sorted(used)
    )
    file.write_text(f"{{\n{lines}\n}}\n", "utf-8")
