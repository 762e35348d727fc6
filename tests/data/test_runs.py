from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from qontext.data.records import Hit
from qontext.data.runs import Run, read_run, write_run
from qontext.frame.errors import QontextError


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
    ("text", "message"),
    [
        ("q Q0 a 1 1.0 x\nq Q0 b 2 nan x\n", "run: the score of query 'q' and passage 'b' is nan"),
        ("q Q0 a 1 1.0 x\nq Q0 b 2 0.9\n", "run: is not a TREC run.*got 5"),
        ("q Q0 a 1 1.0 x\nq Q0 b 2 good x\n", "run: is not a TREC run.*invalid value 'good'"),
        ("q Q0 a 1 1.0 x\nr Q0 a 1 1 x\nq Q0 a 2 0.5 x\n", "run: passage 'a' occurs twice"),
        ("", "the run is empty"),
    ],
)
def test_damaged_runs_are_told_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run").write_text(text)
    with pytest.raises(QontextError, match=message):
        read_run(tmp_path / "run")


ODD = [
    "My file 1.md#0",
    "a\tb\n",
    "\u00a0",
    "␠",
    "␛41;",
    '"q',
    "#",
    "\x00",
    "a",
    "a\x00",
    "é b",
    "\ufeffx",
    "\u3000 \r",
]


def test_any_id_reads_back(tmp_path: Path) -> None:
    hits = [Hit(query, passage, float(-n)) for query in ODD for n, passage in enumerate(ODD)]
    # Ties are in the order of the ids, not of what is written for them.
    run = Run.of([*hits, *(Hit("tied", passage, 0.0) for passage in ODD)])
    write_run(run, tmp_path / "run.trec")
    lines = (tmp_path / "run.trec").read_text(encoding="utf-8").split("\n")
    assert all(len(line.split()) == 6 for line in lines[:-1])
    assert lines[0].startswith("My␠file␠1.md#0 Q0 My␠file␠1.md#0 1 ")
    again = read_run(tmp_path / "run.trec")
    assert dict(again) == dict(run)
    assert [hit.passage for hit in again["tied"]] == sorted(ODD)
    assert again.ids.tolist() == sorted(ODD)
    # Line by line, too, as where columns are apart by more than a space.
    (tmp_path / "wide.trec").write_text("\n".join(lines).replace(" Q0 ", "  Q0 "), encoding="utf-8")
    assert dict(read_run(tmp_path / "wide.trec")) == dict(run)


def test_ids_that_need_no_escape_are_written_as_they_are(tmp_path: Path) -> None:
    ids = ["a%20b", "C:\\x", '"q"', "#1", "naïve", "東京"]
    write_run(Run.of([Hit("q", id, float(-n)) for n, id in enumerate(ids)]), tmp_path / "run.trec")
    lines = (tmp_path / "run.trec").read_text(encoding="utf-8").splitlines()
    assert [line.split(" ")[2] for line in lines] == ids


def test_two_spellings_of_one_id_are_one_passage(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 ␛41; 1 2 x\nq Q0 ␛241b;41; 2 1 x\n", encoding="utf-8")
    with pytest.raises(QontextError, match="run: passage '␛41;' occurs twice"):
        read_run(tmp_path / "run")


def test_a_tag_is_one_word(tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="one word, not 'my run'"):
        Run.of([Hit("q", "p", 1.0)]).write(tmp_path / "r.trec", tag="my run")


def test_an_empty_id_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="an id is empty"):
        write_run(Run.of([Hit("q", "", 1.0)]), tmp_path / "run.trec")


def run_file(folder: Path, *rows: tuple[str, str, object, float]) -> Path:
    path = folder / "run.trec"
    path.write_text("".join(f"{q} Q0 {p} {rank} {score} x\n" for q, p, rank, score in rows))
    return path


def test_a_rank_twice_with_two_scores_is_two_runs(tmp_path: Path) -> None:
    rows = [("q", "a", 1, 2.0), ("q", "b", 2, 1.0), ("q", "c", 1, 9.0), ("q", "d", 2, 8.0)]
    with pytest.raises(
        QontextError, match=r"run\.trec: rank 1 occurs twice for query 'q', with scores 2 and 9"
    ):
        read_run(run_file(tmp_path, *rows))


def test_distances_are_not_taken_for_scores(tmp_path: Path) -> None:
    rows = [(q, p, rank, rank / 10) for q in "qr" for rank, p in enumerate("abc", 1)]
    with pytest.raises(QontextError, match="the scores are distances, or the ranks are reversed"):
        read_run(run_file(tmp_path, *rows))


@pytest.mark.parametrize("scores", [(9.5, 7.25, 3.0), (97, 95, 90)])
def test_swapped_columns_of_rank_and_score(tmp_path: Path, scores: tuple[float, ...]) -> None:
    rows = [("q", p, score, rank) for rank, (p, score) in enumerate(zip("abc", scores), 1)]
    with pytest.raises(QontextError, match="the rank and score columns are swapped"):
        read_run(run_file(tmp_path, *rows))


def test_new_ranks_beside_old_scores_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("q", "a", 2, 3.0), ("q", "b", 1, 2.0), ("q", "c", 3, 1.0), ("r", "a", 1, 1.0)]
    run = read_run(run_file(tmp_path, *rows))
    assert "ranks contradict scores for 1 of 2 queries, such as 'q'" in " ".join(
        capsys.readouterr().err.split()
    )
    assert [hit.passage for hit in run["q"]] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "ranks",
    [(1, 1, 3), (0, 0, 0), (7, 8, 9), ("1.0", "2.0", "3.0")],
    ids=["ties", "placeholder", "later page", "fractions"],
)
def test_harmless_ranks_are_let_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ranks: tuple[object, ...]
) -> None:
    rows = [("q", p, rank, score) for p, rank, score in zip("abc", ranks, (2.0, 2.0, 1.0))]
    assert len(read_run(run_file(tmp_path, *rows))["q"]) == 3
    assert capsys.readouterr().err == ""


def test_queries_in_pieces_and_out_of_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("q", "a", 1, 3.0), ("r", "a", 2, 1.0), ("q", "b", 2, 2.0), ("r", "b", 1, 2.0)]
    assert [hit.passage for hit in read_run(run_file(tmp_path, *rows))["r"]] == ["b", "a"]
    assert capsys.readouterr().err == ""
    with pytest.raises(QontextError, match=r": rank 1 occurs twice for query 'q'"):
        read_run(run_file(tmp_path, *rows[:3], ("q", "c", 1, 1.0)))
