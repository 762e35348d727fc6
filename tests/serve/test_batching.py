"""Batches of concurrent jobs: what is computed together, refused, given up, and what an error spoils."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest
from tests.serve.conftest import Serve

from qontext.data.runs import Run
from qontext.retrieve.system import Ranker
from qontext.serve.batching import LARGEST, Batcher, Overloaded, TimedOut


class Gate:
    """A function whose first call waits until it is opened; it records its batches."""

    def __init__(self) -> None:
        self.open, self.entered, self.batches = threading.Event(), threading.Event(), []  # type: ignore[var-annotated]

    def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(list(items))
        self.entered.set()
        assert self.open.wait(30)
        if "bad" in items:
            raise ValueError("bad")
        return [item * 2 for item in items]


async def _entered(gate: Gate) -> None:
    while not gate.entered.is_set():
        await asyncio.sleep(0.01)


def test_jobs_that_wait_are_computed_together() -> None:
    async def main() -> None:
        gate, batcher = Gate(), Batcher(10, 30)
        first = asyncio.create_task(batcher.run("a", gate, [1]))
        await _entered(gate)
        others = [asyncio.create_task(batcher.run("a", gate, [n, n + 10])) for n in (2, 3)]
        apart = asyncio.create_task(batcher.run("b", gate, [5]))
        while batcher.waiting < 3:
            await asyncio.sleep(0.01)
        gate.open.set()
        assert await asyncio.gather(first, *others, apart) == [[2], [4, 24], [6, 26], [10]]
        assert gate.batches == [[1], [2, 12, 3, 13], [5]]
        batcher.close()

    asyncio.run(main())


def test_a_large_job_is_computed_in_parts_between_which_others_have_their_turn() -> None:
    async def main() -> None:
        gate, batcher = Gate(), Batcher(10, 30)
        first = asyncio.create_task(batcher.run("a", gate, [1]))
        await _entered(gate)
        large = asyncio.create_task(batcher.run("a", gate, list(range(LARGEST + 5))))
        while batcher.waiting < 1:
            await asyncio.sleep(0.01)
        other = asyncio.create_task(batcher.run("b", gate, ["c"]))
        while batcher.waiting < 2:
            await asyncio.sleep(0.01)
        gate.open.set()
        results = await asyncio.gather(first, large, other)
        assert results == [[2], [2 * n for n in range(LARGEST + 5)], ["cc"]]
        assert [len(batch) for batch in gate.batches] == [1, LARGEST, 1, 5] and gate.batches[2] == ["c"]
        batcher.close()

    asyncio.run(main())


def test_the_rest_of_a_job_that_is_late_is_not_computed() -> None:
    async def main() -> None:
        gate, batcher = Gate(), Batcher(10, 0.3)
        with pytest.raises(TimedOut):
            await batcher.run("a", gate, list(range(LARGEST + 5)))
        gate.open.set()
        batcher.seconds = 30
        assert await batcher.run("b", gate, ["c"]) == ["cc"]
        while batcher.waiting:
            await asyncio.sleep(0.01)
        assert [len(batch) for batch in gate.batches] == [LARGEST, 1]
        batcher.close()

    asyncio.run(main())


def test_an_error_is_that_of_its_own_job() -> None:
    async def main() -> None:
        gate, batcher = Gate(), Batcher(10, 30)
        first = asyncio.create_task(batcher.run("a", gate, [1]))
        await _entered(gate)
        jobs = [asyncio.create_task(batcher.run("a", gate, [x])) for x in ("good", "bad", "fine")]
        while batcher.waiting < 3:
            await asyncio.sleep(0.01)
        gate.open.set()
        done = await asyncio.gather(first, *jobs, return_exceptions=True)
        assert done[1] == ["goodgood"] and done[3] == ["finefine"] and isinstance(done[2], ValueError)
        assert await batcher.run("a", gate, [7]) == [14]
        batcher.close()

    asyncio.run(main())


def test_a_full_queue_refuses_and_a_slow_job_is_given_up() -> None:
    async def main() -> None:
        gate, batcher = Gate(), Batcher(2, 0.3)
        first = asyncio.create_task(batcher.run("a", gate, [1]))
        await _entered(gate)
        waiting = [asyncio.create_task(batcher.run("a", gate, [n])) for n in (2, 3)]
        while batcher.waiting < 2:
            await asyncio.sleep(0.01)
        with pytest.raises(Overloaded):
            await batcher.run("a", gate, [4])
        for job in (first, *waiting):
            with pytest.raises(TimedOut):
                await job
        gate.open.set()
        while batcher.waiting:
            await asyncio.sleep(0.01)
        assert gate.batches == [[1]]  # what was given up is not computed
        batcher.close()
        with pytest.raises(Overloaded):
            await batcher.run("a", gate, [4])

    asyncio.run(main())


class Gated(Ranker):
    """Finds nothing, after it went through the gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def rank(self, queries: Any, k: int, **how: Any) -> Run:
        self.gate(list(queries.values()))
        return Run.of([])


def test_the_server_answers_429_beyond_the_queue_and_503_when_it_is_late(serve: Serve) -> None:
    running = serve("bm25", queue=1, timeout=1)
    gate = Gate()

    running.service.default.ranker = Gated(gate)
    statuses: list[tuple[int, str | None]] = []

    def ask() -> None:
        answer = httpx.post(f"{running.url}/v1/search", json={"query": "boat"}, timeout=30)
        statuses.append((answer.status_code, answer.headers.get("retry-after")))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    threads[0].start()
    assert gate.entered.wait(30)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [(429, "1"), (429, "1"), (503, "1"), (503, "1")]
    gate.open.set()
    assert running.http.get("/healthz").status_code == 200


def test_a_request_under_way_is_answered_before_the_server_ends(serve: Serve) -> None:
    running = serve("bm25")
    gate, statuses = Gate(), []

    running.service.default.ranker = Gated(gate)

    def ask() -> None:
        answer = httpx.post(f"{running.url}/v1/search", json={"query": "boat"}, timeout=30)
        statuses.append(answer.status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    assert gate.entered.wait(30)
    running.server.should_exit = True
    time.sleep(0.5)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{running.url}/healthz")
    gate.open.set()
    thread.join()
    running.thread.join(30)
    assert statuses == [200] and not running.thread.is_alive()


def test_answers_under_load_are_those_of_requests_alone(serve: Serve) -> None:
    running = serve("mine", queue=64)
    queries = [f"the {word} of Jura" for word in ("lamp", "boat", "bell", "engine", "garden", "stair")]
    alone = [_ask(running.url, query) for query in queries]
    for _ in range(3):
        answers: dict[int, list[str]] = {}

        def ask(number: int, answers: dict[int, list[str]] = answers) -> None:
            answers[number] = _ask(running.url, queries[number % len(queries)])

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(18)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(answers[n] == alone[n % len(queries)] for n in range(18))


def _ask(url: str, query: str) -> list[str]:
    answer = httpx.post(f"{url}/v1/search", json={"query": query, "k": 5}, timeout=60)
    return [hit["passage"] for hit in answer.json()["results"][0]["hits"]]
