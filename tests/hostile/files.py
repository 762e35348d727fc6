"""What may stand where an input is expected: other kinds of files, names that are none, and damaged artifacts.

A damage is a function of the valid input and an empty folder; it returns what to name instead.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile.runner import ACCEPT, EITHER, REFUSE

Damage = Callable[[Path, Path], str]

NAMES = {
    "missing": "nothing-here.jsonl",
    "missing-folder": "no/such/folder",
    "empty-name": "",
    "blank-name": "  ",
    "long-name": "x" * 100_000,
    "name-of-300": "./" + "n" * 300,
    "nul": "a\0b",
    "surrogate": "./caf\udce9.jsonl",
    "newline": "./a\nb",
    "markup": "./[/bold][red]x.jsonl",
    "null-device": "/dev/null",
    "zero-device": "/dev/zero",
    "no-such-user": "~no-such-user/x.jsonl",
    "url": "http://127.0.0.1:9/x.jsonl",
    "bucket": "s3://bucket/x.jsonl",
    "no-such-package": "pydocs:no_such_package",
    "below-a-file": "/etc/passwd/x.jsonl",
    "dashes": "--no-such-thing",
}
"""Names that stand for nothing."""


def copied(valid: Path, folder: Path, name: str | None = None) -> Path:
    """A copy of the input, under its own name unless another is given."""
    target = folder / (name or valid.name)
    return Path(shutil.copytree(valid, target) if valid.is_dir() else shutil.copy(valid, target))


def _named(text: str) -> Damage:
    return lambda valid, folder: text


def _file(content: bytes) -> Damage:
    """A file of that content, whatever the input was."""

    def damage(valid: Path, folder: Path) -> str:
        (folder / valid.name).write_bytes(content)
        return str(folder / valid.name)

    return damage


def empty_folder(valid: Path, folder: Path) -> str:
    (folder / valid.name).mkdir()
    return str(folder / valid.name)


def strange_folder(valid: Path, folder: Path) -> str:
    (folder / valid.name).mkdir()
    (folder / valid.name / "notes.xyz").write_bytes(b"\x00\xff")
    return str(folder / valid.name)


def fifo(valid: Path, folder: Path) -> str:
    os.mkfifo(folder / valid.name)
    return str(folder / valid.name)


def socket_file(valid: Path, folder: Path) -> str:
    before = Path.cwd()
    os.chdir(folder)  # a socket's name is at most 108 characters
    try:
        with socket.socket(socket.AF_UNIX) as unix_socket:
            unix_socket.bind(valid.name)
    finally:
        os.chdir(before)
    return str(folder / valid.name)


def link_loop(valid: Path, folder: Path) -> str:
    (folder / valid.name).symlink_to(valid.name)
    return str(folder / valid.name)


def dangling_link(valid: Path, folder: Path) -> str:
    (folder / valid.name).symlink_to("nowhere")
    return str(folder / valid.name)


def unreadable(valid: Path, folder: Path) -> str:
    target = copied(valid, folder)
    target.chmod(0)
    return str(target)


def link(valid: Path, folder: Path) -> str:
    (folder / valid.name).symlink_to(valid)
    return str(folder / valid.name)


def spaces(valid: Path, folder: Path) -> str:
    return str(copied(valid, folder, f"a name with 'quotes\" ünïcode {valid.name}"))


def relative(valid: Path, folder: Path) -> str:
    copied(valid, folder)
    return os.path.relpath(folder / valid.name, folder.parent / "work")


def the_output(valid: Path, folder: Path) -> str:
    """The input where the command is to write."""
    work = folder.parent / "work"
    work.mkdir(exist_ok=True)
    copied(valid, work, "out")
    return "out"


def unfinished(valid: Path, folder: Path) -> str:
    target = copied(valid, folder)
    (target / "meta.json").rename(target / "claim.json")
    return str(target)


PATHS: dict[str, tuple[Damage, str]] = {
    **{name: (_named(text), REFUSE) for name, text in NAMES.items()},
    "empty-file": (_file(b""), REFUSE),
    "blank-lines": (_file(b"\n\n \n"), REFUSE),
    "garbage": (_file(bytes(range(256)) * 40), REFUSE),
    "zeros": (_file(bytes(5_000)), REFUSE),
    "prose": (_file(b"this is not what you wanted\n"), EITHER),
    "empty-folder": (empty_folder, REFUSE),
    "strange-folder": (strange_folder, REFUSE),
    "fifo": (fifo, REFUSE),
    "socket": (socket_file, REFUSE),
    "link-loop": (link_loop, REFUSE),
    "dangling-link": (dangling_link, REFUSE),
    "unreadable": (unreadable, REFUSE),
    "link": (link, ACCEPT),
    "spaces": (spaces, ACCEPT),
    "relative": (relative, ACCEPT),
}

META_VALUES: dict[str, bytes] = {
    "empty": b"",
    "truncated": b'{"verb": "spl',
    "garbage": b"\xff\xfe\x00{",
    "array": b"[]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "digits": b'{"verb": ' + b"9" * 5_000 + b"}",
    "utf-16": '{"verb": "split"}'.encode("utf-16"),
}
META_KEYS = ("verb", "config", "inputs", "key", "digest", "summary", "parts", "made")


def _meta_bytes(content: bytes) -> Damage:
    def damage(valid: Path, folder: Path) -> str:
        target = copied(valid, folder)
        (target / "meta.json").write_bytes(content)
        return str(target)

    return damage


def _meta(change: Callable[[dict[str, Any]], Any]) -> Damage:
    def damage(valid: Path, folder: Path) -> str:
        target = copied(valid, folder)
        meta = json.loads((target / "meta.json").read_text())
        change(meta)
        (target / "meta.json").write_text(json.dumps(meta))
        return str(target)

    return damage


def _part(change: Callable[[Path], Any]) -> Damage:
    """Damage the largest part that is no log."""

    def damage(valid: Path, folder: Path) -> str:
        target = copied(valid, folder)
        names = json.loads((target / "meta.json").read_text())["parts"]
        parts = [target / name for name in names if not name.startswith("logs/")]
        change(max(parts, key=lambda path: path.stat().st_size))
        return str(target)

    return damage


def _folder_for(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo_for(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


ARTIFACTS: dict[str, tuple[Damage, str]] = {
    "unfinished": (unfinished, REFUSE),
    **{f"meta-{name}": (_meta_bytes(content), REFUSE) for name, content in META_VALUES.items()},
    **{f"meta-without-{key}": (_meta(lambda meta, key=key: meta.pop(key)), REFUSE) for key in META_KEYS},
    **{
        f"meta-{key}-null": (_meta(lambda meta, key=key: meta.update({key: None})), REFUSE)
        for key in META_KEYS
    },
    "meta-config-empty": (_meta(lambda meta: meta.update(config={})), EITHER),
    "meta-summary-empty": (_meta(lambda meta: meta.update(summary={})), EITHER),
    "meta-made-empty": (_meta(lambda meta: meta.update(made={})), EITHER),
    "meta-made-strange": (_meta(lambda meta: meta["made"].update(seconds="long", by=[1])), EITHER),
    "meta-parts-strange": (_meta(lambda meta: meta.update(parts={"a": 1})), EITHER),
    "meta-parts-outside": (_meta(lambda meta: meta["parts"].update({"../../../etc/passwd": {}})), EITHER),
    "meta-parts-nul": (_meta(lambda meta: meta["parts"].update({"a\0b": {"bytes": 1, "hash": ""}})), EITHER),
    "meta-parts-long": (_meta(lambda meta: meta["parts"].update({"n" * 300: {"bytes": 1}})), EITHER),
    "meta-inputs-strange": (_meta(lambda meta: meta.update(inputs={"a": 1})), REFUSE),
    "meta-inputs-numbers": (_meta(lambda meta: meta.update(inputs={"a": {"path": 1, "digest": 2}})), EITHER),
    "meta-verb-unknown": (_meta(lambda meta: meta.update(verb="dance")), EITHER),
    "part-missing": (_part(Path.unlink), REFUSE),
    "part-empty": (_part(lambda path: path.write_bytes(b"")), REFUSE),
    "part-truncated": (_part(lambda path: os.truncate(path, path.stat().st_size // 2)), REFUSE),
    "part-garbage": (_part(lambda path: path.write_bytes(b"\x00\xff" * 500)), REFUSE),
    "part-folder": (_part(_folder_for), REFUSE),
    "part-fifo": (_part(_fifo_for), REFUSE),
    "part-unreadable": (_part(lambda path: path.chmod(0)), REFUSE),
}
"""Damage to a directory that a stage wrote."""
