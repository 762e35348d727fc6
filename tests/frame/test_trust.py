"""A folder from anyone: its recipes, indexes and models run no code, and send nothing anywhere, without the user's word.

The folder has `helper.py`, which writes a file `MARKER` when it is imported. Commands are real processes, started in it.
"""

from __future__ import annotations

import http.server
import json
import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import Server

from qontext import api
from qontext.frame import fingerprint, trust
from qontext.frame.artifacts import META
from qontext.frame.config import StageConfig
from qontext.frame.errors import QontextError
from qontext.models.folder import read_layout
from qontext.queries.generate import GenerateConfig
from qontext.retrieve.index.servers.milvus import MilvusOptions
from qontext.retrieve.index.servers.postgres import PostgresOptions

HELPER = """
from pathlib import Path
from qontext.queries.generators import Generator
Path(__file__).with_name("MARKER").write_text("ran")
class X(Generator):
    def __call__(self, passages):
        for index, passage in enumerate(passages):
            yield index, [passage.text.split()[0]]
    @classmethod
    def open(cls, options, task):
        one = cls()
        one.tally = __import__("collections").Counter()
        return one
"""
RECIPES = {
    "generator": '[generate]\npassages = "p.jsonl"\ngenerator = "helper:X"\nwords = 3\n',
    "source": '[split]\nsource = "helper:X:docs"\n',
    "input": '[inputs]\ncorpus = "helper:X:docs"\n[split]\nsource = "$corpus"\n',
    "method": '[pretrain]\npassages = "p.jsonl"\nmethod = "helper:X"\n',
    "judge": '[filter]\nqueries = "q"\npassages = "p.jsonl"\nby = "helper:X"\n',
    "backend": '[index]\nsource = "v"\nbackend = "helper:X"\n',
    "representation": '[finetune]\ndata = "d"\nencoder = "e"\nrepresentation = "helper:X"\n',
    "extends": '[recipe]\nextends = "generator.toml"\n',
    "small": '[generate]\npassages = "p.jsonl"\ngenerator = "lead"\n[small]\ngenerate.generator = "helper:X"\n',
    "arm": '[generate]\npassages = "p.jsonl"\ngenerator = "lead"\n[sweep.one]\ngenerate.generator = "helper:X"\n',
}
ARTIFACTS = {
    "index": {"verb": "index", "config": {"backend": "helper:X"}, "summary": {}},
    "vectors": {
        "verb": "encode",
        "config": {"kind": "passage"},
        "summary": {"representation": "helper:X"},
        "inputs": {"encoder": {"path": "e", "digest": "name:e"}},
    },
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The folder."""
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "helper.py").write_text(HELPER)
    (folder / "p.jsonl").write_text('{"_id": "1", "text": "A river of stones."}\n')
    (folder / "q.jsonl").write_text('{"_id": "1", "text": "river"}\n')
    for name, text in RECIPES.items():
        (folder / f"{name}.toml").write_text(text)
    made = {"by": "qontext", "python": "3", "finished": "2026", "seconds": 1.0}
    for name, meta in ARTIFACTS.items():
        (folder / name).mkdir()
        about = {"key": "k", "inputs": {}, "digest": "d", "parts": {}, "made": made, **meta}
        (folder / name / META).write_text(json.dumps(about))
    (folder / "evil_tools.egg-info").mkdir()
    (folder / "evil_tools.egg-info" / "PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: evil-tools\nVersion: 1\n"
    )
    (folder / "evil_tools.egg-info" / "entry_points.txt").write_text(
        "[qontext.generators]\nplain-name = helper:X\n"
    )
    (folder / "entry-point.toml").write_text(RECIPES["generator"].replace("helper:X", "plain-name"))
    return folder


@pytest.fixture
def command(clone: Path, warm: Server) -> Callable[..., tuple[int, str]]:
    """(exit code, what it says) of a command that is started in the folder."""

    def run(*words: str, **environment: str) -> tuple[int, str]:
        order = {"argv": [*words], "cwd": str(clone)}
        running = warm.launch(order, clone / "said", **environment)
        (code,) = running.wait()
        return code, running.text()

    return run


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_no_code(clone: Path, command: Callable[..., tuple[int, str]], name: str) -> None:
    more = ["--small"] if name == "small" else []
    verb, grid = ("sweep", []) if name == "arm" else ("run", [])
    lines = [[verb, f"{name}.toml", *grid, *more, *dry] for dry in ([], ["--dry-run"])]
    if name != "arm":
        lines.append(["sweep", f"{name}.toml", "--grid", "generate.seed=1,2", "--dry-run", *more])
    for words in lines:
        code, said = command(*words)
        assert code == 2 and len(said.splitlines()) == 1, said
        assert "--trust" in said or "unknown step" in said
    code, said = command("recipes", f"{name}.toml", *more)
    assert code == 0 and "helper:X" in said
    assert not (clone / "MARKER").exists()


@pytest.mark.parametrize(
    "words",
    [
        "search index --queries q.jsonl --k 1 --out o",
        "search vectors --queries q.jsonl --k 1 --out o",
        "serve index --dry-run",
        "serve vectors --dry-run",
        "show index",
        "rerank index --tokens vectors --passages p.jsonl --queries q.jsonl --out o",
        "run entry-point.toml --dry-run",
        "run helper-only.toml --set generate.passages=helper:X",
    ],
)
def test_a_directory_runs_no_code(clone: Path, command: Callable[..., tuple[int, str]], words: str) -> None:
    (clone / "helper-only.toml").write_text('[generate]\npassages = "p.jsonl"\ngenerator = "title"\n')
    code, said = command(*words.split())
    assert code in (0, 2) and "Traceback" not in said
    assert (
        code == 0
        or "--trust" in said
        or "no such" in said
        or "unknown" in said
        or "cannot" in said
        or "is a folder" in said
    ), said
    assert not (clone / "MARKER").exists()


def test_an_egg_info_of_the_current_folder_is_no_installed_package(clone: Path) -> None:
    """Also where Python was started with `-m` in the folder, and after a class of it was named."""
    for words in (
        ["generate", "p.jsonl", "--generator", "plain-name", "--out", "o"],
        ["run", "entry-point.toml"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "qontext", *words], cwd=clone, capture_output=True, text=True
        )
        assert done.returncode == 2 and "unknown generator 'plain-name'" in done.stderr
    assert not (clone / "MARKER").exists()
    code = "import sys; sys.path.append('.'); from qontext.queries.generators import GENERATORS; print(GENERATORS.names())"
    names = subprocess.check_output([sys.executable, "-P", "-c", code], cwd=clone, text=True)
    assert "plain-name" not in names and "keyphrase" in names


def test_the_command_line_and_trust_run_it(clone: Path, command: Callable[..., tuple[int, str]]) -> None:
    for words in (
        ["generate", "p.jsonl", "--generator", "helper:X", "--out", "o1"],
        ["run", "generator.toml", "--trust", "--set", "generate.words=", "--out", "o2"],
        ["run", "generator.toml", "--set", "generate.generator=helper:X", "--set", "generate.words="],
    ):
        code, said = command(*words)
        assert code == 0, said
        (clone / "MARKER").unlink()


def test_a_python_call_is_the_word_for_what_it_names_and_for_trust(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(trust.Untrusted):
        api.run("generator.toml", set=["generate.words="], dry_run=True)
    assert not (clone / "MARKER").exists()
    api.run("generator.toml", set=["generate.words="], dry_run=True, trust=True)
    assert (clone / "MARKER").exists()
    # What the program has imported already runs no code any more.
    assert api.run("generator.toml", set=["generate.words="])["steps"]
    sys.modules.pop("helper")


def test_a_question_at_the_terminal_is_asked_once(clone: Path, tmp_path: Path) -> None:
    """By a terminal of its own: no, yes, not again; again when the code or the file changed."""

    def ask(answer: str) -> tuple[int, str]:
        main, side = pty.openpty()
        code = "import sys; from qontext.cli import run_app; run_app()"
        child = subprocess.Popen(
            [sys.executable, "-c", code, "run", "generator.toml", "--set", "generate.words=", "--out", "o"],
            cwd=clone, stdin=side, stdout=side, stderr=side, env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")},
        )  # fmt: skip
        os.close(side)
        os.write(main, f"{answer}\n".encode())
        said = b""
        try:
            while piece := os.read(main, 4096):
                said += piece
        except OSError:  # the end
            pass
        os.close(main)
        return child.wait(), said.decode()

    code, said = ask("n")
    assert code == 2 and "generator.toml asks to run the code of the generator 'helper:X'" in said
    assert not (clone / "MARKER").exists()
    code, said = ask("y")
    assert code == 0 and "asks to" in said
    assert "asks to" not in ask("")[1]
    (clone / "helper.py").write_text(HELPER + "# changed\n")
    assert ask("")[0] == 2


class _Sink(http.server.BaseHTTPRequestHandler):
    requests: list[str]

    def do_POST(self) -> None:
        self.server.seen.append(self.headers.get("Authorization", ""))  # type: ignore[attr-defined]
        self.send_error(401)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def sink() -> Iterator[tuple[str, list[str]]]:
    """(address, Authorization headers of the requests) of a server that collects what is sent to it."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    server.seen = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", server.seen  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def test_a_recipe_sends_no_secret_to_its_host(
    clone: Path, command: Callable[..., tuple[int, str]], sink: tuple[str, list[str]]
) -> None:
    address, seen = sink
    recipe = (
        f'[generate]\npassages = "p.jsonl"\ngenerator = "llm"\nchat_model = "m"\nendpoint = "{address}"\n'
    )
    (clone / "exfil.toml").write_text(recipe + 'key_variable = "AWS_SECRET_ACCESS_KEY"\n')
    (clone / "key.toml").write_text(recipe)
    (clone / "ours.toml").write_text(recipe + 'key_variable = "QONTEXT_KEY"\n')
    secrets = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "QONTEXT_KEY"), "s3cret-s3cret")
    named = ["--set", "generate.key_variable=AWS_SECRET_ACCESS_KEY"]
    assert "send the environment variable AWS_SECRET_ACCESS_KEY to" in command("recipes", "exfil.toml")[1]
    for words in (
        ["run", "exfil.toml"],
        ["run", "exfil.toml", "--trust"],
        ["run", "exfil.toml", *named],
        ["run", "key.toml"],
        ["run", "ours.toml"],
    ):
        code, said = command(*words, **secrets)
        assert code == 2 and address in said and "environment variable" in said, said
    assert seen == []
    for words in (["exfil.toml", "--trust", *named], ["ours.toml", "--trust"], ["key.toml", "--trust"]):
        command("run", *words, **secrets)
        assert seen.pop() == "Bearer s3cret-s3cret"
        seen.clear()


def asks(config: type[StageConfig], **values: Any) -> str:
    """The demands of these settings of a file."""
    return "; ".join(
        demand.does
        for demand in config.demands(values)
        if not all(trust.is_given(word) for word in demand.words)
    )


def test_what_settings_of_a_file_ask_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_API_KEY", "MILVUS_TOKEN", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)
    llm = {"generator": "llm", "chat_model": "m"}
    assert asks(GenerateConfig, **llm) == ""
    assert asks(GenerateConfig, **llm, endpoint="http://localhost:11434/v1") == ""
    for address in ("http://10.0.0.7/v1", "http://localhost.evil/v1", "http://127.0.0.1.evil/v1"):
        assert asks(GenerateConfig, **llm, endpoint=address) == f"send passages to {address}"
    assert "join the cluster at ray://evil:10001" in asks(GenerateConfig, **llm, on="ray://evil:10001")
    local = ["http://localhost:19530", "http://127.0.0.1:1", "http://[::1]:1"]
    assert [asks(MilvusOptions, uri=uri) for uri in local] == [""] * 3
    for uri in (
        "http://evil:1",
        "http://localhost@evil",
        "http://localhost:1@evil",
        "../x.db",
        "x.db",
        "http://localhost\\@evil",
    ):
        assert asks(MilvusOptions, uri=uri), uri
    for uri in ("", "postgresql://me@localhost/x"):
        assert asks(PostgresOptions, uri=uri) == ""
    for uri in (
        "host=evil",
        "postgresql://localhost/x?hostaddr=6.6.6.6",
        "postgresql://localhost,evil/x",
        "service=evil",
    ):
        assert asks(PostgresOptions, uri=uri), uri
    monkeypatch.setenv("MILVUS_TOKEN", "root:s3cret")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    assert "MILVUS_TOKEN to http://localhost:19530" in asks(MilvusOptions, uri=local[0])
    assert "PGPASSWORD" in asks(PostgresOptions, uri="postgresql://me@localhost/x")
    trust.give({"uri": local[0]})
    assert asks(MilvusOptions, uri=local[0]) == "" and asks(MilvusOptions, uri="http://localhost:19531")


@pytest.mark.parametrize(
    ("backend", "uri", "secret"),
    [("milvus", "http://{}", "MILVUS_TOKEN"), ("postgres", "postgresql://me@{}/x", "PGPASSWORD")],
)
def test_an_index_sends_no_token_to_its_host(
    clone: Path, command: Callable[..., tuple[int, str]], backend: str, uri: str, secret: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sink:
        sink.setblocking(False)
        address = uri.format(f"127.0.0.1:{sink.getsockname()[1]}")
        about = json.loads((clone / "index" / META).read_text())
        about["config"] = {"backend": backend, "uri": address, "collection": "c", "table": "t"}
        about["summary"] = {"encoder": {"path": "e", "digest": "name:e"}, "dimension": 8}
        (clone / "index" / META).write_text(json.dumps(about))
        words = ["search", "index", "--queries", "q.jsonl", "--k", "1", "--out", "o"]
        code, said = command(*words, **{secret: "s3cret"})
        assert code == 2 and f"in {secret} to {address}. Add --trust" in said, said
        with pytest.raises(BlockingIOError):
            sink.accept()


def test_what_a_file_sends_away_is_shown_with_what_it_reads(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    (tmp_path / "private.jsonl").write_text("{}")
    (clone / "r.toml").write_text(
        f'[generate]\npassages = "{tmp_path}/private.jsonl"\ngenerator = "llm"\nchat_model = "m"\nendpoint = "http://6.6.6.6/v1"\n'
    )
    with pytest.raises(
        trust.Untrusted, match=r"send passages to http://6\.6\.6\.6/v1; read .*private\.jsonl"
    ):
        api.run(str(clone / "r.toml"))


@pytest.mark.parametrize("path", ["../other", "/etc"])
def test_a_model_folder_names_no_module_outside(tmp_path: Path, path: str) -> None:
    listed = [{"type": "x.Transformer", "path": ""}, {"type": "x.Dense", "path": path}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(QontextError, match="is outside of the model's folder"):
        read_layout(tmp_path)


def test_a_process_that_is_started_here_inherits_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    trust.give("helper:X:docs")
    environment = trust.environment()
    code = "from qontext.frame import trust; print(trust.is_given('helper:X'), trust.is_given('other:X'))"
    said = subprocess.check_output([sys.executable, "-c", code], env={**os.environ, **environment}, text=True)
    assert said.split() == ["True", "False"]


@pytest.mark.parametrize("name", ["/:X", "..:X", "*:X", " helper:X", "../helper:X"])
def test_a_name_that_is_no_module_is_no_path(clone: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Nothing is read to decide on it, least of all the whole disk."""
    monkeypatch.chdir(clone)
    read: list[Path] = []
    monkeypatch.setattr(fingerprint, "fingerprint", lambda path: read.append(path) or "")
    (clone / "odd.toml").write_text(RECIPES["generator"].replace("helper:X", name))
    with pytest.raises(trust.Untrusted):
        api.run("odd.toml")
    assert read == [] and not (clone / "MARKER").exists()


OUTSIDE = {
    "absolute": '[split]\nsource = "{folder}/private.jsonl"\n',
    "above": '[split]\nsource = "../private.jsonl"\n',
    "hidden": '[split]\nsource = ".env.jsonl"\n',
    "input": '[inputs]\ndocuments = "{folder}/private.jsonl"\n[split]\nsource = "$documents"\n',
    "arm": '[split]\nsource = "p.jsonl"\n[sweep.one]\nsplit.source = "{folder}/private.jsonl"\n',
    "address": '[split]\nsource = "https://example.org/private.jsonl"\n',
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_recipe_asks_before_it_reads_elsewhere(
    clone: Path, command: Callable[..., tuple[int, str]], name: str
) -> None:
    for file in (clone.parent / "private.jsonl", clone / ".env.jsonl"):
        file.write_text('{"_id": "1", "text": "A secret."}\n')
    text = OUTSIDE[name].format(folder=clone.parent)
    (clone / "r.toml").write_text(text)
    source = next(line.split('"')[1] for line in text.splitlines() if "private" in line or ".env" in line)
    verb, setting = ("sweep", "sweep.one.source") if name == "arm" else ("run", "split.source")
    code, said = command(verb, "r.toml", "--out", "o")
    assert code == 2 and f"asks to read {source}" in said and "--trust" in said, said
    assert not (clone / "o").exists()
    if name in ("absolute", "above", "hidden"):
        for words in (["--trust"], ["--set", f"{setting}={source}"]):
            code, said = command("run", "r.toml", "--out", f"o{len(words)}", *words)
            assert code == 0, said


def test_a_reference_to_a_step_stays_in_its_folder(
    clone: Path, command: Callable[..., tuple[int, str]]
) -> None:
    (clone / "r.toml").write_text(
        '[split]\nsource = "p.jsonl"\n[train-tokenizer]\npassages = "@split/../../../private"\n'
    )
    code, said = command("run", "r.toml", "--out", "o", "--trust")
    assert code == 2 and "which is not in that step's folder" in said


@pytest.mark.parametrize("name", ["../private.npy", "/etc/passwd"])
def test_a_directory_names_no_part_outside(
    clone: Path, command: Callable[..., tuple[int, str]], name: str
) -> None:
    about = json.loads((clone / "vectors" / META).read_text())
    about["parts"] = {name: {"bytes": 1, "hash": "h"}}
    (clone / "vectors" / META).write_text(json.dumps(about))
    for words in (
        ["show", "vectors"],
        ["show", "vectors", "--verify"],
        ["search", "vectors", "--queries", "q.jsonl", "--k", "1", "--out", "o"],
    ):
        code, said = command(*words)
        assert code == 2 and "is outside of the directory" in said, said


def test_show_obeys_no_control_characters(clone: Path, command: Callable[..., tuple[int, str]]) -> None:
    about = json.loads((clone / "vectors" / META).read_text())
    about["summary"] = {"note": "\x1b]52;c;cm0gLXJm\x07\x1b[2J\u202egnp.exe", "\x1b[31mname": 1}
    (clone / "vectors" / META).write_text(json.dumps(about))
    (clone / "title.toml").write_text(
        '[recipe]\ntitle = "\\u001b[2J\\u009b2J"\n[split]\nsource = "p.jsonl"\n'
    )
    for words in (["show", "vectors"], ["recipes", "title.toml"]):
        code, said = command(*words)
        assert code == 0 and not {*said} & {"\x1b", "\x07", "\u202e", "\x9b"}, said
        assert "2J" in said


def hostile_model(folder: Path, kind: str) -> None:
    """A folder that looks like a model."""
    folder.mkdir()
    config: dict[str, Any] = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 30}
    if kind == "pickle":
        import pickle

        class Run:
            def __reduce__(self) -> Any:
                return Path.write_text, (folder.parent / "MARKER", "ran")

        (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Run()}))
    elif kind == "code":
        config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModel": "own.M"}}
        (folder / "own.py").write_text(f"open({str(folder.parent / 'MARKER')!r}, 'w').write('ran')\n")
    elif kind == "base":
        (folder / "adapter_config.json").write_text(
            '{"base_model_name_or_path": "someone/base", "peft_type": "LORA"}'
        )
    elif kind == "kernel":
        config["attn_implementation"] = config["_attn_implementation"] = "someone/kernel"
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("kind", ["pickle", "code", "base", "kernel"])
def test_a_model_runs_no_code_and_downloads_nothing(
    clone: Path, command: Callable[..., tuple[int, str]], kind: str
) -> None:
    hostile_model(clone / "model", kind)
    with socket.create_server(("127.0.0.1", 0)) as sink:
        sink.setblocking(False)
        hub = f"http://127.0.0.1:{sink.getsockname()[1]}"
        for words in (
            ["encode", "p.jsonl", "--encoder", "model", "--out", "o"],
            ["adapt", "p.jsonl", "--encoder", "model", "--budget", "1m", "--yes", "--out", "a"],
        ):
            code, said = command(*words, HF_ENDPOINT=hub, HF_HUB_OFFLINE="")
            assert code == 2 and "Traceback" not in said, said
        with pytest.raises(BlockingIOError):
            sink.accept()
    assert not (clone / "MARKER").exists()


def test_what_only_a_file_names_is_downloaded_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Even with --quiet."""
    import huggingface_hub

    from qontext.frame import log
    from qontext.models import hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda **settings: "/nowhere")
    log.show(log.WARNING)
    hub.download("someone/model", [])
    assert "warning: downloading someone/model" in capfd.readouterr().err
    trust.give("someone/model")
    hub.download("someone/model", [])
    assert capfd.readouterr().err == ""


def test_what_the_user_named_is_named_in_any_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trust.give({"documents": tmp_path / "docs", "out": "made/../other", "about": ""})
    assert (
        trust.is_named(str(tmp_path / "docs")) and trust.is_named("docs/a.txt") and trust.is_named("other/x")
    )
    assert not trust.is_named("docs2") and not trust.is_named(".env") and not trust.is_named("made/x")
