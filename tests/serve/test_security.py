"""Who is refused: other hosts and origins, missing tokens, addresses beyond this machine, paths in names."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.serve.conftest import Running, Serve, World

from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.frame.trust import is_this_machine
from qontext.retrieve.system import Ranker
from qontext.serve.listen import policy_of
from qontext.serve.security import Policy, host_name
from qontext.serve.web import safe_target

TOKEN = "a-token-of-many-characters"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "",
        "[::2]:80",
        "[localhost]evil.example",
        "[localhost",
        "localhost:80@evil",
        "localhost\\evil",
    ],
)
def test_other_hosts_are_refused(site: Running, host: str) -> None:
    answer = site.http.get("/", headers={"Host": host})
    assert answer.status_code in (400, 403), host
    assert site.http.get("/", headers={"Host": "localhost:1"}).status_code == 200


def test_other_origins_are_refused(site: Running) -> None:
    own_host = site.url.removeprefix("http://")
    for origin in (
        "http://evil.example",
        "null",
        "http://localhost:9",
        f"evil://{own_host}",
        f"file://{own_host}",
    ):
        answer = site.http.post("/v1/search", json={"query": "boat"}, headers={"Origin": origin})
        assert answer.status_code == 403
    own = site.http.post("/v1/search", json={"query": "boat"}, headers={"Origin": site.url})
    assert own.status_code == 200
    assert not any(name.lower().startswith("access-control") for name in own.headers)


def test_answers_carry_the_headers_that_protect_pages(site: Running) -> None:
    for path in ("/", "/v1/models", "/nothing", "/static/script.js"):
        headers = site.http.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_no_page_has_scripts_or_styles_inside(site: Running) -> None:
    for path in ("/?q=boat", "/compare", "/queries", "/docs", "/document?id=north/report-0.txt"):
        text = site.http.get(path).text
        assert "<script src=" in text and "<script>" not in text
        assert "style=" not in text and "onclick" not in text and "javascript:" not in text


def test_text_of_documents_and_requests_is_escaped(site: Running) -> None:
    page = site.http.get("/document", params={"id": "north/report-0.txt"}).text
    assert "alert(1)" in page and "<script>alert" not in page
    for field in ("q", "document", "system", "like", "query", "folder"):
        page = site.http.get("/", params={field: '"><script>alert(2)</script>'}).text
        assert "<script>alert" not in page


def test_a_token_is_asked_for(serve: Serve) -> None:
    http = serve("bm25", policy=Policy(token=TOKEN)).http
    assert http.get("/healthz").status_code == 200
    for path in ("/v1/models", "/metrics", "/openapi.json", "/mcp", "/healthz/", "/static"):
        assert http.get(path).status_code == 401, path
    for header in (
        "Bearer wrong",
        f"Basic {TOKEN}",
        "Bearer",
        f"Bearer {TOKEN}x",
        "Bearer \xff".encode("latin-1"),
    ):
        assert http.get("/v1/models", headers={"Authorization": header}).status_code == 401
    assert http.get("/v1/models", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert http.post("/v1/search", json={"query": "boat"}).status_code == 401


def test_people_sign_in_with_the_token(serve: Serve) -> None:
    http = serve("bm25", policy=Policy(token=TOKEN)).http
    sent = http.get("/?q=boat&k=5", headers={"Accept": "text/html"})
    assert sent.status_code == 303 and sent.headers["location"].startswith("/login?next=%2F%3Fq%3Dboat")
    form = http.get(sent.headers["location"]).text
    assert 'value="/?q=boat&amp;k=5"' in form
    assert http.post("/login", data={"token": "wrong", "next": "/"}).status_code == 401
    answer = http.post("/login", data={"token": TOKEN, "next": "/?q=boat"})
    assert answer.status_code == 303 and answer.headers["location"] == "/?q=boat"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    assert http.get("/?q=boat").status_code == 200
    http.cookies.clear()
    http.cookies.set("qontext_session", "0" * 64)
    assert http.get("/?q=boat").status_code == 401


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "", "/a\nb", "evil"]
)
def test_signing_in_leads_nowhere_else(target: str) -> None:
    assert safe_target(target) == "/"
    assert safe_target("/compare?a=1") == "/compare?a=1"


def test_listening_beyond_this_machine_needs_a_token() -> None:
    with pytest.raises(QontextError, match="needs a token"):
        policy_of("0.0.0.0", (), {})
    with pytest.raises(QontextError, match="shorter than 16"):
        policy_of("0.0.0.0", (), {"QONTEXT_TOKEN": "short"})
    assert policy_of("0.0.0.0", (), {"QONTEXT_TOKEN": TOKEN}) == Policy(None, TOKEN)
    hosts = policy_of("127.0.0.1", ("Search.Example",), {}).hosts
    assert hosts is not None and "search.example" in hosts and "localhost" in hosts
    assert [is_this_machine(h) for h in ("127.0.0.2", "::1", "localhost", "0.0.0.0", "::", "example.org")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert [host_name(h) for h in ("a:1", "A", "[::1]:80", "a.b")] == ["a", "a", "::1", "a.b"]


def test_queries_are_in_no_log(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    log.show(log.DETAIL)
    secret = "zanzibar"
    quiet = serve("bm25")
    quiet.http.get("/", params={"q": secret})
    quiet.http.post("/v1/search", json={"query": secret})
    quiet.stop()
    output = capsys.readouterr()
    assert "POST /v1/search 200" in output.err and secret not in output.err + output.out
    loud = serve("bm25", log_queries=True)
    loud.http.post("/v1/search", json={"query": secret})
    assert secret in capsys.readouterr().err


def test_behind_tls_the_session_is_not_sent_without_it(serve: Serve) -> None:
    http = serve("bm25", policy=Policy(token=TOKEN)).http
    for scheme in ("http", "https"):
        answer = http.post("/login", data={"token": TOKEN}, headers={"X-Forwarded-Proto": scheme})
        assert ("Secure" in answer.headers["set-cookie"]) == (scheme == "https")


def test_a_form_is_small(site: Running) -> None:
    for path, size, status in (("/login", 66_000, 413), ("/login", 60_000, 303), ("/v1/search", 66_000, 415)):
        assert site.http.post(path, content=b"a" * size).status_code == status
        parts = (b"a" * 6_000 for _ in range(size // 6_000))
        try:
            assert site.http.post(path, content=parts).status_code == status
        except httpx.WriteError:  # it was refused while it was being sent
            assert status == 413


def test_clients_do_not_learn_where_files_are(site: Running, world: World) -> None:
    answer = site.http.post("/v1/search", json={"query": "boat", "where": ["nothing=1"]})
    assert answer.status_code == 400 and str(world.folder) not in answer.text


def test_an_index_that_fails_is_an_error_of_the_server(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    log.show(log.NOTE)
    running = serve("bm25")

    class Broken(Ranker):
        def rank(self, *arguments: Any, **how: Any) -> Any:
            raise QontextError("search of Mine returned no pair of arrays", place="/a/secret/place")

    running.service.default.ranker = Broken()
    for answer in (
        running.http.post("/v1/search", json={"query": "boat"}),
        running.http.get("/", params={"q": "boat"}),
    ):
        assert answer.status_code == 500 and "secret" not in answer.text
    assert "/a/secret/place: search of Mine returned no pair" in capsys.readouterr().err
