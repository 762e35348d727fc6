from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from qontext.errors import QontextError
from qontext.records import Hit
from qontext.retrieve.runs import Run, read_run, write_run


def test_hits_stand_by_score_and_ties_by_id() -> None:
    run = Run.of([Hit("q", "b", 1.0), Hit("q", "c", 2.0), Hit("r", "z", 0.5), Hit("q", "a", 1.0)])
    assert [hit.passage for hit in run["q"]] == ["c", "a", "b"]
    assert dict(run)["r"] == [Hit("r", "z", 0.5)]
    assert list(run) == ["q", "r"] and len(run) == 2 and run.size == 4 and "s" not in run
    assert run.top(1).size == 2 and run.top(1)["q"] == [Hit("q", "c", 2.0)]


@pytest.mark.parametrize("suffix", [".trec", ".trec.gz"])
def test_a_file_reads_back_bit_for_bit(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(1)
    scores = np.concatenate([rng.standard_normal(500).astype(np.float32), rng.standard_normal(500) * 1e-9])
    run = Run.from_columns([f"q{i % 7}" for i in range(1000)], [f"p{i}" for i in range(1000)], scores)
    write_run(run, tmp_path / "run.trec")
    if suffix.endswith(".gz"):
        (tmp_path / "run.trec.gz").write_bytes(gzip.compress((tmp_path / "run.trec").read_bytes()))
    again = read_run(tmp_path / f"run{suffix}")
    assert dict(again) == dict(run)
    assert (tmp_path / "run.trec").read_text().split("\n")[0].split()[::3] == [run.queries[0], "1"]


def test_order_and_ranks_of_a_file_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 b 1 1.5 x\nr Q0 a 1 1 x\nq\tQ0  a 2 2.5 x\n")
    run = read_run(tmp_path / "run")
    assert [hit.passage for hit in run["q"]] == ["a", "b"] and list(run) == ["q", "r"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("q Q0 a 1 1.0 x\nq Q0 b 2 nan x\n", "run:2: the score of query 'q' and passage 'b' is nan"),
        ("q Q0 a 1 1.0 x\nq Q0 b 2 0.9\n", "run:2: has 5 columns"),
        ("q Q0 a 1 1.0 x\nq Q0 b 2 good x\n", "run:2: the score is 'good'"),
        ("q Q0 a 1 1.0 x\nr Q0 a 1 1 x\nq Q0 a 2 0.5 x\n", "run:3: passage 'a' occurs twice"),
        ("", "the run is empty"),
    ],
)
def test_damaged_runs_are_told_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "run").write_text(text)
    with pytest.raises(QontextError, match=said):
        read_run(tmp_path / "run")


def test_an_id_with_a_space_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="'a b' holds a space"):
        write_run(Run.of([Hit("q", "a b", 1.0)]), tmp_path / "run.trec")
