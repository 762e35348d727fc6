"""A server on this machine that speaks the upload API of the Hub: repositories, preupload, LFS batches, commits."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_theUsersOwnSecret"
LARGE = 10_000
"""Bytes from which a file is stored by LFS."""


class Hub(ThreadingHTTPServer):
    """Its repositories: visibility and files by name. Requests without the token are refused."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.visibility: dict[str, str] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.commits: list[str] = []
        self.stored: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.refuses_commits = False
        self.weights: dict[str, dict[str, Any]] = {}
        """What is said of a repository's weights: sizes by file, numbers in all."""


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *values: Any) -> None:
        """Silence."""

    def answer(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = b""
            while size := int(self.rfile.readline(), 16):
                chunks += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return chunks
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def handle_one(self, method: str) -> None:
        hub, body = self.server, self.body()
        path = self.path.partition("?")[0]
        hub.requests.append(f"{method} {path}")
        if path.startswith("/lfs/"):
            oid = path.rpartition("/")[2]
            assert hashlib.sha256(body).hexdigest() == oid
            hub.stored[oid] = body
            self.answer({})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer({"error": "Invalid credentials"}, 401)
        elif path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
            known = name in hub.visibility
            hub.visibility.setdefault(name, wanted.get("visibility") or "public")
            hub.files.setdefault(name, {})
            self.answer({"url": f"{hub.address}/{name}"}, 409 if known else 200)
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": f"{hub.address}/lfs/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            self.answer({"transfer": "basic", "objects": objects})
        else:
            self.api(path.removeprefix("/api/models/").split("/"), body)

    def api(self, parts: list[str], body: bytes) -> None:
        hub, name = self.server, "/".join(parts[:2])
        if name not in hub.visibility:
            self.answer({"error": "Repository not found"}, 404)
        elif len(parts) == 2:
            private = hub.visibility[name] == "private"
            about = {"id": name, "private": private, "siblings": [], "tags": [], "downloads": 0, "likes": 0}
            self.answer(about | hub.weights.get(name, {}))
        elif parts[2] == "preupload":
            modes = [
                {
                    "path": f["path"],
                    "uploadMode": "lfs" if f["size"] >= LARGE else "regular",
                    "shouldIgnore": False,
                }
                for f in json.loads(body)["files"]
            ]
            self.answer({"files": modes})
        elif parts[2] == "commit" and not hub.refuses_commits:
            for line in body.splitlines():
                self.apply(name, json.loads(line))
            self.answer(
                {"success": True, "commitOid": "0" * 40, "commitUrl": f"{hub.address}/{name}/commit/0"}
            )
        else:
            self.answer({"error": f"no write access with the token {TOKEN}"}, 403)

    def apply(self, name: str, change: dict[str, Any]) -> None:
        value = change["value"]
        if change["key"] == "header":
            self.server.commits.append(value["summary"])
        elif change["key"] == "file":
            self.server.files[name][value["path"]] = base64.b64decode(value["content"])
        else:
            assert change["key"] == "lfsFile"
            self.server.files[name][value["path"]] = self.server.stored[value["oid"]]

    def do_GET(self) -> None:
        self.handle_one("GET")

    def do_POST(self) -> None:
        self.handle_one("POST")

    def do_PUT(self) -> None:
        self.handle_one("PUT")


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
