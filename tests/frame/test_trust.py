"""A folder from anyone: its recipes, indexes and models run no code without the user's word.

The folder has `helper.py`, which writes a file `MARKER` when it is imported. Commands are real processes, started in it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.frame.conftest import RECIPES

from qontext import api
from qontext.frame import trust


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_no_code(clone: Path, command: Callable[..., tuple[int, str]], name: str) -> None:
    more = ["--small"] if name == "small" else []
    lines = [["run", f"{name}.toml", *more, *dry] for dry in ([], ["--dry-run"])]
    if name != "arm":
        lines.append(["run", f"{name}.toml", "--grid", "generate.seed=1,2", "--dry-run", *more])
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
        "retrieve index --queries q.jsonl --k 1 --out o",
        "retrieve vectors --queries q.jsonl --k 1 --out o",
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


def test_a_process_that_is_started_here_inherits_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    trust.give("helper:X:docs")
    environment = trust.environment()
    code = "from qontext.frame import trust; print(trust.is_given('helper:X'), trust.is_given('other:X'))"
    said = subprocess.check_output([sys.executable, "-c", code], env={**os.environ, **environment}, text=True)
    assert said.split() == ["True", "False"]


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


def test_what_the_user_named_is_named_in_any_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trust.give({"documents": tmp_path / "docs", "out": "made/../other", "about": ""})
    assert (
        trust.is_named(str(tmp_path / "docs")) and trust.is_named("docs/a.txt") and trust.is_named("other/x")
    )
    assert not trust.is_named("docs2") and not trust.is_named(".env") and not trust.is_named("made/x")
