"""`qontext show`: describe a directory: command, inputs, settings, and integrity; of a directory of `adapt`, verdict,
results and next steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from qontext.frame import artifacts, log
from qontext.frame.artifacts import open_artifact
from qontext.frame.config import Input, StageConfig, existing
from qontext.frame.errors import QontextError
from qontext.frame.stages import Report
from qontext.models.reference import shown_name
from qontext.retrieve.directory import MODEL, index_of, is_adapted, model_of, read_adapted, verify_model
from qontext.retrieve.system import label_of


class ShowConfig(StageConfig):
    directory: Annotated[str, Input(positional=True)]
    """An output directory of a stage or of `adapt`, or a folder with such directories."""

    verify: bool = False
    """Verify the content of every file."""


def run(settings: ShowConfig) -> dict[str, Any]:
    path = existing(settings.directory, "the directory")
    if settings.verify:
        _verify(path)
    if is_adapted(path):
        return show_adapted(path)
    if path.is_dir() and not artifacts.is_artifact(path) and not (path / artifacts.CLAIM).exists():
        return _show_many(path)
    artifact = artifacts.open_artifact(path)
    meta = artifact.meta
    rows = {
        "made_by": f"qontext {artifact.verb}, {meta['made']['by']}, Python {meta['made']['python']}",
        "finished": f"{meta['made']['finished']}, after {log.duration(meta['made']['seconds'])}",
        "from": {name: entry["path"] for name, entry in meta["inputs"].items()},
        "settings": artifact.config,
        "result": artifact.summary,
        "files": f"{len(meta['parts'])}, {sum(p['bytes'] for p in meta['parts'].values()):,} bytes",
        "digest": artifact.digest,
    }
    log.show_table(str(path), rows)
    return {"path": str(path), **meta}


def _verify(path: Path) -> None:
    """Verify every artifact at and below a path."""
    folders = [meta.parent for meta in sorted(path.rglob(artifacts.META))]
    found = [artifacts.open_artifact(folder) for folder in folders if artifacts.is_artifact(folder)]
    for artifact in found:
        if broken := artifact.verify():
            remedy = "Run its command again with --overwrite."
            raise QontextError(
                f"changed since it was written: {', '.join(broken)}", place=artifact.path, remedy=remedy
            )
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


def show_adapted(root: Path) -> dict[str, Any]:
    """Show the directory, and return its description."""
    about = read_adapted(root)
    verdict = about.get("verdict", {})
    passages = open_artifact(index_of(root) / "passages", verb="split").summary
    sentences = [*verdict.get("sentences", ()), *about.get("searching", {}).get("sentences", ())]
    recommendation, *reasons = sentences or [f"Recommended: {label_of(about['system'])}."]
    log.show_line(recommendation)
    reranker = about.get("reranker")
    rows: dict[str, Any] = {
        "system": label_of(about["system"]),
        "encoder": _model(root, about),
        "cross_encoder": f"of the best {reranker['depth']} passages" if reranker else None,
        "passages": f"{passages['passages']:,} of {passages['documents']:,} documents",
        "labels": shown_labels(about.get("labels", {})),
        "not_read": passages.get("not_read"),
        "skipped": passages.get("skipped"),
    }
    log.show_table(str(root), {name: value for name, value in rows.items() if value})
    show_scores(verdict)
    for reason in reasons:
        log.note(reason)
    log.note(
        f'\nNext: qontext search {root} "a question", and after documents changed, qontext refresh {root}'
    )
    counts = {name: passages[name] for name in ("passages", "documents")}
    return {"path": str(root), **about, **counts}


def _model(root: Path, about: Mapping[str, Any]) -> str:
    """The place of the encoder, or the reason why it cannot be used; nothing of words alone."""
    if "reference" not in about and not (root / about.get("model_folder", MODEL)).exists():
        return ""
    try:
        name = shown_name(model_of(root)) + (" (not changed, so not copied)" if "reference" in about else "")
        return f"{name}, up to {about['read_tokens']} tokens"
    except QontextError as error:
        return str(error)


def shown_labels(judged: Mapping[str, int]) -> str:
    """The use of labeled questions, by split."""
    uses = {"train": "for training", "dev": "for choosing weights", "test": "for evaluation"}
    return ", ".join(f"{judged[split]:,} {use}" for split, use in uses.items() if judged.get(split))


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

    by_split, best = verdict.get("scores", {}), verdict.get("system")
    for split in sorted(by_split, key=lambda split: split == "generated"):
        pairs = [pair for pair in verdict.get("differences", ()) if pair.get("split") == split]
        p = {frozenset((pair["a"], pair["b"])): format_p(float(pair["p"])) for pair in pairs}
        rows = []
        for name, values in by_split[split].items():
            label = label_of(name) + (" (recommended)" if name == best else "")
            rows.append({"system": label, **values, "p": p.get(frozenset((name, best)), "–")})
        count = verdict.get("queries", {}).get(split)
        yield (
            f"On {KINDS.get(split, f'real questions ({split})')}" + (f", n = {count:,}" if count else ""),
            rows,
        )


SHOW = Report(
    verb="show",
    config=ShowConfig,
    run=run,
    examples="""
        qontext show runs/mine
        qontext show passages --verify
    """,
)
