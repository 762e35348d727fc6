"""The URL of a chat server and its key: both are validated before any work, and the key is never printed."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from qontext.frame.errors import QontextError

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
