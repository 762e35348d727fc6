"""A client for OpenAI-compatible chat endpoints: one request, with retries.

Transient failures (too many requests, server errors, timeouts, broken connections, replies that are
truncated or are not chat completions) are retried after a growing pause, or after the one that the server
asks for. A wrong key or URL stops the run at once with an error. No message contains the key.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from qontext.frame.errors import QontextError, shorten
from qontext.frame.trust import PREFIX, Demand, is_given, is_this_machine

DEFAULT_ENDPOINT, DEFAULT_KEY_VARIABLE = "http://127.0.0.1:8000/v1", "OPENAI_API_KEY"
LARGEST_REPLY = 8 << 20
LONGEST_PAUSE = 60.0
_PASSES = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529))


def check_endpoint(endpoint: str) -> None:
    """Refuse what is no base URL, and one with a secret, which would be recorded. Neither is repeated."""
    try:
        parts = urlsplit(endpoint)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid or any(sign in endpoint for sign in "@?#"):
        raise QontextError(
            "the address of the endpoint is no http or https URL without credentials, query and fragment",
            remedy="Example: --endpoint http://127.0.0.1:8000/v1. A key belongs into the environment variable of "
            "--key-variable.",
        )


def demands(values: Mapping[str, Any]) -> Iterator[Demand]:
    """Permissions that the settings need: to send passages to the endpoint, and a key with them. A key is only sent to the
    host that the user named; passages that stay on this machine, without a key, need no permission."""
    endpoint = str(values.get("endpoint") or DEFAULT_ENDPOINT)
    variable = str(values.get("key_variable") or DEFAULT_KEY_VARIABLE)
    host = () if endpoint == DEFAULT_ENDPOINT else (endpoint,)
    if host and not _is_here(endpoint):
        yield Demand(f"send passages to {endpoint}", host)
    is_default = variable == DEFAULT_KEY_VARIABLE
    # A variable that is named is told even where it is not set.
    if is_default and not os.environ.get(variable, "").strip():
        return
    sends = f"send the environment variable {variable} to {endpoint}"
    if is_default or variable.startswith(PREFIX):
        yield Demand(sends, host if is_default else (*host, variable))
    elif is_given(variable):
        yield Demand(sends, host)
    else:
        yield Demand(
            sends,
            (variable,),
            only_by=f"Name the variable yourself (--key-variable, or --set STEP.key_variable={variable}): a file may only "
            f"name {DEFAULT_KEY_VARIABLE} and variables that begin with {PREFIX}.",
        )


def _is_here(endpoint: str) -> bool:
    try:
        return is_this_machine(urlsplit(endpoint).hostname or "")
    except ValueError:
        return False


def read_key(variable: str) -> str | None:
    """The key in an environment variable, without the line break that often ends a key file."""
    key = os.environ.get(variable, "").strip()
    if not key and variable != DEFAULT_KEY_VARIABLE:
        # The variable's name is not repeated: it may be the key, passed by mistake.
        raise QontextError("the environment variable that --key-variable names is not set")
    return key or None


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


class _NoRedirects(HTTPRedirectHandler):
    """A redirect is an error: the key is for the host that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = build_opener(ProxyHandler({}), _NoRedirects())


@dataclass(frozen=True)
class Chat:
    """A chat endpoint (``https://host/v1``), its key, the timeout and the number of retries."""

    endpoint: str
    key: str | None = field(default=None, repr=False)
    timeout: float = 120.0
    retries: int = 6
    first_pause: float = 1.0

    def ask(self, body: dict[str, Any]) -> Reply:
        """The reply to one request."""
        pause = self.first_pause
        for attempt in range(self.retries + 1):
            try:
                return self._once(body)
            except TryAgain as error:
                reason = self._hide(str(error))
                if attempt == self.retries:
                    break
                # A random share, so that waiting requests are not all sent again at the same time.
                wait = pause * (0.5 + random.random()) if error.pause is None else error.pause
                time.sleep(max(0.0, min(LONGEST_PAUSE, wait)))
                pause *= 2
        raise CallFailed(f"{reason} (tried {self.retries + 1} times)")

    def _once(self, body: dict[str, Any]) -> Reply:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "qontext"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        address = f"{self.endpoint.rstrip('/')}/chat/completions"
        try:
            request = Request(address, json.dumps(body).encode(), headers)
            with _OPENER.open(request, timeout=self.timeout) as response:
                return _parse(response.read(LARGEST_REPLY))
        except HTTPError as error:
            with error:
                self._refuse(error)
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a malformed header
            raise TryAgain(f"the connection failed: {type(error).__name__} {error}".strip()) from None

    def _refuse(self, error: HTTPError) -> None:
        try:
            content = error.read(2000).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            content = ""
        message = self._hide(f"{error.code} {error.reason}: {content}")
        if error.code in _PASSES:
            raise TryAgain(message, _seconds(error.headers.get("Retry-After"))) from None
        if error.code in (400, 413, 422):
            raise CallFailed(message) from None
        is_of_key = error.code in (401, 403)
        raise QontextError(
            f"the endpoint refuses the key ({message})" if is_of_key else f"the endpoint answers {message}",
            place=self.endpoint,
            remedy="Set the environment variable named by --key-variable to a valid key."
            if is_of_key
            else "Check --endpoint and --chat-model.",
        ) from None

    def _hide(self, text: str) -> str:
        """A short message without the key, which servers may repeat in their errors."""
        return shorten(text.replace(self.key, "***") if self.key else text, 400)


def _parse(content: bytes) -> Reply:
    try:
        value = json.loads(content)
        text = value["choices"][0]["message"]["content"]
        usage = value.get("usage") or {}
        tokens = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        start = content[:200].decode("utf-8", "replace")
        raise TryAgain(f"the reply is not a chat completion: {start!r}") from None
    if not isinstance(text, str):
        raise TryAgain("the reply contains no text")
    return Reply(text, *tokens)


def _seconds(value: str | None) -> float | None:
    try:
        return float(value or "")
    except ValueError:
        return None
