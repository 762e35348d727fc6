"""Pairs are judged on a page: in any order of submits and kills, each acknowledged verdict counts once."""

from __future__ import annotations

import json
import re
import resource
import signal
import threading
from pathlib import Path

import httpx
import pytest
from tests.serve.browser import DESK, PHONE, Person, chromium
from tests.serve.command import Command
from tests.serve.conftest import Running, World, start

from qontext import api
from qontext.baselines.annotators import Contexts, fleiss_kappa, majority, wilson
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.serve.errors import Failed
from qontext.serve.judge import AnnotateConfig, JudgedPair, Store, make_app, pairs_of, read_pairs, read_votes
from qontext.serve.security import Policy


def config(world: World, out: Path, **settings: object) -> AnnotateConfig:
    fixed = {
        "source": str(world / "passages"),
        "pairs": "contexts",
        "queries": str(world / "queries"),
        "out": str(out),
    }
    return AnnotateConfig.make({**fixed, "documents": 6, **settings}, where="annotate")


@pytest.fixture
def drawn(world: World, tmp_path: Path) -> list[JudgedPair]:
    return pairs_of(config(world, tmp_path / "study"), Workdir(tmp_path / "study"))


@pytest.fixture
def page(drawn: list[JudgedPair], tmp_path: Path) -> Running:
    running = start(make_app(drawn, Store(tmp_path / "study" / "votes-anna.jsonl"), Policy()))
    yield running  # type: ignore[misc]
    running.stop()


def shown(text: str) -> str | None:
    """The key of the pair on the page."""
    match = re.search(r'name="pair" value="(\w+)"', text)
    return match[1] if match else None


def test_all_pairs_are_judged_once_in_their_order(
    page: Running, drawn: list[JudgedPair], tmp_path: Path
) -> None:
    keys = []
    while (key := shown(page.http.get("/").text)) is not None:
        keys.append(key)
        answer = page.http.post("/", data={"pair": key, "verdict": "high" if len(keys) % 2 else "low"})
        assert answer.status_code == 303 and answer.headers["location"] == "/"
    assert keys == [pair.key for pair in drawn]
    text = page.http.get("/").text
    assert "That was the last pair" in text and f"{len(keys)} of {len(keys)}" in text
    before = page.http.get("/", params={"pair": keys[-1]}).text
    verdicts = read_votes(tmp_path / "study" / "votes-anna.jsonl")
    assert f"Your verdict so far: {verdicts[keys[-1]]}" in before and list(verdicts) == keys


def test_double_submits_count_once_and_the_last_word_counts(
    page: Running, drawn: list[JudgedPair], tmp_path: Path
) -> None:
    def submit(verdict: str) -> None:
        form = {"pair": drawn[0].key, "verdict": verdict}
        assert httpx.post(page.url + "/", data=form).status_code == 303

    threads = [threading.Thread(target=submit, args=("high",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file = tmp_path / "study" / "votes-anna.jsonl"
    assert len(file.read_text().splitlines()) == 1
    submit("low")
    assert read_votes(file) == {drawn[0].key: "low"}


def test_a_full_disk_loses_no_verdict_and_accepts_none(tmp_path: Path) -> None:
    """The limit on the size of files stands for a full disk."""
    file = tmp_path / "votes-anna.jsonl"
    store = Store(file)
    store.vote("a", "high")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 5, before[1]))
    try:
        with pytest.raises(Failed, match="cannot be written"):
            store.vote("b", "low")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert read_votes(file) == store.votes == {"a": "high"}
    store.vote("b", "low")
    assert read_votes(file) == {"a": "high", "b": "low"}


def test_the_line_of_a_killed_process_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "votes-anna.jsonl"
    Store(file).vote("a", "high")
    with file.open("ab") as half:
        half.write(b'{"pair": "b", "ver')
    assert read_votes(file) == {"a": "high"}
    Store(file).vote("c", "low")
    assert read_votes(file) == {"a": "high", "c": "low"}


def test_a_server_that_is_killed_has_every_acknowledged_verdict(world: World, tmp_path: Path) -> None:
    out, words = (
        tmp_path / "study",
        ["--pairs", "contexts", "--queries", str(world / "queries"), "--documents", "6"],
    )
    argv = [
        "annotate",
        str(world / "passages"),
        *words,
        "--annotator",
        "anna",
        "--port",
        "0",
        "--out",
        str(out),
    ]
    acknowledged: dict[str, str] = {}
    for number in range(2):
        command = Command(*argv)
        with httpx.Client(base_url=command.url()) as person:
            for _ in range(3):
                key = shown(person.get("/").text)
                assert key is not None and key not in acknowledged
                assert person.post("/", data={"pair": key, "verdict": "high"}).status_code == 303
                acknowledged[key] = "high"
        command.stop(signal.SIGKILL)
        assert read_votes(out / "votes-anna.jsonl") == acknowledged, number


def test_the_same_command_resumes_and_another_is_refused(
    world: World, drawn: list[JudgedPair], tmp_path: Path
) -> None:
    work = Workdir(tmp_path / "study")
    assert pairs_of(config(world, work.path, annotator="berta"), work) == drawn == read_pairs(work.path)
    with pytest.raises(QontextError, match="contains pairs of other passages, queries or settings"):
        pairs_of(config(world, work.path, seed=7), work)


def test_the_study_of_the_paper(world: World, drawn: list[JudgedPair], tmp_path: Path) -> None:
    """Three people; two of them say high to all queries and low to all passages, the third says high."""
    kinds = [pair.kind for pair in drawn]
    assert kinds.count("passage_query") == kinds.count("passage_passage") == 6
    assert len({pair.ids[1] for pair in drawn}) == 12, "nobody sees a document twice"
    orders = [Contexts.order(drawn, person) for person in ("anna", "berta")]
    assert orders[0] != orders[1] and sorted(p.key for p in orders[0]) == sorted(p.key for p in drawn)
    for person in ("anna", "berta", "carla"):
        store = Store(tmp_path / "study" / f"votes-{person}.jsonl")
        for pair in drawn:
            store.vote(pair.key, "high" if person == "carla" or pair.kind == "passage_query" else "low")
    settings = config(world, tmp_path / "study", export=True).model_dump()
    summary = api.annotate(**settings)
    queries, passages = summary["passage_query"], summary["passage_passage"]
    assert (queries["rate"], queries["decided"], queries["published"]) == (1.0, 6, 0.565)
    assert (passages["rate"], passages["decided"], passages["published"]) == (0.0, 6, 0.355)
    assert queries["kappa"] is None and passages["kappa"] == pytest.approx(-0.5)
    assert json.loads((tmp_path / "study" / "results.json").read_text())["annotators"]["anna"] == 12


def test_the_statistics_by_hand() -> None:
    assert (
        majority(["high", "high", "low"]) == "high"
        and majority(["high", "low"]) is None
        and majority([]) is None
    )
    h, lo = "high", "low"
    # P = (1 + 1 + 1/3 + 1/3) / 4 = 2/3, Pₑ = 1/2: (2/3 - 1/2) / (1/2)
    assert fleiss_kappa([[h] * 3, [lo] * 3, [h, h, lo], [h, lo, lo]], 3) == pytest.approx(1 / 3)  # type: ignore[list-item]
    assert fleiss_kappa([[h], [h] * 3, [lo] * 3], 3) == pytest.approx(1)  # type: ignore[list-item]
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    for successes, trials in ((71, 200), (0, 10), (10, 10), (1, 3)):
        expected = stats.binomtest(successes, trials).proportion_ci(method="wilson")
        assert wilson(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_two_people_judge_in_browsers(page: Running, drawn: list[JudgedPair]) -> None:
    with chromium() as browser:
        desk, phone = (Person(browser, page.url, viewport=size) for size in (DESK, PHONE))
        desk.go("/")
        for number in range(len(drawn)):
            desk.page.locator(f'progress[value="{number}"]').wait_for()
            if number < 2:
                desk.check(f"judge-{number}")
            desk.page.keyboard.press("hl"[number % 2])
        desk.page.get_by_text("That was the last pair").wait_for()
        desk.check("judge-end")
        desk.page.get_by_role("link", name="Previous pair").click()
        desk.page.get_by_role("button", name="High").click()
        desk.page.get_by_text("That was the last pair").wait_for()
        phone.go(f"/?pair={drawn[0].key}")
        phone.check("judge-phone")
        for person in (desk, phone):
            person.close()
