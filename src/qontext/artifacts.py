"""Every directory that a stage writes: parts, then `meta.json`, whole or not there at all.

A stage's directory goes through three states:

1. ``claim.json`` says what is being made: the verb, the configuration, the inputs' fingerprints.
2. Parts appear one by one. Each is written under a temporary name, flushed to disk and renamed, so a
   part that exists is whole. A killed stage keeps its finished parts and resumes after them.
3. ``meta.json`` comes last and makes the directory an *artifact*: finished, described, fingerprinted.

The fingerprint (`digest`) of an artifact is the hash of its parts' contents. What depends on it records
that digest, so a change upstream is noticed, and a re-run upstream that ends in the same bytes is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import qontext
from qontext import machine
from qontext.disk import file_hash, raise_disk_error, sync
from qontext.errors import QontextError

META, CLAIM = "meta.json", "claim.json"
LOGS = "logs/"
"""Parts under this folder tell how it went (times, speeds, curves). They are not part of the digest."""
TEMPORARY = ".tmp-"


@dataclass(frozen=True)
class Artifact:
    """A finished directory and its `meta.json`."""

    path: Path
    meta: dict[str, Any]

    @property
    def verb(self) -> str:
        return str(self.meta["verb"])

    @property
    def digest(self) -> str:
        return str(self.meta["digest"])

    @property
    def summary(self) -> dict[str, Any]:
        """What the stage reported: counts, speeds, scores."""
        return dict(self.meta["summary"])

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.meta["config"])

    def parts(self, suffix: str = "") -> list[Path]:
        """The paths of the parts, in order, that end with `suffix`."""
        if lost := [name for name in self.missing() if name.endswith(suffix)]:
            raise QontextError(
                f"its file {lost[0]} is gone",
                place=self.path,
                remedy="Put it back, or remove the directory and make it again.",
            )
        return [self.path / name for name in self.meta["parts"] if name.endswith(suffix)]

    def missing(self) -> list[str]:
        """The parts that are not there any more."""
        return [name for name in self.meta["parts"] if not (self.path / name).is_file()]

    def verify(self) -> list[str]:
        """The parts whose bytes are no longer what the stage wrote."""
        return [
            name
            for name, part in self.meta["parts"].items()
            if not (self.path / name).is_file() or file_hash(self.path / name) != part["hash"]
        ]


@dataclass
class Workdir:
    """A directory being written. A stage asks `has(name)` and writes what is missing with `write(name)`.

    Several processes may write one directory; `writer` names this one, and holds the lock of that name.
    """

    path: Path
    writer: str = "0"

    def has(self, name: str) -> bool:
        """Whether the part is there already (whole: parts appear by rename)."""
        return (self.path / name).exists()

    @contextlib.contextmanager
    def write(self, name: str) -> Iterator[Path]:
        """Gives a temporary path to write a file to; on leaving, it becomes the part `name`.

        An exception inside leaves no trace. A full disk is reported as such.
        """
        final = self.path / name
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f"{TEMPORARY}{self.writer}.{os.getpid()}-{final.name}")
        try:
            yield temporary
            sync(temporary)
            temporary.replace(final)
            sync(final.parent)
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            raise_disk_error(error, final)

    @contextlib.contextmanager
    def write_folder(self, name: str) -> Iterator[Path]:
        """Gives a temporary folder to fill; on leaving, it becomes the part `name`, whole.

        With the name ``"."`` its files become parts of the directory itself, one by one.
        """
        final = self.path / name
        temporary = self.path / f"{TEMPORARY}{self.writer}.{os.getpid()}-{final.name}"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            yield temporary
            files = sorted(p for p in temporary.rglob("*") if p.is_file())
            for path in (*files, *{p.parent for p in files}):
                sync(path)
            if name == ".":
                for path in files:
                    target = self.path / path.relative_to(temporary)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target)
                shutil.rmtree(temporary)
            else:
                final.parent.mkdir(parents=True, exist_ok=True)
                temporary.replace(final)
            sync(final.parent)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise_disk_error(error, final)

    def write_json(self, name: str, value: Any) -> None:
        with self.write(name) as path:
            path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def remove(self, name: str) -> None:
        """Take back a part, such as a checkpoint that a newer one replaces."""
        path = self.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """The parts that are there, in sorted order."""
        files = (p for p in self.path.rglob("*") if p.is_file())
        names = (str(p.relative_to(self.path)) for p in files)
        return sorted(n for n in names if n not in (META, CLAIM) and not Path(n).name.startswith("."))

    def sweep(self) -> None:
        """Remove what earlier holders of this writer's name left under temporary names when they died."""
        for path in self.path.rglob(f"{TEMPORARY}{self.writer}.*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def open_artifact(path: Path | str, *, verb: str | None = None) -> Artifact:
    """The finished artifact at `path`; `verb` says which stage must have made it."""
    directory = Path(path)
    meta_path = directory / META
    if not directory.is_dir():
        raise QontextError("no such directory", place=directory)
    if not meta_path.is_file():
        if (directory / CLAIM).is_file():
            maker = read_description(directory / CLAIM)["verb"]
            raise QontextError(
                f"this {maker!r} directory is not finished",
                place=directory,
                remedy="Run the command that was interrupted again: it resumes.",
            )
        raise QontextError(f"not a directory that qontext made: it has no {META}", place=directory)
    artifact = Artifact(directory, read_description(meta_path))
    if verb is not None and artifact.verb != verb:
        raise QontextError(
            f"expected the output of 'qontext {verb}', found that of 'qontext {artifact.verb}'",
            place=directory,
        )
    return artifact


def is_artifact(path: Path | str) -> bool:
    return (Path(path) / META).is_file()


def state(path: Path, key: str) -> tuple[str, Artifact | None]:
    """What is at `path` for a stage with this key: 'absent', 'done', 'interrupted', 'stale' or 'foreign'."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return "absent", None
    if (path / META).is_file():
        artifact = Artifact(path, read_description(path / META))
        return ("done" if artifact.meta["key"] == key else "stale"), artifact
    if (path / CLAIM).is_file():
        claim = Artifact(path, read_description(path / CLAIM))
        return ("interrupted" if claim.meta["key"] == key else "stale"), claim
    if path.is_dir() and all(p.name.startswith((".lock", TEMPORARY)) for p in path.iterdir()):
        return "absent", None
    return "foreign", None


def differences(made: dict[str, Any], wanted: dict[str, Any]) -> str:
    """In words, how the claim of an existing directory differs from the one that is wanted now."""
    if made["verb"] != wanted["verb"]:
        return f"it was made by 'qontext {made['verb']}'"
    said = []
    for name in sorted(made["config"].keys() | wanted["config"].keys()):
        old, new = made["config"].get(name), wanted["config"].get(name)
        if old != new:
            said.append(f"{name} was {old!r} and is now {new!r}")
    for name in sorted(made["inputs"].keys() | wanted["inputs"].keys()):
        old, new = made["inputs"].get(name, {}), wanted["inputs"].get(name, {})
        if old.get("digest") != new.get("digest"):
            said.append(
                f"the content of {name} ({new.get('path')}) changed"
                if old.get("path") == new.get("path")
                else f"{name} was {old.get('path')} and is now {new.get('path')}"
            )
    if made.get("format") != wanted.get("format"):
        said.append(
            f"it was written in format {made.get('format')}, this version writes {wanted.get('format')}"
        )
    return "; ".join(said) or "its key differs"


def key_of(claim: dict[str, Any]) -> str:
    """What makes two runs of a stage the same: verb, format, settings and the inputs' contents."""
    same = {
        "verb": claim["verb"],
        "format": claim["format"],
        "config": claim["config"],
        "inputs": {name: entry["digest"] for name, entry in claim["inputs"].items()},
    }
    return hashlib.blake2b(json.dumps(same, sort_keys=True).encode(), digest_size=16).hexdigest()


def begin(path: Path, claim: dict[str, Any], writer: str = "0") -> Workdir:
    """Claim the directory (absent, interrupted or emptied before) and clear this writer's old leavings."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise_disk_error(error, path, anyway=True)
    work = Workdir(path, writer)
    work.sweep()
    work.write_json(CLAIM, claim)
    return work


def abandon(work: Workdir) -> None:
    """After an error before any part was there: leave no trace, so that a mended command starts afresh."""
    if not work.names():
        shutil.rmtree(work.path)


def claimed_by(path: Path) -> str | None:
    """Which start of processes claimed the directory, if it is being written."""
    try:
        return str(read_description(path / CLAIM).get("launch"))
    except QontextError:
        return None


def finish(work: Workdir, claim: dict[str, Any], summary: dict[str, Any], seconds: float) -> Artifact:
    """Describe the parts, write `meta.json` last and take the claim back."""
    parts = {
        name: {"bytes": (work.path / name).stat().st_size, "hash": file_hash(work.path / name)}
        for name in work.names()
    }
    content = json.dumps({n: p["hash"] for n, p in parts.items() if not n.startswith(LOGS)}, sort_keys=True)
    meta = {
        **claim,
        "digest": hashlib.blake2b(content.encode(), digest_size=16).hexdigest(),
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


def clear(path: Path) -> None:
    """Empty a directory that qontext made, so that it can be made anew. Never touches any other."""
    assert (path / META).is_file() or (path / CLAIM).is_file(), path
    # The claim goes last: a kill in between leaves a directory that is still known to be ours.
    for child in sorted(path.iterdir(), key=lambda p: p.name in (META, CLAIM)):
        if child.name.startswith(".lock"):
            continue
        shutil.rmtree(child) if child.is_dir() else child.unlink()


def read_description(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise QontextError(f"cannot be read: {error}", place=path) from None
    wanted = _DESCRIBED if path.name == META else _CLAIMED
    if (
        not isinstance(value, dict)
        or not all(isinstance(value.get(name), kind) for name, kind in wanted.items())
        or not all(
            isinstance(entry, dict) and {"path", "digest"} <= entry.keys()
            for entry in value["inputs"].values()
        )
    ):
        raise QontextError(
            "is not a description that qontext wrote",
            place=path,
            remedy="Remove the directory, and make it again.",
        )
    return value


_CLAIMED = {"verb": str, "key": str, "config": dict, "inputs": dict}
_DESCRIBED = {**_CLAIMED, "digest": str, "summary": dict, "parts": dict, "made": dict}
