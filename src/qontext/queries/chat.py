"""A client for OpenAI-compatible chat endpoints: one request, tried again as long as that may help.

Every server fails in its own way. What passes by itself (too many requests, server errors, time-outs,
broken connections, replies that are cut off or are not JSON) is tried again after a growing pause, or
after the one that the server asks for. A wrong key or address stops at once with a sentence.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from qontext.errors import QontextError

LARGEST_REPLY = 8 << 20
LONGEST_PAUSE = 60.0
_PASSES = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529))


@dataclass(frozen=True)
class Reply:
    """What the model wrote, and what it cost in tokens."""

    text: str
    prompt_tokens: int
    completion_tokens: int


class Failed(Exception):
    """No usable reply to this request; others may still get one."""


class _TryAgain(Exception):
    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


@dataclass(frozen=True)
class Chat:
    """An endpoint (``https://host/v1``), the key for it, and how patient to be."""

    endpoint: str
    key: str | None = field(default=None, repr=False)
    timeout: float = 120.0
    retries: int = 6
    first_pause: float = 1.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise QontextError(
                f"{self.endpoint!r} is no address", remedy="Example: --endpoint http://127.0.0.1:8000/v1"
            )
        if parts.username or parts.password or parts.query:
            raise QontextError(
                "the address of the endpoint holds credentials or a query",
                remedy="Put the key into an environment variable and name that with --key-variable.",
            )

    def ask(self, body: dict[str, Any]) -> Reply:
        """The reply to one request."""
        pause = self.first_pause
        for attempt in range(self.retries + 1):
            try:
                return self._once(body)
            except _TryAgain as error:
                reason = self._hide(str(error))
                if attempt == self.retries:
                    break
                # A random share, so that many waiting requests do not come back all at once.
                wait = pause * (0.5 + random.random()) if error.pause is None else error.pause
                time.sleep(min(wait, LONGEST_PAUSE))
                pause *= 2
        raise Failed(f"{reason} (tried {self.retries + 1} times)")

    def _once(self, body: dict[str, Any]) -> Reply:
        deadline = time.monotonic() + self.timeout
        connection = self._connect()
        try:
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            if self.key:
                headers["Authorization"] = f"Bearer {self.key}"
            path = urlsplit(self.endpoint).path.rstrip("/") + "/chat/completions"
            connection.request("POST", path, json.dumps(body).encode(), headers)
            response = connection.getresponse()
            content = _read(response, connection, deadline)
        except ssl.SSLCertVerificationError as error:
            raise QontextError(
                f"the certificate does not hold: {error.verify_message}", place=self.endpoint
            ) from None
        except TimeoutError:
            raise _TryAgain(f"no reply within {self.timeout:g} s") from None
        except socket.gaierror as error:
            raise _TryAgain(f"the host is not found: {error.strerror}") from None
        except (OSError, http.client.HTTPException) as error:
            raise _TryAgain(f"the connection failed: {type(error).__name__} {error}".strip()) from None
        finally:
            connection.close()
        if response.status != 200:
            self._refuse(response, content)
        return _parse(content)

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.endpoint)
        assert parts.hostname is not None
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname, parts.port, timeout=self.timeout)

    def _refuse(self, response: http.client.HTTPResponse, content: bytes) -> None:
        said = self._hide(_error_text(content))
        status = f"{response.status} {response.reason}: {said}"
        if response.status in _PASSES:
            raise _TryAgain(status, _retry_after(response.headers.get("Retry-After")))
        if response.status in (401, 403):
            raise QontextError(
                f"the endpoint refuses the key ({status})",
                place=self.endpoint,
                remedy="Put a valid key into the environment variable that --key-variable names.",
            )
        if response.status in (400, 413, 422):
            raise Failed(status)
        raise QontextError(
            f"the endpoint answers {status}", place=self.endpoint, remedy="Check --endpoint and --chat-model."
        )

    def _hide(self, text: str) -> str:
        """Servers like to repeat the key in their errors."""
        return text.replace(self.key, "***") if self.key else text


def _read(
    response: http.client.HTTPResponse, connection: http.client.HTTPConnection, deadline: float
) -> bytes:
    """The whole body; a server that drips does not get more time than one that is silent."""
    content = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left)
        chunk = response.read1(1 << 16)
        if not chunk:
            break
        content += chunk
        if len(content) > LARGEST_REPLY:
            raise http.client.HTTPException("the reply is larger than 8 MB")
    promised = response.headers.get("Content-Length")
    if promised and promised.isdigit() and len(content) < int(promised):
        raise http.client.IncompleteRead(bytes(content[:80]), int(promised) - len(content))
    return bytes(content)


def _parse(content: bytes) -> Reply:
    try:
        value = json.loads(content)
        text = value["choices"][0]["message"]["content"]
        usage = value.get("usage") or {}
        tokens = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise _TryAgain(f"the reply is not a chat completion: {content[:80]!r}") from None
    if not isinstance(text, str):
        raise _TryAgain("the reply holds no text")
    return Reply(text, *tokens)


def _error_text(content: bytes) -> str:
    try:
        value = json.loads(content)
        error = value.get("error", value) if isinstance(value, dict) else value
        said = error.get("message", error) if isinstance(error, dict) else error
    except ValueError:
        said = content[:200].decode("utf-8", "replace")
    return str(said)[:300].strip()


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
    except ValueError:
        return None
