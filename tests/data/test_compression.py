"""Small files that decompress to enormous ones: read in bounded memory, or refused in one sentence."""

from __future__ import annotations

import gzip
import json
import lzma
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from qontext import api
from qontext.corpus.sources import lines
from qontext.data import lines as files
from qontext.data.lines import read_lines
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


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("ending", ["jsonl.gz", "jsonl.zst"])
def test_documents_after_a_hundred_million_empty_lines(tmp_path: Path, ending: str, end: bytes) -> None:
    blanks = 100_000_000
    path = write(
        tmp_path / f"docs.{ending}", (PASSAGE % b"a", 1), (end, blanks), (PASSAGE % b"b", 1), (b"broken\n", 1)
    )
    assert path.stat().st_size < 2 << 20
    code = (
        "from pathlib import Path; from qontext.corpus.sources.lines import read_lines\n"
        f"print([at for at, line in read_lines(Path({str(path)!r}), 'utf-8', lambda n: None) if len(line) > 1])"
    )
    done = read_within(600, code)
    assert done.stdout == f"{[1, blanks + 2, blanks + 3]}\n", done.stderr
    if ending == "jsonl.gz" and end == b"\n":
        with pytest.raises(QontextError, match=f"docs.jsonl.gz:{blanks + 3}: "):
            api.split(path, out=tmp_path / "made", workers=1)


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_numbers_of_lines_do_not_depend_on_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int, end: bytes
) -> None:
    monkeypatch.setattr(lines, "_BLOCK", cut)
    content = end.join([b"one", b"", b"", b"", b" ", b"six", b"", b"\r", b"nine", b"", b"", b"", b"thirteen"])
    (tmp_path / "x.txt").write_bytes(content)
    numbered = lines.read_lines(tmp_path / "x.txt", "utf-8", lambda amount: None)
    expected = [(1, "one"), (5, " "), (6, "six"), (9, "nine"), (13, "thirteen")]
    assert [(at, line) for at, line in numbered if line.strip("\r")] == expected


@pytest.mark.parametrize("ending", OPEN)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_labeled_set_of_empty_lines_is_refused(tmp_path: Path, ending: str, end: bytes) -> None:
    path = write(tmp_path / f"queries.jsonl{ending}", (b"\n", 1), (end, 3_000_000))
    with pytest.raises(
        QontextError, match=r"queries\.jsonl.*: contains more than 1,048,576 empty lines in a row"
    ):
        list(read_lines(path))


@pytest.mark.parametrize("ending", OPEN)
def test_a_line_without_end_is_refused_once_it_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 3 << 20)
    path = write(tmp_path / f"queries.tsv{ending}", (b"q\tx\n", 1), (b"x" * (1 << 20), 20))
    reader = read_lines(path)
    assert next(reader) == "q\tx"
    with pytest.raises(QontextError, match="contains a line of more than 3 MiB"):
        next(reader)


@pytest.mark.parametrize("ending", OPEN)
def test_lines_within_the_limits_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 1 << 20)
    monkeypatch.setattr(files, "MOST_BLANKS", 1 << 19)
    long = json.dumps("x" * 1_000_000).encode() + b"\n"
    path = write(
        tmp_path / f"x.jsonl{ending}", (long, 5), (b"\n", 300_000), (long, 1), (b"\n", 300_000), (b"y", 1)
    )
    assert sum(map(len, read_lines(path))) == 6 * 1_000_002 + 1
    assert sum(1 for _ in read_lines(path)) == 600_007


@pytest.mark.parametrize("ending", OPEN)
@pytest.mark.parametrize("name", ["ranks.trec", "ranks.trec.gz", "ranks.trec.zst", "ranks.trec.xz"])
def test_a_file_is_decompressed_by_its_content_whatever_it_is_called(
    tmp_path: Path, ending: str, name: str
) -> None:
    write(tmp_path / f"content{ending}", (b"q Q0 a 1 2.5 x\nq Q0 b 2 1.5 x\n", 1)).rename(tmp_path / name)
    assert list(read_lines(tmp_path / name)) == ["q Q0 a 1 2.5 x", "q Q0 b 2 1.5 x"]
    assert [hit.passage for hit in read_run(tmp_path / name)["q"]] == ["a", "b"]


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_a_run_that_is_cut_off_is_refused(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"ranks.trec{ending}", (b"q Q0 a 1 2.5 x\nq Q0 b 2 1.5 x\n", 1))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(QontextError, match="the compressed file is damaged or truncated"):
        list(read_lines(path))
    with pytest.raises(QontextError, match="the compressed file is damaged or truncated"):
        read_run(path)
