"""The URL of a chat server and its key: both are validated before any work, and the key is never printed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from qontext.frame.errors import QontextError
from qontext.frame.trust import PREFIX, Demand, is_given, is_this_machine

DEFAULT_ENDPOINT, DEFAULT_KEY_VARIABLE = "http://127.0.0.1:8000/v1", "OPENAI_API_KEY"
_EXAMPLE = "Example: --endpoint http://127.0.0.1:8000/v1"
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
    """What settings ask for: to send passages to the endpoint, and a key with them. A key goes to no host but the one that
    the user named; only what stays on this machine, without a key, needs no word."""
    endpoint = str(values.get("endpoint") or DEFAULT_ENDPOINT)
    variable = str(values.get("key_variable") or DEFAULT_KEY_VARIABLE)
    is_default = endpoint == DEFAULT_ENDPOINT
    host = () if is_default else (endpoint,)
    if not is_default and not _is_here(endpoint):
        yield Demand(f"send passages to {endpoint}", host)
    if not os.environ.get(variable, "").strip():
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
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
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
