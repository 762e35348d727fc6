"""The hash of an input, by which a stage detects changes upstream, and where the input is after files were moved.

An input is recorded by its original path and by its path relative to the artifact. So it is found if the whole tree was
moved, and also if only the artifact was moved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from qontext.frame.artifacts import CARD, CLAIM, META, TEMPORARY, is_artifact, open_artifact, read_description
from qontext.frame.errors import QontextError, printable
from qontext.frame.files import content_hash, file_stamp, json_digest, walk


def fingerprint(path: Path | str, is_read: Callable[[os.DirEntry[str]], bool] = lambda entry: True) -> str:
    """A hash of `path`: an artifact's own digest, a file's content, or a folder's files, of which `is_read` selects some.

    Artifacts inside a folder count by their digest, unfinished ones by their files' sizes; artifacts computed
    *from* the folder, such as a report inside it, are not part of it. Nor is a model card.
    """
    file = Path(path)
    if is_artifact(file):
        return str(read_description(file / META)["digest"])
    if file.is_dir():
        if (file / CLAIM).is_file():
            open_artifact(file)  # says that it is not finished
        return json_digest(dict(_tree(file, content_hash, is_read)))
    return content_hash(file)


def stamp(path: Path, is_read: Callable[[os.DirEntry[str]], bool] = lambda entry: True) -> str:
    """The stamps of the files that `fingerprint` reads, which changes with them; empty if they are missing."""
    try:
        if is_artifact(path):
            return file_stamp(path / META)
        return json_digest(dict(_tree(path, file_stamp, is_read))) if path.is_dir() else file_stamp(path)
    except (OSError, QontextError):
        return ""


def _tree(
    root: Path, of: Callable[[Path], str], is_read: Callable[[os.DirEntry[str]], bool]
) -> Iterator[tuple[str, str]]:
    """(name, hash or stamp) of a folder's content; see `fingerprint`."""
    artifacts: list[Path] = []

    def enter(entry: os.DirEntry[str]) -> bool:
        """Return True for plain folders: neither an artifact, which is hashed as a whole, nor a temporary folder."""
        if entry.name.startswith(TEMPORARY) or not is_read(entry):
            return False
        is_made = is_artifact(entry.path) or (Path(entry.path) / CLAIM).is_file()
        if is_made:
            artifacts.append(Path(entry.path))
        return not is_made

    for entry in walk(root, enter=enter):
        if isinstance(entry, OSError):
            raise entry
        path = Path(entry.path)
        is_content = is_read(entry) and not path.name.startswith(".lock") and not _is_card(path)
        if path.is_file() and is_content:
            yield printable(path.relative_to(root).as_posix()), of(path)
    for artifact in dict.fromkeys(artifacts):
        yield from _artifact(artifact, root)


def _artifact(folder: Path, root: Path) -> Iterator[tuple[str, str]]:
    claim = read_description(folder / (META if (folder / META).is_file() else CLAIM))
    made_from = (place.resolve() for entry in claim["inputs"].values() for place in places(entry, folder))
    if root.resolve() in made_from:
        return
    sizes = {
        p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()
    }
    yield folder.relative_to(root).as_posix(), str(claim.get("digest", sizes))


def _is_card(file: Path) -> bool:
    """True if a file describes the model beside it; a README without weights may be a document."""
    return file.name == CARD and any(file.parent.glob("*.safetensors"))


Entry = Mapping[str, str]
"""An input in `meta.json`: `path`, `digest` and, if the path existed, `beside`."""


def relative(path: str, directory: Path) -> dict[str, str]:
    """`beside`: the path relative to the artifact's directory, if it exists."""
    place = Path(path).expanduser()
    try:
        if not path or not place.exists():
            return {}
        # Links in the path are resolved, except if the input itself is a link.
        absolute = place.parent.resolve() / place.name if place.name not in ("", "..") else place.resolve()
        return {"beside": os.path.relpath(absolute, directory.resolve())}
    except (OSError, ValueError, RuntimeError):  # too long, not a path, or a loop of links
        return {}


def places(entry: Entry, directory: Path) -> list[Path]:
    """Candidate paths of the input, most likely first."""
    original = Path(entry["path"]).expanduser()
    if "beside" not in entry:
        return [original]
    beside = Path(os.path.normpath(directory.resolve() / entry["beside"]))
    return list(dict.fromkeys([beside, original]))


def rebased(entry: Entry, made_in: Path, now_for: Path) -> dict[str, str]:
    """The entry as a downstream artifact records it."""
    place = next((place for place in places(entry, made_in) if place.exists()), None)
    identity = {"path": entry["path"], "digest": entry["digest"]}
    return identity if place is None else {**identity, **relative(str(place), now_for)}
