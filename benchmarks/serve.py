"""The speed of a server: latencies and throughput at several numbers of clients, its memory, and another server.

    python benchmarks/serve.py MODEL PASSAGES [--clients 1 8 64] [--requests 600] [--soak 10000] [--queries FILE]
        [--infinity PATH] [--out benchmarks/serve.json]

The passages are encoded once. The server is `qontext serve` in a process of its own; clients are threads of this one, and
ask one question after the other. Beside it, the same model and the same exact search behind plain FastAPI and
sentence-transformers, one request at a time, as tutorials have it. Every answer counts; 429 is what a full queue says.
With --infinity, the program of an environment of its own (`pip install 'infinity-emb[server,torch]' 'click<8.2'`), vectors
of questions are measured beside ours; it does not search.
The soak sends many requests through 8 clients and compares the server's memory at its beginning with that at its end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from qontext import api
from qontext.data.collection import read_passages, read_queries
from qontext.frame import machine

PLAIN = """
import sys
import numpy as np, torch, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer
from qontext.retrieve.stored import open_vectors

vectors = open_vectors(sys.argv[2])
matrix = torch.from_numpy(np.concatenate([np.asarray(part, np.float32) for part in vectors.parts]))
ids = np.concatenate([part.to_numpy(zero_copy_only=False) for part in vectors.part_ids])
model = SentenceTransformer(sys.argv[1], device="cpu")
model.encode(["a"])
app = FastAPI()

class Search(BaseModel):
    query: str
    k: int = 10

@app.post("/v1/search")
def search(body: Search):
    scores, numbers = (matrix @ torch.from_numpy(model.encode(body.query))).topk(body.k)
    return {"results": [{"hits": [{"passage": ids[n], "score": s} for n, s in zip(numbers.tolist(), scores.tolist())]}]}

print("at http://127.0.0.1:" + sys.argv[3] + " ", file=sys.stderr, flush=True)
uvicorn.run(app, port=int(sys.argv[3]), log_level="error")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("passages")
    parser.add_argument("--queries", help="queries to ask; by default the beginnings of passages")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--soak", type=int, default=10_000)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--infinity", type=Path, help="the program infinity_emb")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/serve.json"))
    settings = parser.parse_args()
    queries = _queries(settings.queries, settings.passages)
    with tempfile.TemporaryDirectory() as folder:
        vectors, bm25 = Path(folder) / "vectors", Path(folder) / "bm25"
        api.encode(settings.passages, encoder=settings.model, precision=settings.precision, out=vectors)
        api.index(settings.passages, backend="bm25", out=bm25)
        serve = [sys.executable, "-m", "qontext", "serve", str(vectors), str(bm25), "--port", "0"]
        serve += ["--precision", settings.precision]
        plain = [sys.executable, "-c", PLAIN, settings.model, str(vectors), str(_free_port())]
        result: dict[str, Any] = {
            "what": "answers of a search server; latencies in milliseconds",
            "passages": sum(1 for _ in read_passages(settings.passages)),
            "requests": settings.requests,
            "qontext": {},
            "qontext_bm25": {},
            "fastapi_sentence_transformers": {},
        }
        with running(serve) as (url, pid):
            for clients in settings.clients:
                for name, system in (("qontext", "vectors"), ("qontext_bm25", "bm25")):
                    result[name][clients] = load(url, queries, clients, settings.requests, {"system": system})
            if settings.soak:
                result["soak"] = soak(url, pid, queries, settings.soak)
        with running([*serve, "--queue", "4"]) as (url, _):
            result["queue_of_4"] = load(url, queries, max(settings.clients), settings.requests, {})
        with running(plain) as (url, _):
            for clients in settings.clients:
                result["fastapi_sentence_transformers"][clients] = load(
                    url, queries, clients, settings.requests, {}
                )
        if settings.infinity is not None:
            compared = {"qontext_vectors": serve, "infinity_vectors": infinity(settings)}
            for name, command in compared.items():
                result[name] = {}
                with running(command) as (url, _):
                    for clients in settings.clients:
                        result[name][clients] = load(
                            url, queries, clients, settings.requests, {"model": "vectors"}, "/v1/embeddings"
                        )
    result["machine"] = machine.describe()
    settings.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


@contextmanager
def running(command: list[str]) -> Iterator[tuple[str, int]]:
    """The address and process id of a server."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if match := re.search(r"at (http://\S+)\s", line):
                break
        else:
            raise SystemExit(f"the server did not start: {command}")
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        drain.start()
        for _ in range(1_200):
            try:
                httpx.post(f"{match[1]}/v1/search", json={"query": "a"}, timeout=60)
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        yield match[1], process.pid
    finally:
        process.terminate()
        process.wait()


def infinity(settings: argparse.Namespace) -> list[str]:
    """The command of an infinity server of the model, under the name that it has in ours."""
    port = _free_port()
    command = f'echo at http://127.0.0.1:{port} >&2; DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 exec "$@"'
    program = [str(settings.infinity), "v2", "--model-id", settings.model, "--served-model-name", "vectors"]
    program += ["--engine", "torch", "--device", "cpu", "--url-prefix", "/v1", "--port", str(port)]
    return ["sh", "-c", command, "sh", *program, "--host", "127.0.0.1", "--no-bettertransformer"]


def load(
    url: str,
    queries: list[str],
    clients: int,
    requests: int,
    fixed: dict[str, Any],
    path: str = "/v1/search",
) -> dict[str, Any]:
    """Latencies and throughput of so many requests, shared by the clients."""
    seconds: list[float] = []
    statuses: Counter[str] = Counter()
    waiting = iter(range(requests))
    lock = threading.Lock()

    def client() -> None:
        with httpx.Client(base_url=url, timeout=120) as http:
            while True:
                with lock:
                    number = next(waiting, None)
                if number is None:
                    return
                query = queries[number % len(queries)]
                body = {"query": query, "k": 10} if path == "/v1/search" else {"input": query}
                started = time.perf_counter()
                try:
                    status = str(http.post(path, json={**body, **fixed}).status_code)
                except httpx.HTTPError as error:
                    status = type(error).__name__
                with lock:
                    statuses[status] += 1
                    if status == "200":
                        seconds.append(time.perf_counter() - started)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started
    marks = np.percentile(seconds, [50, 95, 99]).tolist() if seconds else [None] * 3
    return {
        **{
            name: round(1000 * mark, 2)
            for name, mark in zip(("p50", "p95", "p99"), marks)
            if mark is not None
        },
        "answers_per_second": round(len(seconds) / took, 1),
        "statuses": dict(statuses),
    }


def soak(url: str, pid: int, queries: list[str], requests: int) -> dict[str, Any]:
    """Memory of the server after a tenth of the requests and after all of them."""
    load(url, queries, 8, requests // 10, {})
    before = _resident(pid)
    figures = load(url, queries, 8, requests - requests // 10, {})
    return {"requests": requests, "megabytes_before": before, "megabytes_after": _resident(pid), **figures}


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def _queries(source: str | None, passages: str) -> list[str]:
    if source is not None:
        return list(read_queries(source).values())[:2_000]
    texts = [passage.text for _, passage in zip(range(2_000), read_passages(passages))]
    return [" ".join(text.split()[:10]) or "a" for text in texts]


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
