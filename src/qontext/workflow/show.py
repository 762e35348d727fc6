"""`qontext show`: describe a directory: command, inputs, settings, and integrity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from qontext.frame import artifacts, computed, log
from qontext.frame.config import Input, StageConfig, existing
from qontext.frame.errors import QontextError
from qontext.frame.stages import Report
from qontext.retrieve.searcher import is_adapted, verify_model
from qontext.workflow.adapted import show_adapted


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
        **({"computed_in": computed.described(meta)} if computed.COMPUTED in meta else {}),
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
    found = [artifacts.open_artifact(meta.parent) for meta in sorted(path.rglob(artifacts.META))]
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


SHOW = Report(
    verb="show",
    config=ShowConfig,
    run=run,
    examples="""
        qontext show runs/mine
        qontext show passages --verify
    """,
)
