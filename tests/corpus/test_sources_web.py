"""Pages and sitemaps from a server on this machine: what is asked for, what is not, and what the cache answers."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from qontext import api
from qontext.corpus.sources import FieldNames, open_source, web
from qontext.data.records import Document
from qontext.frame import trust
from qontext.frame.errors import QontextError
from qontext.retrieve.searcher import Searcher


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A site whose pages are in `site.pages`, and their types in `site.types`; `site.asked` are the paths that were
    asked for, with the status."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(trust.decided, "words", set())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = server.pages.get(self.path)  # type: ignore[attr-defined]
            tag = f'"{hash(content)}"'
            status = 404 if content is None else 304 if self.headers.get("If-None-Match") == tag else 200
            status = 302 if str(content).startswith("to ") else status
            status = content if isinstance(content, int) else status
            server.asked.append((self.path, status))  # type: ignore[attr-defined]
            self.send_response(status)
            if status == 302:
                self.send_header("Location", str(content)[3:])
            self.send_header("ETag", tag)
            if kind := server.types.get(self.path):  # type: ignore[attr-defined]
                self.send_header("Content-Type", kind)
            self.end_headers()
            if status == 200:
                self.wfile.write(content if isinstance(content, bytes) else content.encode())

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    server.asked, server.pages, server.types = [], {}, {}  # type: ignore[attr-defined]
    pages = {
        "/mill": "<h1>The mill</h1><p>It grinds flour.</p>",
        "/boat": "<h1>The boat</h1><p>It crosses the river.</p>",
    }
    pages["/robots.txt"] = "User-agent: *\nDisallow: /private"
    pages["/private/oven"] = "<p>Nobody may read this.</p>"
    places = [f"{server.url}{path}" for path in ("/mill", "/boat", "/private/oven", "/gone")]  # type: ignore[attr-defined]
    places.append("http://elsewhere.example/page")
    pages["/sitemap.xml"] = "<urlset>" + "".join(f"<url><loc>{p}</loc></url>" for p in places) + "</urlset>"
    server.pages.update(pages)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def read(url: str) -> list[Any]:
    return list(open_source(url, fields=FieldNames()).documents())


def test_a_sitemap_is_read_as_robots_allow(site: Any) -> None:
    trust.give(f"{site.url}/sitemap.xml")
    items = read(f"{site.url}/sitemap.xml")
    documents = [item for item in items if isinstance(item, Document)]
    assert [document.id for document in documents] == [f"{site.url}/mill", f"{site.url}/boat"]
    assert "grinds flour" in documents[0].content and documents[0].title == "The mill"
    assert [item.message for item in items[2:]] == [
        "robots.txt does not allow to read it",
        "the server answers 404",
    ]
    assert "/private/oven" not in {path for path, _ in site.asked}


def test_only_what_the_user_named_is_read(site: Any) -> None:
    with pytest.raises(QontextError, match="over the network"):
        read(f"{site.url}/mill")
    assert site.asked == []


def test_within_an_hour_the_cache_answers_then_the_server_is_asked(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust.give(f"{site.url}/mill")
    for _ in range(2):
        assert len(read(f"{site.url}/mill")) == 1
    assert site.asked == [("/robots.txt", 200), ("/mill", 200)]
    monkeypatch.setattr(web, "FRESH_SECONDS", 0)
    assert len(read(f"{site.url}/mill")) == 1
    assert site.asked[2:] == [("/robots.txt", 200), ("/mill", 304)]


def test_redirects_stay_on_the_host(site: Any) -> None:
    site.pages["/moved"] = f"to {site.url}/mill"
    site.pages["/away"] = "to http://elsewhere.example/"
    site.pages["/port"] = "to http://127.0.0.1:1/"
    for path in ("/moved", "/away", "/port"):
        trust.give(f"{site.url}{path}")
    assert "grinds flour" in read(f"{site.url}/moved")[0].content
    for path in ("/away", "/port"):
        with pytest.raises(QontextError, match="another site"):
            read(f"{site.url}{path}")


def test_the_type_and_encoding_that_the_server_declares(site: Any) -> None:
    site.pages |= {"/old": "<p>Мельница".encode("cp1251"), "/paper": b"%PDF-1.7"}
    site.types |= {"/old": "text/html; charset=windows-1251", "/paper": "application/pdf"}
    places = "".join(f"<url><loc>{site.url}{path}</loc></url>" for path in ("/old", "/paper"))
    site.pages["/sitemap.xml"] = f"<urlset>{places}</urlset>"
    trust.give(f"{site.url}/sitemap.xml")
    page, problem = read(f"{site.url}/sitemap.xml")
    assert page.content == "Мельница"
    assert (problem.place, problem.message) == (
        f"{site.url}/paper",
        "is application/pdf, not a page in HTML",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a sitemap"),
        (gzip.compress(b" " * (web.MOST_BYTES + 1)), "has more than 20 MB"),
    ],
)
def test_a_damaged_sitemap_is_refused(site: Any, content: str | bytes, message: str) -> None:
    site.pages["/sitemap.xml"] = content
    trust.give(f"{site.url}/sitemap.xml")
    with pytest.raises(QontextError, match=message):
        read(f"{site.url}/sitemap.xml")


def test_pages_are_a_source_that_is_refreshed(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "made"
    api.refresh(out, source=[f"site={site.url}/sitemap.xml"], words=True)
    (answer,) = Searcher(out).search("flour")
    assert answer.place.file == f"{site.url}/mill" and answer.place.metadata["source"] == "site"
    site.pages["/mill"] = "<h1>The mill</h1><p>It saws timber.</p>"
    assert api.refresh(out, words=True)["changed"] is False, "within the hour"
    monkeypatch.setattr(web, "FRESH_SECONDS", 0)
    assert api.refresh(out, words=True)["documents"]["changed"] == 1
    assert [a.document for a in Searcher(out).search("timber")] == [f"{site.url}/mill"]


def test_a_page_that_fails_for_a_while_stays_as_it_was(
    site: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trust.give(f"{site.url}/sitemap.xml")
    before = read(f"{site.url}/sitemap.xml")
    monkeypatch.setattr(web, "FRESH_SECONDS", 0)
    site.pages |= {"/mill": 503, "/gone": 503}
    assert read(f"{site.url}/sitemap.xml")[:3] == before[:3]
    assert f"{site.url}/mill: the server answers 503; the page stays as it was." in caplog.text
    site.pages["/mill"] = 410
    items = read(f"{site.url}/sitemap.xml")
    assert [item.id for item in items if isinstance(item, Document)] == [f"{site.url}/boat"]
