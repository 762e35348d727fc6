"""Small files that decompress to enormous ones: read in bounded memory, or refused in one sentence."""

from __future__ import annotations

import gzip
import lzma
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from qontext.data import lines
from qontext.data.lines import each_line, read_lines
from qontext.data.runs import read_run
from qontext.frame.errors import QontextError

OPEN = {".gz": gzip.open, ".xz": lzma.open, ".zst": zstandard.open, "": open}
PASSAGE = b'{"_id": "%s", "text": "Some words."}\n'


def write(path: Path, *pieces: tuple[bytes, int]) -> Path:
    """A file of pieces, each repeated; compressed as its name says."""
    with OPEN[path.suffix if path.suffix in OPEN else ""](path, "wb") as file:
        for piece, times in pieces:
            many = max(1, (1 << 20) // len(piece))
            for start in range(0, times, many):
                file.write(piece * min(many, times - start))
    return path


def read_within(megabytes: int, code: str) -> subprocess.CompletedProcess[str]:
    """Run the code in a process that may not hold more memory than that."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))

    return subprocess.run([sys.executable, "-c", code], preexec_fn=limit, capture_output=True, text=True)


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_documents_after_a_hundred_million_empty_lines(tmp_path: Path, ending: str) -> None:
    blanks = 100_000_000
    path = write(
        tmp_path / f"docs.jsonl.{ending}", (PASSAGE % b"a", 1), (b"\r\n", blanks), (PASSAGE % b"b", 1)
    )
    assert path.stat().st_size < 2 << 20
    code = (
        "from pathlib import Path; from qontext.data.lines import each_line\n"
        f"print([at for at, line in each_line(Path({str(path)!r}))])"
    )
    done = read_within(600, code)
    assert done.stdout == f"{[1, blanks + 2]}\n", done.stderr


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_numbers_of_lines_do_not_depend_on_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int, end: bytes
) -> None:
    monkeypatch.setattr(lines, "_BLOCK", cut)
    content = end.join([b"one", b"", b"", b"", b" ", b"six", b"", b"\r", b"nine", b"", b"", b"", b"thirteen"])
    (tmp_path / "x.txt").write_bytes(content)
    expected = [(1, "one"), (5, " "), (6, "six"), (9, "nine"), (13, "thirteen")]
    assert [(at, line) for at, line in each_line(tmp_path / "x.txt") if str(line).strip("\r")] == expected


@pytest.mark.parametrize("ending", OPEN)
def test_a_line_without_end_is_refused_once_it_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(lines, "LONGEST", 3 << 20)
    path = write(tmp_path / f"queries.tsv{ending}", (b"q\tx\n", 1), (b"x" * (1 << 20), 20))
    reader = read_lines(path)
    assert next(reader) == (f"{path}:1", "q\tx")
    with pytest.raises(QontextError, match="the line is longer than 3 MiB"):
        next(reader)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "latin-1"])
def test_lines_of_any_encoding(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "x.txt").write_bytes("Zähler\r\n\nende".encode(encoding))
    assert [*each_line(tmp_path / "x.txt", encoding)] == [(1, "Zähler"), (3, "ende")]


@pytest.mark.parametrize("ending", OPEN)
@pytest.mark.parametrize("name", ["ranks.trec", "ranks.trec.gz", "ranks.trec.zst", "ranks.trec.xz"])
def test_a_file_is_decompressed_by_its_content_whatever_it_is_called(
    tmp_path: Path, ending: str, name: str
) -> None:
    write(tmp_path / f"content{ending}", (b"q Q0 a 1 2.5 x\nq Q0 b 2 1.5 x\n", 1)).rename(tmp_path / name)
    assert [line for _, line in read_lines(tmp_path / name)] == ["q Q0 a 1 2.5 x", "q Q0 b 2 1.5 x"]
    assert [hit.passage for hit in read_run(tmp_path / name)["q"]] == ["a", "b"]


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_a_run_that_is_cut_off_is_refused(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"ranks.trec{ending}", (b"q Q0 a 1 2.5 x\nq Q0 b 2 1.5 x\n", 1))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(QontextError, match="cannot be read from here on"):
        list(read_lines(path))
    with pytest.raises(QontextError, match="cannot be read from here on"):
        read_run(path)
