"""Whatever is typed and whatever lies on the disk: a sentence and exit code 2, or a result that counts what it passed over.

    pytest tests/hostile                          # some cases of every verb, always the same
    HOSTILE=all pytest tests/hostile              # all of them, and pairs (also: make hostile)
    HOSTILE='search*/k/*' pytest tests/hostile    # those with such ids
    HOSTILE=all HOSTILE_SEED=7 pytest tests/hostile

A failure names its cases and the commands that repeat them.
"""

from __future__ import annotations

import fcntl
import fnmatch
import functools
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile.cases import Case, all_cases, pairs, sample
from tests.hostile.commands import COMMANDS, LONG
from tests.hostile.known import is_known
from tests.hostile.runner import ACCEPT, Outcome, Zygote, command_line, faults, listing, report

PER_VERB, CHUNK = 14, 38
FEW = 2
"""So many of each verb's are in the fast tier."""
WANTED = os.environ.get("HOSTILE", "")
VERBS = list(dict.fromkeys(name.partition(":")[0] for name in COMMANDS))


@functools.cache
def samples() -> dict[str, list[Case]]:
    """The same cases of each verb in every run, in no order."""
    cases = sorted(sample(all_cases(), PER_VERB), key=lambda case: zlib.crc32(case.id.encode()))
    return {verb: [case for case in cases if case.verb == verb] for verb in VERBS}


def wanted() -> dict[str, list[Case]]:
    """The cases that the environment asks for, in chunks of one verb each."""
    cases = all_cases()
    cases += pairs(cases, int(os.environ.get("HOSTILE_SEED", "0")))
    if WANTED != "all":
        cases = [case for case in cases if fnmatch.fnmatchcase(case.id, WANTED)]
    chunks: dict[str, list[Case]] = {}
    for case in cases:
        number = sum(len(c) for name, c in chunks.items() if name.rpartition("-")[0] == case.verb) // CHUNK
        chunks.setdefault(f"{case.verb}-{number}", []).append(case)
    return chunks


CHUNKS = wanted() if WANTED else {}


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """The warm process of this test process; the inputs are made by whichever comes first."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "hostile"
    shared.mkdir(exist_ok=True)
    process = Zygote(shared / "inputs")
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "made").exists():
            process.make_inputs()
            (shared / "made").touch()
    yield process
    process.close()


@pytest.mark.parametrize("command", [name for name in COMMANDS if name.partition(":")[0] not in LONG])
def test_a_valid_command_succeeds(command: str, zygote: Zygote, tmp_path: Path) -> None:
    argv = command_line(command.partition(":")[0], COMMANDS[command], zygote.inputs)
    done = zygote.call(argv, tmp_path)
    problems = faults(done, ACCEPT, tmp_path)
    assert not problems, report(command, argv, done, problems, tmp_path)


@pytest.mark.parametrize("verb", [] if WANTED else VERBS)
def test_a_few_cases(verb: str, zygote: Zygote, tmp_path: Path) -> None:
    check(samples()[verb][:FEW], zygote, tmp_path)


@pytest.mark.parametrize("verb", CHUNKS or VERBS)
def test_more_cases(verb: str, zygote: Zygote, tmp_path: Path) -> None:
    """With HOSTILE, a chunk of those that it asks for."""
    check(CHUNKS[verb] if WANTED else samples()[verb][FEW:], zygote, tmp_path)


def check(cases: list[Case], zygote: Zygote, tmp_path: Path) -> None:
    failures = []
    for number, case in enumerate(cases):
        folder = tmp_path / str(number)
        argv = case.argv(zygote.inputs, folder)
        before = listing(folder / "work")
        done = zygote.call(argv, folder, case.streams)
        problems = faults(done, case.expected, folder, before)
        if problems and not is_known(case.id):
            failures.append(report(case.id, argv, done, problems, folder))
        else:
            shutil.rmtree(folder, onerror=_make_removable)
    assert not failures, f"{len(failures)} of {len(cases)} cases:\n" + "\n".join(failures)


def test_a_case_can_fail(zygote: Zygote, tmp_path: Path) -> None:
    """The checks see a crash, a hang, a leftover and silence."""
    calm = Outcome(0, False, 0.1, "done", "")
    (tmp_path / "tmp").mkdir()
    assert faults(calm, ACCEPT, tmp_path) == []
    assert faults(calm, "must refuse", tmp_path) == ["accepted, and must be refused"]
    assert faults(calm, "must refuse or report", tmp_path) == [
        "accepted without a word about what was passed over"
    ]
    loud = Outcome(1, False, 0.1, "", "internal error: x\nTraceback (most recent call last)" + "!" * 2_000)
    assert len(faults(loud, ACCEPT, tmp_path)) == 4
    (tmp_path / "tmp" / "qontext-x").touch()
    assert faults(calm, ACCEPT, tmp_path) == ["leaves qontext-x in the temporary folder"]
    (tmp_path / "tmp" / "qontext-x").unlink()
    refused = Outcome(2, False, 0.1, "", "error: no")
    assert faults(refused, ACCEPT, tmp_path) == ["refused, and must be accepted"]
    (tmp_path / "work" / "out").mkdir(parents=True)
    assert faults(refused, "must refuse", tmp_path) == ["leaves out"]
    assert faults(refused, "must refuse", tmp_path, frozenset(["out", "kept"])) == ["removes kept"]
    silent = Outcome(2, False, 0.1, "", "")
    (tmp_path / "stderr").touch()
    assert "no word about why" in faults(silent, "must refuse", tmp_path, frozenset(["out"]))


def test_a_hang_and_a_crash_are_seen(zygote: Zygote, tmp_path: Path) -> None:
    """What kills the process of a case is told apart, and the warm process lives on."""
    for name, signal in (("crash", "SEGV"), ("hang", "XCPU")):
        done = zygote.call([f"--{name}"], tmp_path / name, {"signal": signal})
        assert faults(done, ACCEPT, tmp_path / name)
        assert done.hung == (name == "hang")
    assert zygote.call(["--version"], tmp_path / "after").code == 0


def _make_removable(function: object, path: str, error: object) -> None:
    for folder in (Path(path).parent, Path(path)):
        folder.chmod(0o700)
    shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink(missing_ok=True)
