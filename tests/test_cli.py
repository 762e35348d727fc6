"""The command line, as a person meets it: in processes of its own where imports or exit codes count."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qontext import __version__, api, cli
from qontext.frame import stages
from qontext.frame.config import StageConfig
from qontext.frame.process import SENTENCE

HEAVY = ("torch", "transformers", "tokenizers", "pyarrow", "numpy", "pydantic")
DOCUMENT = '{"_id": "d", "text": "A first sentence. A second one."}\n'

Qontext = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def qontext(tmp_path: Path) -> Qontext:
    """Run the installed command in a new process, in a folder that holds docs.jsonl."""
    (tmp_path / "docs.jsonl").write_text(DOCUMENT)

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "qontext", *arguments],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "200", **environment},
            capture_output=True,
            text=True,
        )

    return run


def loaded_by(arguments: list[list[str]], modules: tuple[str, ...]) -> dict[str, list[str]]:
    """The `modules` that are loaded after each of these command lines, in one new process."""
    code = textwrap.dedent(f"""
        import contextlib, io, json, sys
        from qontext import cli
        found = {{}}
        for arguments in {arguments!r}:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
                cli.app(arguments)
            found[" ".join(arguments)] = [name for name in {modules!r} if name in sys.modules]
        print(json.dumps(found))
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result: dict[str, list[str]] = json.loads(done.stdout)
    return result


def test_help_begins_with_six_verbs_and_help_all_lists_every_one_under_its_heading(qontext: Qontext) -> None:
    short, whole = qontext("--help").stdout, qontext("--help-all").stdout
    words = " ".join(whole.split())
    for name, verb in stages.VERBS.items():
        assert f" {name} {verb.help}" in words and f"\n{verb.panel}\n" in whole
    first = short.partition(f"\n{stages.FIRST}\n")[2].partition("More verbs")[0]
    assert re.findall(r"^  ([a-z-]+) ", first, re.M) == [
        "search",
        "adapt",
        "serve",
        "refresh",
        "show",
        "demo",
    ]


def test_help_imports_nothing_heavy() -> None:
    assert loaded_by([["--help"], ["--version"]], HEAVY) == {"--help": [], "--version": []}


def test_no_verbs_help_imports_what_it_does_not_need() -> None:
    heavy = ("torch", "transformers", "numpy", "pyarrow", "rich", "lxml", "matplotlib")
    imported = loaded_by([[verb, "--help"] for verb in stages.VERBS], heavy)
    assert imported == {f"{verb} --help": [] for verb in stages.VERBS}


@pytest.mark.parametrize("verb", stages.VERBS)
def test_every_verb_explains_itself(verb: str) -> None:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(cli.app, [verb, "--help-all"])
    assert done.exit_code == 0, done.output
    pages = done.output.partition("Examples:")[2].splitlines()
    assert max(len(line) for line in pages if not line.startswith("    ") or line.startswith(" " * 8)) <= 80
    loaded = stages.load(verb)
    examples = [line.strip() for line in loaded.examples.strip().splitlines()]
    assert examples and f"qontext {verb}" in examples[0]
    for line in examples:
        assert line in done.output
        if f"qontext {verb} " in line:  # what it shows is what there is
            flags = {word for word in line.partition(f"qontext {verb} ")[2].split() if word.startswith("--")}
            assert not {flag for flag in flags if flag not in done.output}
    text = " ".join(done.output.split())
    for name, field in loaded.config.model_fields.items():  # those of its kinds: test_own_kinds.py
        assert field.description, f"{verb}: {name} has no text under it"
        assert " ".join(field.description.split()) in text, f"{verb}: {name} loses some of its text"
        assert f"--{name.replace('_', '-')}" in done.output or name.upper() in done.output
    assert all(flag in done.output for flag in ("--json", "--quiet", "--verbose", "--debug"))
    assert ("--out" in done.output) >= isinstance(loaded, stages.Stage)


def test_a_long_help_names_the_options_that_few_need_and_help_all_explains_them() -> None:
    short, whole = (
        CliRunner(env={"COLUMNS": "80"}).invoke(cli.app, ["pretrain", flag]).output
        for flag in ("--help", "--help-all")
    )
    for panel in ("Advanced settings", "This machine", "General"):
        assert f"\n{panel}\n" in whole and f"\n{panel}\n" not in short
    listed = short.partition(" pretrain --help-all)")[2]
    assert "--weight-decay," in listed and "--micro-tokens," in listed and "More options" not in whole
    assert "Learning-rate schedule" in whole and "Learning-rate schedule" not in short
    assert len(short.splitlines()) < 100


class BracketsConfig(StageConfig):
    folder: str = ""
    """Needs qontext[serve]; vectors are [n, dimension], read from [cls] tokens [/bold]."""


def test_square_brackets_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    command = stages.Command("show", BracketsConfig, lambda config: {}, "qontext show x[1] [red]y[/red]")
    monkeypatch.setattr(stages, "load", lambda verb: command)
    done = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, ["show", "--help"])
    text = " ".join(done.output.split())
    assert "Needs qontext[serve]; vectors are [n, dimension], read from [cls] tokens [/bold]." in text
    assert "qontext show x[1] [red]y[/red]" in text


def test_version(qontext: Qontext) -> None:
    assert qontext("--version").stdout == f"qontext {__version__}\n"


def test_json_is_one_line_on_stdout_and_nothing_else(qontext: Qontext) -> None:
    done = qontext("split", "docs.jsonl", "--out", "p", "--json")
    assert done.returncode == 0 and done.stderr == ""
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["path"] == "p" and result["passages"] == 1 and len(result["digest"]) == 32


def test_one_of_several_processes_prints_the_result(qontext: Qontext, tmp_path: Path) -> None:
    command = ("split", "docs.jsonl", "--out", "p", "--json")
    together = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    api.split(tmp_path / "docs.jsonl", out=tmp_path / "p")
    printed = [qontext(*command, RANK=rank, **together) for rank in ("0", "1")]
    assert [(done.returncode, len(done.stdout.splitlines())) for done in printed] == [(0, 1), (0, 0)]


def test_a_command_prints_json_too(qontext: Qontext, tmp_path: Path) -> None:
    api.split(tmp_path / "docs.jsonl", out=tmp_path / "p")
    done = qontext("show", "p", "--json")
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["verb"] == "split"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["split", "docs.jsonl", "--out", "p", "--max-tokens", "2"],
            "max_tokens = 2: input should be greater",
        ),
        (["split", "nowhere.jsonl", "--out", "p"], "nowhere.jsonl: cannot read source"),
        (["split", "docs.jsonl", "--out", "p", "--encoding", "klingon"], "unknown text encoding 'klingon'"),
        (["show", "nowhere"], "nowhere: cannot read the directory: no such file or folder"),
        (["run", "nowhere.toml"], "nowhere.toml: cannot read the recipe"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    (tmp_path / "docs.jsonl").write_text(DOCUMENT)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and message in line
    assert [p.name for p in tmp_path.iterdir()] == ["docs.jsonl"]  # nothing is left of it


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["split", "--help"], ["show", "p"], ["show", "p", "--json"]],
    ids=" ".join,
)
def test_results_that_cannot_be_written_are_an_error(
    qontext: Qontext, tmp_path: Path, arguments: list[str]
) -> None:
    api.split(tmp_path / "docs.jsonl", out=tmp_path / "p")
    command = [sys.executable, "-m", "qontext", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: cannot write to standard output: no space left on device\n"


def test_a_reader_that_stops_reading_is_no_error(qontext: Qontext, tmp_path: Path) -> None:
    api.split(tmp_path / "docs.jsonl", out=tmp_path / "p")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "qontext", "show", "p", "--json"]
    done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_fault_of_ours_is_told_from_a_fault_of_the_input(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fault() -> None:
        raise RuntimeError("oops")

    with pytest.raises(cli.typer.Exit) as left:
        cli.run_guarded(fault, debug=False)
    assert left.value.exit_code == 1
    assert capsys.readouterr().err.startswith(
        "internal error: RuntimeError: oops\nRun the command again with --debug"
    )
    with pytest.raises(RuntimeError):
        cli.run_guarded(fault, debug=True)


def test_an_interrupt_exits_with_130_and_says_that_it_resumes(tmp_path: Path) -> None:
    """As Ctrl-C does: the whole group of processes gets the signal, while workers are busy."""
    (tmp_path / "docs.jsonl").write_text(DOCUMENT)
    slow = textwrap.dedent("""
        import sys, time
        from qontext import cli
        from qontext.corpus import split
        def wait(block, config):
            print("busy", file=sys.stderr, flush=True)
            time.sleep(2)
        split.split_block = wait
        cli.app(["split", "docs.jsonl", "--out", "p", "--workers", "2"])
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", slow],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "busy\n"
    os.killpg(process.pid, signal.SIGINT)
    text = process.stderr.read()
    assert process.wait() == 130
    assert text == f"{SENTENCE}\n"


@pytest.mark.parametrize(
    ("words", "position", "completion"),
    [("qontext sp", "1", "split"), ("qontext split --max", "2", "--max-tokens")],
)
def test_completion_knows_verbs_and_flags(tmp_path: Path, words: str, position: str, completion: str) -> None:
    environment = {
        **os.environ,
        "_QONTEXT_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": position,
    }
    command = [sys.executable, "-c", "from qontext.cli import app; app(prog_name='qontext')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [completion]


MEMORY = [
    MemoryError(),
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ImportError("libtorch_cpu.so: failed to map segment from shared object"),
]
