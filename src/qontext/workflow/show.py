"""`qontext show`: explain a directory: what made it, from what, with which settings, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from qontext import artifacts, log
from qontext.config import Input, StageConfig
from qontext.errors import QontextError
from qontext.stages import Command


class ShowConfig(StageConfig):
    directory: Annotated[str, Input(positional=True)]
    """A directory that a stage wrote, or one that holds such directories."""

    verify: bool = False
    """Read every file again and compare it with what was written."""


def run(settings: ShowConfig) -> dict[str, Any]:
    path = Path(settings.directory)
    if path.is_dir() and not artifacts.is_artifact(path) and not (path / artifacts.CLAIM).exists():
        return _show_many(path)
    artifact = artifacts.open_artifact(path)
    meta = artifact.meta
    rows = {
        "made by": f"qontext {artifact.verb}, {meta['made']['by']}, Python {meta['made']['python']}",
        "finished": f"{meta['made']['finished']}, after {log.duration(meta['made']['seconds'])}",
        "from": {name: entry["path"] for name, entry in meta["inputs"].items()},
        "settings": artifact.config,
        "result": artifact.summary,
        "files": f"{len(meta['parts'])}, {sum(p['bytes'] for p in meta['parts'].values()):,} bytes",
        "digest": artifact.digest,
    }
    if settings.verify:
        broken = artifact.verify()
        if broken:
            remedy = "Make it again with --overwrite."
            raise QontextError(
                f"changed since it was written: {', '.join(broken)}", place=path, remedy=remedy
            )
        rows["verified"] = "every file is as it was written"
    log.show_table(str(path), rows)
    return {"path": str(path), **meta}


def _show_many(path: Path) -> dict[str, Any]:
    rows = []
    for child in sorted(path.iterdir()):
        if artifacts.is_artifact(child):
            made = artifacts.open_artifact(child)
            first = ", ".join(
                f"{k} {v}" for k, v in list(made.summary.items())[:4] if not isinstance(v, dict)
            )
            rows.append({"directory": child.name, "made by": f"qontext {made.verb}", "result": first})
        elif (child / artifacts.CLAIM).exists():
            rows.append({"directory": child.name, "made by": "not finished", "result": ""})
    if not rows:
        artifacts.open_artifact(path)  # says what is wrong with it
    log.show_rows(str(path), rows)
    return {"path": str(path), "directories": rows}


SHOW = Command(
    verb="show",
    config=ShowConfig,
    run=run,
    examples="""
        qontext show runs/demo
        qontext show runs/demo/split --verify
    """,
)
