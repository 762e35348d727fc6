"""A folder from anyone: nothing outside of it is read without the user's word, and its texts obey no terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from qontext.frame.artifacts import META
from qontext.frame.errors import QontextError
from qontext.models.folder import read_layout

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
    setting = "split.source"
    code, said = command("run", "r.toml", "--out", "o")
    assert code == 2 and f"asks to read {source}" in said and "--trust" in said, said
    assert not (clone / "o").exists()
    if name in ("absolute", "above", "hidden"):
        for words in (["--trust"], ["--set", f"{setting}={source}"]):
            code, said = command("run", "r.toml", "--out", f"o{len(words)}", *words)
            assert code == 0, said


def test_documents_elsewhere_that_only_a_directory_names_are_named(
    clone: Path, command: Callable[..., tuple[int, str]]
) -> None:
    documents, said = clone.parent / "private.jsonl", "which mine names and you did not"
    documents.write_text('{"_id": "1", "text": "A secret."}\n')
    code, output = command("refresh", "mine", "--source", str(documents), "--words")
    assert code == 0 and said not in output
    documents.write_text('{"_id": "1", "text": "A secret river."}\n')
    code, output = command("refresh", "mine", "--quiet")
    assert code == 0 and f"reading {documents}, {said}" in output, output


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
        ["retrieve", "vectors", "--queries", "q.jsonl", "--k", "1", "--out", "o"],
    ):
        code, said = command(*words)
        assert code == 2 and "is outside of the directory" in said, said


@pytest.mark.parametrize("path", ["../other", "/etc"])
def test_a_model_folder_names_no_module_outside(tmp_path: Path, path: str) -> None:
    listed = [{"type": "x.Transformer", "path": ""}, {"type": "x.Dense", "path": path}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(QontextError, match="is outside of the model's folder"):
        read_layout(tmp_path)


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
