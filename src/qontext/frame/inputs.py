"""The inputs of a stage: the files, folders and names in its settings, their hashes, by which a stage detects changes
upstream, and where they are after files were moved.

An input is recorded by its original path and by its path relative to the artifact. So it is found if the whole tree was
moved, and also if only the artifact was moved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext.frame.artifacts import CARD, CLAIM, META, TEMPORARY, is_artifact, open_artifact, read_description
from qontext.frame.errors import QontextError, printable
from qontext.frame.files import content_hash, file_stamp, json_digest, walk

if TYPE_CHECKING:  # listing the verbs does not need pydantic
    from qontext.frame.config import Input, StageConfig


Entry = Mapping[str, str]
"""An input in `meta.json`: `path`, `digest` and, if the path existed, `beside`."""


def named_inputs(settings: StageConfig) -> Iterator[tuple[str, str]]:
    """(field, value) of every input that the settings name; several values of a field are ``field[i]``."""
    for field in type(settings).inputs():
        value = getattr(settings, field)
        if isinstance(value, tuple):
            yield from ((f"{field}[{i}]", str(item)) for i, item in enumerate(value))
        elif value is not None:
            yield field, str(value)


def digest_of(value: str, field: str, mark: Input | None = None) -> str:
    """The fingerprint of an input: of the file or folder at that path, else of the name. The `mark` of the
    setting may define its own fingerprint.
    """
    if mark is not None and not mark.by_content:
        return f"text:{value}"
    if mark is not None and mark.fingerprint is not None and (digest := mark.fingerprint(value)):
        return digest
    path = check_input(value, field)
    return fingerprint(path) if path is not None else f"name:{value}"


def check_input(value: str, field: str) -> Path | None:
    """The file or folder that an input names; None for other names, such as a model on the Hugging Face Hub."""
    from qontext.frame.config import existing

    path = Path(value).expanduser()
    try:
        is_there = path.exists()
    except OSError as error:
        raise QontextError(f"{field} is not a valid path: {error.strerror}") from None
    if not is_there and _is_path(value):
        existing(path, field)
    return path if is_there else None


def _is_path(value: str) -> bool:
    """Return True if a name that does not exist on disk looks like a path rather than a Hub name or a URI."""
    scheme, colon, _ = value.partition(":")
    if colon and all(part.isidentifier() for part in scheme.split(".")):
        return False
    # The name of a model may end with a version, such as v1.5.
    has_suffix = re.match(r"\.[^\W\d]", Path(value).suffix) is not None
    return value.startswith((".", "/", "~")) or value.count("/") > 1 or has_suffix


def find(entry: Entry, directory: Path, what: str, *, remedy: str) -> str:
    """The path (or Hub name) of an unchanged input of the artifact in `directory`. `what` names the input in
    the errors: it has changed, or it is not found, with `remedy`.
    """
    if entry["digest"].startswith("name:"):
        return entry["path"]
    there = [place for place in places(entry, directory) if place.exists()]
    for place in there:
        if digest_of(str(place), what) == entry["digest"]:
            return str(place)
    if there:
        raise QontextError(
            f"{what} has changed since {directory} was computed from it",
            place=there[0],
            remedy=f"Run the command that wrote {directory} again.",
        )
    looked_at = " nor at ".join(map(str, places(entry, directory)))
    raise QontextError(f"{what} is not found at {looked_at}", place=directory, remedy=remedy)


def refuse_output_within(out: Path, settings: StageConfig) -> None:
    """Raise an error if the output directory is in a folder of which everything is read: it would read itself."""
    marks = type(settings).inputs()
    place = Path(os.path.realpath(out))
    for name, value in named_inputs(settings):
        reads_below = marks[name.partition("[")[0]].reads_below
        folder = Path(os.path.realpath(Path(value).expanduser()))
        if reads_below is None or folder not in place.parents or not folder.is_dir():
            continue
        is_hidden = any(part.startswith(".") for part in place.relative_to(folder).parts)
        if not is_hidden and reads_below(folder):
            raise QontextError(
                f"--out is inside the folder {value}, which is read as {name}",
                place=out,
                remedy="Choose an --out outside of it.",
            )


def refuse_inputs_below(out: Path, claim: dict[str, Any]) -> None:
    """Raise an error if the output directory is, or contains, an input: replacing it would destroy the input."""
    place = Path(os.path.realpath(out))  # resolve() fails at a loop of links, which is not the point here
    for name, entry in claim["inputs"].items():
        read = Path(entry["path"]).expanduser()
        is_there = not entry["digest"].startswith(("name:", "text:")) and os.path.lexists(read)
        read = Path(os.path.realpath(read))
        if is_there and place in (read, *read.parents):
            raise QontextError(
                f"--out {'is' if place == read else 'contains'} the input {name}",
                place=out,
                remedy="Choose another --out.",
            )


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
