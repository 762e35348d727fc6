"""The encoder that `adapt` recommends: a model folder with its card, or a reference to a model that was not changed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from qontext import __version__
from qontext.adapt.request import Request
from qontext.adapt.verdict import Verdict
from qontext.frame.artifacts import CARD, Workdir
from qontext.models.folder import locate
from qontext.models.reference import TRAINING_ONLY, Reference, model_digest, refer, resolve
from qontext.retrieve.searcher import MODEL
from qontext.retrieve.system import label_of


def hand_over(source: str, work: Workdir, card: str, *, copied: bool) -> tuple[str, Reference | None]:
    """Copy the encoder to the folder `model`, or refer to it: its name from now on, and the reference. A copy that is
    already there is kept up to date."""
    if is_copied(source, work.path):
        work.write_text(f"{MODEL}/{CARD}", card)
    elif copied:
        copy_model(source, work, card)
    else:
        return source, refer(source, work.path)
    return str(work.path / MODEL), None


def hand_over_again(
    encoder: str | None, reference: Reference | None, work: Workdir, card: str, *, copied: bool
) -> tuple[str, Reference | None]:
    """The same for a finished directory; `encoder` names it where it is now."""
    model = current(encoder, reference, work.path)
    return (model, None) if reference is None else hand_over(model, work, card, copied=copied)


def recorded(root: Path, reference: Reference | None) -> dict[str, Any]:
    """What `adapted.json` says about the encoder: the reference, or the hash of the folder `model`."""
    return {"reference": reference} if reference else {"model_digest": model_digest(root / MODEL)}


def current(encoder: str | None, reference: Reference | None, root: Path) -> str:
    """The encoder of a finished directory."""
    if reference is None:
        return str(root / MODEL)
    is_there = encoder is not None and ("beside" not in reference or Path(encoder).exists())
    return resolve(reference, root, encoder if is_there else None)


def is_copied(source: str, root: Path) -> bool:
    """Whether the folder `model` is a copy of this encoder."""
    folder = root / MODEL
    return folder.is_dir() and model_digest(folder) == model_digest(locate(source).root)


def remove_copy(root: Path, reference: Reference | None) -> None:
    """Remove the folder of an earlier encoder, once the directory refers to another one."""
    if reference is not None:
        shutil.rmtree(root / MODEL, ignore_errors=True)


def copy_model(source: str, work: Workdir, card: str) -> None:
    """Copy the encoder's folder, without files only needed for training, to the folder `model`, with this
    card; atomic."""
    with work.write_folder(MODEL) as folder:
        shutil.copytree(
            locate(source).root,
            folder,
            ignore=lambda folder, names: [name for name in names if name in TRAINING_ONLY],
            dirs_exist_ok=True,
        )
        (folder / CARD).write_text(card, encoding="utf-8")


def model_card(request: Request, verdict: Verdict, root: Path) -> str:
    """README.md of the model folder."""
    rows = [
        f"| {_marked(name, verdict.system)} | " + " | ".join(f"{scores[m]:.3f}" for m in scores) + " |"
        for name, scores in verdict.scores[verdict.split].items()
    ]
    recommendation, *reasons = verdict.sentences
    measures = list(next(iter(verdict.scores[verdict.split].values())))
    is_hub_name = "/" in request.encoder and not Path(request.encoder).exists()
    base = [f"base_model: {request.encoder}"] if is_hub_name else []
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
