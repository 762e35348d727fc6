"""E-mail: a message of an .eml file, or each message of an mbox archive. Quotations and signatures are removed."""

from __future__ import annotations

import email
import email.policy
import email.utils
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path

from qontext.corpus.sources.formats import (
    LARGEST_TEXT,
    LONGEST_HEADING,
    FileText,
    Unreadable,
    collapse,
    decode,
    html,
    read_bytes,
    stem,
)
from qontext.data.lines import ending, open_bytes
from qontext.data.records import Block

_QUOTED = re.compile(r"^(>.*|On .{4,120} wrote:|-{2,} ?Original Message ?-{2,})$", re.MULTILINE)
_SIGNATURE = re.compile(r"^-- $(?!.*^-- $).*\Z", re.MULTILINE | re.DOTALL)


def read(path: Path, encoding: str) -> Iterator[FileText]:
    if ending(path) == ".mbox":
        for number, message in enumerate(_messages(path)):
            yield _text(message, encoding, stem(path), str(number))
    else:
        yield _text(read_bytes(path), encoding, stem(path), "")


def _messages(path: Path) -> Iterator[bytes]:
    """The messages of a mailbox, with one in memory at a time. Too large ones are truncated."""
    message, blank = bytearray(), True
    with open_bytes(path) as file:
        while line := file.readline(LARGEST_TEXT):
            if blank and line.startswith(b"From "):
                if message.strip():
                    yield bytes(message)
                message = bytearray()
            elif len(message) < LARGEST_TEXT:
                message += line[1:] if line.startswith(b">From ") else line
            blank = not line.strip()
    if message.strip():
        yield bytes(message)


def _text(content: bytes, encoding: str, title: str, name: str) -> FileText:
    try:
        message = email.message_from_bytes(content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        blocks = tuple(_body(message, encoding))
    except RecursionError:
        raise Unreadable("damaged document", "its parts are nested too deeply") from None
    metadata = {key: _header(message, key) for key in ("from", "to", "list-id")}
    with suppress(ValueError, TypeError, IndexError, OverflowError):
        date = email.utils.parsedate_to_datetime(_header(message, "date"))
        metadata["date"] = date.date().isoformat()
    known = {key: value for key, value in metadata.items() if value}
    return FileText(_header(message, "subject") or title, blocks, known, name)


def _body(part: EmailMessage, encoding: str) -> Iterator[Block]:
    """The texts of a message or of a part of it, also of messages that are forwarded in it."""
    kind = _kind(part)
    parts = (
        [one for one in part.get_payload() if isinstance(one, EmailMessage)] if part.is_multipart() else []
    )
    if kind == "text/plain":
        text = _SIGNATURE.sub("", _content(part, encoding).replace("\r\n", "\n"))
        if text := re.sub(r"\n{3,}", "\n\n", _QUOTED.sub("", text)).strip():
            yield Block(text)
    elif kind == "text/html":
        text = _content(part, encoding)
        yield from html.parse(text, is_mail=True).blocks or html.parse(text).blocks
    elif kind in ("multipart/alternative", "multipart/related"):
        # One text in several formats; a page and its images.
        ordered = sorted(parts, key=lambda one: _kind(one) != "text/plain") if "alt" in kind else parts
        yield from next(filter(None, (list(_body(one, encoding)) for one in ordered)), [])
    elif kind == "message/rfc822":
        for message in parts:
            name = _header(message, "subject")[:LONGEST_HEADING]
            for block in _body(message, encoding):
                yield replace(block, headings=(name, *block.headings) if name else block.headings)
    elif kind.startswith("multipart/"):
        for one in parts:
            yield from _body(one, encoding)


def _kind(part: EmailMessage) -> str:
    """The type of a part; empty for attached files and invalid headers."""
    try:
        kind = part.get_content_type()
        return "" if part.is_attachment() and kind != "message/rfc822" else kind
    except (LookupError, ValueError, AssertionError, AttributeError):
        return ""


def _content(part: EmailMessage, encoding: str) -> str:
    """The text of a part; empty if it has none."""
    try:
        payload, charset = part.get_payload(decode=True), part.get_content_charset()
    except (LookupError, ValueError, AssertionError, AttributeError):
        return ""
    return decode(payload, charset, encoding) if isinstance(payload, bytes) else ""


def _header(message: EmailMessage, name: str) -> str:
    """A header on one line; empty if it is missing or cannot be parsed."""
    try:
        return collapse(str(message[name] or "").encode("utf-8", "replace").decode())
    except Exception:  # the header parser raises various exceptions
        return ""
