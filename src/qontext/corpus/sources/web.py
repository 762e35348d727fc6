"""Pages of the web, only when they are named: ``https://host/page``, or those of a sitemap,
``https://host/sitemap.xml``.

robots.txt is obeyed, there is a pause between two requests, redirects stay on the host, and pages are kept in the user's
cache: they are asked for again after an hour at the earliest, and only sent again if they have changed (ETag,
Last-Modified).
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.robotparser import RobotFileParser

from qontext import __version__
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.corpus.sources.formats.html import parse
from qontext.data.passage import as_json
from qontext.data.records import Document
from qontext.frame import log, trust
from qontext.frame.errors import QontextError, printable
from qontext.frame.files import cache_folder, digest_of, json_digest, read_json

AGENT = f"qontext/{__version__}"
FRESH_SECONDS, PAUSE_SECONDS, TIMEOUT_SECONDS = 3600.0, 1.0, 20.0
"""Age up to which a page is not asked for again; the least pause between two requests to a host; and the longest wait."""
MOST_PAGES, MOST_BYTES, MOST_SITEMAPS = 10_000, 20 << 20, 50
_FAILURES = (OSError, http.client.HTTPException, ValueError, zlib.error)
"""Exceptions of a request."""


class Web(Source):
    """A page, or the pages of a sitemap that are on its host."""

    def __init__(self, url: str) -> None:
        super().__init__(url, has_passages=False)
        self.url = url

    @classmethod
    def open(cls, uri: str, rest: str, fields: FieldNames) -> Self:
        return cls(uri)

    def documents(self) -> Iterator[Document | Problem]:
        for url, record in crawled(self.url)["pages"].items():
            if "problem" in record:
                yield Problem(url, "damaged document", record["problem"])
                continue
            charset = _content_type(url).get_content_charset()
            text = parse(_body_file(url).read_bytes(), name=url, charset=charset)
            metadata = as_json({"format": "html", "host": urlsplit(url).hostname, **text.metadata})
            yield Document(url, text.title, "", url, blocks=tuple(text.blocks), file=url, metadata=metadata)


class Http(Web):
    """``http://``: the scheme is not part of the rest of the URI."""

    scheme = "http"

    @classmethod
    def fingerprint(cls, rest: str) -> str | None:
        return str(crawled(f"{cls.scheme}:{rest}")["digest"])

    @classmethod
    def stamp(cls, rest: str) -> str:
        known = _known(f"{cls.scheme}:{rest}")
        return str(known["digest"]) if known else ""


class Https(Http):
    """``https://``."""

    scheme = "https"


def crawled(url: str) -> dict[str, Any]:
    """The pages of a URL as they are in the cache: asked for now, unless that was done within the last hour."""
    known = _known(url)
    if known is not None:
        return known
    trust.require([demand_of(url)])
    host = _Host(url)
    log.note(f"Reading {url} …")
    before, pages = _recorded(url).get("pages", {}), {}
    urls = list(_listed(host, url)) if urlsplit(url).path.endswith((".xml", ".xml.gz")) else [url]
    urls = list(dict.fromkeys(urls))
    if len(urls) > MOST_PAGES:
        log.warn(
            f"{url}: only the first {MOST_PAGES:,} of {len(urls):,} pages are read, {len(urls) - MOST_PAGES:,} left out."
        )
    kept = []
    for page in urls[:MOST_PAGES]:
        try:
            pages[page] = {"hash": digest_of(host.get(page)).hex()}
            kind = _content_type(page).get_content_type()
            if not kind.startswith("text/") and kind != "application/xhtml+xml":
                pages[page] = {"problem": f"is {kind}, not a page in HTML"}
        except QontextError as error:
            pages[page] = {"problem": error.message}
            if (
                isinstance(error, _Unavailable)
                and "hash" in before.get(page, {})
                and _body_file(page).is_file()
            ):
                pages[page] = {"hash": digest_of(_body_file(page).read_bytes()).hex()}
                kept.append(str(error))
    if kept:
        more = f", and {len(kept) - 1:,} more" if len(kept) > 1 else ""
        log.warn(f"Pages that cannot be read now stay as they were: {kept[0]}{more}.")
    if all("problem" in record for record in pages.values()):
        raise QontextError(next(iter(pages.values()), {"problem": "names no page"})["problem"], place=url)
    record = {"url": url, "checked": time.time(), "pages": pages, "digest": json_digest(pages)}
    _write(_listing_file(url), json.dumps(record).encode())
    return record


def demand_of(url: str) -> trust.Demand:
    """The demand of a file that names these pages."""
    return trust.Demand(f"read {url} over the network", (url,))


def _known(url: str) -> dict[str, Any] | None:
    """The record of a crawl within the last hour, if there was one."""
    record = _recorded(url)
    return record if 0 <= time.time() - float(record.get("checked", 0)) < FRESH_SECONDS else None


def _recorded(url: str) -> dict[str, Any]:
    """The record of the last crawl; empty if there was none."""
    file = _listing_file(url)
    return read_json(file, dict[str, Any]) if file.is_file() else {}


def _listed(host: _Host, url: str) -> Iterator[str]:
    """The pages of a sitemap and of those that it names, on the same host."""
    from lxml import etree

    waiting, seen = [url], 0
    while waiting and seen < MOST_SITEMAPS:
        seen += 1
        parser = etree.XMLParser(resolve_entities=False, no_network=True, recover=True)
        try:
            root = etree.fromstring(host.get(waiting.pop(0)), parser)
        except etree.XMLSyntaxError:
            root = None
        if root is None:
            raise QontextError("is not a sitemap", place=url)
        places = [str(text).strip() for text in root.xpath("//*[local-name()='loc']/text()")]
        places = [place for place in places if host.is_own(place)]
        if etree.QName(root).localname == "sitemapindex":
            waiting += places
        else:
            yield from places
    if waiting:
        log.warn(
            f"{url}: only the first {seen} of {seen + len(waiting):,} sitemaps are read, {len(waiting):,} left out."
        )


_FOR_NOW = (408, 425, 429)
"""HTTP codes of errors that pass, besides those of servers: timeouts and limits of rates."""


class _Unavailable(QontextError):
    """The error for a page that the server does not give now, but may give again."""


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows redirects to the same host only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).hostname != urlsplit(req.full_url).hostname:
            raise QontextError(f"redirects to another host: {printable(newurl)[:200]}", place=req.full_url)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Host:
    """A host, asked politely."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.netloc, self.scheme, self._last, self._pause = parts.netloc, parts.scheme, 0.0, 0.0
        self._opener = urllib.request.build_opener(_SameHost())
        self._robots = RobotFileParser()
        try:
            rules = self._request(f"{self.scheme}://{self.netloc}/robots.txt", {})[0].decode(
                "utf-8", "replace"
            )
        except urllib.error.HTTPError as error:
            rules = "User-agent: *\nDisallow: /" if error.code in (401, 403) else ""
            error.close()
        except QontextError:
            raise
        except _FAILURES as error:
            raise QontextError(f"cannot be reached: {error}", place=url) from None
        self._robots.parse(rules.splitlines())
        is_here = trust.is_this_machine(parts.hostname or "")
        self._pause = max(0.0 if is_here else PAUSE_SECONDS, float(self._robots.crawl_delay(AGENT) or 0))

    def is_own(self, url: str) -> bool:
        """True for a page of this host."""
        try:
            parts = urlsplit(url)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc == self.netloc

    def get(self, url: str) -> bytes:
        """The content of a page, from the cache if it has not changed."""
        if not self._robots.can_fetch(AGENT, url):
            raise QontextError("robots.txt does not allow to read it", place=url)
        body, about = _body_file(url), _body_file(url).with_suffix(".json")
        known = read_json(about, dict[str, str]) if about.is_file() and body.is_file() else {}
        known = known if "type" in known else {}
        asked = {"If-None-Match": known.get("etag"), "If-Modified-Since": known.get("modified")}
        try:
            content, headers = self._request(url, {name: value for name, value in asked.items() if value})
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 304:
                return body.read_bytes()
            is_for_now = error.code in _FOR_NOW or error.code >= 500
            kind = _Unavailable if is_for_now else QontextError
            raise kind(f"the server answers {error.code}", place=url) from None
        except QontextError:
            raise
        except _FAILURES as error:
            raise _Unavailable(f"cannot be read: {error}", place=url) from None
        _write(body, content)
        now = {
            "etag": headers.get("ETag"),
            "modified": headers.get("Last-Modified"),
            "type": headers.get("Content-Type", ""),
        }
        _write(about, json.dumps({name: value for name, value in now.items() if value is not None}).encode())
        return content

    def _request(self, url: str, headers: dict[str, str]) -> tuple[bytes, Any]:
        if self._last:
            time.sleep(max(0.0, self._last + self._pause - time.monotonic()))
        request = urllib.request.Request(_quoted(url), headers={"User-Agent": AGENT, **headers})
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                content = answer.read(MOST_BYTES + 1)
                if content.startswith(b"\x1f\x8b"):  # gzip
                    content = zlib.decompressobj(31).decompress(content, MOST_BYTES + 1)
                if len(content) > MOST_BYTES:
                    raise QontextError(f"has more than {MOST_BYTES >> 20} MB", place=url)
                return content, answer.headers
        finally:
            self._last = time.monotonic()


def _body_file(url: str) -> Path:
    return cache_folder("web") / f"{digest_of(url).hex()}.body"


def _content_type(url: str) -> Message:
    """The header with the type and encoding of a page in the cache; without one, it is HTML."""
    about = _body_file(url).with_suffix(".json")
    known = read_json(about, dict[str, str]) if about.is_file() else {}
    header = Message()
    header["Content-Type"] = known.get("type") or "text/html"
    return header


def _quoted(url: str) -> str:
    """The URL in ASCII."""
    parts = urlsplit(url)
    host = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode("ascii")
    path, query = (quote(part, safe="%/:?[]@!$&'()*+,;=~") for part in (parts.path, parts.query))
    return urlunsplit((parts.scheme, host, path, query, ""))


def _listing_file(url: str) -> Path:
    return cache_folder("web") / f"{digest_of('listing ' + url).hex()}.json"


def _write(file: Path, content: bytes) -> None:
    """Replace a file of the cache atomically."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = file.with_name(f".{file.name}.{time.monotonic_ns()}")
    written.write_bytes(content)
    written.replace(file)
