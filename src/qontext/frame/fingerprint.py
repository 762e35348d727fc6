"""The hash of a file or folder, by which a stage detects changes upstream."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from qontext.frame.artifacts import CARD, CLAIM, META, TEMPORARY, is_artifact, open_artifact, read_description
from qontext.frame.disk import file_hash, file_stamp
from qontext.frame.errors import QontextError, printable
from qontext.frame.folders import walk
from qontext.frame.hashes import json_digest
from qontext.frame.origins import places


def fingerprint(path: Path | str) -> str:
    """A hash of `path`: an artifact's own digest, a file's content, or a folder's files.

    Artifacts inside a folder count by their digest, unfinished ones by their files' sizes; artifacts computed
    *from* the folder, such as a report inside it, are not part of it. Nor is a model card.
    """
    file = Path(path)
    if is_artifact(file):
        return str(read_description(file / META)["digest"])
    if file.is_dir():
        if (file / CLAIM).is_file():
            open_artifact(file)  # says that it is not finished
        return json_digest(dict(_tree(file, file_hash)))
    return file_hash(file)


def stamp(path: Path) -> str:
    """What the system says of the files that `fingerprint` reads, which changes with them; empty if they are missing."""
    try:
        if is_artifact(path):
            return file_stamp(path / META)
        return json.dumps(dict(_tree(path, file_stamp))) if path.is_dir() else file_stamp(path)
    except (OSError, QontextError):
        return ""


def _tree(root: Path, of: Callable[[Path], str]) -> Iterator[tuple[str, str]]:
    """(name, hash or stamp) of a folder's content; see `fingerprint`."""
    artifacts: list[Path] = []

    def enter(entry: os.DirEntry[str]) -> bool:
        """Return True for plain folders: neither an artifact, which is hashed as a whole, nor a temporary folder."""
        if entry.name.startswith(TEMPORARY):
            return False
        is_made = any((Path(entry.path) / name).is_file() for name in (META, CLAIM))
        if is_made:
            artifacts.append(Path(entry.path))
        return not is_made

    for entry in walk(root, enter=enter):
        if isinstance(entry, OSError):
            raise entry
        path = Path(entry.path)
        if path.is_file() and not path.name.startswith(".lock") and not _is_card(path):
            yield printable(path.relative_to(root)), of(path)
    for artifact in dict.fromkeys(artifacts):
        yield from _artifact(artifact, root)


def _artifact(folder: Path, root: Path) -> Iterator[tuple[str, str]]:
    claim = read_description(folder / (META if (folder / META).is_file() else CLAIM))
    made_from = (place.resolve() for entry in claim["inputs"].values() for place in places(entry, folder))
    if root.resolve() in made_from:
        return
    sizes = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
    yield str(folder.relative_to(root)), str(claim.get("digest", sizes))


def _is_card(file: Path) -> bool:
    """Whether a file describes the model beside it; a README without weights may be a document."""
    return file.name == CARD and any(file.parent.glob("*.safetensors"))
