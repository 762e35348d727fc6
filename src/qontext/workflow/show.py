"""`qontext show`: describe a directory: command, inputs, settings, and integrity; of a directory of `adapt`, verdict,
results, contents and next steps."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from qontext.frame import artifacts, log
from qontext.frame.artifacts import open_artifact
from qontext.frame.config import Input, StageConfig, existing
from qontext.frame.errors import QontextError
from qontext.frame.files import shown_size
from qontext.frame.stages import Report
from qontext.models.reference import shown_name
from qontext.retrieve.directory import (
    ADAPTED,
    INDEX,
    MODEL,
    PLAN,
    index_of,
    is_adapted,
    model_of,
    read_adapted,
    reranker_of,
    verify_model,
)
from qontext.retrieve.system import label_of


class ShowConfig(StageConfig):
    directory: Annotated[str, Input(positional=True)]
    """An output directory of a stage or of `adapt`, or a folder with such directories."""

    verify: bool = False
    """Verify the content of every file."""


def run(settings: ShowConfig) -> dict[str, Any]:
    path = existing(settings.directory, "the directory")
    if is_adapted(path) or (
        path.is_dir() and not artifacts.is_artifact(path) and not (path / artifacts.CLAIM).exists()
    ):
        if settings.verify:
            _verify_below(path)
        return show_adapted(path) if is_adapted(path) else _show_many(path)
    artifact = artifacts.open_artifact(path)
    meta = artifact.meta
    rows = {
        "made_by": f"qontext {artifact.verb}, {meta['made']['by']}, Python {meta['made']['python']}",
        "finished": f"{meta['made']['finished']}, after {log.duration(meta['made']['seconds'])}",
        "from": {name: entry["path"] for name, entry in meta["inputs"].items()},
        "settings": artifact.config,
        **({"computed_in": meta[artifacts.COMPUTED]} if artifacts.COMPUTED in meta else {}),
        "result": artifact.summary,
        "files": f"{len(meta['parts'])}, {sum(p['bytes'] for p in meta['parts'].values()):,} bytes",
        "digest": artifact.digest,
    }
    if settings.verify:
        _verify(artifact)
        rows["verified"] = "no file has changed since it was written"
    log.show_table(str(path), rows)
    return {"path": str(path), **meta}


def _verify(artifact: artifacts.Artifact) -> None:
    if broken := artifact.verify():
        remedy = "Run its command again with --overwrite."
        raise QontextError(
            f"changed since it was written: {', '.join(broken)}", place=artifact.path, remedy=remedy
        )


def _verify_below(path: Path) -> None:
    """Verify every artifact of a folder, and of the folders in it."""
    folders = [meta.parent for meta in sorted(path.rglob(artifacts.META))]
    found = [artifacts.open_artifact(folder) for folder in folders if artifacts.is_artifact(folder)]
    for artifact in found:
        _verify(artifact)
    if is_adapted(path):
        verify_model(path)
    log.note(f"{path}: verified {len(found)} directories; no file has changed since it was written.")


def _show_many(path: Path) -> dict[str, Any]:
    rows = []
    for child in sorted(path.iterdir()):
        if artifacts.is_artifact(child):
            artifact = artifacts.open_artifact(child)
            first = ", ".join(
                f"{k} {v}" for k, v in list(artifact.summary.items())[:4] if not isinstance(v, dict)
            )
            rows.append({"directory": child.name, "made_by": f"qontext {artifact.verb}", "result": first})
        elif (child / artifacts.CLAIM).exists():
            rows.append({"directory": child.name, "made_by": "not finished", "result": ""})
    if not rows:
        raise QontextError(
            "contains no output of qontext",
            place=path,
            remedy="Pass the --out of a command, or a folder with such directories.",
        )
    log.show_rows(str(path), rows)
    return {"path": str(path), "directories": rows}


FOLDERS = {
    "model": "a copy of the encoder; needed for search and updates",
    "reranker": "a copy of the cross-encoder; needed for search and updates",
    "index": "passages, vectors and BM25; needed for search and updates",
    "report": "the results as a page; can be deleted",
    "steps": "the steps of training; only needed to train again; can be deleted ('qontext clean')",
    "documents": "passages and questions from package documentation; can be deleted: an update creates them again",
}
"""Folder → its purpose."""


def show_adapted(root: Path) -> dict[str, Any]:
    """Show the directory, and return its description."""
    about = read_adapted(root)
    verdict = about.get("verdict", {})
    index = index_of(root)
    passages = _passages(index / "passages")
    places = {name: index if name == INDEX else root / name for name in FOLDERS}
    folders = {name: size_of(place) for name, place in places.items() if place.is_dir()}
    is_planned = (root / PLAN).is_file()  # not a saved searcher
    age = max(0.0, time.time() - (root / ADAPTED).stat().st_mtime)  # a clock may have been set back
    sentences = [str(sentence) for sentence in verdict.get("sentences", ())]
    sentences += map(str, about.get("searching", {}).get("sentences", ()))
    recommendation, *reasons = sentences or [f"Recommended: {label_of(about['system'])}."]
    log.show_line(recommendation)
    rows: dict[str, Any] = {
        "system": label_of(about["system"]),
        "encoder": _model(root, about),
        "cross_encoder": _reranker(root, about),
        "passages": f"{passages['passages']:,} of {passages['documents']:,} documents",
        "labels": shown_labels(about.get("labels", {})),
        "not_read": passages.get("not_read"),
        "skipped": passages.get("skipped"),
        "age": _age(age),
    }
    log.show_table(str(root), {name: value for name, value in rows.items() if value})
    show_scores(verdict)
    for reason in reasons:
        log.note(reason)
    sizes = [
        {"folder": places[name].name, "size": shown_size(size), "use": FOLDERS[name]}
        for name, size in folders.items()
    ]
    log.show_rows("Folders", sizes)
    log.note(
        "\nNext steps:\n"
        f'  qontext search {root} "a question"   or without a question for a prompt\n'
        + (
            "  the same 'qontext adapt' again after documents changed: updates the index"
            if is_planned
            else ""
        )
    )
    return {
        "path": str(root),
        **about,
        "passages": passages["passages"],
        "documents": passages["documents"],
        "age_seconds": round(age),
        "bytes": folders,
    }


def _model(root: Path, about: Mapping[str, Any]) -> str:
    """The place of the encoder, or the reason why it cannot be used; nothing of BM25 alone that was saved without one."""
    if label_of(about["system"]) == "BM25" and "reference" not in about and not (root / MODEL).exists():
        return ""
    try:
        name = shown_name(model_of(root)) + (" (not changed, so not copied)" if "reference" in about else "")
        return f"{name}, up to {about['read_tokens']} tokens"
    except QontextError as error:
        return _missing(error)


def _reranker(root: Path, about: Mapping[str, Any]) -> str:
    """The place of the cross-encoder, if there is one, or the reason why it cannot be used."""
    if "reranker" not in about:
        return ""
    try:
        return f"{shown_name(reranker_of(root))}, of the best {about['reranker']['depth']} passages"
    except QontextError as error:
        return _missing(error)


def _missing(error: QontextError) -> str:
    return f"{error.message} ({error.remedy})" if error.remedy else error.message


def shown_labels(judged: Mapping[str, int]) -> str:
    """The use of labeled questions, by split."""
    uses = {"train": "for training", "dev": "for choosing weights", "test": "for evaluation"}
    return ", ".join(f"{judged[split]:,} {use}" for split, use in uses.items() if judged.get(split))


def _passages(folder: Path) -> Mapping[str, Any]:
    """The numbers of passages and documents. `Searcher.save` writes the passages alone."""
    if artifacts.is_artifact(folder):
        return open_artifact(folder, verb="split").summary
    from qontext.data.collection import read_passages

    documents = [passage.doc for passage in read_passages(folder)]
    return {"passages": len(documents), "documents": len({*documents})}


KINDS = {"generated": "generated questions", "judged": "questions judged by people, corrected by them"}
"""Split → its questions."""


def show_scores(verdict: Mapping[str, Any]) -> None:
    """Print the tables of all systems."""
    tables = list(score_tables(verdict))
    for title, rows in tables:
        log.show_rows(title, rows)
    if tables:
        log.note(
            "p: nDCG@10 against the recommended system (paired randomization test, Holm-corrected over the pairs)."
        )


def score_tables(verdict: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(title, rows) of a table of all systems for every split, real questions first, with n and p."""
    from qontext.evaluation.comparison import format_p

    by_split = verdict.get("scores", {})
    for split in sorted(by_split, key=lambda split: split == "generated"):
        kind = KINDS.get(split, f"real questions ({split})")
        count = verdict.get("queries", {}).get(split)
        rows = []
        for name, values in by_split[split].items():
            p = _p_from(verdict, split, name)
            label = label_of(name) + (" (recommended)" if name == verdict.get("system") else "")
            rows.append({"system": label, **values, "p": "–" if p is None else format_p(p)})
        yield f"On {kind}" + (f", n = {count:,}" if count else ""), rows


def _p_from(verdict: Mapping[str, Any], split: str, name: str) -> float | None:
    """The p of the difference between a system and the recommended one."""
    both = {name, verdict.get("system")}
    pairs = (pair for pair in verdict.get("differences", ()) if pair.get("split") == split)
    return next((float(pair["p"]) for pair in pairs if {pair["a"], pair["b"]} == both), None)


def size_of(folder: Path) -> int:
    """The bytes of all files below a folder."""
    total = 0
    for place, _, files in os.walk(folder):
        total += sum(os.lstat(Path(place) / name).st_size for name in files)
    return total


def _age(seconds: float) -> str:
    """90,000 → '1 day'."""
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "less than a minute"


SHOW = Report(
    verb="show",
    config=ShowConfig,
    run=run,
    examples="""
        qontext show runs/mine
        qontext show passages --verify
    """,
)
