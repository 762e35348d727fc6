"""The inputs of a stage: the files, folders and names in its settings, and their fingerprints."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext.frame.errors import QontextError
from qontext.frame.fingerprint import Entry, fingerprint, places, stamp

if TYPE_CHECKING:  # listing the verbs does not need pydantic
    from qontext.frame.config import Input, StageConfig


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


class Unchanged:
    """The inputs of a stage as they were before they were hashed, to be compared once the stage has read them."""

    def __init__(self, settings: StageConfig) -> None:
        self._settings, self._stamps = settings, _stamps(settings)

    def check(self, claim: dict[str, Any]) -> None:
        """Refuse an input with another content than the claim says. What has the same stamp is not read again."""
        marks = type(self._settings).inputs()
        for name, now in _stamps(self._settings).items():
            entry, mark = claim["inputs"][name], marks[name.partition("[")[0]]
            # What is neither a file nor a folder, such as a list of packages, has no stamp.
            is_listed = not now and mark.fingerprint is not None and not entry["digest"].startswith("name:")
            if is_listed or now != self._stamps[name]:
                with contextlib.suppress(QontextError, OSError):
                    if digest_of(entry["path"], name, mark) == entry["digest"]:
                        continue
                raise QontextError(
                    f"{name} changed while it was read",
                    place=entry["path"],
                    remedy="Run the same command again, once nothing writes there.",
                )


def _stamps(settings: StageConfig) -> dict[str, str]:
    """The stamp of each input that is a file or folder, by the setting that names it."""
    marks = type(settings).inputs()
    return {
        name: stamp(Path(item).expanduser())
        for name, item in named_inputs(settings)
        if marks[name.partition("[")[0]].by_content
    }


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
