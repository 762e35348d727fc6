"""The pages in a browser: search, compare, filter, link, keys; on a phone and a desk, light and dark, without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from tests.serve.browser import DESK, PHONE, Person, chromium
from tests.serve.conftest import Running, Serve

from qontext.serve.security import Policy

TOKEN = "a-token-of-many-characters"
PAGES = {
    "start": "/",
    "results": "/?q=lamp+storm",
    "side-by-side": "/?q=lamp+storm&system=mine&system=bm25&system=vectors",
    "nothing": "/?q=xyzzy&system=bm25",
    "error": "/?q=lamp&system=nothing",
    "labeled": "/?query=q1&system=mine&system=bm25",
    "document": "/document?id=north/report-3.txt&q=lamp",
    "missing": "/document?id=nothing",
    "compare": "/compare",
    "queries": "/queries",
    "api": "/docs",
    "login": "/login",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def person(browser: Any, site: Running) -> Iterator[Callable[..., Person]]:
    people: list[Person] = []

    def someone(url: str = site.url, **options: Any) -> Person:
        people.append(Person(browser, url, **options))
        return people[-1]

    yield someone
    for one in people:
        one.close()


# Colors do not depend on the width, nor the layout on colors.
@pytest.mark.parametrize(("viewport", "scheme"), [(PHONE, "dark"), (DESK, "light")], ids=["phone", "desk"])
def test_every_page_is_accessible_and_fits(person: Callable[..., Person], viewport: Any, scheme: str) -> None:
    visitor = person(viewport=viewport, color_scheme=scheme)
    for name, path in PAGES.items():
        visitor.go(path)
        if name in ("error", "missing"):  # the browser itself notes the status
            visitor.errors = [e for e in visitor.errors if "404" not in e]
        visitor.check(f"{name}-{scheme}")


def test_searching_as_a_person_does(person: Callable[..., Person], site: Running) -> None:
    visitor = person()
    page = visitor.go("/")
    page.keyboard.press("/")
    page.keyboard.type("lamp storm")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=lamp*")
    assert page.locator(".result").count() == 10
    assert "lamp" in [text.lower() for text in page.locator("mark").all_inner_texts()]
    first = page.locator(".result h3 a").first.inner_text()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.matches('.result:first-child')")
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "/document?" in url)
    assert page.locator(":target").count() == 1
    assert page.locator("h1").inner_text() == first
    page.go_back()
    assert not page.evaluate("document.getElementById('main').classList.contains('busy')")
    page.get_by_role("link", name="More passages like result 1 of mine").click()
    page.wait_for_url("**like=*")
    assert page.locator(".result").count() == 10
    assert not visitor.errors


def test_systems_side_by_side_and_the_permanent_link(person: Callable[..., Person]) -> None:
    page = person().go("/")
    page.get_by_label("Query").fill("lamp storm")
    page.locator("summary").first.click()
    page.get_by_label("vectors (vectors)").check()
    page.get_by_label("bm25 (BM25)", exact=True).check()
    assert page.get_by_label("mine/bm25").is_disabled()
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**system=bm25*")
    names = [text.split()[0] for text in page.locator("h2").all_inner_texts()]
    assert names == ["mine", "vectors", "bm25"]
    assert page.locator(".tag", has_text="from").count() + page.locator(".tag", has_text="new").count() > 0
    link = page.get_by_role("link", name="Link to this search").get_attribute("href")
    texts = page.locator(".result p").all_inner_texts()
    other = person().go(link)
    assert other.locator(".result p").all_inner_texts() == texts


def test_filters(person: Callable[..., Person]) -> None:
    page = person().go("/?q=lamp")
    page.locator("summary").first.click()
    page.get_by_label("Folder").select_option("north/islands")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**folder=north*")
    places = page.locator(".result .facts span:first-child").all_inner_texts()
    assert places and all(place.startswith("north/islands/") for place in places)
    page.get_by_role("link", name="Search only the document of result 1 of mine").click()
    page.wait_for_url("**document=north*")
    ids = page.locator(
        ".result .facts span:first-child"
    ).all_inner_texts()  # told apart, as their titles are equal
    assert ids and {id.partition("#")[0] for id in ids} == {places[0].partition("#")[0]}
    page.get_by_role("link", name="Without filters").click()
    page.wait_for_url(lambda url: "document" not in url)


def test_relevant_passages_are_marked(person: Callable[..., Person], site: Running) -> None:
    page = person().go("/queries")
    page.locator("main li a").nth(1).click()
    page.wait_for_url("**/?query=q1")
    relevant = site.service.labels.relevant("q1")
    marked = page.locator(".result.relevant h3 a").all()
    assert [unquote(link.get_attribute("href").partition("#")[2]) for link in marked] == list(relevant)
    page.goto(f"{site.url}/compare?system=bm25")
    assert page.locator("td.relevant").count() > 0 and page.locator("thead th").count() == 2


def test_without_scripts(person: Callable[..., Person]) -> None:
    page = person(java_script_enabled=False).go("/")
    page.get_by_label("Query").fill("lamp storm")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**/?q=lamp*")
    assert page.locator(".result").count() == 10
    page.locator(".result h3 a").first.click()
    page.wait_for_url(lambda url: "/document?" in url)
    assert page.locator(".passage").count() > 1


def test_signing_in(person: Callable[..., Person], serve: Serve) -> None:
    page = person(serve("bm25", policy=Policy(token=TOKEN)).url).go("/?q=boat")
    assert page.locator("h1").inner_text() == "Sign in"
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    assert "not the token" in page.get_by_role("alert").inner_text()
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=boat")
    assert page.locator(".result").count() == 10
