"""The command line, as a person meets it: in processes of its own where imports or exit codes count."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qontext import __version__, api, cli
from qontext.frame import files, stages
from qontext.frame.config import StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.files import opening
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


def test_help_lists_every_verb_under_its_heading(qontext: Qontext) -> None:
    done = qontext("--help")
    assert done.returncode == 0 and not done.stderr
    positions = [done.stdout.index(f"\n  {name} ") for name in ("split", "tokens", "evaluate", "run", "show")]
    assert positions == sorted(positions)
    words = " ".join(done.stdout.split())
    for name, verb in stages.VERBS.items():
        assert f" {name} {verb.help}" in words and f"\n{verb.panel}\n" in done.stdout


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


def test_quiet_says_nothing(qontext: Qontext) -> None:
    done = qontext("split", "docs.jsonl", "--out", "p", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "already finished" in qontext("split", "docs.jsonl", "--out", "p").stderr
    assert qontext("split", "docs.jsonl", "--out", "p", "-q").stderr == ""


def test_verbose_says_what_was_left_out(qontext: Qontext, tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text(DOCUMENT + "{\n")
    done = qontext("split", "docs.jsonl", "--out", "p", "--on-error", "skip", "-v")
    assert "left out: docs.jsonl:2: " in done.stderr


def test_the_nearest_verb_is_suggested(qontext: Qontext) -> None:
    done = qontext("spilt", "docs.jsonl")
    assert done.returncode == 2
    assert "No such command 'spilt'. Did you mean 'split'?" in done.stderr


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


def test_bad_input_shows_no_traceback(qontext: Qontext) -> None:
    done = qontext("split", "nowhere.jsonl", "--out", "p")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("flags", [("--max-tokens", "many"), ("--sentences", "dots"), ("--no-such-flag",)])
def test_a_flag_that_does_not_fit_exits_with_2(flags: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli.app, ["split", "docs.jsonl", "--out", "p", *flags])
    assert done.exit_code == 2 and flags[0] in done.stderr and "Traceback" not in done.stderr


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


def test_notes_that_cannot_be_written_stop_nothing(qontext: Qontext, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        for arguments, code in ((["split", "docs.jsonl", "--out", "p", "-v"], 0), (["show", "nowhere"], 2)):
            command = [sys.executable, "-m", "qontext", *arguments]
            done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=full, text=True)
            assert done.returncode == code and bool(done.stdout) == (code == 0)


def test_a_reader_that_stops_reading_is_no_error(qontext: Qontext, tmp_path: Path) -> None:
    api.split(tmp_path / "docs.jsonl", out=tmp_path / "p")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "qontext", "show", "p", "--json"]
    done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("out", ["", "a\0b", "caf\udce9"])
def test_an_out_that_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    (tmp_path / "docs.jsonl").write_text(DOCUMENT)
    monkeypatch.chdir(tmp_path)
    for verb in ("split", "adapt"):  # a stage, and a command that has a setting of that name
        done = CliRunner().invoke(cli.app, [verb, "docs.jsonl", "--out", out])
        assert done.exit_code == 2 and "out" in done.stderr and len(done.stderr.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["docs.jsonl"]


def test_an_argument_that_is_given_twice_is_told(tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="split got source twice, by its position and by its name"):
        api.split("a", source="b", out=tmp_path / "p")


def test_debug_shows_where(qontext: Qontext) -> None:
    done = qontext("show", "nowhere", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr and done.stderr.splitlines()[-1].startswith("error: ")


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


def test_a_message_has_place_and_remedy() -> None:
    error = QontextError("it is broken", place="docs.jsonl:3", remedy="Mend it.")
    assert str(error) == "docs.jsonl:3: it is broken. Mend it."


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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(qontext: Qontext, shell: str) -> None:
    done = qontext("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0 and "COMPLETE" in done.stdout


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


def test_a_configuration_knows_which_settings_were_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A default is not taken for a setting that was asked for, even if it was passed with the same value."""
    from qontext.frame import execution

    configs = []
    monkeypatch.setattr(execution, "execute", lambda stage, config, out, **more: configs.append(config))
    with contextlib.suppress(AttributeError):  # there is no result
        cli.app(
            ["retrieve", "index", "--k", "1000", "--queries", "q.tsv", "--out", "x.trec"],
            standalone_mode=False,
        )
    assert configs[0].model_fields_set == {"index", "k", "queries"}


def test_a_value_that_is_no_choice_is_told_with_the_choices(qontext: Qontext) -> None:
    done = qontext("retrieve", "x", "--scoring", "some", "--out", "y")
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last == "Error: Invalid value for '--scoring': 'some' is not one of 'fp32', 'bf16', 'fp16'."


def test_a_terminal_of_unknown_width_shows_results(qontext: Qontext) -> None:
    assert qontext("split", "docs.jsonl", "--out", "p", "-q").returncode == 0
    shown = qontext("show", "p", COLUMNS="0")
    assert shown.returncode == 0 and "qontext split" in shown.stdout


MEMORY = [
    MemoryError(),
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ImportError("libtorch_cpu.so: failed to map segment from shared object"),
]


@pytest.mark.parametrize("error", MEMORY, ids=lambda error: type(error).__name__)
def test_memory_that_ran_out_is_not_blamed_on_a_file_or_the_program(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(QontextError, match=r"^out of memory\."), files.readable_errors():
        raise error
    with pytest.raises(QontextError, match=r"^out of memory\."), opening(tmp_path, "JSON"):
        raise error
    with pytest.raises(RuntimeError, match="of another kind"), files.readable_errors():
        raise RuntimeError("of another kind")


def test_a_file_server_that_forgot_a_file_is_no_fault_of_the_program() -> None:
    with (
        pytest.raises(QontextError, match=r"^docs.jsonl: cannot be read or written: "),
        files.readable_errors(),
    ):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "docs.jsonl")
