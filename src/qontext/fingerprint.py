"""What stands at a path, as a hash: how a stage notices that something upstream changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from qontext.artifacts import CLAIM, META, TEMPORARY, is_artifact, open_artifact, read_description
from qontext.disk import file_hash
from qontext.errors import QontextError


def fingerprint(path: Path | str) -> str:
    """A hash of what stands at `path`: an artifact's own digest, a file's content, a folder's files.

    Artifacts inside a folder count by their digest, unfinished ones by their files' sizes; what was made
    *from* the folder, such as a report that lies inside it, is no part of it.
    """
    found = Path(path)
    if is_artifact(found):
        return str(read_description(found / META)["digest"])
    if found.is_dir():
        if (found / CLAIM).is_file():
            open_artifact(found)  # says that it is not finished
        tree = dict(_tree(found, found))
        return hashlib.blake2b(json.dumps(tree, sort_keys=True).encode(), digest_size=16).hexdigest()
    if not found.is_file():
        raise QontextError("is neither a file nor a folder, but a device or a pipe", place=path)
    return file_hash(found)


def _tree(folder: Path, root: Path) -> Iterator[tuple[str, str]]:
    """(name, hash) of what a folder holds; see `fingerprint`."""
    description = next((folder / name for name in (META, CLAIM) if (folder / name).is_file()), None)
    if description is not None and folder != root:
        claim = read_description(description)
        if root.resolve() not in (Path(entry["path"]).resolve() for entry in claim["inputs"].values()):
            sizes = {
                str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()
            }
            yield str(folder.relative_to(root)), str(claim.get("digest", sizes))
        return
    above = (folder.resolve(), *folder.resolve().parents)
    for child in sorted(folder.iterdir()):
        if child.is_dir():
            if not (child.is_symlink() and child.resolve() in above):
                yield from _tree(child, root)
        elif child.is_file() and not child.name.startswith((".lock", TEMPORARY)):
            yield str(child.relative_to(root)), file_hash(child)
