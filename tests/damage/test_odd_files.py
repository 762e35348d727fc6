"""Pipes, sockets, devices and folders that link to each other: nothing is waited for, nothing is read twice."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.corpus import make
from typer.testing import CliRunner

from qontext import api
from qontext.cli import app
from qontext.frame import files
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.inputs import fingerprint
from qontext.retrieve.ask.prepared import is_documents


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
    with pytest.raises(QontextError) as refused_output:
        api.split(tmp_path / "made", workers=1, out=docs)
    assert "damaged" not in str(refused_output.value)


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
    make.pdf(folder / os.fsdecode(BAD + b".pdf"), [["The mill by the river grinds flour."] * 9])
    return root / "files"


@pytest.mark.parametrize("workers", [1, 2])
def test_names_that_are_not_utf_8_are_read(workers: int, tmp_path: Path) -> None:
    root = odd_folder(tmp_path)
    artifact = api.split(root, workers=workers, out=tmp_path / "passages")
    assert artifact.summary["documents"] == 8
    rows = [row for part in artifact.parts() for row in pq.read_table(part).to_pylist()]
    assert {row["file"] for row in rows} == {
        rf"in\xff\xc3/\xff\xc3.{ending}"
        for ending in ("txt", "md", "html", "rst", "py", "eml", "mbox", "pdf")
    }
    assert {"?"}.isdisjoint(row["title"] for row in rows)
    api.show(artifact.path, verify=True)
