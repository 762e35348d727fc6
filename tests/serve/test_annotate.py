"""A study as people take part in it: links, votes, double submits, tabs, results."""

from __future__ import annotations

import csv
import json
import re
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.browser import DESK, PHONE, Person, chromium
from tests.serve.conftest import Running, World, start

from qontext import api
from qontext.frame.errors import QontextError
from qontext.serve.annotate.store import Store
from qontext.serve.annotate.verb import AnnotateConfig, make_app, open_study
from qontext.serve.security import Policy


def config(world: World, out: Path, **settings: Any) -> AnnotateConfig:
    required = {"passages": str(world / "passages"), "queries": str(world / "queries"), "out": str(out)}
    return AnnotateConfig.make({**required, "documents": 12, **settings}, where="annotate")


@pytest.fixture
def study(world: World, tmp_path: Path) -> Iterator[Running]:
    """A server of a study with 12 documents; `service` is the study."""
    opened = open_study(config(world, tmp_path / "study"), tmp_path / "study")
    running = start(make_app(opened, Store(tmp_path / "study"), Policy()), opened)
    yield running
    running.stop()


def shown(page: str) -> int | None:
    """The number of the pair on the page."""
    match = re.search(r'name="pair" value="(\d+)"', page)
    return int(match[1]) if match else None


def test_an_annotator_judges_all_pairs_and_no_others(study: Running) -> None:
    annotator = study.service.annotators[0]
    link, numbers = f"/a/{annotator.key}", []
    while (number := shown(study.http.get(link).text)) is not None:
        numbers.append(number)
        answer = study.http.post(link, data={"pair": number, "verdict": "high" if number % 2 else "low"})
        assert answer.status_code == 303 and answer.headers["location"] == link
    assert numbers == [pair.number for pair in study.service.order(annotator)]
    page = study.http.get(link).text
    assert "That was the last pair" in page and "12 of 12" in page
    previous = re.search(r'href="(/a/[^"]*pair=\d+)"', page)
    assert (
        previous
        and f"Your verdict so far: {'high' if numbers[-1] % 2 else 'low'}" in study.http.get(previous[1]).text
    )


def test_a_page_does_not_tell_the_kind(study: Running) -> None:
    annotator = study.service.annotators[0]
    for pair in study.service.order(annotator):
        page = study.http.get(f"/a/{annotator.key}", params={"pair": pair.number}).text
        assert "passage-" not in page and "query" not in page.lower().replace(pair.context.lower(), "")


def test_what_is_no_vote_is_refused(study: Running) -> None:
    annotator, other = study.service.annotators[0], study.service.annotators[-1]
    link, mine = f"/a/{annotator.key}", study.service.order(annotator)[0].number
    theirs = study.service.order(other)[0].number
    for form in (
        {"pair": theirs, "verdict": "high"}, {"pair": mine, "verdict": "maybe"}, {"pair": mine}, {"verdict": "high"},
        {"pair": f"0{mine}", "verdict": "high"}, {"pair": "٣", "verdict": "low"}, {},
    ):  # fmt: skip
        assert study.http.post(link, data=form).status_code == 404, form
    assert study.http.post("/a/wrong", data={"pair": mine, "verdict": "high"}).status_code == 404
    assert study.http.get("/a/wrong").status_code == 404
    assert study.http.get(f"/results/{annotator.key}").status_code == 404
    assert study.http.get(link, params={"pair": theirs}).status_code == 404
    evil = study.http.post(
        link, data={"pair": mine, "verdict": "high"}, headers={"Origin": "http://evil.example"}
    )
    assert evil.status_code == 403
    assert Store(Path(study_folder(study))).votes() == []


def study_folder(study: Running) -> str:
    """The place of the votes of the server."""
    return str(study.server.config.app.app.app.state.store.path.parent)


def test_double_submits_and_two_tabs_count_once(study: Running) -> None:
    annotator = study.service.annotators[0]
    link, number = f"/a/{annotator.key}", study.service.order(annotator)[0].number

    def submit(verdict: str) -> None:
        assert httpx.post(study.url + link, data={"pair": number, "verdict": verdict}).status_code == 303

    threads = [threading.Thread(target=submit, args=("high",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    summary = study.http.get(f"/results/{study.service.organizer}/results.json").json()
    assert summary["votes"] == 1
    submit("low")  # the other tab, later: the last word counts
    text = study.http.get(f"/results/{study.service.organizer}/pairs.csv").text
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["A1"] for row in rows if row["A1"]] == ["low"]


def test_a_full_disk_loses_no_vote_and_accepts_none(study: Running) -> None:
    """The limit on the size of files stands for a full disk."""
    annotator = study.service.annotators[0]
    link, root = f"/a/{annotator.key}", Path(study_folder(study))
    first, second = (pair.number for pair in study.service.order(annotator)[:2])
    assert study.http.post(link, data={"pair": first, "verdict": "high"}).status_code == 303
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((root / "votes.sqlite-wal").stat().st_size + 100, before[1]))
    try:
        refused = study.http.post(link, data={"pair": second, "verdict": "low"})
        assert refused.status_code == 500 and str(root) not in refused.text
        assert shown(study.http.get(link).text) == second
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert study.http.post(link, data={"pair": second, "verdict": "low"}).status_code == 303
    votes = [(vote.pair, vote.verdict) for vote in Store(root).votes(annotator.name)]
    assert sorted(votes) == sorted([(first, "high"), (second, "low")])


def test_results_need_the_token_if_there_is_one(world: World, tmp_path: Path) -> None:
    token = "a-token-of-many-characters"
    opened = open_study(config(world, tmp_path / "study"), tmp_path / "study")
    running = start(make_app(opened, Store(tmp_path / "study"), Policy(token=token)), opened)
    try:
        assert running.http.get(f"/a/{opened.annotators[0].key}").status_code == 200
        results = f"/results/{opened.organizer}"
        assert running.http.get(results).status_code == 401
        assert running.http.get(results, headers={"Authorization": f"Bearer {token}"}).status_code == 200
    finally:
        running.stop()


def test_the_same_command_resumes_and_another_is_refused(world: World, tmp_path: Path) -> None:
    root = tmp_path / "study"
    first = open_study(config(world, root), root)
    assert open_study(config(world, root, port=1, host="localhost"), root) == first
    with pytest.raises(QontextError, match="other settings: documents"):
        open_study(config(world, root, documents=11), root)
    with pytest.raises(QontextError, match="other settings: queries"):
        open_study(config(world, root, queries=str(world / "passages")), root)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(QontextError, match="contains no study"):
        open_study(config(world, tmp_path / "full"), tmp_path / "full")


def test_export_writes_results_and_the_signals_beside_them(world: World, tmp_path: Path) -> None:
    settings = config(world, tmp_path / "study", reranker=str(world / "reranker")).model_dump(
        exclude={"device"}
    )
    summary = api.annotate(**{**settings, "export": True, "device": "cpu"})
    assert json.loads((tmp_path / "study" / "results.json").read_text())["pairs"] == 24
    assert len(list(csv.DictReader((tmp_path / "study" / "pairs.csv").open()))) == 24
    assert summary["kinds"]["passage-query"]["rate"] is None
    assert set(summary["signals"]) == {"BM25 finds the passage, top 10", "overlap ≥ 0.5", "reranker ≥ 0.5"}
    assert summary["signals"]["overlap ≥ 0.5"]["passage-query"] == 1  # keyphrases are words of their passages


def test_two_people_annotate_in_browsers(study: Running) -> None:
    with chromium() as browser:
        people = [Person(browser, study.url, viewport=size) for size in (DESK, PHONE)]
        first, second = study.service.annotators[0], study.service.annotators[1]
        for person, annotator in zip(people, (first, second)):
            person.go(f"/a/{annotator.key}")
        for number in range(12):
            for person, keys in zip(people, ("hl", "hh")):
                person.page.wait_for_function(f"document.querySelector('progress').value === {number}")
                if number < 2:
                    person.check(f"annotate-{number}")
                person.page.keyboard.press(keys[number % 2])
        for person in people:
            person.page.get_by_text("That was the last pair").wait_for()
            person.check("annotate-end")
        people[0].page.get_by_role("link", name="Previous pair").click()
        people[0].page.get_by_text("Your verdict so far: low").wait_for()
        people[0].page.get_by_role("button", name="High").click()
        people[0].page.get_by_text("That was the last pair").wait_for()
        organizer = Person(browser, study.url)
        page = organizer.go(f"/results/{study.service.organizer}")
        assert "24 of 72 votes" in page.locator("main").inner_text()
        organizer.check("annotate-results")
        plain = Person(browser, study.url, java_script_enabled=False)
        third = study.service.annotators[2]
        page = plain.go(f"/a/{third.key}")
        page.get_by_role("button", name="Low").click()
        assert "1 of 12" in page.locator("main").inner_text()
        for person in (*people, organizer, plain):
            person.close()
    summary = study.http.get(f"/results/{study.service.organizer}/results.json").json()
    assert summary["votes"] == 25 and summary["annotators"]["A1"] == {"votes": 12, "of": 12}
    assert len(summary["disagreements"]) in (5, 6)  # the third may dissent from two who agree
