"""Web pages: search, comparison, documents, labeled queries, the API reference, signing in."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from qontext.data.records import Hit
from qontext.frame.errors import QontextError
from qontext.models.folder import TextKind
from qontext.retrieve.analyzer import lower_words_of, spans_of, term_of
from qontext.retrieve.ask.evidence import Evidence, unwrapped
from qontext.retrieve.ask.questions import text_of
from qontext.retrieve.searcher import Answer
from qontext.serve.api import service_of
from qontext.serve.errors import ServeError, Unknown
from qontext.serve.passages import conditions
from qontext.serve.schemas import LONGEST_CONDITION, LONGEST_QUERY, MOST_CONDITIONS
from qontext.serve.security import COOKIE
from qontext.serve.service import Service, TimedHits
from qontext.serve.systems import ServedSystem
from qontext.serve.web import page, safe_target, static, url

router = APIRouter(include_in_schema=False)
SIDE_BY_SIDE, MOST = 3, 50
PER_PAGE = 20


@dataclass(frozen=True)
class ShownResult:
    """A hit on a page."""

    answer: Answer
    position: str
    text: list[Stretch]
    moved: str
    is_relevant: bool
    evidence: Evidence | None = None
    is_repeated: bool = False
    """True if another result has the same title."""


@dataclass(frozen=True)
class Column:
    """The results of one system."""

    system: ServedSystem
    results: list[ShownResult]
    milliseconds: float
    missed: list[tuple[str, int]]
    """(title, rank in the first column) of hits that are only in the first column."""


@router.get("/")
async def search(request: Request) -> Response:
    """The search page, determined by its URL."""
    service, form = service_of(request), _parameters(request)
    empty: dict[str, Any] = {
        "service": service, "form": form, "columns": [], "error": "", "examples": _examples(service),
        "relevant": [],
    }  # fmt: skip
    try:
        systems = [service.system(name) for name in form["systems"]] or [service.default]
        text, own = _text(service, systems[0], form)
    except QontextError as error:
        status = 404 if isinstance(error, Unknown) else 400
        return page("search.html", request, status, **{**empty, "error": str(error)})
    if not text:
        return page("search.html", request, **empty)
    where = conditions(form["where"], form["folder"], form["document"])
    kind: TextKind = "passage" if form["like"] else "query"
    k = form["k"] + (own is not None)
    try:
        how: dict[str, Any] = {"group": form["group"]}
        results = await asyncio.gather(
            *(service.search(system, [text], k, where, kind, **how) for system in systems)
        )
    except ServeError:
        raise
    except QontextError as error:  # a condition on an unknown field
        return page("search.html", request, 400, **{**empty, "error": str(error)})
    relevant = service.labels.relevant(form["query"]) if form["query"] else set()
    columns = _columns(systems, results, text, own, form["k"], relevant)
    if form["explain"] and kind == "query":
        columns = [
            _explained(column, await service.explain(column.system, text, one.hits[0], where))
            for column, one in zip(columns, results)
        ]
    return page("search.html", request, **{**empty, "columns": columns, "relevant": sorted(relevant)})


@router.get("/document")
def document(request: Request) -> Response:
    """All passages of a document."""
    service, values = service_of(request), request.query_params
    id, query = values.get("id", ""), values.get("q", "")[:LONGEST_QUERY]
    system = service.system(values.get("system"))
    passages = service.document(id, system.name)
    parts = [(p, highlight(unwrapped(p.text), query, system.analyzer)) for p, *_ in passages]
    return page("document.html", request, id=id, title=parts[0][0].title, parts=parts, system=system)


@router.get("/queries")
async def queries(request: Request) -> Response:
    """The labeled queries, each with a link to its results."""
    service, number = service_of(request), _whole(request.query_params.get("page"), 1, 1, 1_000_000)
    rows, pages = _page(list(service.labels.queries.items()), number)
    return page("queries.html", request, rows=rows, number=number, pages=pages, service=service)


@router.get("/compare")
async def compare(request: Request) -> Response:
    """The first result of each system for each labeled query."""
    service, values = service_of(request), request.query_params
    names = dict.fromkeys(values.getlist("system")) or service.systems
    systems = [service.system(name) for name in names]
    number = _whole(values.get("page"), 1, 1, 1_000_000)
    rows, pages = _page(list(service.labels.queries.items()), number)
    results = await asyncio.gather(
        *(service.search(system, [text for _, text in rows], 10) for system in systems if rows)
    )
    table = []
    for row, (query, text) in enumerate(rows):
        relevant = service.labels.relevant(query)
        cells = [_first(s, f.hits[row], text, relevant) for s, f in zip(systems, results)]
        table.append((query, text, cells))
    values_of_page: dict[str, Any] = {
        "rows": table,
        "systems": systems,
        "service": service,
        "number": number,
        "pages": pages,
    }
    return page("compare.html", request, **values_of_page)


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The API's reference, from its OpenAPI description."""
    return page("docs.html", request, schema=request.app.openapi())


@router.get("/login")
async def login_form(request: Request) -> Response:
    target = safe_target(request.query_params.get("next", "/"))
    return page("login.html", request, target=target, problem="")


@router.post("/login")
async def login(request: Request) -> Response:
    """Exchange the token for a cookie."""
    policy, form = request.app.state.policy, await form_of(request)
    target = safe_target(form.get("next", "/"))
    if policy.token is not None and not policy.accepts(form.get("token", "").strip()):
        await asyncio.sleep(0.5)
        return page("login.html", request, 401, target=target, problem="This is not the token.")
    answer = RedirectResponse(target, 303)
    if policy.token is not None:
        is_tls = request.url.scheme == "https"  # as a proxy on this machine says
        answer.set_cookie(COOKIE, policy.session(), httponly=True, samesite="strict", secure=is_tls)
    return answer


@router.get("/static/{name}")
async def static_file(name: str) -> Response:
    return static(name) or Response(status_code=404)


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a submitted form; the first one of repeated fields."""
    body = (await request.body()).decode("utf-8", "replace")
    try:
        return {name: values[0] for name, values in parse_qs(body, max_num_fields=20).items()}
    except ValueError:
        raise QontextError("the form has too many fields") from None


def _parameters(request: Request) -> dict[str, Any]:
    """The parameters in the URL of the search page."""
    values = request.query_params
    fields = {name: values.get(name, "").strip() for name in ("q", "folder", "document", "like", "query")}
    systems = list(dict.fromkeys(name for name in values.getlist("system") if name))[:SIDE_BY_SIDE]
    where = [text for line in values.getlist("where") for text in line.split(";") if text.strip()]
    form = {**fields, "systems": systems, "where": where, "k": _whole(values.get("k"), 10, 1, MOST)}
    form |= {"explain": values.get("explain") == "1"}
    form |= {"group": "document" if values.get("group") == "document" else "passage"}

    def link(**changes: Any) -> str:
        """The URL of this search with changed parameters."""
        values = {"q": form["q"], "system": systems, "folder": form["folder"], "document": form["document"]}
        values |= {
            "where": ";".join(where),
            "like": form["like"],
            "query": form["query"],
            "k": form["k"] if form["k"] != 10 else "",
            "explain": "1" if form["explain"] else "",
            "group": "document" if form["group"] == "document" else "",
        }
        return url("/", **{**values, **changes})

    return {**form, "link": link}


def _text(service: Service, system: ServedSystem, form: dict[str, Any]) -> tuple[str, str | None]:
    """The text to search for, and the id of its passage, if it is one."""
    if form["like"]:
        found = system.passages.find([form["like"]])
        if not found:
            raise Unknown(f"there is no passage {form['like']!r} in {system.name}")
        return found[form["like"]].passage.content, form["like"]
    if form["query"] and not form["q"]:
        if form["query"] not in service.labels.queries:
            raise Unknown(f"there is no labeled query {form['query']!r}")
        form["q"] = service.labels.queries[form["query"]]
    if len(form["q"]) > LONGEST_QUERY:
        raise QontextError(f"the query is longer than {LONGEST_QUERY:,} characters")
    if len(form["where"]) > MOST_CONDITIONS or any(len(text) > LONGEST_CONDITION for text in form["where"]):
        raise QontextError(
            f"more than {MOST_CONDITIONS} conditions, or one of more than {LONGEST_CONDITION:,} characters"
        )
    return form["q"], None


def _columns(
    systems: list[ServedSystem],
    results_of: list[TimedHits],
    text: str,
    own: str | None,
    k: int,
    relevant: set[str],
) -> list[Column]:
    columns: list[Column] = []
    first: dict[str, int] = {}
    for system, one in zip(systems, results_of):
        hits = [hit for hit in one.hits[0] if hit.passage != own][:k]
        results = [
            _result(system, answer, text, first if columns else None, relevant)
            for answer in system.answers(text, hits, most=SNIPPET)
        ]
        titles_here = Counter(result.answer.title for result in results)
        results = [replace(r, is_repeated=titles_here[r.answer.title] > 1) for r in results]
        here = {result.answer.id for result in results}
        titles = {
            r.answer.id: r.answer.title or r.answer.document for r in (columns[0].results if columns else [])
        }
        missed = [(titles[id], rank) for id, rank in first.items() if id not in here]
        columns.append(Column(system, results, 1000 * one.seconds, missed))
        first = first or {result.answer.id: result.answer.rank for result in results}
    return columns


def _result(
    system: ServedSystem, answer: Answer, text: str, first: dict[str, int] | None, relevant: set[str]
) -> ShownResult:
    position, count = system.passages.position(answer.id)
    moved = ""
    if first is not None:
        before = first.get(answer.id)
        up = f"↑ from {before}" if before and before > answer.rank else f"↓ from {before}"
        moved = "new" if before is None else "" if before == answer.rank else up
    return ShownResult(
        answer=answer,
        position=f"passage {position} of {count}",
        text=highlight(answer.snippet, text_of(text), system.analyzer, answer.sentence),
        moved=moved,
        is_relevant=answer.id in relevant,
    )


def _explained(column: Column, found: list[Evidence]) -> Column:
    """The column with what found each of its results."""
    return replace(column, results=[replace(r, evidence=one) for r, one in zip(column.results, found)])


def _first(system: ServedSystem, hits: list[Hit], text: str, relevant: set[str]) -> dict[str, Any]:
    """The first result, its relevance, and the rank of the first relevant one in the top ten."""
    rank = next((rank for rank, hit in enumerate(hits, 1) if hit.passage in relevant), None)
    if not hits:
        return {"answer": None, "text": [], "rank": rank}
    (answer,) = system.answers(text, hits[:1])
    return {"answer": answer, "text": highlight(answer.snippet, text, system.analyzer), "rank": rank}


def _examples(service: Service) -> list[tuple[str, str]]:
    """Some labeled queries as examples."""
    queries = list(service.labels.queries.items())
    return queries[:: max(1, len(queries) // 5)][:5]


def _page(rows: list[Any], number: int) -> tuple[list[Any], int]:
    """(the rows of a page, how many pages there are)."""
    return rows[(number - 1) * PER_PAGE : number * PER_PAGE], max(1, -(-len(rows) // PER_PAGE))


def _whole(text: str | None, default: int, least: int, most: int) -> int:
    """An integer from a URL, within bounds."""
    if not text or not text.isascii() or not text.isdigit() or len(text) > 9:
        return default
    return min(max(int(text), least), most)


SNIPPET = 900
"""Maximum characters of a passage in a result."""


class Stretch(NamedTuple):
    text: str
    is_marked: bool
    is_best: bool = False
    """True within the best sentence, if that is not all of the text."""


def highlight(text: str, query: str, analyzer: str = "english", sentence: str = "") -> list[Stretch]:
    """The text in segments; words with the stem of a query word are marked, and the best sentence stands out."""
    start = text.find(sentence) if sentence and len(sentence) < len(text.strip()) else -1
    if start >= 0:
        parts = (text[:start], sentence, text[start + len(sentence) :])
        return [
            stretch._replace(is_best=number == 1)
            for number, part in enumerate(parts)
            for stretch in highlight(part, query, analyzer)
        ]
    term = _term_of(analyzer)
    stems = _stems(query, analyzer)
    stretches: list[Stretch] = []
    end = 0
    for begin, until in spans_of(analyzer)(text):
        if until > end and term(text[begin:until].lower()) in stems:
            if begin < end:  # pairs of characters overlap
                stretches[-1] = Stretch(stretches[-1].text + text[end:until], True)
            else:
                stretches += [Stretch(text[end:begin], False), Stretch(text[begin:until], True)]
            end = until
    stretches.append(Stretch(text[end:], False))
    return [stretch for stretch in stretches if stretch.text]


def _term_of(analyzer: str) -> Callable[[str], str]:
    try:
        return term_of(analyzer)
    except QontextError:
        return term_of("plain")


@lru_cache(maxsize=8)
def _stems(query: str, analyzer: str) -> frozenset[str]:
    """The stems of a query's words; a page has many texts and one query."""
    term = _term_of(analyzer)
    return frozenset(stem for word in lower_words_of(analyzer)(query) if (stem := term(word)))
