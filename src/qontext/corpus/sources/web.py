"""Pages of the web, only when they are named: ``https://host/page``, or those of a sitemap,
``https://host/sitemap.xml``.

robots.txt is obeyed, there is a pause between two requests, redirects stay on the site, and pages are kept in the user's
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
from urllib.parse import quote, urlsplit
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
"""Age up to which a page is not asked for again; the least pause between two requests; and the longest wait."""
MOST_PAGES, MOST_BYTES, MOST_SITEMAPS = 10_000, 20 << 20, 50
_FAILURES = (OSError, http.client.HTTPException, ValueError, zlib.error)
"""Exceptions of a request."""
_FOR_NOW = (408, 425, 429)
"""HTTP codes of errors that pass, besides those of servers: timeouts and limits of rates."""


class Http(Source):
    """A page, or the pages of a sitemap that are on its site: ``http://``."""

    scheme = "http"

    @classmethod
    def open(cls, uri: str, rest: str, fields: FieldNames) -> Self:
        return cls(uri, has_passages=False)

    @classmethod
    def fingerprint(cls, rest: str) -> str | None:
        return str(crawled(f"{cls.scheme}:{rest}")["digest"])

    @classmethod
    def stamp(cls, rest: str) -> str:
        known = _recorded(f"{cls.scheme}:{rest}")
        return str(known["digest"]) if _is_fresh(known) else ""

    def documents(self) -> Iterator[Document | Problem]:
        for url, page in crawled(self.name)["pages"].items():
            if "problem" in page:
                yield Problem(url, "damaged document", page["problem"])
                continue
            charset = _header(page["type"]).get_content_charset()
            text = parse(_file(url).read_bytes(), name=url, charset=charset)
            metadata = as_json({"format": "html", "host": urlsplit(url).hostname, **text.metadata})
            yield Document(url, text.title, "", url, blocks=text.blocks, file=url, metadata=metadata)


class Https(Http):
    """``https://``."""

    scheme = "https"


def demand_of(url: str) -> trust.Demand:
    """The demand of a file that names these pages."""
    return trust.Demand(f"read {url} over the network", (url,))


def crawled(url: str) -> dict[str, Any]:
    """The pages of a URL as they are in the cache: asked for now, unless that was done within the last hour."""
    known = _recorded(url)
    if _is_fresh(known):
        return known
    trust.require([demand_of(url)])
    site = _Site(url)
    log.note(f"Reading {url} …")
    is_sitemap = urlsplit(url).path.endswith((".xml", ".xml.gz"))
    urls = list(dict.fromkeys(_listed(site, url))) if is_sitemap else [url]
    if (left := len(urls) - MOST_PAGES) > 0:
        log.warn(f"{url}: only the first {MOST_PAGES:,} of {len(urls):,} pages are read, {left:,} left out.")
    before = known.get("pages", {})
    pages = {page: _page(site, page, before.get(page, {})) for page in urls[:MOST_PAGES]}
    if all("problem" in page for page in pages.values()):
        raise QontextError(next(iter(pages.values()), {"problem": "names no page"})["problem"], place=url)
    digest = json_digest({page: about.get("hash") for page, about in pages.items()})
    record = {"checked": time.time(), "pages": pages, "digest": digest}
    _write(_file(f"listing {url}"), json.dumps(record).encode())
    return record


def _page(site: _Site, url: str, known: dict[str, str]) -> dict[str, str]:
    """The hash of a page, its type and what says whether it changed; or its problem. A page that cannot be read now stays as
    it was."""
    asked = {"If-None-Match": known.get("etag"), "If-Modified-Since": known.get("modified")}
    try:
        content, headers = site.get(url, {name: value for name, value in asked.items() if value})
    except QontextError as error:
        return {"problem": error.message}
    except _FAILURES as error:
        code = error.code if isinstance(error, urllib.error.HTTPError) else 0
        message = f"the server answers {code}" if code else f"cannot be read: {error}"
        if "hash" in known and (not code or code == 304 or code >= 500 or code in _FOR_NOW):
            if code != 304:
                log.warn(f"{url}: {message}; the page stays as it was.")
            return known
        return {"problem": message}
    kind = headers.get("Content-Type") or "text/html"
    if not _header(kind).get_content_type().startswith(("text/", "application/xhtml")):
        return {"problem": f"is {kind}, not a page in HTML"}
    _write(_file(url), content)
    about = {"etag": headers.get("ETag"), "modified": headers.get("Last-Modified"), "type": kind}
    return {"hash": digest_of(content).hex(), **{name: value for name, value in about.items() if value}}


def _listed(site: _Site, url: str) -> Iterator[str]:
    """The pages of a sitemap and of those that it names, on the same site."""
    from lxml import etree

    waiting, read = [url], 0
    while waiting and read < MOST_SITEMAPS:
        read += 1
        parser = etree.XMLParser(resolve_entities=False, no_network=True)
        try:
            root = etree.fromstring(site.get(waiting.pop(0), {})[0], parser)
        except (etree.XMLSyntaxError, *_FAILURES) as error:
            raise QontextError(f"is not a sitemap that can be read: {error}", place=url) from None
        places = [str(text).strip() for text in root.xpath("//*[local-name()='loc']/text()")]
        own = [place for place in places if place.startswith(f"{site.address}/")]
        if etree.QName(root).localname == "sitemapindex":
            waiting += own
        else:
            yield from own
    if waiting:
        log.warn(f"{url}: only the first {read} sitemaps are read, {len(waiting):,} left out.")


def _address(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


class _SameSite(urllib.request.HTTPRedirectHandler):
    """Follows redirects to the same site only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if _address(newurl) != _address(req.full_url):
            raise QontextError(f"redirects to another site: {printable(newurl)[:200]}", place=req.full_url)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Site:
    """A site, asked politely."""

    def __init__(self, url: str) -> None:
        self.address, self._last, self._pause = _address(url), 0.0, 0.0
        self._opener = urllib.request.build_opener(_SameSite())
        self._robots = RobotFileParser()
        self._robots.parse([])  # robots.txt itself may be read
        try:
            rules = self.get(f"{self.address}/robots.txt", {})[0].decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            rules = "User-agent: *\nDisallow: /" if error.code in (401, 403) else ""
        except _FAILURES as error:
            raise QontextError(f"cannot be reached: {error}", place=url) from None
        self._robots.parse(rules.splitlines())
        is_here = trust.is_this_machine(urlsplit(url).hostname or "")
        self._pause = max(0.0 if is_here else PAUSE_SECONDS, float(self._robots.crawl_delay(AGENT) or 0))

    def get(self, url: str, headers: dict[str, str]) -> tuple[bytes, Any]:
        """The content of a page and the headers of the answer."""
        if not self._robots.can_fetch(AGENT, url):
            raise QontextError("robots.txt does not allow to read it", place=url)
        time.sleep(max(0.0, self._last + self._pause - time.monotonic()))
        address = quote(url, safe="%/:?[]@!$&'()*+,;=~")
        request = urllib.request.Request(address, headers={"User-Agent": AGENT, **headers})
        self._last = time.monotonic()
        with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            content = answer.read(MOST_BYTES + 1)
            if content.startswith(b"\x1f\x8b"):  # gzip; the size that it declares is not trusted
                content = zlib.decompressobj(31).decompress(content, MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise QontextError(f"has more than {MOST_BYTES >> 20} MB", place=url)
            return content, answer.headers


def _header(kind: str) -> Message:
    """The header with a page's type and encoding."""
    header = Message()
    header["Content-Type"] = kind
    return header


def _is_fresh(record: dict[str, Any]) -> bool:
    return 0 <= time.time() - float(record.get("checked", 0)) < FRESH_SECONDS


def _recorded(url: str) -> dict[str, Any]:
    """The record of the last crawl; empty if there was none."""
    file = _file(f"listing {url}")
    return read_json(file, dict[str, Any]) if file.is_file() else {}


def _file(name: str) -> Path:
    return cache_folder("web") / digest_of(name).hex()


def _write(file: Path, content: bytes) -> None:
    """Replace a file of the cache atomically."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = file.with_name(f".{file.name}.{time.monotonic_ns()}")
    written.write_bytes(content)
    written.replace(file)
