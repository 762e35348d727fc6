"""Hashes are remembered: a file is read again only after it has changed."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from qontext.frame import artifacts, hashes, log
from qontext.frame.disk import file_hash
from qontext.frame.hashes import cache_folder, digest_of, hash64, json_digest, known_hashes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files, and a cache of one's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = tmp_path / "folder"
    made.mkdir()
    for name in ("a", "b"):
        (made / name).write_bytes(name.encode() * 100)
    return made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read."""
    names: list[str] = []

    def reading(path: Path) -> str:
        names.append(path.name)
        return file_hash(path)

    monkeypatch.setattr(hashes, "file_hash", reading)
    return names


def expected(folder: Path) -> dict[str, str]:
    return {name: file_hash(folder / name) for name in ("a", "b")}


def test_a_file_is_read_once_until_it_changes(folder: Path, read: list[str]) -> None:
    for _ in range(2):
        assert known_hashes(folder, ("a", "b")) == expected(folder)
        assert read == ["a", "b"]
    times = (folder / "b").stat()
    (folder / "b").write_bytes(b"c" * 100)
    os.utime(folder / "b", ns=(times.st_atime_ns, times.st_mtime_ns))  # as tools that copy leave it
    assert known_hashes(folder, ("a", "b")) == expected(folder)
    assert read == ["a", "b", "b"]
    assert [file.suffix for file in cache_folder("hashes").iterdir()] == [".json"]


def test_what_takes_too_long_is_not_read(folder: Path, read: list[str]) -> None:
    assert known_hashes(folder, ("a", "b"), most=199) is None and read == []
    assert known_hashes(folder, ("a",), most=100) == {"a": file_hash(folder / "a")}
    assert known_hashes(folder, ("a", "b"), most=100) == expected(folder)


def test_what_was_not_read_is_said_until_it_was_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(artifacts, "known_hashes", functools.partial(known_hashes, most=10))
    work = artifacts.Workdir(tmp_path / "large")
    work.write_text("part", "more than ten bytes")
    claim = {"verb": "x", "format": 1, "config": {}, "inputs": {}, "key": ""}
    made = artifacts.finish(work, claim, {}, 0.0)
    log.show(log.NOTE)
    made.check_content()
    assert "only sizes are compared" in capsys.readouterr().err
    assert made.verify() == []
    made.check_content()
    assert capsys.readouterr().err == ""
    (made.path / "part").write_text("MORE THAN TEN BYTES")
    assert made.verify() == ["part"]


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a": "x"}', b'{"a": ["x", 5]}', b"\xff"])
def test_a_damaged_cache_is_replaced(folder: Path, read: list[str], content: bytes) -> None:
    known_hashes(folder, ("a", "b"))
    next(cache_folder("hashes").iterdir()).write_bytes(content)
    for _ in range(2):
        assert known_hashes(folder, ("a", "b")) == expected(folder)
    assert read == ["a", "b"] * 2


def test_no_cache_is_no_error(folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path(os.environ["XDG_CACHE_HOME"]).write_text("a file is in the way")
    assert known_hashes(folder, ("a", "b")) == expected(folder)

    def no_home(kind: str) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(hashes, "cache_folder", no_home)
    assert known_hashes(folder, ("a", "b")) == expected(folder)
    assert read == ["a", "b"] * 2


def test_directories_that_were_not_opened_for_long_are_forgotten(
    folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "KEPT", 2)
    for name in "xyz":
        (folder / name).mkdir()
        (folder / name / "file").write_text(name)
        known_hashes(folder / name, ("file",))
    assert len(list(cache_folder("hashes").iterdir())) == 2


def test_hashes_in_files_are_those_of_earlier_versions() -> None:
    assert digest_of("Mühle", 8).hex() == "169e0a701579f4f8" == digest_of("Mühle".encode(), 8).hex()
    assert digest_of("\ud800", 8).hex() == "4208783e927d0d68"
    assert hash64("Mühle") == 17939096348704546326
    assert json_digest({"b": [1, "é"], "a": None}) == "94215e9219b30a5005f2265135d109ac"
    assert json_digest({"a": None, "b": [1, "é"]}) == json_digest({"b": [1, "é"], "a": None})
