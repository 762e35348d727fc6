"""Write expected.json: each case's rows as Qontext's batches have them, its losses and gradients by the reference.

    PYTHONPATH=src python -m tests.oracle.regenerate

Do so when batches change on purpose (masks, contexts, order). Losses of the same rows must never change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.oracle import reference
from tests.oracle.cases import CASES, build

FILE = Path(__file__).with_name("expected.json")
WATCHED = (
    "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.position_embeddings.weight",
    "bert.encoder.layer.0.attention.self.query.weight",
    "bert.encoder.layer.1.intermediate.dense.bias",
    "bert.encoder.layer.2.output.dense.weight",
)


def expected(name: str, rows: list[Any], weights: Any) -> dict[str, Any]:
    """The reference's losses, the length of its gradient, and that of some weights' gradients."""
    losses, gradient = reference.gradients(CASES[name].loss, weights, rows)
    whole = sum(float(value.square().sum()) for value in gradient.values()) ** 0.5
    head = sum(float(v.square().sum()) for n, v in gradient.items() if n.startswith("head.")) ** 0.5
    norms = {watched: float(gradient[watched].norm()) for watched in WATCHED}
    return {"losses": losses, "gradient": {"all": whole, "head": head, **norms}}


def main() -> None:
    cases = {}
    for name in CASES:
        setup = build(name, 100_000)
        cases[name] = {**expected(name, setup.rows, setup.weights), "rows": setup.rows}
    lines = []
    for name, case in cases.items():
        rows = ",\n   ".join(json.dumps(row, separators=(",", ":")) for row in case.pop("rows"))
        rest = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in case.items())
        lines.append(f' {json.dumps(name)}: {{\n  {rest},\n  "rows": [\n   {rows}\n  ]\n }}')
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
