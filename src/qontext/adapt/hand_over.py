"""What is left for use: a model folder, an index of all documents, and how to ask it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from qontext import __version__
from qontext.adapt.plan import Request
from qontext.adapt.verdict import NAMES, Verdict
from qontext.artifacts import CLAIM, META
from qontext.engine.locate import locate

NOT_COPIED = (META, CLAIM, "logs", "checkpoints", "cache", "head.safetensors")


def copy_model(source: str, target: Path) -> None:
    """The encoder's folder, without what only training needs; whole or not there."""
    making = target.with_name(f".{target.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    shutil.copytree(
        locate(source), making, ignore=lambda folder, names: [n for n in names if n in NOT_COPIED]
    )
    shutil.rmtree(target, ignore_errors=True)
    making.rename(target)


def serving_recipe(request: Request, model: Path, reuse: str | None) -> str:
    """The recipe that indexes all documents with the model."""
    split: dict[str, Any] = {"source": request.documents, "on_error": "skip", "tokenizer": str(model)}
    split |= {"keep": True} if request.keep else {"max_tokens": request.max_tokens}
    if not request.keep and request.language != "en":
        split["language"] = request.language
    vectors: dict[str, Any] = {"verb": "encode", "texts": "@passages", "encoder": str(model)}
    vectors["max_length"] = request.read_tokens
    if reuse:
        vectors["reuse"] = reuse
    tables = {
        "passages": {"verb": "split", **split},
        "vectors": vectors,
        "bm25": {"verb": "index", "source": "@passages", "backend": "bm25"},
    }
    lines = ["# Written by `qontext adapt`: the index that is searched.", ""]
    lines += ["[recipe]", f"title = {json.dumps('Index ' + request.documents)}", ""]
    for name, settings in tables.items():
        lines += [
            f"[{name}]",
            *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()),
            "",
        ]
    return "\n".join(lines)


def model_card(request: Request, verdict: Verdict, root: Path) -> str:
    """README.md of the model folder."""
    rows = [
        f"| {NAMES[name]} | " + " | ".join(f"{scores[m]:.3f}" for m in scores) + " |"
        for name, scores in verdict.scores[verdict.split].items()
    ]
    measures = list(next(iter(verdict.scores[verdict.split].values())))
    is_hub_name = "/" in request.encoder and not Path(request.encoder).exists()
    base = [f"base_model: {request.encoder}"] if is_hub_name else []
    kind = "adapted to" if verdict.encoder == "adapted" else "kept as it came for"
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
            f"Measured on {'real' if verdict.split != 'generated' else 'generated'} questions:",
            "",
            "| system | " + " | ".join(measures) + " |",
            "|---" * (len(measures) + 1) + "|",
            *rows,
            "",
            f"Made by `qontext adapt` {__version__}. The recipe stands beside this folder, in `recipe.toml`.",
            "",
            "```python",
            "from sentence_transformers import SentenceTransformer",
            "",
            f'model = SentenceTransformer("{root.name}/model")',
            "```",
            "",
        ]
    )
