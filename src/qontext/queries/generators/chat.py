"""A client for OpenAI-compatible chat endpoints: one request, with retries.

Transient failures (too many requests, server errors, timeouts, broken connections, replies that are
truncated or are not chat completions) are retried after a growing pause, or after the one that the server
asks for. A wrong key or URL stops the run at once with an error. No message contains the key.
"""

from __future__ import annotations

import contextlib
import http.client  # not httpx: it has no deadline for a whole reply, and refuses replies with an odd Content-Length
import json
import os
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from qontext.frame.errors import QontextError, shorten
from qontext.frame.trust import PREFIX, Demand, is_given, is_this_machine

DEFAULT_ENDPOINT, DEFAULT_KEY_VARIABLE = "http://127.0.0.1:8000/v1", "OPENAI_API_KEY"
_EXAMPLE = "Example: --endpoint http://127.0.0.1:8000/v1"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name of an environment variable."""
_PIECE = 8
"""Minimum length of a part of a key to be hidden in messages: servers repeat keys in part."""


def check_endpoint(endpoint: str) -> None:
    """Refuse invalid base URLs. Parts that may contain a secret are not repeated."""
    if any(sign in endpoint for sign in "@?#"):
        raise QontextError(
            "the address of the endpoint contains credentials, a query or a fragment",
            remedy="Put the key into an environment variable and name that variable with --key-variable.",
        )
    if not re.fullmatch(r"[!-~]+", endpoint):
        raise QontextError(
            f"the address of the endpoint, {endpoint!r}, is empty or contains spaces or non-ASCII characters",
            remedy=_EXAMPLE,
        )
    try:
        parts = urlsplit(endpoint)
        host = (parts.hostname or "").encode("idna")  # which refuses empty and overlong labels
        is_valid = parts.scheme in ("http", "https") and host and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise QontextError(
            f"the address of the endpoint, {endpoint!r}, is not a valid http or https URL", remedy=_EXAMPLE
        )


def demands(values: Mapping[str, Any]) -> Iterator[Demand]:
    """Permissions that the settings need: to send passages to the endpoint, and a key with them. A key is only sent to the
    host that the user named; passages that stay on this machine, without a key, need no permission."""
    endpoint = str(values.get("endpoint") or DEFAULT_ENDPOINT)
    variable = str(values.get("key_variable") or DEFAULT_KEY_VARIABLE)
    is_default = endpoint == DEFAULT_ENDPOINT
    host = () if is_default else (endpoint,)
    if not is_default and not _is_here(endpoint):
        yield Demand(f"send passages to {endpoint}", host)
    # A variable that is named is told even where it is not set; what is no name may be the key, passed by mistake.
    is_named = variable != DEFAULT_KEY_VARIABLE and _NAME.fullmatch(variable)
    if not is_named and not os.environ.get(variable, "").strip():
        return
    if variable == DEFAULT_KEY_VARIABLE or variable.startswith(PREFIX):
        name = () if variable == DEFAULT_KEY_VARIABLE else (variable,)
        yield Demand(f"send the environment variable {variable} to {endpoint}", (*host, *name))
    elif not is_given(variable):
        yield Demand(
            f"send the environment variable {variable} to {endpoint}",
            (variable,),
            only_by=f"Name the variable yourself (--key-variable, or --set STEP.key_variable={variable}): a file may only "
            f"name {DEFAULT_KEY_VARIABLE} and variables that begin with {PREFIX}.",
        )
    else:
        yield Demand(f"send the environment variable {variable} to {endpoint}", host)


def _is_here(endpoint: str) -> bool:
    try:
        return is_this_machine(urlsplit(endpoint).hostname or "")
    except ValueError:
        return False


def read_key(variable: str, *, needed: bool) -> str | None:
    """The key in an environment variable, without the line break that often ends a key file."""
    # The variable's name is not repeated: it may be the key, passed by mistake.
    if not _NAME.fullmatch(variable):
        raise QontextError(
            "--key-variable is not the name of an environment variable",
            remedy="Put the key into an environment variable and pass that variable's name.",
        )
    key = os.environ.get(variable, "").strip()
    if not key and needed:
        raise QontextError("the environment variable that --key-variable names is not set")
    if key and not re.fullmatch(r"[!-~]+", key):
        raise QontextError(
            "the key in the environment variable contains spaces, line breaks or non-ASCII characters",
            remedy="Set the variable to the key only.",
        )
    return key or None


def hide(text: str, secret: str | None) -> str:
    """The text with the secret, and long parts of it, replaced by ``***``."""
    if not secret:
        return text
    size = min(_PIECE, len(secret))
    pieces = {secret[i : i + size] for i in range(len(secret) - size + 1)}
    visible: list[str] = []
    last = 0  # the end of what is hidden or shown so far
    for at in range(len(text) - size + 1):
        if text[at : at + size] in pieces:
            if at > last or not visible:
                visible += [text[last:at], "***"]
            last = at + size
    return "".join([*visible, text[last:]])


LARGEST_REPLY = 8 << 20
LONGEST_PAUSE = 60.0
MOST_TOKENS = 10**9
"""Larger token counts are considered implausible."""
_PASSES = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529))


@dataclass(frozen=True)
class Reply:
    """The model's text, and its cost in tokens."""

    text: str
    prompt_tokens: int
    completion_tokens: int


class CallFailed(Exception):
    """No usable reply to this request; other requests may succeed."""


class TryAgain(Exception):
    """A transient failure: the request is sent again after a pause."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


T = TypeVar("T")


@dataclass(frozen=True)
class Endpoint:
    """A server that answers requests in JSON (``https://host/v1``), its key, the timeout and the number of retries."""

    endpoint: str
    key: str | None = field(default=None, repr=False)
    timeout: float = 120.0
    retries: int = 6
    first_pause: float = 1.0

    remedy: ClassVar[str] = "Check --endpoint and --chat-model."
    key_remedy: ClassVar[str] = "Set the environment variable named by --key-variable to a valid key."

    def __post_init__(self) -> None:
        check_endpoint(self.endpoint)

    def post(self, path: str, body: dict[str, Any], parse: Callable[[bytes], T]) -> T:
        """The parsed reply to one request."""
        pause = self.first_pause
        for attempt in range(self.retries + 1):
            try:
                return self._once(path, body, parse)
            except TryAgain as error:
                reason = self._hide(str(error))
                if attempt == self.retries:
                    break
                # A random share, so that waiting requests are not all sent again at the same time.
                wait = pause * (0.5 + random.random()) if error.pause is None else error.pause
                time.sleep(min(wait, LONGEST_PAUSE))
                pause *= 2
        raise CallFailed(f"{reason} (tried {self.retries + 1} times)")

    def _once(self, path: str, body: dict[str, Any], parse: Callable[[bytes], T]) -> T:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        path = urlsplit(self.endpoint).path.rstrip("/") + path
        data = json.dumps(body).encode()
        deadline = time.monotonic() + self.timeout
        try:
            with self._connect(deadline) as connection:
                connection.request("POST", path, data, headers)
                response = connection.getresponse()
                content = _read(response)
            if time.monotonic() >= deadline:  # closed in a reply that looks complete
                raise TimeoutError
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a malformed header
            if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
                raise TryAgain(f"no complete reply within {self.timeout:g} s") from None
            self._refuse_connection(error)
            raise TryAgain(f"the connection failed: {type(error).__name__} {error}".strip()) from None
        if response.status != 200:
            self._refuse(response, content)
        return parse(content)

    @contextlib.contextmanager
    def _connect(self, deadline: float) -> Iterator[http.client.HTTPConnection]:
        """A connection with a deadline for the whole reply, even if data keeps arriving."""
        parts = urlsplit(self.endpoint)
        assert parts.hostname is not None
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname, parts.port, timeout=self.timeout)
        connection.connect()
        watch = threading.Timer(deadline - time.monotonic(), _hang_up, [connection.sock])
        watch.daemon = True
        watch.start()
        try:
            yield connection
        finally:
            watch.cancel()
            connection.close()

    def _refuse_connection(self, error: Exception) -> None:
        """Raise for permanent errors."""
        if isinstance(error, ssl.SSLCertVerificationError):
            raise QontextError(
                f"the certificate of the endpoint is not valid: {error.verify_message}", place=self.endpoint
            ) from None
        if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
            raise QontextError(
                "the endpoint does not speak TLS", place=self.endpoint, remedy="Use http:// instead."
            ) from None

    def _refuse(self, response: http.client.HTTPResponse, content: bytes) -> None:
        message = self._hide(f"{response.status} {response.reason}: {_error_text(content)}")
        if response.status in _PASSES:
            raise TryAgain(message, _retry_after(response.headers.get("Retry-After")))
        if response.status in (401, 403):
            raise QontextError(
                f"the endpoint refuses the key ({message})",
                place=self.endpoint,
                remedy=self.key_remedy,
            )
        if response.status in (400, 413, 422):
            raise CallFailed(message)
        raise QontextError(
            f"the endpoint answers {message}",
            place=self.endpoint,
            remedy=self.remedy,
        )

    def _hide(self, text: str) -> str:
        """A short message without the key, which servers may repeat in their errors."""
        return shorten(hide(shorten(text, 1000), self.key), 400)


class Chat(Endpoint):
    """A chat endpoint."""

    def ask(self, body: dict[str, Any]) -> Reply:
        """The reply to one request."""
        return self.post("/chat/completions", body, _parse)


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _read(response: http.client.HTTPResponse) -> bytes:
    """The whole body."""
    content = bytearray()
    while chunk := response.read1(1 << 16):
        content += chunk
        if len(content) > LARGEST_REPLY:
            raise http.client.HTTPException(f"the reply is larger than {LARGEST_REPLY >> 20} MB")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return bytes(content)


def _parse(content: bytes) -> Reply:
    try:
        value = json.loads(content)
        text = value["choices"][0]["message"]["content"]
        usage = value.get("usage") or {}
        tokens = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
        is_plausible = all(0 <= count < MOST_TOKENS for count in tokens)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        raise TryAgain(f"the reply is not a chat completion: {_start(content)!r}") from None
    if not isinstance(text, str):
        raise TryAgain("the reply contains no text")
    if not is_plausible:
        raise TryAgain(f"the reply reports implausible numbers of tokens: {tokens[0]} and {tokens[1]}")
    return Reply(text, *tokens)


def _error_text(content: bytes) -> str:
    try:
        value = json.loads(content)
        error = value.get("error", value) if isinstance(value, dict) else value
        message = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, RecursionError):
        message = _start(content)
    return message.strip()


def _start(content: bytes) -> str:
    return content[:200].decode("utf-8", "replace")


def _retry_after(value: str | None) -> float | None:
    """Seconds, or a date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
