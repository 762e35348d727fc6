"""Judgments by people: which passages are asked about, and the verdict that they make."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.adapt.conftest import Adapted
from tests.serve.conftest import start

from qontext import api
from qontext.adapt import judgments
from qontext.adapt.judgments import FILE, FOLDER, POOL, judged, pools
from qontext.adapt.verdict import Verdict
from qontext.data.collection import load_collection, read_qrels
from qontext.data.runs import read_run
from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.serve.judge import AnnotateConfig, JudgedPair, Store, make_app, pairs_of
from qontext.serve.security import Policy

SYSTEMS = ["bm25", "start", "hybrid-start"]


def drawn(root: Path, **settings: Any) -> list[JudgedPair]:
    """The pairs that `annotate` shows, which it writes."""
    config = AnnotateConfig.make({"source": str(root), **settings}, where="annotate")
    return pairs_of(config, Workdir(root / FOLDER))


def judge(root: Path, questions: int, relevant: Any) -> None:
    """Judge all passages of the first questions; `relevant` says which are, by the ids of question and passage."""
    pairs = drawn(root, questions=questions)
    store = Store(root / FOLDER / "votes-judge.jsonl")
    for pair in pairs:
        store.vote(pair.key, "high" if relevant(*pair.ids) else "low")


def test_the_pool_is_of_all_systems_and_more_questions_begin_with_the_same(finished: Adapted) -> None:
    few, many = (pools(finished.out, "generated", SYSTEMS, count) for count in (6, 9))
    assert many[:6] == few and len(many) == 9
    qrels = load_collection(finished.out / "steps" / "holdout" / "measured").qrels("generated")
    for one in many:
        ids = [passage.id for passage in one.passages]
        assert set(qrels[one.id]) <= set(ids) and len(ids) == len(set(ids))
        for system in SYSTEMS:
            run = read_run(finished.out / "steps" / f"{system}-generated")
            assert {hit.passage for hit in run[one.id][:POOL]} <= set(ids), system
    first = [one.passages[0].id in qrels[one.id] for one in pools(finished.out, "generated", SYSTEMS)]
    assert not all(first), "the order says nothing"


def test_the_page_asks_one_question_after_the_other_and_ends(adapted: Adapted) -> None:
    root, ended = adapted.out, threading.Event()
    pairs = drawn(root, questions=5)
    running = start(make_app(pairs, Store(root / FOLDER / "votes-judge.jsonl"), Policy(), ended.set))
    keys, page = list[str](), running.http.get("/").text
    assert "Relevant: it answers the question" in page and 'data-key="r"' in page and '"answer"' not in page
    while (key := re.search(r'name="pair" value="(\w+)"', page)) is not None and not ended.is_set():
        keys.append(key[1])
        running.http.post("/", data={"pair": key[1], "verdict": "high"})
        page = running.http.get("/").text
    assert ended.is_set() and "The results are computed" in page and keys == [pair.key for pair in pairs]
    questions = [pair.ids[0] for pair in pairs]
    order = list(dict.fromkeys(questions))
    assert len(order) == 5 and questions == sorted(questions, key=order.index), "one after the other"
    running.stop()
    api.annotate(root, export=True)
    assert len(read_qrels(root / FOLDER / FILE)) == 5


def test_judgments_stay_when_questions_are_added(adapted: Adapted) -> None:
    root = adapted.out
    judge(root, 5, lambda question, passage: True)
    before, after = drawn(root, questions=5), drawn(root, questions=8)
    assert after[: len(before)] == before and len({pair.ids[0] for pair in after}) == 8
    assert drawn(root, questions=2) == after, "fewer are no reason to forget"
    api.annotate(root, export=True)
    assert len(read_qrels(root / FOLDER / FILE)) == 5


def test_the_verdict_is_that_of_people(adapted: Adapted, monkeypatch: pytest.MonkeyPatch) -> None:
    """They find relevant what the start encoder finds first, and never what generated the question."""
    root = adapted.out
    best = read_run(root / "steps" / "start-generated")
    judge(root, 100, lambda question, passage: passage == best[question][0].passage)
    told: list[str] = []
    monkeypatch.setattr(log, "note", told.append)
    verdict = api.adapt(adapted.documents, out=root, yes=True).verdict
    assert verdict.split == "judged" and verdict.asked_split == "generated"
    scores = {name: values["nDCG@10"] for name, values in verdict.scores["judged"].items()}
    assert scores["start"] == pytest.approx(1, abs=0.02) and scores["start"] == max(scores.values())
    assert (
        verdict.scores["judged"]["bm25"]["low"] <= scores["bm25"] <= verdict.scores["judged"]["bm25"]["high"]
    )
    assert verdict.queries["judged"] == verdict.queries["generated"]
    assert any("questions that people judged" in sentence for sentence in verdict.sentences)
    assert not any("There are no real questions" in sentence for sentence in verdict.sentences)
    again = api.adapt(adapted.documents, out=root, yes=True).verdict
    assert again == verdict, "the same judgments make the same verdict"


def test_judgments_of_other_words_do_not_count(adapted: Adapted) -> None:
    """The ids of a question and its passages can stay when a document changes."""
    root = adapted.out
    judge(root, 5, lambda question, passage: True)
    api.annotate(root, export=True)
    everything, outdated = judged(root, "generated", SYSTEMS)
    assert len(everything) == 5 and not outdated
    corpus = root / "steps" / "holdout" / "measured" / "corpus.jsonl"
    changed = next(iter(everything[next(iter(everything))]))
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    for row in rows:
        row["text"] += " And more." * (row["_id"] == changed)
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rest, outdated = judged(root, "generated", SYSTEMS)
    assert len(rest) + len(outdated) == 5 and outdated


def test_few_judgments_decide_nothing(adapted: Adapted) -> None:
    judge(adapted.out, 4, lambda question, passage: True)
    verdict = api.adapt(adapted.documents, out=adapted.out, yes=True).verdict
    assert verdict.split == "generated"
    assert "4 judged questions are too few for the verdict: at least 5 are needed." in verdict.sentences


def test_judgments_wait_for_what_a_system_found_since(
    adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other questions are those on which no system found anything new: they are not a sample of all."""
    root, missing = adapted.out, {1, 3}

    def earlier(*how: Any) -> Any:
        return [one._replace(passages=one.passages[n in missing :]) for n, one in enumerate(pools(*how))]

    with monkeypatch.context() as patch:
        patch.setattr(judgments, "pools", earlier)
        judge(root, 8, lambda question, passage: True)
    verdict = api.adapt(adapted.documents, out=root, yes=True).verdict
    assert verdict.split == "generated" and verdict.scores == Verdict(**adapted.result["verdict"]).scores
    (told,) = (sentence for sentence in verdict.sentences if "judged 8 questions" in sentence)
    assert "for 2. The judgments" in told and "do not count until these are judged, too (--judge 8)" in told
    judge(root, 8, lambda question, passage: True)
    verdict = api.adapt(adapted.documents, out=root, yes=True).verdict
    assert verdict.split == "judged" and verdict.queries["judged"] == 8
    assert not any("do not count" in sentence for sentence in verdict.sentences)


def test_the_question_that_was_left_half_done_does_not_count(adapted: Adapted) -> None:
    root = adapted.out
    pairs, store = drawn(root, questions=7), Store(root / FOLDER / "votes-judge.jsonl")
    for pair in pairs[:-1]:
        store.vote(pair.key, "high")
    api.annotate(root, export=True)
    complete, outdated = judged(root, "generated", adapted.result["verdict"]["scores"]["generated"])
    assert len(complete) == 6 and not outdated


def test_what_cannot_be_judged_is_one_sentence(adapted: Adapted, tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="greater than or equal to 5"):
        api.adapt(adapted.documents, judge=2)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "adapted.json").write_text(
        '{"format": 1, "system": "bm25", "weights": [0.7, 0.3], "read_tokens": 256, "index": "index"}'
    )
    with pytest.raises(QontextError, match="was not written by adapt"):
        drawn(tmp_path / "saved")
    with pytest.raises(QontextError, match="has no questions to judge"):
        import shutil

        shutil.rmtree(adapted.out / "steps")
        drawn(adapted.out)


def test_adapt_serves_the_page_and_then_says_the_verdict(
    adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real server in this process, a person with a browser in a thread."""
    links: list[str] = []
    seen = threading.Event()

    def note(text: str) -> None:
        if match := re.search(r"http://\S+", text):
            links.append(match[0])
            seen.set()

    def person() -> None:
        seen.wait()
        with httpx.Client(timeout=60) as browser:
            while True:
                try:
                    page = browser.get(links[0]).text
                except httpx.ConnectError:
                    continue
                number = re.search(r'name="pair" value="(\w+)"', page)
                if number is None:
                    return
                browser.post(links[0], data={"pair": number[1], "verdict": "high"})

    monkeypatch.setattr(log, "note", note)
    thread = threading.Thread(target=person)
    thread.start()
    result = api.adapt(adapted.documents, out=adapted.out, yes=True, judge=5)
    thread.join()
    assert result.verdict.split == "judged" and result.verdict.queries["judged"] == 5
