"""The core of the package without what POSIX alone has: imports, help, adapt, update, search and serve, with the rules of
Windows about open files; see windows/sitecustomize.py.

What it cannot show: paths with drives and backslashes, and the C libraries of other packages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

RESERVED = re.compile(r'[<>:"\\|?*\x00-\x1f]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE)
"""What Windows does not allow in the name of a file."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for Windows needs /proc")


def environment() -> dict[str, str]:
    here = str(Path(__file__).with_name("windows"))
    own = {"PYTHONPATH": here, "PYTHONWARNDEFAULTENCODING": "1", "PYTHONIOENCODING": "cp1252"}
    return {**os.environ, "OMP_NUM_THREADS": "1", **own}


def run(code: str, folder: Path) -> str:
    """What a script says."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        encoding="cp1252",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_stand_in_has_the_rules_of_windows(tmp_path: Path) -> None:
    said = run(
        """
import os, sys
from pathlib import Path
checks = '''
import os, signal
found = [hasattr(os, "fork"), hasattr(signal, "SIGHUP")]
for name in ("fcntl", "resource"):
    try:
        exec(f"import {name}")
    except ImportError:
        found.append("missing")
'''
names = {"__name__": "qontext.probe"}
exec(checks, names)
print(names["found"])
Path("folder").mkdir()
with open("folder/file", "w") as file:
    for change in (lambda: os.unlink("folder/file"), lambda: os.rename("folder", "other"), lambda: os.open("folder", 0)):
        try:
            change()
            print("done")
        except PermissionError:
            print("refused")
""",
        tmp_path,
    )
    assert said.splitlines() == ["[False, False, 'missing', 'missing']", "refused", "refused", "refused"]


def test_every_module_is_imported(tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, sys, qontext
for module in pkgutil.walk_packages(qontext.__path__, "qontext."):
    if module.name != "qontext.__main__":
        importlib.import_module(module.name)
print(len([name for name in sys.modules if name.startswith("qontext.")]) > 100)
"""
    assert run(code, tmp_path) == "True\n"


def test_locks(tmp_path: Path) -> None:
    """One writer at a time, who is named; a folder that is read stays, and an empty one goes."""
    said = run(
        """
from pathlib import Path
from qontext.frame import locks, workdir
from qontext.frame.errors import QontextError
with locks.lock(Path("out"), "-0"):
    try:
        with locks.lock(Path("out"), "-0"):
            print("twice")
    except QontextError as error:
        print(error)
with locks.lock(Path("out"), "-0"):
    print("again")
with workdir.scratch(Path("new")) as folder:
    (folder / "file").write_text("x", encoding="utf-8")
print(Path("new").exists())
Path("index").mkdir()
reading = locks.ReadLock(Path("index"))
print(locks.remove_unread(Path("index"), Path("aside")), Path("index").exists())
del reading
print(locks.remove_unread(Path("index"), Path("aside")), Path("index").exists(), Path("aside").exists())
""",
        tmp_path,
    )
    refusal, *others = said.splitlines()
    assert re.match(r"out: another process is writing this directory \(process \d+ on .*\)", refusal)
    assert others == ["again", "False", "False True", "True False False"]


DOCUMENTS = ["The mill grinds flour.", "A boat crosses the river.", "Bread rises in the oven.", "Moss grows."]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    """A folder in which the commands ran, and what they said."""
    folder = tmp_path_factory.mktemp("windows")
    (folder / "docs").mkdir()
    for number in range(24):
        text = " ".join(f"{DOCUMENTS[number % 4]} Number {number} is here." for _ in range(6))
        (folder / "docs" / f"{number}.txt").write_text(text, encoding="utf-8")
    commands = [
        ["--help"],
        ["--version"],
        ["split", "docs", "--workers", "2", "--out", "passages"],
        *[["adapt", "docs", "--encoder", str(minilm), "--budget", "10s", "--yes", "--out", "made"]] * 2,
        ["search", "made", "who grinds flour?", "--json"],
        ["search", "--bm25", "--passages", "passages", "--queries", "q.tsv", "--k", "2", "--out", "run"],
        ["serve", "made", "--dry-run"],
        ["clean", "made"],
    ]
    (folder / "q.tsv").write_text("1\tflour\n", encoding="utf-8")
    code = f"""
import gc, sys
from pathlib import Path
if __name__ == "__main__":
    from qontext.cli import run_app
    for number, words in enumerate({commands!r}):
        if number == 4:  # documents change
            Path("docs/24.txt").write_text("The lighthouse guides ships. " * 9, encoding="utf-8")
        sys.argv = ["qontext", *words]
        print("$", *words, flush=True)
        try:
            run_app()
        except SystemExit as end:
            if end.code:
                raise
        gc.collect()  # as the end of its process would
"""
    (folder / "said").write_text(run(code, folder), encoding="utf-8")
    return folder


def test_commands(made: Path) -> None:
    said = (made / "said").read_text(encoding="utf-8")
    assert said.count("\n$ ") == 8, said
    answers = json.loads(said.partition("who grinds flour? --json\n")[2].partition("\n$ ")[0])["answers"]
    assert "mill" in answers[0]["text"]
    assert (made / "run" / "run.trec").is_file()


def test_file_names_are_allowed_everywhere(made: Path) -> None:
    names = {name for _, folders, files in os.walk(made) for name in (*folders, *files)}
    assert [name for name in names if RESERVED.search(name)] == []
    parts: dict[str, Any] = json.loads((made / "passages" / "meta.json").read_text(encoding="utf-8"))["parts"]
    assert not [name for name in parts if "\\" in name]


def test_serve(made: Path) -> None:
    serving = subprocess.Popen(
        [sys.executable, "-m", "qontext", "serve", "made", "--port", "0"],
        cwd=made,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        encoding="cp1252",
    )
    assert serving.stderr is not None
    try:
        said = ""
        for line in serving.stderr:
            said += line
            if place := re.search(r"at (http://\S+) ", line):
                break
        else:
            raise AssertionError(said)
        request = urllib.request.Request(
            f"{place[1]}/v1/search", b'{"query": "lighthouse"}', {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as reply:
            assert "lighthouse" in reply.read().decode()
    finally:
        serving.terminate()
        serving.communicate()
