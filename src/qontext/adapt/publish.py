"""The searchable parts of a finished directory: the encoder that `adapt` recommends, as a model folder with its card or as a
reference to a model that was not changed, and the index of all documents. When documents change, another index is built
beside it, with the vectors of unchanged ones.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qontext import __version__
from qontext.adapt.config import AdaptConfig, Request
from qontext.adapt.recipes import serving_recipe
from qontext.adapt.vector_index import Choice
from qontext.adapt.verdict import Verdict
from qontext.frame import artifacts, trust
from qontext.frame.artifacts import CARD, Workdir
from qontext.frame.errors import QontextError
from qontext.frame.files import is_own_directory, make_own_directory
from qontext.models.folder import locate
from qontext.models.reference import TRAINING_ONLY, Reference, model_digest, refer, resolve, shown_name
from qontext.retrieve.directory import (
    DENSE,
    INDEX,
    MODEL,
    RERANKER,
    copied_model,
    generations,
    index_of,
    is_adapted,
    next_generation,
)
from qontext.retrieve.system import WEIGHTS, System, label_of
from qontext.workflow.recipe import Recipe, read_recipe
from qontext.workflow.run import plan, run_recipe

FILE = "index.toml"


def make_index(
    request: Request,
    model: str | None,
    root: Path,
    reuse: Mapping[str, str],
    choice: Choice | None,
    on: str,
    *,
    tokens: bool,
) -> tuple[Path, list[dict[str, Any]]]:
    """Build the index with this encoder, unless it is up to date; returns its folder and the steps that ran. `reuse`
    names what was encoded earlier. With `tokens`, it has their bits; without a model, only an index of words.

    An index that is searched stays as it is: the other one is built beside it, and `adapted.json`, which is written
    afterwards, names it. Without a choice, the directory keeps the index of its vectors.
    """
    now = _current(root)
    choice = choice or chosen(root)
    folder = root / INDEX
    if now is not None:
        recipe = recipe_of(request, model, root, reuse, choice, tokens=tokens)
        states = {step.name: state for step, state, _ in plan(recipe, now)}
        if all(state == "done" for state in states.values()) and not _others(now, recipe):
            return now, []
        folder = next_generation(now)
        make_own_directory(folder)
        _take_over(now, folder, [name for name, state in states.items() if state == "done" and name != DENSE])
        reuse = {**reuse, **_encoded(now, reuse)}
    make_own_directory(folder)
    recipe = recipe_of(request, model, root, reuse, choice, tokens=tokens)
    Workdir(folder).write_text(FILE, recipe.dump())
    for other in _others(folder, recipe):
        shutil.rmtree(other)
    # These are this directory's own, though not in the recipe's folder. As paths: a name from a file may read like that of
    # code. A server that it names is asked about.
    trust.give([Path(place).absolute() for place in (model, *reuse.values()) if place is not None])
    try:
        return folder, run_recipe(read_recipe(str(folder / FILE)), folder, on=on)
    except (QontextError, OSError):
        if not any(child.is_dir() for child in folder.iterdir()):  # otherwise it resumes
            shutil.rmtree(folder)
        raise


def _current(root: Path) -> Path | None:
    """The folder of the index that is searched."""
    return index_of(root) if is_adapted(root) else None


def _copy_of(source: str, root: Path, name: str) -> Path | None:
    """The folder that is a copy of this model."""
    folders = generations(root, name)
    digest = model_digest(locate(source).root) if folders else ""
    return next((folder for folder in folders if model_digest(folder) == digest), None)


def _new_folder(root: Path, name: str) -> Path:
    """The folder for another copy: what is searched with stays as it is until `adapted.json` names the other one."""
    folders = generations(root, name)
    return next_generation(folders[-1]) if folders else root / name


def _others(folder: Path, recipe: Recipe) -> list[Path]:
    """The folders in it that are no steps of the recipe: what an earlier choice needed."""
    steps = {step.name for step in recipe.steps}
    return [child for child in folder.iterdir() if is_own_directory(child) and child.name not in steps]


def _take_over(now: Path, folder: Path, names: list[str]) -> None:
    """Steps that stay as they are become parts of both indexes, on the same bytes of the disk where it can."""
    work = Workdir(folder)
    work.sweep(deep=False)
    for name in names:
        if not artifacts.is_artifact(folder / name):
            with work.write_folder(name) as copy:
                shutil.copytree(
                    now / name,
                    copy,
                    ignore=shutil.ignore_patterns(".*"),
                    copy_function=_link,
                    dirs_exist_ok=True,
                )


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def chosen(root: Path) -> Choice:
    """The index of this directory's vectors, or the vectors themselves."""
    places = ((_current(root) or root / INDEX) / FILE, root / FILE)
    file = next((place for place in places if place.exists()), None)
    for step in read_recipe(str(file)).steps if file else ():
        if step.name == DENSE:
            return Choice.of_step(step.settings)
    return Choice("exact", {})


def _encoded(index: Path, measured: Mapping[str, str]) -> dict[str, str]:
    """The vectors of an index that can be reused, unless those that were `measured` are of another encoder."""
    vectors = index / "vectors"
    if not artifacts.is_artifact(vectors):
        return {}
    folders = [vectors, *(Path(folder) for folder in measured.values() if artifacts.is_artifact(folder))]
    encoders = {artifacts.open_artifact(folder).summary.get("weights") for folder in folders}
    return {"vectors": str(vectors)} if len(encoders) == 1 else {}


def recipe_of(
    request: Request, model: str | None, root: Path, reuse: Mapping[str, str], choice: Choice, *, tokens: bool
) -> Recipe:
    """The recipe of the index, as it is written."""
    dense = None if choice.is_exact else choice.settings(_current(root))
    return serving_recipe(request, model, reuse, dense, tokens=tokens)


def publish_copy(
    source: str, work: Workdir, name: str, card: str | None = None, *, copied: bool
) -> dict[str, Any]:
    """Copy a model to the folder of this name, or refer to it: its entries in `adapted.json`. A copy that is there is kept,
    with this card. Another copy, which is searched with, is left alone."""
    folder = _copy_of(source, work.path, name)
    if folder is None and not copied:
        return {"reference": refer(source, work.path)}
    if folder is None:
        folder = _new_folder(work.path, name)
        with work.write_folder(folder.name) as copy:
            ignored = shutil.ignore_patterns(*TRAINING_ONLY)
            shutil.copytree(locate(source).root, copy, ignore=ignored, dirs_exist_ok=True)
    if card is not None:
        work.write_text(f"{folder.name}/{CARD}", card)
    digest = {"model_digest" if name == MODEL else "digest": model_digest(folder)}
    return digest if folder.name == name else {**digest, "model_folder": folder.name}


def place_of(entry: Mapping[str, Any], root: Path, name: str, copy: str | None) -> str:
    """The model of these entries; `copy` names the one that they refer to where it is now."""
    reference: Reference | None = entry.get("reference")
    if reference is None:
        return str(copied_model(entry, root, name))
    is_there = copy is not None and ("beside" not in reference or Path(copy).exists())
    return resolve(
        reference, root, copy if is_there else None, "encoder" if name == MODEL else "cross-encoder"
    )


def published_again(
    about: Mapping[str, Any], config: AdaptConfig, work: Workdir, card: str
) -> dict[str, Any]:
    """The content of `adapted.json` of a finished directory with the models that it refers to copied, if that is wanted, or
    referred to where they are now."""
    result = dict(about)
    if "reference" in about:
        source = place_of(about, work.path, MODEL, config.start)
        del result["reference"]
        result |= publish_copy(source, work, MODEL, card, copied=config.copy_model)
    last = about.get("reranker", {})
    if "reference" in last:
        source = place_of(last, work.path, RERANKER, config.reranker)
        how = {name: last[name] for name in ("depth", "weight")}
        result["reranker"] = {**how, **publish_copy(source, work, RERANKER, copied=config.copy_model)}
    return result


def weights(steps: Path, verdict: Verdict) -> dict[str, Any]:
    """The weights of the recommended system's parts."""
    system = System.parse(verdict.system)
    if not (system.words and system.encoder):
        return {"weights": [*WEIGHTS]}
    without = replace(system, reranked=False)
    by_tokens = {"token_weight": _fused(steps, without, verdict)[1]} if system.tokens else {}
    return {"weights": _fused(steps, replace(without, tokens=False), verdict), **by_tokens}


def last_stage(
    reranker: str | None, depth: int, steps: Path, verdict: Verdict, work: Workdir, *, copied: bool
) -> dict[str, Any]:
    """The cross-encoder of the recommended system, if it has one."""
    system = System.parse(verdict.system)
    if reranker is None or not system.reranked:
        return {}
    how = {"depth": depth, "weight": _fused(steps, system, verdict)[1]}
    return {"reranker": {**how, **publish_copy(reranker, work, RERANKER, copied=copied)}}


def _fused(steps: Path, system: System, verdict: Verdict) -> list[float]:
    """The weights of the last fusion of a system."""
    fusion = artifacts.open_artifact(steps / f"{system.name}-{verdict.asked_split}")
    weights: list[float] = fusion.summary["weights"]
    return weights


def model_card(request: Request, verdict: Verdict, root: Path) -> str:
    """README.md of the model folder."""
    rows = [
        f"| {_marked(name, verdict.system)} | " + " | ".join(f"{scores[m]:.3f}" for m in scores) + " |"
        for name, scores in verdict.scores[verdict.split].items()
    ]
    recommendation, *reasons = verdict.sentences
    measures = list(next(iter(verdict.scores[verdict.split].values())))
    is_hub_name = "/" in request.encoder and not Path(request.encoder).exists()
    base = [f"base_model: {shown_name(request.encoder)}"] if is_hub_name else []
    kind = "adapted to" if verdict.encoder == "adapted" else "not changed, for"
    return "\n".join(
        [
            "---",
            "library_name: sentence-transformers",
            "pipeline_tag: sentence-similarity",
            *base,
            "---",
            f"# A retriever {kind} {Path(request.documents).name or request.documents}",
            "",
            f"**{recommendation}**",
            "",
            *(f"- {reason}" for reason in reasons),
            "",
            f"Evaluated on {'real' if verdict.split != 'generated' else 'generated'} questions:",
            "",
            "| system | " + " | ".join(measures) + " |",
            "|---" * (len(measures) + 1) + "|",
            *rows,
            "",
            f"Created by `qontext adapt` {__version__}. The recipe is beside this folder, in `recipe.toml`.",
            "",
            "```python",
            "from sentence_transformers import SentenceTransformer",
            "",
            f'model = SentenceTransformer("{root.name}/model")',
            "```",
            "",
        ]
    )


def _marked(name: str, recommended: str) -> str:
    return f"**{label_of(name)} (recommended)**" if name == recommended else label_of(name)
