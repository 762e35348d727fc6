"""A server with an access token: start it on this machine, ask it as any program would, stop it.

    python examples/serve_and_ask.py runs/mine "how do I reset my password?"

The directory is one of adapt, encode or index, or a folder of documents. Whoever asks needs the token; without
it, the server answers with status 401.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def serving(directory: str, token: str) -> Iterator[str]:
    """The address of a server on a free port of the loopback interface, which ends with the block."""
    server = subprocess.Popen(
        [sys.executable, "-m", "qontext", "serve", directory, "--port", "0"],
        env={**os.environ, "QONTEXT_TOKEN": token},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        for line in server.stderr:  # it says when it is ready
            if match := re.search(r"^Serving .* at (http://\S+) ", line):
                yield match[1]
                break
            print(line, end="", file=sys.stderr)
        else:
            raise SystemExit("the server did not start")
    finally:
        server.send_signal(signal.SIGTERM)  # requests that are under way are finished
        server.communicate()


def ask(address: str, token: str, question: str, k: int = 3) -> list[dict[str, Any]]:
    """The best passages for a question, each with its place, score and text."""
    request = urllib.request.Request(
        f"{address}/v1/search",
        data=json.dumps({"query": question, "k": k}).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request) as response:
        results: list[dict[str, Any]] = json.load(response)["results"][0]["hits"]
    return results


def main(directory: str, question: str) -> list[dict[str, Any]]:
    token = secrets.token_urlsafe()
    with serving(directory, token) as address:
        results = ask(address, token, question)
    for n, result in enumerate(results, 1):
        print(f"{n}. {result['title'] or result['document']}: {result['snippet']}")
    return results


if __name__ == "__main__":
    main(*sys.argv[1:])
