"""The pages of a study: one pair per screen for annotators, results for the organizer."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from qontext.serve.annotate.results import results, to_csv
from qontext.serve.annotate.store import VERDICTS, Store
from qontext.serve.annotate.study import Annotator, Study
from qontext.serve.errors import Unknown
from qontext.serve.pages import form_of, static_file
from qontext.serve.web import page, url

router = APIRouter(include_in_schema=False)
router.add_api_route("/static/{name}", static_file, methods=["GET"])


def study_of(request: Request) -> tuple[Study, Store]:
    state = request.app.state
    return state.study, state.store


@router.get("/")
async def start(request: Request) -> Response:
    """A visitor without a personal link."""
    return page("annotate_start.html", request)


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/a/{key}")
async def pair(key: str, request: Request) -> Response:
    """The next pair to judge, or with `pair` one that was already judged."""
    study, store = study_of(request)
    annotator = _annotator(study, key)
    cast = {vote.pair: vote.verdict for vote in await run_in_threadpool(store.votes, annotator.name)}
    order = study.order(annotator)
    number = request.query_params.get("pair")
    if number is None:
        current = next((one for one in order if one.number not in cast), None)
    else:
        current = next((one for one in order if str(one.number) == number), None)
        if current is None:
            raise Unknown("this pair is not one of yours")
    place = order.index(current) if current else len(order)
    before = next((one.number for one in reversed(order[:place]) if one.number in cast), None)
    values: dict[str, Any] = {
        "key": key,
        "pair": current,
        "verdict": cast.get(current.number) if current else None,
    }
    done = sum(pair.number in cast for pair in order)
    values |= {"done": done, "total": len(order), "before": before, "verdicts": VERDICTS, "study": study}
    if current is None and study.is_of_answers:
        request.app.state.ending()
    return page("annotate_pair.html", request, **values)


@router.post("/a/{key}")
async def vote(key: str, request: Request) -> Response:
    """Store a verdict, then show the next pair."""
    study, store = study_of(request)
    annotator, form = _annotator(study, key), await form_of(request)
    verdict = next((v for v in VERDICTS if v == form.get("verdict")), None)
    mine = {str(one.number): one.number for one in study.order(annotator)}
    if verdict is None or form.get("pair") not in mine:
        raise Unknown("this is neither a pair of yours nor a verdict")
    await run_in_threadpool(store.vote, annotator.name, mine[form["pair"]], verdict)
    return RedirectResponse(f"/a/{key}", 303)


@router.get("/results/{key}")
async def summary(key: str, request: Request) -> Response:
    """Progress, links and results."""
    study, store = _organizer(request, key)
    votes = await run_in_threadpool(store.votes)
    current = results(study, votes)
    links = {a.name: url(str(request.base_url) + f"a/{a.key}") for a in study.annotators}
    cast: dict[int, list[str]] = {}
    for one in votes:
        cast.setdefault(one.pair, []).append(f"{one.annotator}: {one.verdict}")
    disputed = [(study.pairs[number], ", ".join(cast[number])) for number in current["disagreements"]]
    return page(
        "annotate_results.html",
        request,
        results=current,
        links=links,
        key=key,
        kinds=study.kinds,
        disputed=disputed[:100],
    )


@router.get("/results/{key}/results.json")
async def as_json(key: str, request: Request) -> Response:
    study, store = _organizer(request, key)
    return JSONResponse(results(study, await run_in_threadpool(store.votes)))


@router.get("/results/{key}/pairs.csv")
async def as_csv(key: str, request: Request) -> Response:
    study, store = _organizer(request, key)
    text = to_csv(study, await run_in_threadpool(store.votes))
    disposition = {"Content-Disposition": 'attachment; filename="pairs.csv"'}
    return PlainTextResponse(text, media_type="text/csv; charset=utf-8", headers=disposition)


def _annotator(study: Study, key: str) -> Annotator:
    annotator = study.annotator(key)
    if annotator is None:
        raise Unknown("this is not a personal link of this study")
    return annotator


def _organizer(request: Request, key: str) -> tuple[Study, Store]:
    study, store = study_of(request)
    if not study.is_organizer(key):
        raise Unknown("this is not the organizer's link of this study")
    return study, store
