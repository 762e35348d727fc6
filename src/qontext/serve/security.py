"""Checks of every request before it is processed: host, origin, token and size; and the headers of every
response. A page of another site can make a browser send requests to a server on the same machine. It can
neither read the responses (there are no CORS headers) nor use a host name that it controls (the Host header
is checked) nor change anything (the Origin header is checked).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response

TOKEN, COOKIE = "QONTEXT_TOKEN", "qontext_session"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
BODY_LIMIT, FORM_LIMIT = 4 * 1024 * 1024, 64 * 1024
"""Bytes of a request to the API, and of a form, which may need no token."""
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
    413: "invalid_request_error", 422: "invalid_request_error", 429: "rate_limit_error", 503: "timeout_error",
}  # fmt: skip


@dataclass(frozen=True)
class Policy:
    """The access policy. `hosts` are the accepted names of the server; None accepts all, which requires a token."""

    hosts: frozenset[str] | None = LOOPBACK
    token: str | None = None
    open_paths: tuple[str, ...] = ("/healthz", "/login", "/static/")
    """Paths that need no token; a path with a trailing slash includes all paths below it."""

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

    def knows_token(self, connection: HTTPConnection) -> bool:
        session = connection.cookies.get(COOKIE, "")
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        return hmac.compare_digest(session.encode(), self.session().encode()) or (
            scheme.lower() == "bearer" and self.accepts(token.strip())
        )


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


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

        answer = self._refusal(HTTPConnection(scope))
        await (answer or self.app)(scope, _limited(receive, _limit(scope["path"])), with_headers)

    def _refusal(self, connection: HTTPConnection) -> Response | None:
        """The answer to a request that is refused because of its headers."""
        host, origin = (connection.headers.get(name, "").lower() for name in ("host", "origin"))
        path = connection.scope["path"]
        if self.policy.hosts is not None and host_name(host) not in self.policy.hosts:
            return _refused(403, "the Host header names another server; --allow-host accepts more names")
        if origin and origin not in (f"http://{host}", f"https://{host}"):
            return _refused(403, "the request comes from a page of another site")
        length, limit = connection.headers.get("content-length", ""), _limit(path)
        if length.isdecimal() and (len(length) > 12 or int(length) > limit):
            return _refused(413, f"the request is larger than {limit:,} bytes", Connection="close")
        if not self.policy.needs_token(path) or self.policy.knows_token(connection):
            return None
        if connection.scope["method"] == "GET" and "text/html" in connection.headers.get("accept", ""):
            query = f"?{connection.url.query}" if connection.url.query else ""
            return RedirectResponse(f"/login?next={quote(path + query, safe='')}", 303)
        message = "a token is needed: send it as 'Authorization: Bearer TOKEN'"
        return _refused(401, message, **{"WWW-Authenticate": "Bearer"})


def _refused(status: int, message: str, **headers: str) -> Response:
    return JSONResponse(error_body(status, message), status, headers)


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's format."""
    kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def _limit(path: str) -> int:
    """The maximum number of bytes of a request's body."""
    return BODY_LIMIT if path.startswith(("/v1/", "/mcp")) else FORM_LIMIT


def _limited(receive: Any, limit: int) -> Any:
    """A `receive` that refuses a body that is too large and does not say so in its header."""
    length = 0

    async def limited() -> Any:
        nonlocal length
        message = await receive()
        length += len(message.get("body", b""))
        if length > limit:
            raise HTTPException(413, f"the request is larger than {limit:,} bytes")
        return message

    return limited
