"""The initial encoder: the one that is named, the best of several, or the default for the language of the documents.

Several are measured before the plan is made, untrained, by recipes in the folder `starts`: one for questions about some of
the passages, and one for each encoder on these. The one with the best system of all its parts is adapted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qontext.adapt.config import AdaptConfig
from qontext.adapt.plan import Plan
from qontext.frame import log
from qontext.frame.artifacts import open_artifact
from qontext.models.reference import encoder_for, shown_name
from qontext.retrieve.system import System, label_of

WHOLE = System("start", words=True, tokens=True).name
"""The system by which initial encoders are compared."""
SEARCHED = 1_000
"""Passages to measure on."""
FEWEST_LABELS = 50
"""Labeled questions below which generated ones are asked."""


def settled(config: AdaptConfig, before: Any, under: Path) -> tuple[AdaptConfig, Mapping[str, float] | None]:
    """The configuration with one encoder; of several, also their nDCG@10. Those that the plan has are not measured again."""
    names = config.encoder
    if not names:
        from qontext.adapt.survey import survey
        from qontext.retrieve.language import natural

        found = survey(config.documents, labeled=config.labels is not None, read_as=config.read_as)
        names = (encoder_for(natural(found.language)),)
    known = before.starts if before is not None and before.request.encoder in names else None
    if len(names) == 1:
        return config.model_copy(update={"encoder": names}), known
    if known is None or known.keys() != {*names} or (config.retrain and before and not before.is_pending):
        known = _measured(config, under)
    best = max(names, key=known.__getitem__)
    log.show_rows(
        f"Initial encoders, nDCG@10 of {label_of(WHOLE)}",
        [
            {"encoder": shown_name(name), "nDCG@10": f"{known[name]:.3f}", "": "*" * (name == best)}
            for name in names
        ],
    )
    return config.model_copy(update={"encoder": (best,)}), known


def _measured(config: AdaptConfig, folder: Path) -> dict[str, float]:
    """Encoder → nDCG@10 of its system."""
    from qontext.adapt import recipes
    from qontext.adapt.prepare import prepare
    from qontext.adapt.survey import survey
    from qontext.workflow.run import run_recipe

    log.note(f"Measuring {len(config.encoder)} initial encoders …")
    source = survey(config.documents, labeled=config.labels is not None, read_as=config.read_as)
    requests = [prepare(config.model_copy(update={"encoder": (name,)}), source)[0] for name in config.encoder]
    first = requests[0]
    split = _split(first.judged)
    plan = Plan(max(1, source.passages(first.max_tokens)), SEARCHED, 1, 0, 0, 0, 1, 0.0, tokens=True)
    run_recipe(recipes.asking_recipe(first, plan), folder, on=config.on)
    scores = {}
    for number, request in enumerate(requests, 1):
        own = folder / str(number)
        measured = folder / "holdout" / "measured"
        run_recipe(recipes.start_recipe(request, plan, split, measured), own, on=config.on)
        measures = open_artifact(own / f"score-{WHOLE}-{split}").summary.take("measures", dict[str, float])
        scores[request.encoder] = measures["nDCG@10"]
    return scores


def _split(judged: Mapping[str, int]) -> str:
    """The questions to ask: real ones that do not decide the verdict, if there are enough; else those that do, or generated
    ones."""
    others = {name: count for name, count in judged.items() if name != "test" and count >= FEWEST_LABELS}
    if others:
        return max(others, key=lambda name: others[name])
    return "test" if judged.get("test") else "generated"
