"""The model folder that `adapt` writes, with its card."""

from __future__ import annotations

import shutil
from pathlib import Path

from qontext import __version__
from qontext.adapt.request import Request
from qontext.adapt.verdict import Verdict
from qontext.frame.artifacts import CARD, CLAIM, META, Workdir
from qontext.models.locate import locate
from qontext.retrieve.searcher import SYSTEMS as NAMES

NOT_COPIED = (META, CLAIM, "logs", "checkpoints", "cache", "head.safetensors")


def copy_model(source: str, work: Workdir, card: str) -> None:
    """Copy the encoder's folder, without files only needed for training, to the folder `model`, with this
    card; atomic."""
    with work.write_folder("model") as folder:
        shutil.copytree(
            locate(source),
            folder,
            ignore=lambda folder, names: [name for name in names if name in NOT_COPIED],
            dirs_exist_ok=True,
        )
        (folder / CARD).write_text(card, encoding="utf-8")


def model_card(request: Request, verdict: Verdict, root: Path) -> str:
    """README.md of the model folder."""
    rows = [
        f"| {NAMES[name]} | " + " | ".join(f"{scores[m]:.3f}" for m in scores) + " |"
        for name, scores in verdict.scores[verdict.split].items()
    ]
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
            *verdict.sentences,
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
