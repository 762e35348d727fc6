"""E-mail: a message of an .eml file, or each message of an mbox archive. Quotations and signatures are removed."""

from __future__ import annotations

import email
import email.policy
import email.utils
import re
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Literal

from qontext.corpus.sources.formats import html
from qontext.corpus.sources.formats.base import (
    LARGEST_MARKUP,
    FileText,
    Unreadable,
    collapse,
    decode,
    read_bytes,
)
from qontext.corpus.sources.lines import ending
from qontext.data.lines import open_bytes
from qontext.data.records import Block

_QUOTED = re.compile(r"^(>.*|On .{4,120} wrote:|-{2,} ?Original Message ?-{2,})$", re.MULTILINE)
_SIGNATURE = re.compile(r"^-- ?$.*", re.MULTILINE | re.DOTALL)


def read(path: Path, encoding: str) -> Iterator[FileText]:
    if ending(path) == ".mbox":
        for number, message in enumerate(_messages(path)):
            yield _text(message, encoding, str(number))
    else:
        yield _text(read_bytes(path, LARGEST_MARKUP), encoding, "")


def _messages(path: Path) -> Iterator[bytes]:
    """The messages of a mailbox, with one in memory at a time. Too large ones are truncated."""
    message = bytearray()
    blank, is_mbox = True, False
    with open_bytes(path) as file:
        while line := file.readline(LARGEST_MARKUP):
            if blank and line.startswith(b"From "):
                if message:
                    yield bytes(message)
                message, is_mbox = bytearray(), True
            elif not is_mbox:
                raise Unreadable(
                    "damaged document", "is not an mbox file: it does not start with a 'From ' line"
                )
            elif len(message) < LARGEST_MARKUP:
                message += line[1:] if line.startswith(b">From ") else line
            blank = not line.strip()
    if message:
        yield bytes(message)


def _text(content: bytes, encoding: str, name: str) -> FileText:
    message = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    subject = collapse(_header(message, "subject"))
    metadata: dict[str, Any] = {k: collapse(_header(message, k)) for k in ("from", "to", "list-id")}
    try:
        date = email.utils.parsedate_to_datetime(_header(message, "date"))
        metadata["date"] = date.date().isoformat()
    except (ValueError, TypeError, IndexError, OverflowError):
        pass
    metadata = {key: value for key, value in metadata.items() if value}
    return FileText(subject, tuple(_body(message, encoding)), metadata, name)


def _body(message: EmailMessage, encoding: str) -> Iterator[Block]:
    text = _part(message, "plain", encoding)
    if not text.strip():
        text = _part(message, "html", encoding)
        yield from html.parse(text, is_mail=True).blocks or html.parse(text).blocks
        return
    text = _SIGNATURE.sub("", text.replace("\r\n", "\n"))
    text = re.sub(r"\n{3,}", "\n\n", _QUOTED.sub("", text)).strip()
    if text:
        yield Block(text)


def _part(message: EmailMessage, kind: Literal["plain", "html"], encoding: str) -> str:
    """The body of this kind; empty if there is none."""
    try:
        part = message.get_body((kind,))
        payload = part.get_payload(decode=True) if part is not None else None
    except (LookupError, ValueError, AssertionError, AttributeError, KeyError):
        return ""  # an invalid structure
    if part is None or not isinstance(payload, bytes):
        return ""
    return decode(payload, part.get_content_charset(), encoding)


def _header(message: EmailMessage, name: str) -> str:
    """A header as text; empty if it is missing or cannot be parsed."""
    try:
        return str(message[name] or "").encode("utf-8", "replace").decode()
    except Exception:  # the header parser raises various exceptions
        return ""
