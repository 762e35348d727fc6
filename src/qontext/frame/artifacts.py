"""The directory that a stage writes: parts first, then `meta.json`, each complete or absent.

A stage's directory goes through three states:

1. ``claim.json`` describes what is being written: the verb, the configuration, the inputs' fingerprints.
2. Parts appear one by one. Each is written under a temporary name, flushed to disk and renamed, so a part
   that exists is complete. A killed stage keeps its finished parts and resumes after them.
3. ``meta.json`` comes last and makes the directory an *artifact*: finished, described, fingerprinted.

The fingerprint (`digest`) of an artifact is the hash of its parts' contents. Downstream artifacts record that
digest, so they notice a change upstream, but not a re-run that produced the same bytes.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, NotRequired

from annotated_types import Ge
from typing_extensions import TypedDict

import qontext
from qontext.frame import locks, machine, process
from qontext.frame.errors import QontextError
from qontext.frame.files import CLAIM as CLAIM
from qontext.frame.files import META as META
from qontext.frame.files import (
    damaged,
    file_hash,
    is_of_others,
    json_digest,
    make_directory,
    misfit,
    raise_disk_error,
    read_json,
)
from qontext.frame.workdir import TEMPORARY as TEMPORARY
from qontext.frame.workdir import Workdir as Workdir
from qontext.frame.workdir import discard

LOGS = "logs/"
"""Parts in this folder are logs (times, speeds, curves). They are not part of the digest."""
DERIVED = "derived/"
"""Parts in this folder are computed from other parts, to save readers the time. They are not part of the digest."""
CARD = "README.md"
"""A model card reports paths and losses. It is not part of the digest, either."""
COMPUTED = "computed"
"""The key in claim and description for the number format in which the directory is computed; see `settle`."""
REMADE = "Remove the directory and run its command again."


class InputEntry(TypedDict):
    """An input: its path or name as passed, its fingerprint, and its path relative to the artifact."""

    path: str
    digest: str
    beside: NotRequired[str]


class PartEntry(TypedDict):
    bytes: Annotated[int, Ge(0)]
    hash: str


class ClaimShape(TypedDict):
    verb: str
    key: str
    config: dict[str, Any]
    inputs: dict[str, InputEntry]
    launch: NotRequired[str | None]
    computed: NotRequired[str]


class MetaShape(ClaimShape):
    digest: str
    summary: dict[str, Any]
    parts: dict[str, PartEntry]
    made: dict[str, Any]


class Values(dict[str, Any]):
    """Named values of a description. A missing name is reported as damage, not as a KeyError."""

    def __init__(self, values: Any, section: str, file: Path) -> None:
        super().__init__(values)
        self.section, self.file = section, file

    def __missing__(self, name: str) -> Any:
        raise QontextError(f"damaged: its {self.section} has no {name!r}", place=self.file, remedy=REMADE)

    def take(self, name: str, kind: Any) -> Any:
        """The value, validated as the type, such as ``list[float]``."""
        if complaint := misfit(self[name], kind):
            what = f"its {self.section}'s {name!r} is {str(self[name])[:40]!r}"
            raise QontextError(f"damaged: {what} ({complaint})", place=self.file, remedy=REMADE)
        return self[name]


@dataclass(frozen=True)
class Artifact:
    """A finished directory and its `meta.json`."""

    path: Path
    meta: dict[str, Any]

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        """The verb, the path and the first three figures of the summary."""
        figures = [
            f"{name}={value}"
            for name, value in self.meta.get("summary", {}).items()
            if isinstance(value, int | float)
        ]
        return f"Artifact({', '.join([self.verb, repr(str(self.path)), *figures[:3]])})"

    @property
    def verb(self) -> str:
        return str(self.meta["verb"])

    @property
    def digest(self) -> str:
        return str(self.meta["digest"])

    @property
    def summary(self) -> Values:
        """The stage's summary: counts, speeds, scores."""
        return Values(self.meta["summary"], "summary", self.path / META)

    @property
    def config(self) -> Values:
        return Values(self.meta["config"], "config", self.path / META)

    @property
    def inputs(self) -> Values:
        """The inputs by name, each with `path` and `digest`; `inputs.find` returns where an input is now."""
        return Values(self.meta["inputs"], "inputs", self.path / META)

    def parts(self, suffix: str = "") -> list[Path]:
        """The paths of the parts, in order, that end with `suffix`; their sizes are as they were written."""
        parts = {name: part for name, part in self.meta["parts"].items() if name.endswith(suffix)}
        for name, part in parts.items():
            self._check(name, part)
        return [self.path / name for name in parts]

    def part(self, name: str) -> Path:
        """The path of one part."""
        if name not in self.meta["parts"]:
            raise QontextError(f"damaged: its parts lack {name!r}", place=self.path / META, remedy=REMADE)
        self._check(name, self.meta["parts"][name])
        return self.path / name

    def _check(self, name: str, part: dict[str, Any]) -> None:
        path = self.path / name
        if not path.is_file():
            raise QontextError(
                f"its file {name} is missing",
                place=self.path,
                remedy="Restore it, or remove the directory and run its command again.",
            )
        size = path.stat().st_size
        if size != part["bytes"] and not _is_report(name):
            raise damaged(path, f"it has {size:,} bytes, expected {part['bytes']:,}")

    def is_damaged(self) -> bool:
        """Return True if the content of any part differs from what the stage wrote; reads all parts."""
        return any(not _is_report(name) for name in self.verify())

    def verify(self) -> list[str]:
        """The parts whose bytes differ from what the stage wrote."""
        return [
            name
            for name, part in self.meta["parts"].items()
            if not (self.path / name).is_file() or file_hash(self.path / name) != part["hash"]
        ]


def open_artifact(path: Path | str, *, verb: str | None = None) -> Artifact:
    """The finished artifact at `path`; `verb` is the stage that must have written it."""
    directory = Path(path)
    meta_path = directory / META
    if not directory.is_dir():
        raise QontextError("no such directory", place=directory)
    if not is_artifact(directory):
        if (directory / CLAIM).is_file():
            maker = read_description(directory / CLAIM)["verb"]
            raise QontextError(
                f"this {maker!r} directory is not finished",
                place=directory,
                remedy="Run the interrupted command again: it resumes.",
            )
        found = f"its {META} is another program's" if meta_path.is_file() else f"it has no {META}"
        raise QontextError(f"not a Qontext directory: {found}", place=directory)
    artifact = Artifact(directory, read_description(meta_path))
    if verb is not None and artifact.verb != verb:
        raise QontextError(
            f"expected the output of 'qontext {verb}', found that of 'qontext {artifact.verb}'",
            place=directory,
        )
    return artifact


def is_artifact(path: Path | str) -> bool:
    return (Path(path) / META).is_file() and not is_of_others(Path(path) / META)


def state(path: Path, key: str) -> tuple[str, Artifact | None]:
    """The state of `path` for a stage with this key: 'absent', 'done', 'interrupted', 'stale' or 'foreign'."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return "absent", None
    # The process that finishes it removes the claim, once the description is there.
    for name, if_same in ((META, "done"), (CLAIM, "interrupted"), (META, "done")):
        if (description := _described(path / name)) is not None:
            return (if_same if description["key"] == key else "stale"), Artifact(path, description)
    if path.is_dir() and all(p.name.startswith((".lock", TEMPORARY)) for p in path.iterdir()):
        return "absent", None
    return "foreign", None


def _described(file: Path) -> dict[str, Any] | None:
    """The description in the file; None if there is no such file, or it was removed just now."""
    try:
        return read_description(file) if file.is_file() and not is_of_others(file) else None
    except QontextError:
        if file.is_file():
            raise
        return None


def differences(old_meta: dict[str, Any], claim: dict[str, Any]) -> str:
    """A description of the differences between an existing directory's claim and the new one."""
    if old_meta["verb"] != claim["verb"]:
        return f"it was written by 'qontext {old_meta['verb']}'"
    changes = []
    for name in sorted(old_meta["config"].keys() | claim["config"].keys()):
        old, new = old_meta["config"].get(name), claim["config"].get(name)
        if old != new:
            changes.append(f"{name} was {old!r} and is now {new!r}")
    for name in sorted(old_meta["inputs"].keys() | claim["inputs"].keys()):
        old, new = old_meta["inputs"].get(name, {}), claim["inputs"].get(name, {})
        if old.get("digest") != new.get("digest"):
            changes.append(
                f"the content of {name} ({new.get('path')}) changed"
                if old.get("path") == new.get("path")
                else f"{name} was {old.get('path')} and is now {new.get('path')}"
            )
    if old_meta.get("format") != claim.get("format"):
        changes.append(
            f"it was written in format {old_meta.get('format')}, this version writes {claim.get('format')}"
        )
    return "; ".join(changes) or "its key differs"


def key_of(claim: dict[str, Any]) -> str:
    """The identity of a run: verb, format, settings and the contents of the inputs."""
    same = {
        "verb": claim["verb"],
        "format": claim["format"],
        "config": claim["config"],
        "inputs": {name: entry["digest"] for name, entry in claim["inputs"].items()},
    }
    return json_digest(same)


def open_root(path: Path) -> Workdir:
    """Open the directory of a pipeline, which holds the output directories of several stages.

    It is created if absent. Every rank writes under temporary names of its own, and removes those of a killed
    pipeline.
    """
    make_directory(path)
    work = Workdir(path, str(process.rank()), process.rank(), process.world())
    try:
        is_single = any((path / name).is_file() for name in (META, CLAIM))
        work.sweep(deep=False)
    except OSError as error:
        raise_disk_error(error, path, anyway=True)
    if is_single:
        raise QontextError(
            "the output directory holds the output of a single stage; this command writes several",
            place=path,
            remedy="Choose another --out.",
        )
    return work


def begin(path: Path, claim: dict[str, Any], writer: str = "0", *, rank: int = 0, world: int = 1) -> Workdir:
    """Claim the directory (absent, interrupted or emptied before) and remove this writer's old temporary files."""
    make_directory(path)
    work = Workdir(path, writer, rank, world)
    work.sweep()
    work.write_json(CLAIM, claim)
    return work


def abandon(work: Workdir) -> None:
    """Clean up after an error before the first part, so that a corrected command starts from scratch."""
    if not work.names():
        if work.has(CLAIM):
            with contextlib.suppress(OSError):  # the error that is reported is another one
                clear(work.path)
        shutil.rmtree(work.path, ignore_errors=True)


def claimed_by(path: Path) -> str | None:
    """The launch id of the processes that claimed the directory, if it is being written."""
    try:
        return str(read_description(path / CLAIM).get("launch"))
    except QontextError:
        return None


def finish(work: Workdir, claim: dict[str, Any], summary: dict[str, Any], seconds: float) -> Artifact:
    """Describe the parts, write `meta.json` last and remove the claim."""
    parts = {
        name: {"bytes": (work.path / name).stat().st_size, "hash": file_hash(work.path / name)}
        for name in work.names()
    }
    content = {n: p["hash"] for n, p in parts.items() if not n.startswith((LOGS, DERIVED)) and n != CARD}
    if (work.path / CLAIM).is_file() and (precision := read_description(work.path / CLAIM).get(COMPUTED)):
        claim = {**claim, COMPUTED: precision}
    meta = {
        **claim,
        "digest": json_digest(content),
        "summary": summary,
        "parts": parts,
        "made": {
            "by": f"qontext {qontext.__version__}",
            "python": sys.version.split()[0],
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "seconds": round(seconds, 3),
            "machine": machine.describe(),
        },
    }
    work.write_json(META, meta)
    (work.path / CLAIM).unlink(missing_ok=True)
    return Artifact(work.path, meta)


def settle(work: Workdir, setting: str, here: str) -> str:
    """The number format to compute `work` in. `here` is what `setting` resolves to on this machine; the first process that
    computes records it, and `auto` resumes in it on any machine: a directory never holds parts of two formats."""
    with locks.lock(work.path, "-claim", wait=True):
        description = next((work.path / name for name in (CLAIM, META) if (work.path / name).is_file()), None)
        described = {} if description is None else read_description(description)
        precision = str(described.get(COMPUTED, here)) if setting == "auto" else here
        if (work.path / CLAIM).is_file() and precision != described.get(COMPUTED):
            work.write_json(CLAIM, {**described, COMPUTED: precision})
    return precision


def clear(path: Path) -> None:
    """Empty a directory that Qontext wrote, so that it can be written again. Refuses any other directory."""
    assert (path / META).is_file() or (path / CLAIM).is_file(), path
    # The claim is removed last: after a kill in between, the directory is still recognized as ours.
    for child in sorted(path.iterdir(), key=lambda p: p.name in (META, CLAIM)):
        if child.name.startswith(".lock"):
            continue
        discard(child)


def read_description(path: Path) -> dict[str, Any]:
    """Read and validate a `meta.json` or `claim.json`."""
    try:
        value: dict[str, Any] = read_json(path, MetaShape if path.name == META else ClaimShape)
    except QontextError as error:
        raise QontextError(error.message, place=path, remedy=REMADE) from None
    for name in value.get("parts", ()):
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise QontextError(
                f"damaged: its part {name} is outside of the directory", place=path, remedy=REMADE
            )
    return value


def _is_report(name: str) -> bool:
    """Return True for parts outside the digest, which may be edited."""
    return name.startswith(LOGS) or Path(name).name == CARD
