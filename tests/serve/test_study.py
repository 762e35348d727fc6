"""The design of a study and its figures, by hand on small numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qontext.frame.errors import QontextError
from qontext.serve.annotate.results import fleiss_kappa, majority, results, to_csv, wilson
from qontext.serve.annotate.store import Store, Vote
from qontext.serve.annotate.study import KINDS, Study, design, read, write
from qontext.serve.errors import Failed

SIGNALS: Any = {"passage-passage": {"overlap": False}, "passage-query": {"overlap": True}}


@pytest.fixture
def study() -> Study:
    drawn = [(f"passage {n}", f"other {n}", f"query {n}", SIGNALS) for n in range(20)]
    return design(drawn, {"documents": 20, "annotators": 3, "seed": 7})


def test_each_group_judges_half_of_either_kind_and_no_document_twice(study: Study) -> None:
    assert len(study.pairs) == 40 and len(study.annotators) == 6
    for group in (0, 1):
        mine = [pair for pair in study.pairs if pair.group == group]
        assert [sum(pair.kind == kind for pair in mine) for kind in KINDS] == [10, 10]
        assert len({pair.passage for pair in mine}) == 20
    assert len({annotator.key for annotator in study.annotators} | {study.organizer}) == 7


def test_kinds_are_mixed_and_orders_are_personal(study: Study) -> None:
    orders = [study.order(annotator) for annotator in study.annotators]
    for annotator, order in zip(study.annotators, orders):
        assert sorted(pair.number for pair in order) == [
            p.number for p in study.pairs if p.group == annotator.group
        ]
        assert len({pair.kind for pair in order[:8]}) == 2
        assert order == study.order(annotator)
    assert orders[0] != orders[1]


def test_a_study_reads_back_as_it_was_written(study: Study, tmp_path: Path) -> None:
    assert read(tmp_path) is None
    write(study, tmp_path)
    assert read(tmp_path) == study
    text = (tmp_path / "study.json").read_text()
    (tmp_path / "study.json").write_text(text[: len(text) // 2])
    with pytest.raises(QontextError, match="damaged"):
        read(tmp_path)


def test_majorities() -> None:
    assert majority(["high", "high"], 3) == "high"
    assert majority(["high", "low"], 3) is None
    assert majority(["high", "low", "low"], 3) == "low"
    assert majority(["high", "low"], 2) is None
    assert majority([], 1) is None


def test_fleiss_kappa_by_hand() -> None:
    # P = (1 + 1 + 1/3 + 1/3) / 4 = 2/3, Pₑ = 1/2: (2/3 - 1/2) / (1/2)
    assert fleiss_kappa([(3, 0), (0, 3), (2, 1), (1, 2)], 3) == pytest.approx(1 / 3)
    assert fleiss_kappa([(3, 0), (0, 3)], 3) == pytest.approx(1)
    assert fleiss_kappa([(3, 0), (3, 0)], 3) is None  # nothing but one verdict: chance explains it
    assert fleiss_kappa([(1, 0), (3, 0), (0, 3)], 3) == pytest.approx(1)  # the first is not judged by all
    assert fleiss_kappa([], 3) is None and fleiss_kappa([(1, 0)], 1) is None


@pytest.mark.parametrize(("successes", "trials"), [(71, 200), (113, 200), (0, 10), (10, 10), (1, 3)])
def test_the_interval_is_wilsons(successes: int, trials: int) -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    expected = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    assert wilson(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_results_by_hand(study: Study) -> None:
    """Group A says high to all queries and low to all passages; of group B, two pairs are judged, in dispute."""
    votes = [
        Vote(annotator.name, pair.number, "high" if pair.kind == "passage-query" else "low", 0.0)
        for annotator in study.annotators
        if annotator.group == 0
        for pair in study.order(annotator)
    ]
    names = [annotator.name for annotator in study.annotators if annotator.group == 1]
    of_b = [pair for pair in study.pairs if pair.group == 1 and pair.kind == "passage-passage"][:2]
    votes += [
        Vote(name, of_b[0].number, verdict, 0.0) for name, verdict in zip(names, ("high", "high", "low"))
    ]
    votes += [Vote(name, of_b[1].number, verdict, 0.0) for name, verdict in zip(names, ("high", "low"))]
    summary = results(study, votes)
    assert summary["votes"] == 65 and summary["votes_expected"] == 120
    passages, queries = summary["kinds"]["passage-passage"], summary["kinds"]["passage-query"]
    assert (passages["decided"], passages["high"], passages["rate"]) == (11, 1, 1 / 11)
    assert (queries["decided"], queries["high"], queries["rate"]) == (10, 10, 1.0)
    assert (passages["paper"], queries["paper"]) == (0.355, 0.565)
    assert summary["kappa_by_group"]["A"] == 1.0
    assert summary["disagreements"] == [pair.number for pair in of_b]
    assert summary["annotators"]["A1"] == {"votes": 20, "of": 20}
    assert summary["annotators"]["B3"] == {"votes": 1, "of": 20}
    signal = summary["signals"]["overlap"]
    assert (signal["passage-passage"], signal["passage-query"]) == (0.0, 1.0)
    assert signal["agreement"] == 20 / 21
    lines = to_csv(study, votes).splitlines()
    assert lines[0] == "pair,kind,group,majority,A1,A2,A3,B1,B2,B3,overlap,passage,context"
    assert lines[1 + of_b[0].number].startswith(
        f"{of_b[0].number},passage-passage,B,high,,,,high,high,low,no,"
    )


def test_texts_are_no_formulas_in_a_spreadsheet() -> None:
    study = design([("=1+1", "@x", "-y", SIGNALS)], {"documents": 1, "annotators": 1, "seed": 0})
    lines = to_csv(study, []).splitlines()
    assert lines[1].endswith("'=1+1,'@x") and lines[2].endswith("'=1+1,'-y")


def test_a_vote_replaces_its_earlier_one_and_counts_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for verdict in ("high", "high", "low", "low", "high"):
        store.vote("A1", 3, verdict)  # type: ignore[arg-type]
    store.vote("A2", 3, "low")
    assert [vote[:3] for vote in store.votes()] == [("A1", 3, "high"), ("A2", 3, "low")]
    assert [vote.pair for vote in store.votes("A1")] == [3]
    with store._lock:
        history = store._connection.execute("SELECT verdict FROM history WHERE annotator = 'A1'").fetchall()
    assert history == [("high",), ("low",), ("high",)]
    store.close()
    with pytest.raises(QontextError, match="cannot be written"):
        store.vote("A1", 3, "high")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "votes.sqlite").write_bytes(b"x" * 5_000)
    with pytest.raises(QontextError, match="cannot be written or read"):
        Store(tmp_path / "broken")


def test_a_vote_that_is_not_stored_is_an_error_of_the_server_and_later_votes_are_stored(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")  # as if the disk was full
    with pytest.raises(Failed, match="full"):
        for number in range(10_000):
            store.vote("A1", number, "high")
    before = store.votes()
    with pytest.raises(Failed, match="full"):
        store.vote("A1", 10_000, "high")
    store._connection.execute(f"PRAGMA max_page_count = {pages + 100}")
    store.vote("A1", 10_000, "high")
    assert [vote.pair for vote in store.votes()] == [*(vote.pair for vote in before), 10_000]
    store.close()
