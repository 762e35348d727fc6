"""Addresses of servers, without the passwords that they may hold: an address is recorded and shown, a password never."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from qontext.frame import trust
from qontext.frame.trust import Demand

_PASSWORDS: dict[str, str] = {}
"""Address without its password → the password, for as long as this process runs."""
_WHO = r"((?:[A-Za-z+]+:/+|(?![A-Za-z+]+:/))[^:/@]*)"
_HERE = re.compile(
    r"(https?|tcp|postgres|postgresql)://([\w.-]+@)?(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?(/[\w.-]*)?",
    re.ASCII,
)
"""Addresses on this machine, written so that no client can read another host into them."""
_BEFORE_HOST = (
    re.compile(_WHO + r":([^?]*)@(.*)", re.DOTALL),
    re.compile(_WHO + r":([^/]*)@(.*)", re.DOTALL),
)
"""SCHEME://USER:PASSWORD@HOST…, with any character in the password, and however wrong the rest is."""
_IN_QUERY = re.compile(r"(?<=[?&])password=([^&]*)&?")
_IN_WORDS = re.compile(r"(?:^|(?<=\s))password\s*=\s*('(?:[^'\\]|\\.)*'?|\S*)\s*")


def without_password(address: str) -> str:
    """The address without its password, which `password_of` returns for it."""
    password = None
    for pattern in _BEFORE_HOST:
        if match := pattern.fullmatch(address):
            password, address = unquote(match[2]), f"{match[1]}@{match[3]}"
            break
    if "?" in address and (match := _IN_QUERY.search(address)):
        password, address = unquote(match[1]), _IN_QUERY.sub("", address).rstrip("&?")
    elif match := _IN_WORDS.search(address):
        quoted = match[1].strip("'") if match[1].startswith("'") else match[1]
        password, address = re.sub(r"\\(.)", r"\1", quoted), _IN_WORDS.sub("", address).strip()
    if password:
        _PASSWORDS[address] = password
    return address


def password_of(address: str) -> str | None:
    """The password that was given in this address; never one of an earlier process."""
    return _PASSWORDS.get(address)


def clean_settings(values: Any) -> Any:
    """Settings whose `uri` has no password. Called before anything is checked: complaints quote the value."""
    if isinstance(values, dict) and isinstance(values.get("uri"), str):
        address = without_password(values["uri"])
        if trust.is_given(values["uri"]):
            trust.decided.words.discard(values["uri"])  # with the password: it is for this process alone
            trust.give(address)
        return {**values, "uri": address}
    return values


def token() -> str:
    """The token for Milvus, from the environment."""
    return os.environ.get("MILVUS_TOKEN", "")


def milvus(values: Mapping[str, Any]) -> Iterator[Demand]:
    """The demands of settings with a `uri`. On this machine, without a token, nothing leaves it."""
    if not (uri := values.get("uri")):
        return
    address = without_password(str(uri))
    if "://" not in address:
        yield Demand(f"open the database {address}", (address,))
    elif token() or not _HERE.fullmatch(address):
        secret = " and the token in MILVUS_TOKEN" if token() else ""
        yield Demand(f"send vectors{secret} to {address}", (address,))


def postgres(values: Mapping[str, Any]) -> Iterator[Demand]:
    """The demands of settings with a `uri`; without one, it is the user's environment that says where the server is."""
    if not (uri := values.get("uri")):
        return
    address = without_password(str(uri))
    has_secret = bool(os.environ.get("PGPASSWORD"))
    if has_secret or not _HERE.fullmatch(address):
        secret = " and the password in PGPASSWORD" if has_secret else ""
        yield Demand(f"send vectors{secret} to {address}", (address,))
