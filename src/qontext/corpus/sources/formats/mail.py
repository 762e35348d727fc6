"""E-mail: a message of an .eml file, or each message of an mbox archive. Quotations and signatures are removed."""

from __future__ import annotations

import base64
import email
import email.policy
import email.utils
import re
from collections.abc import Iterator
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from qontext.corpus.sources.formats import html
from qontext.corpus.sources.formats.base import (
    LARGEST_MARKUP,
    LONGEST_HEADING,
    FileText,
    Unreadable,
    collapse,
    decode,
    read_bytes,
    stem,
)
from qontext.corpus.sources.lines import ending
from qontext.data.lines import open_bytes
from qontext.data.records import Block

_QUOTED = re.compile(r"^(>.*|On .{4,120} wrote:|-{2,} ?Original Message ?-{2,})$", re.MULTILINE)
_SIGNATURE = re.compile(r"^-- $", re.MULTILINE)
_FOOTER, _LONGEST_FOOTER = re.compile(r"_{4,}\s*\n"), 1_000
"""The beginning of a mailing list's footer, and its maximum characters."""
_READ = ("text/plain", "text/html", "multipart/", "message/rfc822")
"""Types of parts that have a text to read."""

_INVALID = (LookupError, ValueError, AssertionError, AttributeError, KeyError)
"""Exceptions of an invalid structure."""


def read(path: Path, encoding: str) -> Iterator[FileText]:
    if ending(path) == ".mbox":
        for number, message in enumerate(_messages(path)):
            yield _text(message, encoding, stem(path), str(number))
    else:
        yield _text(read_bytes(path, LARGEST_MARKUP), encoding, stem(path), "")


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
            elif not is_mbox and line.strip():
                raise Unreadable(
                    "damaged document", "is not an mbox file: it does not start with a 'From ' line"
                )
            elif is_mbox and len(message) < LARGEST_MARKUP:
                message += line[1:] if line.startswith(b">From ") else line
            blank = not line.strip()
    if message:
        yield bytes(message)


def _text(content: bytes, encoding: str, title: str, name: str) -> FileText:
    try:
        message = email.message_from_bytes(content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        blocks = tuple(_body(message, encoding))
    except RecursionError:
        raise Unreadable("damaged document", "its parts are nested too deeply") from None
    subject = collapse(_header(message, "subject"))
    metadata: dict[str, Any] = {k: collapse(_header(message, k)) for k in ("from", "to", "list-id")}
    try:
        date = email.utils.parsedate_to_datetime(_header(message, "date"))
        metadata["date"] = date.date().isoformat()
    except (ValueError, TypeError, IndexError, OverflowError):
        pass
    metadata = {key: value for key, value in metadata.items() if value}
    return FileText(subject or title, blocks, metadata, name)


def _body(part: EmailMessage, encoding: str) -> Iterator[Block]:
    """The texts of a message or of a part of it, also of messages that are forwarded in it."""
    kind = _kind(part)
    if kind == "text/plain":
        text = _content(part, encoding).replace("\r\n", "\n")
        if signatures := list(_SIGNATURE.finditer(text)):
            text = text[: signatures[-1].start()]
        if text := re.sub(r"\n{3,}", "\n\n", _QUOTED.sub("", text)).strip():
            yield Block(text)
    elif kind == "text/html":
        text = _content(part, encoding)
        yield from html.parse(text, is_mail=True).blocks or html.parse(text).blocks
    elif kind == "multipart/alternative":  # one text in several formats
        for choice in sorted(_inside(part), key=lambda choice: _kind(choice) != "text/plain"):
            blocks = list(_body(choice, encoding))
            yield from blocks
            if blocks or (_kind(choice) == "text/plain" and _content(choice, encoding).strip()):
                break
    elif kind == "message/rfc822":
        for message in _inside(part):
            name = collapse(_header(message, "subject"))[:LONGEST_HEADING]
            subject = (name,) if name else ()
            for block in _body(message, encoding):
                yield replace(block, headings=(*subject, *block.headings))
    elif kind == "multipart/related":  # a page, and what it shows
        yield from (block for root in _root(part) for block in _body(root, encoding))
    elif kind.startswith("multipart/"):
        yield from _together(part, encoding)


def _root(part: EmailMessage) -> list[EmailMessage]:
    """The part with the text, of parts that belong to it: the one that `start` names, else the first."""
    parts = [each for each in _inside(part) if _kind(each).startswith(_READ)]
    start = _parameter(part, "start").strip("<> ")
    named = [each for each in parts if start and _header(each, "content-id").strip().strip("<> ") == start]
    return (named or parts)[:1]


def _together(part: EmailMessage, encoding: str) -> Iterator[Block]:
    """The texts of parts that stand side by side. A text in two formats is one, and the footer of a list is none."""
    parts = _inside(part)
    texts: set[str] = set()
    for number, each in enumerate(parts, 1):
        blocks = list(_body(each, encoding))
        text = "\n".join(block.text for block in blocks)
        is_last = 1 < number == len(parts) and _kind(each) == "text/plain" and _is_inline(each)
        if is_last and _FOOTER.match(text) and len(text) <= _LONGEST_FOOTER:
            continue
        if _kind(each) == "message/rfc822" or collapse(text) not in texts:
            yield from blocks
        texts.add(collapse(text))


def _kind(part: EmailMessage) -> str:
    """The type of a part; empty for attached files and invalid headers."""
    try:
        kind = part.get_content_type()
        return "" if part.is_attachment() and kind != "message/rfc822" else kind
    except _INVALID:
        return ""


def _is_inline(part: EmailMessage) -> bool:
    try:
        return part.get_content_disposition() == "inline"
    except _INVALID:
        return False


def _parameter(part: EmailMessage, name: str) -> str:
    """A parameter of the part's type; empty if it is missing or invalid."""
    try:
        return str(part.get_param(name) or "")
    except _INVALID:
        return ""


def _inside(part: EmailMessage) -> list[EmailMessage]:
    """The parts of a part."""
    if not part.is_multipart():
        return []
    parts = [each for each in part.get_payload() if isinstance(each, EmailMessage)]
    encoding = _header(part, "content-transfer-encoding").strip().lower()
    is_encoded = _kind(part) == "message/rfc822" and encoding == "base64"
    return [_decoded(each) for each in parts] if is_encoded else parts


def _decoded(message: EmailMessage) -> EmailMessage:
    """A message that is encoded as a whole, which the parser takes for one without headers."""
    try:
        content = base64.b64decode("".join(str(message.get_payload()).split()), validate=True)
    except ValueError:
        return message
    decoded = email.message_from_bytes(content, policy=email.policy.default)
    return decoded if isinstance(decoded, EmailMessage) and content and not message.keys() else message


def _content(part: EmailMessage, encoding: str) -> str:
    """The text of a part; empty if it has none."""
    try:
        payload = part.get_payload(decode=True)
        charset = part.get_content_charset()
    except _INVALID:
        return ""
    return decode(payload, charset, encoding) if isinstance(payload, bytes) else ""


def _header(message: EmailMessage, name: str) -> str:
    """A header as text; empty if it is missing or cannot be parsed."""
    try:
        return str(message[name] or "").encode("utf-8", "replace").decode()
    except Exception:  # the header parser raises various exceptions
        return ""
