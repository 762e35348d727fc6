"""Runs a case in the warm process and says what was wrong about it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hostile.commands import MADE, Settings, write_inputs

from qontext.frame import stages
from qontext.frame.errors import QontextError

ROOT = Path(__file__).parents[2]
LONGEST_MESSAGE = 2_000
REFUSE, REPORT, EITHER, ACCEPT = "must refuse", "must refuse or report", "may accept", "must accept"
REPORTED = re.compile(
    r"warning|skipp|left out|problem|dropp|ignor|empty|no result|not_in|missing|unknown|duplic", re.I
)
"""The words of a line that counts something as passed over."""


@dataclass(frozen=True)
class Outcome:
    code: int
    hung: bool
    seconds: float
    out: str
    err: str


class Zygote:
    """The warm process, and the folder of valid inputs."""

    def __init__(self, inputs: Path) -> None:
        self.inputs = inputs
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.zygote"], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def call(self, argv: list[str], folder: Path, streams: dict[str, str] | None = None) -> Outcome:
        """Run the command line in `folder`/work."""
        for name in ("work", "tmp", "home"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "argv.json").write_text(json.dumps(argv))
        files = {"out": str(folder / "stdout"), "err": str(folder / "stderr"), **(streams or {})}
        env = {"TMPDIR": str(folder / "tmp"), "HOME": str(folder / "home"), "COLUMNS": "200"}
        assert self.process.stdin and self.process.stdout
        request = {"argv": argv, "cwd": str(folder / "work"), "env": env, **files}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        return Outcome(**reply, out=_read(folder / "stdout"), err=_read(folder / "stderr"))

    def make_inputs(self) -> None:
        """The inputs, once; a verb that cannot make its own is a failure."""
        self.inputs.mkdir()
        write_inputs(self.inputs)
        for name, (verb, settings) in MADE.items():
            scratch = self.inputs.with_name("making") / name
            out = str(self.inputs / name)
            done = self.call(command_line(verb, settings, self.inputs, out), scratch)
            assert done.code == 0, f"{verb} cannot make {name}:\n{done.err}"
        shutil.copytree(
            self.inputs / "encoder", self.inputs / "model", ignore=shutil.ignore_patterns("meta.json")
        )

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def command_line(verb: str, settings: Settings, inputs: Path, out: str | None = "out") -> list[str]:
    """The arguments of `qontext`, as a person would type them. With `out` None there is no --out."""
    loaded = stages.load(verb)
    marks = loaded.config.inputs()
    with contextlib.suppress(QontextError):  # the settings name a kind that there is not
        marks = loaded.config.with_options(settings).inputs()
    words: list[str] = [verb]
    positional: list[str] = []
    for name, value in settings.items():
        values = [
            str(_placed(v, inputs, "out" if out is None else out))
            for v in (value if isinstance(value, list) else [value])
        ]
        flag = "--" + name.replace("_", "-")
        if name in marks and marks[name].positional:
            positional += values
        elif isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words += [word for text in values for word in (flag, text)]
    if isinstance(loaded, stages.Stage) and out is not None:
        words += ["--out", out]
    return [words[0], *positional, *words[1:]]


def _placed(value: Any, inputs: Path, out: str) -> Any:
    if value == "OUT":
        return out
    return str(inputs / value[1:]) if isinstance(value, str) and value.startswith("@") else value


def faults(done: Outcome, expected: str, folder: Path, before: frozenset[str] = frozenset()) -> list[str]:
    """The faults of an outcome; none, if it is as it should be. `before` is the listing of work/ before it."""
    text = done.err + done.out
    problems = []
    if done.hung:
        problems.append(f"hangs (killed after {done.seconds} s)")
    elif done.code not in (0, 2):
        problems.append(f"exit code {done.code}")
    if "internal error" in text:
        problems.append("an internal error")
    if "Traceback (most recent call last)" in text or "Exception ignored" in text:
        problems.append("a traceback")
    if len(done.err) > LONGEST_MESSAGE:
        problems.append(f"a message of {len(done.err):,} characters")
    if done.code == 2 and not done.err.strip() and (folder / "stderr").exists():
        problems.append("no word about why")
    if done.code == 0 and expected == REFUSE:
        problems.append("accepted, and must be refused")
    if done.code == 0 and expected == REPORT and not REPORTED.search(text):
        problems.append("accepted without a word about what was passed over")
    if done.code == 2 and expected == ACCEPT:
        problems.append("refused, and must be accepted")
    return problems + leavings(done, folder, before)


def listing(folder: Path) -> frozenset[str]:
    """The names of what a folder holds; links do not count."""
    return frozenset(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_symlink())


def leavings(done: Outcome, folder: Path, before: frozenset[str]) -> list[str]:
    """The files that a command left lying about that it should not have, or removed although it refused."""
    problems = []
    if not done.hung:
        problems += [f"leaves {p.name} in the temporary folder" for p in sorted((folder / "tmp").iterdir())]
    after = listing(folder / "work")
    problems += [f"leaves {name}" for name in sorted(after) if re.search(r"\.tmp-|\.making", name)]
    if done.code == 2:
        problems += [f"removes {name}" for name in sorted(before - after)]
        # Finished parts stay: the same command resumes after them.
        left_in_out = sorted(name for name in after - before if name.partition("/")[0] == "out")
        if not any((folder / "work" / name).is_file() and not _is_bookkeeping(name) for name in left_in_out):
            problems += [f"leaves {name}" for name in left_in_out[:3]]
    return problems


def _is_bookkeeping(name: str) -> bool:
    return Path(name).name == "claim.json" or Path(name).name.startswith(".")


def report(case: str, argv: list[str], done: Outcome, problems: list[str], folder: Path) -> str:
    """A failure, with the command that repeats it."""
    code = "import json; from qontext.cli import app; app(json.load(open('../argv.json')))"
    words = " ".join(shlex.quote(w if len(w) < 200 else f"{w[:40]}…({len(w):,} characters)") for w in argv)
    message = done.err.strip() or done.out.strip()
    return (
        f"{case}: {'; '.join(problems)}\n    said:   {message[:300]!r}\n    was:    qontext {words}\n"
        f"    repeat: cd {folder / 'work'} && python -c {shlex.quote(code)}"
    )


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
