"""Pipes, sockets, devices and folders that link to each other: nothing is waited for, nothing is read twice."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.corpus import make
from typer.testing import CliRunner

from qontext import api
from qontext.cli import app
from qontext.frame import files
from qontext.frame.artifacts import is_artifact, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.inputs import fingerprint
from qontext.retrieve.ask.prepared import is_documents
from qontext.retrieve.index.load import open_searchable


def names(root: Path) -> list[str]:
    entries = [entry for entry in files.walk(root) if not isinstance(entry, OSError)]
    return [str(Path(entry.path).relative_to(root)) for entry in entries]


def test_folders_that_link_to_each_other_are_read_once(tmp_path: Path) -> None:
    """Twelve of them, each with links to all others, have more ways through them than can be gone."""
    for number in range(12):
        (tmp_path / f"f{number:02}").mkdir()
        (tmp_path / f"f{number:02}" / "text.txt").write_text(f"Text {number}.")
        for other in range(12):
            (tmp_path / f"f{number:02}" / f"to{other:02}").symlink_to(tmp_path / f"f{other:02}")
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    texts = [f"f{number:02}/text.txt" for number in range(12)]
    assert names(tmp_path) == [*texts, "self"]
    assert fingerprint(tmp_path) == fingerprint(tmp_path)
    (tmp_path / "self").unlink()
    passages = api.split(tmp_path, workers=1, out=tmp_path.with_name("passages"))
    assert passages.summary["documents"] == 12


def test_a_link_to_a_folder_outside_is_followed_once(tmp_path: Path) -> None:
    for path in ("root/b", "outside/deep"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "outside" / "deep" / "x").write_text("")
    (tmp_path / "outside" / "back").symlink_to(tmp_path / "root")
    for name in ("a", "b/c"):
        (tmp_path / "root" / name).symlink_to(tmp_path / "outside")
    assert names(tmp_path / "root") == ["a/deep/x"]


def test_the_fingerprint_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("x")
    before = fingerprint(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert fingerprint(tmp_path) == before
    (tmp_path / "a" / "x").write_text("y")
    assert fingerprint(tmp_path) != before


@pytest.fixture(params=["pipe", "socket", "device"])
def odd(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """`odd("x.parquet")` makes something of that name that is no file."""
    monkeypatch.chdir(tmp_path)  # a socket's path has to be short

    def make(name: str) -> Path:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        if request.param == "pipe":
            os.mkfifo(name)
        elif request.param == "socket":
            with socket.socket(socket.AF_UNIX) as unix_socket:
                unix_socket.bind(name)
        else:
            Path(name).symlink_to("/dev/zero")
        return Path(name)

    return make


def refused(command: str) -> str:
    """The output of the command line; a command that waits for a pipe never comes back."""
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 2 and done.stderr.startswith("error: "), done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("docs.jsonl", "split docs.jsonl --out made"),
        ("docs.txt", "split docs.txt --out made"),
        ("in/x.parquet", "encode in --encoder model --out made"),
        ("x.parquet", "encode x.parquet --encoder model --out made"),
        ("run.trec", "evaluate run.trec qrels.tsv"),
        ("qrels.tsv", "evaluate . qrels.tsv"),
        ("run.trec", "show run.trec"),
        ("mine.toml", "run mine.toml --out made"),
        ("docs.jsonl", "adapt docs.jsonl --out made"),
    ],
)
def test_an_input_that_is_no_file_is_refused_at_once(
    odd: Callable[[str], Path], name: str, command: str
) -> None:
    odd(name)
    for other in ("qrels.tsv", "run.trec"):
        if other != name:
            Path(other).write_text("q Q0 p 1 1.0 x\n" if other == "run.trec" else "q\tp\t1\n")
    refused(command)


def test_a_folder_of_texts_counts_what_is_no_text(odd: Callable[[str], Path]) -> None:
    Path("docs").mkdir()
    Path("docs/a.txt").write_text("A text.")
    odd("docs/b.log")
    assert api.split("docs", workers=1, out="made").summary["documents"] == 1
    odd("docs/c.txt")
    with pytest.raises(QontextError, match=r"c\.txt: is not a regular file"):
        api.split("docs", workers=1, out="refused")


def test_documents_may_have_a_description_of_their_own(tmp_path: Path) -> None:
    """As those of generators of sites; their owner is not told to remove them."""
    docs = tmp_path / "docs"
    for folder, text in ((docs, "The mill grinds flour."), (docs / "guide", "The boat crosses the river.")):
        folder.mkdir()
        (folder / "meta.json").write_text('{"title": "Docs", "pages": ["index"]}')
        (folder / "index.txt").write_text(text)
    assert api.split(docs, workers=1, out=tmp_path / "made").summary["documents"] == 2
    assert is_documents(str(docs))
    (row,) = api.show(tmp_path, verify=True)["directories"]
    assert row["directory"] == "made"
    with pytest.raises(QontextError, match=r"its meta\.json is another program's"):
        open_artifact(docs)
    with pytest.raises(QontextError, match="not searchable"):
        open_searchable(docs)
    with pytest.raises(QontextError) as refused_output:
        api.split(tmp_path / "made", workers=1, out=docs)
    assert "damaged" not in str(refused_output.value)


def test_a_description_is_only_parsed_again_if_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every question asks whether the passages are an artifact."""
    (tmp_path / "meta.json").write_text('{"title": "Docs", "pages": []}')
    assert not is_artifact(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", lambda text: pytest.fail("parsed again"))
        assert not is_artifact(tmp_path)
    (tmp_path / "meta.json").write_text('{"verb": "split"}')
    assert is_artifact(tmp_path)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "modules.json"]
)
def test_a_model_whose_file_is_none(odd: Callable[[str], Path], copy: Path, name: str) -> None:
    (copy / "encoder" / name).unlink()
    odd(str(Path("encoder") / name))
    assert f"encoder/{name}" in refused("encode data --encoder encoder --out made")


BAD = b"\xff\xc3"
"""No UTF-8."""


def odd_folder(root: Path) -> Path:
    """A file of every format, all with names that are not UTF-8, in a folder with such a name."""
    folder = root / "files" / os.fsdecode(b"in" + BAD)
    folder.mkdir(parents=True)
    texts = {
        "txt": "A mill.",
        "md": "# Mill\n\nA mill.",
        "html": "<p>A mill</p>",
        "rst": "A mill",
        "py": '"""A mill."""',
    }
    texts |= {"eml": "Subject: x\n\nA mill", "json": "{}", "mbox": "From a b\nSubject: x\n\nA mill\n"}
    for ending, text in texts.items():
        (folder / os.fsdecode(BAD + b"." + ending.encode())).write_text(text)
    make.docx(folder / os.fsdecode(BAD + b".docx"))
    make.pdf(folder / os.fsdecode(BAD + b".pdf"), [["The mill by the river grinds flour."] * 9])
    make.epub(folder / os.fsdecode(BAD + b".epub"), {"one": "<p>A mill</p>"})
    return root / "files"


@pytest.mark.parametrize("workers", [1, 2])
def test_names_that_are_not_utf_8_are_read(workers: int, tmp_path: Path) -> None:
    root = odd_folder(tmp_path)
    artifact = api.split(root, workers=workers, out=tmp_path / "passages")
    assert artifact.summary["documents"] == 10
    rows = [row for part in artifact.parts() for row in pq.read_table(part).to_pylist()]
    assert {row["file"] for row in rows} == {
        rf"in\xff\xc3/\xff\xc3.{ending}"
        for ending in ("txt", "md", "html", "rst", "py", "eml", "mbox", "docx", "pdf", "epub")
    }
    assert {"?"}.isdisjoint(row["title"] for row in rows)
    api.show(artifact.path, verify=True)


@pytest.mark.parametrize("ending", ["jsonl", "tsv", "parquet"])
def test_records_in_files_with_such_names_are_read(ending: str, tmp_path: Path) -> None:
    file = tmp_path / "files" / os.fsdecode(BAD + b"." + ending.encode())
    file.parent.mkdir()
    if ending == "parquet":
        with file.open("wb") as stream:
            pq.write_table(pa.table({"id": ["a", "a"], "text": ["A mill.", "Flour."]}), stream)
    else:
        lines = {"jsonl": '{"id": "a", "text": "A mill."}\n', "tsv": "a\tA mill.\n"}
        file.write_text(2 * lines[ending])
    artifact = api.split(file.parent, workers=1, on_error="skip", out=tmp_path / "passages")
    assert artifact.summary["skipped"] == {"duplicate_id": 1}
    with pytest.raises(QontextError, match=r"\\xff\\xc3\.") as refused:
        api.split(file.parent, workers=1, out=tmp_path / "others")
    str(refused.value).encode()


def test_ids_do_not_depend_on_the_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "😀é.txt").write_text("A mill.")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = ["-m", "qontext", "split", "files", "--workers", "1", "--out", "passages"]
    subprocess.run([sys.executable, *command], cwd=tmp_path, env={**os.environ, **locale}, check=True)
    monkeypatch.chdir(tmp_path)
    (part,) = api.split("files", workers=1, out="passages").parts()
    (row,) = pq.read_table(tmp_path / part).to_pylist()
    assert row["file"] == "😀é.txt" and row["title"] == "😀é"
