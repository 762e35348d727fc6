"""Checks of every request before it is processed: host, origin, token and size; and the headers of every
response. A page of another site can make a browser send requests to a server on the same machine. It can
neither read the responses (there are no CORS headers) nor use a host name that it controls (the Host header
is checked) nor change anything (the Origin header is checked).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

TOKEN, COOKIE = "QONTEXT_TOKEN", "qontext_session"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
BODY_LIMIT, FORM_LIMIT, QUERY_LIMIT = 4 * 1024 * 1024, 64 * 1024, 32 * 1024
"""Bytes of a request to the API, of a form, which may need no token, and of an address."""
BODY_SECONDS = 30
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    408: "timeout_error", 413: "invalid_request_error", 414: "invalid_request_error", 422: "invalid_request_error",
    429: "rate_limit_error", 503: "timeout_error",
}  # fmt: skip


WRONG, WRONG_SECONDS = 20, 60.0
"""Wrong tokens from an address, and the seconds within which they count, until its tokens are not looked at."""
TOO_MANY = "Too many wrong tokens from this address; try again in a minute."
_ADDRESSES = 10_000
"""Addresses whose wrong tokens are counted at a time."""
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:@/\\\s]+))(?::\d{1,5})?|([0-9a-f:]+)")


class Attempts:
    """Wrong tokens by the address that sent them. Who has signed in is not affected by others behind the same address."""

    def __init__(self) -> None:
        self._wrong: dict[str, deque[float]] = {}

    def wrong(self, address: str) -> None:
        """Count a wrong token."""
        times = self._wrong.pop(address, None) or deque(maxlen=WRONG)
        times.append(time.monotonic())
        self._wrong[address] = times
        if len(self._wrong) > _ADDRESSES:
            del self._wrong[next(iter(self._wrong))]

    def are_too_many(self, address: str) -> bool:
        times = self._wrong.get(address)
        return times is not None and len(times) == WRONG and time.monotonic() - times[0] < WRONG_SECONDS


@dataclass(frozen=True)
class Policy:
    """The access policy. `hosts` are the accepted names of the server; None accepts all, which requires a token."""

    hosts: frozenset[str] | None = LOOPBACK
    token: str | None = None
    open_paths: tuple[str, ...] = field(default=("/healthz", "/login", "/static/"))
    """Paths that need no token; a path with a trailing slash includes all paths below it."""
    attempts: Attempts = field(default_factory=Attempts, compare=False, repr=False)

    def needs_token(self, path: str) -> bool:
        if self.token is None:
            return False
        return not any(path == p or (p.endswith("/") and path.startswith(p)) for p in self.open_paths)

    def accepts(self, token: str) -> bool:
        """Compare with the token, in a time that does not depend on where they differ."""
        return self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    def session(self) -> str:
        """The content of the cookie of someone who knows the token."""
        assert self.token is not None
        return hmac.new(self.token.encode(), b"qontext session", hashlib.sha256).hexdigest()

    def check(self, headers: dict[bytes, bytes], address: str) -> tuple[int, str] | None:
        """(status, message) unless the request comes from someone who knows the token."""
        session = _cookies(headers.get(b"cookie", b"").decode("latin-1")).get(COOKIE, "")
        if hmac.compare_digest(session.encode(), self.session().encode()):
            return None
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() == "bearer":
            if self.attempts.are_too_many(address):
                return 429, TOO_MANY
            if self.accepts(token.strip()):
                return None
            self.attempts.wrong(address)
        return 401, "a token is needed: send it as 'Authorization: Bearer TOKEN'"


def host_name(host: str) -> str:
    """The name in a Host header, without the port; empty if it is not of the form NAME, NAME:PORT or [ADDRESS]:PORT."""
    match = _HOST.fullmatch(host.lower())
    return "" if match is None else next(name for name in match.groups() if name is not None)


def client_of(scope: Any) -> str:
    """The address that a request comes from."""
    return str((scope.get("client") or ("",))[0])


def _cookies(header: str) -> dict[str, str]:
    """The cookies in a header. Those of other servers on the same host may have any form."""
    pairs = (pair.partition("=") for pair in header.split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


class Guard:
    """ASGI middleware that applies a policy."""

    def __init__(self, app: Any, policy: Policy) -> None:
        self.app, self.policy = app, policy

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        headers = dict(scope["headers"])
        refusal = self._refusal(scope, headers)
        if refusal is None and scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
            limit = _limit(scope["path"])
            try:
                body = await asyncio.wait_for(_body(receive, limit), BODY_SECONDS)
            except ConnectionError:  # there is nobody to answer
                return
            except TimeoutError:
                refusal = 408, "the request was not sent in time"
            else:
                if body is None:
                    refusal = 413, f"the request is larger than {limit:,} bytes"
                else:
                    receive = _replayed(body, receive)
        if refusal is None:
            await self.app(scope, receive, with_headers)
        else:
            await self._refuse(scope, headers, *refusal, with_headers)

    def _refusal(self, scope: Any, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        """(status, message) if the request is refused because of its headers."""
        host = headers.get(b"host", b"").decode("latin-1")
        if self.policy.hosts is not None and host_name(host) not in self.policy.hosts:
            return 403, "the Host header names another server; --allow-host accepts more names"
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            return 403, "the request comes from a page of another site"
        if len(scope["query_string"]) > QUERY_LIMIT or len(scope["path"]) > QUERY_LIMIT:
            return 414, f"the URL is longer than {QUERY_LIMIT:,} characters"
        length, limit = headers.get(b"content-length", b"0"), _limit(scope["path"])
        if length.isdigit() and (len(length) > 12 or int(length) > limit):
            return 413, f"the request is larger than {limit:,} bytes"
        return (
            self.policy.check(headers, client_of(scope)) if self.policy.needs_token(scope["path"]) else None
        )

    async def _refuse(
        self, scope: Any, headers: dict[bytes, bytes], status: int, message: str, send: Any
    ) -> None:
        extra: list[tuple[bytes, bytes]] = []
        if status == 401 and scope["method"] == "GET" and b"text/html" in headers.get(b"accept", b""):
            query = scope["query_string"].decode("latin-1")
            target = quote(scope["path"] + (f"?{query}" if query else ""), safe="")
            status, extra = 303, [(b"location", f"/login?next={target}".encode())]
        elif status == 401:
            extra = [(b"www-authenticate", b"Bearer")]
        body = json.dumps(error_body(status, message)).encode()
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *extra]
        # The rest of the request is not read.
        if status in (408, 413):
            head.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's format."""
    kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def _limit(path: str) -> int:
    """The maximum number of bytes of a request's body."""
    return BODY_LIMIT if path.startswith(("/v1/", "/mcp")) else FORM_LIMIT


async def _body(receive: Any, limit: int) -> bytes | None:
    """The complete body of a request; None if it is too large. Half a request is not processed."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Any) -> Any:
    """A `receive` that first returns the body that was already read."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Any:
        return waiting.pop() if waiting else await receive()

    return replay
