"""The model card of a pushed model: the folder's own, with license, base model, data and figures in its metadata, and the
files that are uploaded.

Figures are in the metadata as a `model-index`, which the Hub shows beside the model, and as a table in the text. Paths of
this machine become the names of their files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qontext.frame.artifacts import CARD, is_artifact, open_artifact
from qontext.frame.errors import QontextError, first_line
from qontext.frame.files import shown_size

_DEFAULT = "---\ntags: [qontext]\n---\n# {name}\n"
_FOLDER = re.compile(r'(?<=SentenceTransformer\(")[^"]*(?="\))|path/to/this/folder')
_FOLDERS = r"[\w.@+~-]+(?:(?! and/or)(?: [\w.@+~-]+){1,4}(?=/))?"
_PATH = re.compile(rf"(?<![\w:/.<-])(?:~|/{_FOLDERS})(?:/{_FOLDERS})+/?")


@dataclass(frozen=True)
class Figure:
    """A measured figure of the model."""

    dataset: str
    split: str
    measure: str
    value: float
    queries: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def figures_of(directory: Path, scores: Sequence[str]) -> list[Figure]:
    """The figures of `evaluate` directories, and those of the encoder alone that `adapt` measured."""
    from qontext.retrieve.adapted import is_adapted, read_adapted
    from qontext.retrieve.system import System

    figures: list[Figure] = []
    if is_adapted(directory):
        about = read_adapted(directory)
        verdict, system = about.get("verdict") or {}, System.parse(about["system"])
        alone = System(about.get("encoder") or system.encoder or "start").name
        for split, measured in verdict.get("scores", {}).items():
            dataset = f"{'generated' if split == 'generated' else 'real'} questions about its documents"
            figures += [
                Figure(dataset, split, name, float(value), int(verdict["queries"][split]))
                for name, value in measured.get(alone, {}).items()
                if name not in ("low", "high")  # the interval of what people judged
            ]
    for folder in scores:
        artifact = open_artifact(folder, verb="evaluate")
        if artifact.config.get("system"):
            raise QontextError(
                "holds the scores of other systems, not of this model",
                place=folder,
                remedy="Pass the output of 'qontext evaluate' for a run of this model.",
            )
        summary = artifact.summary
        dataset = summary.get("benchmark") or Path(artifact.inputs["qrels"]["path"]).name
        split = str(artifact.config.get("split") or "test")
        figures += [
            Figure(str(dataset), split, name, float(value), int(summary["queries"]))
            for name, value in summary["measures"].items()
        ]
    return figures


def card_of(
    root: Path,
    sizes: Mapping[str, int],
    figures: Sequence[Figure],
    *,
    name: str,
    license: str,
    base_model: str,
    datasets: Sequence[str],
    languages: Sequence[str],
) -> str:
    """The card; `sizes` are those of the files that are uploaded."""
    from huggingface_hub import ModelCard

    file = root / CARD
    text = file.read_text(encoding="utf-8") if file.is_file() else _DEFAULT.format(name=name)
    try:
        card = ModelCard(text, ignore_metadata_errors=False)
    except Exception as error:  # those of the YAML parser, among others
        raise QontextError(f"has metadata that cannot be read: {first_line(error)}", place=file) from None
    card.text = _PATH.sub(lambda path: Path(str(path[0])).name, _FOLDER.sub(name, card.text)).rstrip() + "\n"
    found: dict[str, Any] = {"license": license, "base_model": base_model or base_of(root)}
    found |= {"datasets": list(datasets), "language": list(languages)}
    for key, value in found.items():
        if value:
            setattr(card.data, key, value)
    if figures:
        data: Any = card.data
        data.model_name, data.eval_results = name.rpartition("/")[2], [_result(f) for f in figures]
        card.text += _figures(figures)
    card.text += _files({CARD: 0, **sizes})
    return str(card)


def _result(figure: Figure) -> Any:
    from huggingface_hub import EvalResult

    return EvalResult(
        task_type="text-retrieval",
        task_name="Retrieval",
        dataset_type=re.sub(r"[^a-z0-9]+", "-", figure.dataset.lower()).strip("-"),
        dataset_name=figure.dataset,
        dataset_split=figure.split,
        metric_type=figure.measure.lower().replace("@", "_at_"),
        metric_name=figure.measure,
        metric_value=round(figure.value, 5),
    )


def _figures(figures: Sequence[Figure]) -> str:
    rows = [f"| {f.dataset} | {f.split} | {f.queries:,} | {f.measure} | {f.value:.4f} |" for f in figures]
    return "\n".join(
        ["\n## Figures\n", "| data | split | queries | measure | value |", "|---|---|---|---|---|", *rows, ""]
    )


def _files(sizes: Mapping[str, int]) -> str:
    rows = [f"| {name} | {shown_size(size) if size else ''} |" for name, size in sizes.items()]
    return "\n".join(["\n## Files\n", "| file | size |", "|---|---|", *rows, ""])


def base_of(root: Path) -> str:
    """The Hub name of the model from which training started; empty if none is recorded."""
    from qontext.models.presets import PRESETS
    from qontext.models.reference import HUB_ENCODER, default_encoder

    folder, name, is_named = root, "", False
    for _ in range(20):  # an encoder may be the start of another
        if not is_artifact(folder):
            break
        inputs = open_artifact(folder).inputs
        entry = next((inputs[key] for key in ("encoder", "source", "model") if key in inputs), None)
        if entry is None:
            break
        name, is_named = str(entry["path"]), str(entry["digest"]).startswith("name:")
        folder = Path(name).expanduser()
    if name and name == default_encoder():
        return HUB_ENCODER
    return name.partition("@")[0] if is_named and name not in PRESETS else ""
