"""Comparing: pairs, seeds, correction, examples with their texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qontext
from qontext.data.records import Hit
from qontext.data.runs import Run
from qontext.evaluation.compare import find_runs, system_names
from qontext.evaluation.comparison import (
    First,
    QueryExample,
    SystemScores,
    compare_systems,
    example_rows,
    marks,
    tops,
)
from qontext.frame import execution
from qontext.frame.errors import QontextError


def write_run(path: Path, rank_of_right: dict[str, int]) -> Path:
    """A run of ten results per query; the right passage of query q is `q-right`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for query, right in rank_of_right.items():
        for rank in range(1, 11):
            passage = f"{query}-right" if rank == right else f"{query}-wrong{rank}"
            lines.append(f"{query} Q0 {passage} {rank} {-rank} x")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    folder, queries = tmp_path / "data", [f"q{i}" for i in range(30)]
    (folder / "qrels").mkdir(parents=True)
    rows = [f"{q}\t{q}-right\t1" for q in queries]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    with (folder / "queries.jsonl").open("w") as file:
        file.writelines(json.dumps({"_id": q, "text": f"question {q}"}) + "\n" for q in queries)
    with (folder / "corpus.jsonl").open("w") as file:
        for q in queries:
            for name in ("right", *(f"wrong{i}" for i in range(1, 11))):
                file.write(
                    json.dumps({"_id": f"{q}-{name}", "title": "", "text": f"text of {q}-{name}"}) + "\n"
                )
    return folder


def ranks(of: int, but: dict[str, int] | None = None) -> dict[str, int]:
    return {f"q{i}": of for i in range(30)} | (but or {})


def compare(*runs: Any, **settings: Any) -> dict[str, Any]:
    """The result of the command, which also prints it."""
    return execution.command("compare")(tuple(map(str, runs)), **settings)  # type: ignore[no-any-return]


def test_two_systems(collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_run(tmp_path / "a.trec", ranks(2, {"q7": 1}))
    b = write_run(tmp_path / "b.trec", ranks(1, {"q7": 5, "q3": 2}))
    comparison = compare(a, b, qrels=collection, measures="MRR@10 Judged@5")
    assert [row["system"] for row in comparison["systems"]] == ["a", "b"]
    assert comparison["systems"][0]["measures"]["MRR@10"] == pytest.approx((29 * 0.5 + 1) / 30)
    (pair,) = comparison["pairs"]  # Judged is shown, not tested
    assert pair["difference"]["mean"] == pytest.approx((28 * 0.5 - 0.8) / 30)
    assert [pair["difference"][k] for k in ("wins", "losses", "ties")] == [28, 1, 1]
    assert pair["p"] < 0.01
    gain, *_, loss = comparison["examples"]
    assert (gain["query"], gain["difference"], gain["first"][1]["text"]) == ("q0", 0.5, "text of q0-right")
    assert [first["right"] for first in gain["first"]] == [False, True]
    assert (loss["query"], loss["text"], loss["first"][1]["right"]) == ("q7", "question q7", False)
    assert "28/1/1" in capsys.readouterr().out


def test_the_first_passages_of_all_systems_side_by_side(
    collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = {"a": ranks(1, {"q3": 2}), "b": ranks(1), "c": ranks(1, {"q3": 3, "q4": 2})}
    runs = [write_run(tmp_path / f"{name}.trec", of) for name, of in rank.items()]
    comparison = compare(*runs, qrels=collection, measures="MRR@10")
    (example,) = comparison["examples"]  # q4 is the same in the first two
    assert [(row["system"], row["right"], row["passage"]) for row in example["first"]] == [
        ("a", False, "q3-wrong1"), ("b", True, "q3-right"), ("c", False, "q3-wrong1"),
    ]  # fmt: skip
    assert [round(row["value"], 3) for row in example["first"]] == [0.5, 1, 0.333]
    assert example["first"][2]["text"] == "text of q3-wrong1"
    assert capsys.readouterr().out.count("text of q3-wrong1") == 2


def test_the_first_passage_of_a_tie_is_that_of_the_measures() -> None:
    run = Run.of([Hit("q", "a", 1.0 + 1e-12), Hit("q", "b", 1.0), Hit("q", "c", 0.5)])
    assert tops(run, {"q": {"b": 1}}, 1) == {"q": ("b", True)}


def test_first_passages_that_look_alike_are_told_apart() -> None:
    same = "insert before equal values"
    row = [First("a", 0.0, "left", False, same), First("b", 1.0, "right", True, same)]
    row.append(First("c", 0.0, "other", False, "a heap"))
    rows = example_rows([QueryExample("q", "where to insert", 1.0, row)], "MRR@10")
    assert [one["first_passage"] for one in rows] == [
        "left: insert before equal values", "right: insert before equal values", "a heap",
    ]  # fmt: skip


def test_seeds_are_averaged_and_their_spread_is_told(collection: Path, tmp_path: Path) -> None:
    for i, rank in enumerate((1, 2, 4)):
        write_run(tmp_path / f"seed{i}" / "run.trec", ranks(rank))
    write_run(tmp_path / "base" / "run.trec", ranks(2))
    comparison = compare(tmp_path / "base", f"ours={tmp_path}/seed*", qrels=collection, measures="MRR@10")
    ours = comparison["systems"][1]
    assert (ours["system"], ours["seeds"]) == ("ours", 3)
    assert ours["measures"]["MRR@10"] == pytest.approx((1 + 1 / 2 + 1 / 4) / 3)
    assert ours["spread"]["MRR@10"] == pytest.approx(np.std([1, 0.5, 0.25], ddof=1))
    assert comparison["systems"][0]["spread"] == {}
    assert comparison["pairs"][0]["difference"]["mean"] == pytest.approx((1 + 1 / 2 + 1 / 4) / 3 - 1 / 2)


def test_the_correction_covers_all_pairs_of_a_measure() -> None:
    rng = np.random.default_rng(0)
    base = rng.random(40)
    shifts = {"a": 0, "b": 0.3, "c": 0.02}
    systems = [
        SystemScores(name, [{"x": base + shift * rng.random(40), "y": rng.random(40)}])
        for name, shift in shifts.items()
    ]
    pairs = compare_systems(systems, ["x", "y"])
    assert len(pairs) == 6
    assert all(pair.p >= pair.difference.p for pair in pairs)
    assert min(pair.p for pair in pairs) == pytest.approx(3 * min(pair.difference.p for pair in pairs))
    alone = compare_systems(systems, ["x"])
    assert alone == [pair for pair in pairs if pair.measure == "x"], "another measure changes no p"
    assert marks(systems, pairs, "x")["b"] == "ac"
    assert marks(systems, pairs, "y") == {"a": "", "b": "", "c": ""}


def test_the_table_for_papers(collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = write_run(tmp_path / "a.trec", ranks(2)), write_run(tmp_path / "b.trec", ranks(1))
    for form, row in {
        "markdown": "| b b | **100.0**<sup>a</sup> |",
        "latex": r"\textbf{100.0}$^{\mathrm{a}}$",
    }.items():
        compare(*runs, qrels=collection, measures="MRR@10", table=form)
        assert row in capsys.readouterr().out


def test_names_tell_systems_apart(tmp_path: Path) -> None:
    assert system_names(["", ""], [["runs/x/search"], ["runs/y/search"]]) == ["x", "y"]
    assert system_names(["", ""], [["r/x/a/run.trec"], ["s/x/a/run.trec.gz"]]) == ["r", "s"]
    assert system_names(["", ""], [["x/bm25.trec"], ["dense"]]) == ["bm25", "dense"]
    assert system_names([""], [["runs/x/search"]]) == ["search"]
    assert system_names(["", "mine"], [["a/run.trec"], ["a/run.trec"]]) == ["a", "mine"]
    with pytest.raises(QontextError, match="same name"):
        system_names(["", ""], [["a/run.trec"], ["a/run.trec"]])
    assert find_runs("n=a,b") == ("n", ["a", "b"])
    (tmp_path / "k=v.trec").touch()
    assert find_runs(str(tmp_path / "k=v.trec")) == ("", [str(tmp_path / "k=v.trec")])
    (tmp_path / "x,y.trec").touch()
    assert find_runs(f"n={tmp_path}/x,y.trec") == ("n", [f"{tmp_path}/x,y.trec"])
    assert find_runs("a,") == ("", ["a"])


def test_one_system_is_not_enough(collection: Path, tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="two systems"):
        compare(write_run(tmp_path / "a.trec", ranks(1)), qrels=collection)


def test_a_system_without_a_run_is_refused() -> None:
    with pytest.raises(QontextError, match="two systems, each with a run"):
        qontext.compare({"a": {"q": {"p": 1.0}}, "b": []}, {"q": {"p": 1}})


def test_this_folder_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_runs(".") == ("", ["."]) and find_runs("a=.") == ("a", ["."])


def test_a_long_list_of_runs_is_a_list(tmp_path: Path) -> None:
    runs = [str(tmp_path / f"a-run-with-a-long-name-seed{n}.trec") for n in range(150)]
    assert find_runs(",".join(runs)) == ("", runs)
    assert find_runs("ours=" + ",".join(runs)) == ("ours", runs)
