"""The number format of a directory: fixed by the first process that computes, and kept on resume.

`auto` may resolve to another format on another machine. So the resolved format is recorded, with the types of
devices used: in `claim.json` while the directory is being written, in `meta.json` afterwards. A directory
never holds parts or steps of two formats: `auto` resumes in the recorded one. Naming the recorded format is
the same as `auto`, whether the directory is interrupted or finished.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qontext.frame import artifacts, locks, log
from qontext.frame.artifacts import CLAIM, META, Artifact, Workdir

if TYPE_CHECKING:  # listing the verbs does not need pydantic
    from qontext.frame.config import StageConfig

C = TypeVar("C", bound="StageConfig")

COMPUTED = artifacts.COMPUTED


def settle(work: Workdir, setting: str, here: str, device: str) -> str:
    """The format to compute `work` in; recorded with the type of device.

    `here` is what `setting` resolves to on this machine. It applies if nothing is recorded yet; all processes
    that write one directory get the same answer, even on different machines.
    """
    with locks.lock(work.path, "-claim", wait=True):
        described = _described(work.path)
        begun = described.get(COMPUTED)
        precision = str(begun["precision"]) if begun and setting == "auto" else here
        devices = sorted({device, *(begun["devices"] if begun else ())})
        record = {"precision": precision, "devices": devices}
        if record != begun and (work.path / CLAIM).is_file():
            work.write_json(CLAIM, {**described, COMPUTED: record})
    if precision != here:
        log.warn(
            f"Computing in {precision}, the format in which {work.path} was started. The default on this machine is {here}: "
            f"to start over in {here}, remove the directory."
        )
    return precision


def state(path: Path, claim: dict[str, Any]) -> tuple[str, Artifact | None]:
    """The state of `path` for a new `claim`; see `artifacts.state`.

    A directory that `auto` computed in the format of the claim matches the claim.
    """
    status, artifact = artifacts.state(path, claim["key"])
    if artifact is not None and status == "stale" and _names_its_format(claim, artifact.meta):
        return artifacts.state(path, artifact.meta["key"])
    return status, artifact


def resumed(settings: C, claim: dict[str, Any], begun: dict[str, Any]) -> tuple[C, dict[str, Any]]:
    """Settings and claim for finishing an interrupted directory: those it was started with, `auto` included."""
    if precision := begun["config"].get("precision"):
        settings = settings.model_copy(update={"precision": precision})
    return settings, {**claim, **{name: begun[name] for name in ("config", "key", COMPUTED) if name in begun}}


def described(meta: dict[str, Any]) -> str:
    """The number format and devices of a finished directory, as text."""
    computed = meta[COMPUTED]
    return f"{computed['precision']} on {', '.join(computed['devices'])}"


def _names_its_format(claim: dict[str, Any], begun: dict[str, Any]) -> bool:
    precision = claim["config"].get("precision")
    automatic = {**claim, "config": {**claim["config"], "precision": "auto"}}
    is_recorded = precision is not None and begun.get(COMPUTED, {}).get("precision") == precision
    return is_recorded and artifacts.key_of(automatic) == begun["key"]


def _described(path: Path) -> dict[str, Any]:
    """The claim of the directory, or its description if another process has just finished it."""
    description = next((path / name for name in (CLAIM, META) if (path / name).is_file()), None)
    return {} if description is None else artifacts.read_description(description)
