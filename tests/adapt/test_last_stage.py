"""A cross-encoder as the last stage of a system: planned, measured, recommended, searched, served, moved and updated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapt.calls import adapt
from tests.adapt.test_plan import LABELS, MINUTE, RATES, REQUEST, steps, survey

from qontext import api
from qontext.adapt import verdict
from qontext.adapt.plan import make_plan
from qontext.adapt.recipes import systems, training_recipe
from qontext.adapt.verdict import evidence, expected
from qontext.data.places import Found
from qontext.data.records import Hit
from qontext.data.runs import Run
from qontext.frame.errors import QontextError
from qontext.retrieve.scorers import PairScorer
from qontext.retrieve.searcher import Searcher
from qontext.retrieve.system import Queries, Ranker, Reranked
from qontext.serve.systems import Opener

WITH = replace(REQUEST, reranker="reranker")


def test_as_many_passages_are_read_as_a_fifth_of_the_budget_allows() -> None:
    """500 questions and two encoders: a thousand answers."""
    depth = [
        make_plan(replace(WITH, budget=minutes * MINUTE), survey(5_000), RATES).reranked
        for minutes in (10, 30, 90, 600)
    ]
    assert depth == [0, int(0.2 * 1_800 * 50 / 1_000), 50, 50] and depth[1] == 18
    slow = make_plan(replace(WITH, budget=10 * MINUTE), survey(5_000), RATES)
    assert any("too slow for a last stage" in note for note in slow.notes)
    assert not any("reranked" in name for name in systems(slow))


def test_the_last_stage_reads_the_candidates_of_the_most_thorough_system() -> None:
    plan = make_plan(replace(WITH, budget=90 * MINUTE), survey(5_000), RATES)
    assert plan.tokens and systems(plan)[4:5] + systems(plan)[-1:] == [
        "tokens-reranked-start",
        "tokens-reranked",
    ]
    made = steps(training_recipe(WITH, plan))
    assert made["start-by-reranker-generated"] == {
        "verb": "rerank",
        "run": "@tokens-start-generated",
        "data": "@holdout/measured",
        "reranker": ["reranker"],
        "k": plan.reranked,
    }
    assert made["tokens-reranked-generated"]["weights"] == [0.2, 0.8]
    assert made["score-tokens-reranked-generated"]["run"] == "@tokens-reranked-generated"
    labeled = replace(WITH, labeled=320, budget=90 * MINUTE, **LABELS)
    tuned = steps(training_recipe(labeled, make_plan(labeled, survey(5_000), RATES)))
    assert tuned["tokens-reranked-dev"]["tune"] and tuned["tokens-reranked-test"]["weights_from"]
    plain = steps(training_recipe(WITH, replace(plan, tokens=False)))
    assert plain["reranked-generated"]["runs"] == ["@hybrid-generated", "@adapted-by-reranker-generated"]


def test_of_a_cross_encoder_the_measurements_decide() -> None:
    """A gain that is too small to move what is known of an encoder is believed."""
    rng = np.random.default_rng(0)
    base = rng.uniform(0.3, 0.5, 300)
    values = {"hybrid-start": base, "reranked-start": base + 0.1 + rng.normal(0, 0.2, 300)}
    gain = float((values["reranked-start"] - base).mean())
    assert expected([evidence(values, is_real=True)])["reranked-start"] == pytest.approx(gain, abs=0.003)
    assert verdict.choose(expected([evidence(values, is_real=False)])) == "reranked-start"


class Fixed(Ranker):
    """Five passages, in this order for every query."""

    def rank(self, queries: Queries, k: int, **_: Any) -> Run:
        return Run.of([Hit(query, f"p{n}", 10.0 - n) for query in queries for n in range(5)])


class Longest:
    """Prefers long passages."""

    def score(self, pairs: Any, advance: Any = None) -> Any:
        return np.array([len(text) for _, text in pairs], np.float32)


def test_only_the_best_passages_are_read() -> None:
    """With the whole weight, they are ordered by the cross-encoder; what it does not read stays below."""
    asked: set[str] = set()

    def texts(ids: set[str]) -> Any:
        asked.update(ids)
        return {id: Found("x" * (1 + int(id[1:]))) for id in ids}

    scorer = PairScorer([Longest()], texts)
    found = Reranked(Fixed(), scorer, 0.99, depth=3).rank({"q": "a", "r": "b"}, 4)
    assert asked == {"p0", "p1", "p2"}
    assert [hit.passage for hit in found["r"]] == ["p2", "p1", "p0", "p3"]


@pytest.fixture
def documents(write_documents: Callable[..., Path]) -> Callable[[int], Path]:
    def write(count: int) -> Path:
        rooms = [
            {"_id": f"d{n}", "title": "", "text": f"Room {n} has a lamp of {n} candles."}
            for n in range(count)
        ]
        return write_documents(rooms)

    return write


def test_a_recommended_cross_encoder_answers_wherever_the_directory_is_used(
    documents: Callable[[int], Path],
    small_encoder: Path,
    small_reranker: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was measured is what is searched and served, after a move, a copy and an update, too."""
    monkeypatch.setattr(verdict, "choose", lambda expected: next(n for n in expected if "reranked" in n))
    reranker, out = Path(shutil.copytree(small_reranker, tmp_path / "reranker")), tmp_path / "made"
    result = adapt(documents(7), out, small_encoder, reranker=reranker)
    assert result["reranker"]["weight"] == 0.8 and result["reranker"]["reference"]["path"] == str(reranker)
    measured = Run.read(out / "steps" / f"{result['system']}-generated")
    queries = {
        row["_id"]: row["text"]
        for row in map(json.loads, (out / "steps/holdout/measured/queries.jsonl").open())
    }
    found = Searcher(out).run(queries)
    assert {q: [hit.passage for hit in found[q]] for q in queries} == {
        q: [hit.passage for hit in measured[q]][:10] for q in queries
    }
    question = "which room has 3 candles?"
    answers = [answer.id for answer in Searcher(out).search(question)]
    served = Opener(device="cpu", precision="fp32").open("mine", str(out))
    assert served[0].label.endswith(" + cross-encoder")
    assert [hit.id for hit in served[0].search(question, 10)] == answers
    assert str(reranker.name) in str(api.show(out)["reranker"])
    # Without it, there is no answer that pretends to be one; a copy elsewhere is named once.
    kept = reranker.rename(tmp_path / "kept")
    with pytest.raises(QontextError, match=r"the cross-encoder of this directory is not found .*--reranker"):
        Searcher(out).search(question)
    updated = adapt(documents(8), out, small_encoder, reranker=kept, copy_model=True)
    assert updated["updated"] and updated["reranker"].keys() == {"depth", "weight", "digest"}
    shutil.rmtree(kept)
    moved = out.rename(tmp_path / "moved")
    assert "d7" in {answer.document for answer in Searcher(moved).search("which room has 7 candles?")}
    (moved / "reranker" / "config.json").write_text("{}")
    with pytest.raises(QontextError, match="reranker: changed since it was written"):
        api.show(moved, verify=True)
