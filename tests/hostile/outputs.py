"""What may stand where a command is to write: made in the folder in which the command runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.hostile.files import Damage
from tests.hostile.runner import ACCEPT, EITHER, REFUSE


def file(valid: Path, work: Path) -> str:
    (work / "kept").write_text("mine\n")
    return "kept"


def foreign(valid: Path, work: Path) -> str:
    (work / "kept").mkdir()
    (work / "kept" / "thesis.tex").write_text("mine\n")
    return "kept"


def empty(valid: Path, work: Path) -> str:
    (work / "out").mkdir()
    return "out"


def other(valid: Path, work: Path) -> str:
    """The finished output of another command."""
    shutil.copytree(valid, work / "kept")
    return "kept"


def unfinished(valid: Path, work: Path) -> str:
    shutil.copytree(valid, work / "kept")
    (work / "kept" / "meta.json").rename(work / "kept" / "claim.json")
    return "kept"


def damaged(valid: Path, work: Path) -> str:
    shutil.copytree(valid, work / "kept")
    (work / "kept" / "meta.json").write_bytes(b'{"verb"')
    return "kept"


def deep(valid: Path, work: Path) -> str:
    shutil.copytree(valid, work / "kept")
    (work / "kept" / "meta.json").write_bytes(b"[" * 100_000)
    return "kept"


def unwritable(valid: Path, work: Path) -> str:
    (work / "kept").mkdir(mode=0o500)
    return "kept/out"


def unreadable(valid: Path, work: Path) -> str:
    (work / "kept").mkdir(mode=0)
    return "kept"


def link_loop(valid: Path, work: Path) -> str:
    (work / "loop").symlink_to("loop")
    return "loop"


def dangling_link(valid: Path, work: Path) -> str:
    (work / "link").symlink_to("nowhere")
    return "link"


def fifo(valid: Path, work: Path) -> str:
    os.mkfifo(work / "fifo")
    return "fifo"


OUTPUTS: dict[str, tuple[Damage, str]] = {
    "file": (file, REFUSE),
    "foreign": (foreign, REFUSE),
    "empty-folder": (empty, ACCEPT),
    "other": (other, REFUSE),
    "unfinished": (unfinished, REFUSE),
    "damaged": (damaged, REFUSE),
    "damaged-deep": (deep, REFUSE),
    "unwritable": (unwritable, REFUSE),
    "unreadable": (unreadable, REFUSE),
    "link-loop": (link_loop, REFUSE),
    "dangling-link": (dangling_link, EITHER),
    "fifo": (fifo, REFUSE),
}
