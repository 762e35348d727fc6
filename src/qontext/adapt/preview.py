"""`adapt --dry-run` on a directory that holds more than a plan: what the same command would do. Nothing is written there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from qontext.adapt import hand_over, serving
from qontext.adapt.config import AdaptConfig
from qontext.adapt.nearest import Choice
from qontext.adapt.request import Request
from qontext.adapt.show import shown_changes
from qontext.adapt.state import RECIPE, STEPS, Planned
from qontext.adapt.update import about_share, changed_documents, trains_again
from qontext.data.collection import read_passages
from qontext.frame import execution, log
from qontext.frame.stages import Stage
from qontext.retrieve.searcher import index_of, read_adapted
from qontext.retrieve.system import System
from qontext.workflow.recipe import read_recipe
from qontext.workflow.run import plan


def preview_steps(root: Path) -> dict[str, Any]:
    """Show the steps of an unfinished run that are left."""
    recipe = read_recipe(str(root / RECIPE))
    rows = [
        {"step": step.name, "state": state, "why": why} for step, state, why in plan(recipe, root / STEPS)
    ]
    waiting = [row for row in rows if row["state"] != "done"]
    log.show_rows(f"{root}: {len(waiting)} of {len(rows)} steps are left (dry run)", waiting)
    return {"out": str(root), "steps_left": [row["step"] for row in waiting]}


class Changes(NamedTuple):
    """The documents by kind of change; the passages now, those that have to be encoded, and those that are gone."""

    documents: dict[str, int]
    passages: int
    to_encode: int
    removed: int


def preview_update(
    config: AdaptConfig, root: Path, before: Planned, aside: Path, absent: list[str]
) -> dict[str, Any] | None:
    """Show what an update would do; None if it would train again, which takes a plan. Files are written to `aside`."""
    about, index = read_adapted(root), index_of(root)
    request = replace(before.request, documents=config.documents)
    model = hand_over.current(config.encoder, about.get("reference"), root)
    was = serving.chosen(root)
    choice = Choice.of(config) or was
    request = request if choice.is_exact else replace(request, window=None)
    file = aside / serving.FILE
    file.write_text(
        serving.recipe_of(
            request, model, root, {}, choice, tokens=System.parse(about["system"]).tokens
        ).dump(),
        encoding="utf-8",
    )
    states = {step.name: (step, state) for step, state, _ in plan(read_recipe(str(file)), index)}
    passages = index / "passages"
    splitting, state = states["passages"]
    if state != "done":
        assert isinstance(splitting.stage, Stage)
        with log.warnings_only():
            passages = execution.execute(splitting.stage, splitting.configure(aside), aside / "passages").path
    changes = _changes(index, passages, model, request, is_encoded=states["vectors"][1] == "done")
    share = serving.new_share(root, passages)
    is_again = trains_again(share, absent)
    is_copied = config.copy_model and "reference" in about
    is_current = all(state == "done" for _, state in states.values()) and choice.backend == was.backend
    _show(
        root,
        changes,
        "again" if is_again else "none",
        _index(choice, was, is_current=is_current),
        model,
        is_copied,
    )
    for sentence in about_share(share, absent, trained=before.plan.trains):
        log.note(sentence)
    if is_again:
        return None
    return {
        "out": str(root),
        **changes._asdict(),
        "reused": changes.passages - changes.to_encode,
        "new_share": None if share is None else round(share, 4),
        "training": False,
        "index": choice.backend,
        "model": model,
        "is_current": is_current and not is_copied,
    }


def _changes(index: Path, passages: Path, model: str, request: Request, *, is_encoded: bool) -> Changes:
    """Compare the passages with those of the index."""
    documents = changed_documents(index / "passages", passages)
    ids, earlier_ids = ({passage.id for passage in read_passages(p)} for p in (passages, index / "passages"))
    to_encode = 0 if is_encoded else _to_encode(index, passages, model, request)
    return Changes(documents, len(ids), to_encode, len(earlier_ids - ids))


def _to_encode(index: Path, passages: Path, model: str, request: Request) -> int:
    """How many passages have no vectors that an update could reuse; see `qontext encode --reuse`."""
    from qontext.models.retriever import Retriever
    from qontext.retrieve.properties import properties_of
    from qontext.retrieve.reuse import Earlier, text_hashes

    settings: Any = {"max_length": request.read_tokens, "title": request.title}
    retriever = Retriever(model, **settings).of("passage")
    earlier = Earlier(str(index / "vectors"), "passage", properties_of(retriever, "fp32", request.window))
    hashes = text_hashes([p.joined(retriever.titles.between) for p in read_passages(passages)])
    return len(hashes) - int(earlier.knows(hashes).sum())


def _index(choice: Choice, was: Choice, *, is_current: bool) -> str:
    """What happens to the index of the vectors."""
    if is_current:
        return f"{_named(choice)}, unchanged"
    return (
        _named(choice)
        + (f" instead of {_named(was)}" if choice.backend != was.backend else "")
        + ", written again"
    )


def _named(choice: Choice) -> str:
    return "exact search" if choice.is_exact else choice.backend


def _show(root: Path, changes: Changes, training: str, index: str, model: str, is_copied: bool) -> None:
    reused = changes.passages - changes.to_encode
    rows = {
        "documents": shown_changes(changes.documents),
        "passages": f"{changes.passages:,}: {changes.to_encode:,} to encode, {reused:,} with the vectors that they have"
        + (f"; {changes.removed:,} are removed" if changes.removed else ""),
        "training": training,
        "index": f"BM25 and vectors ({index})",
        "encoder": f"{model}, copied to {root / 'model'}" if is_copied else model,
    }
    log.show_table(f"What an update of {root} does (dry run)", rows)
