"""The ASGI application: the API, the pages and MCP behind the checks of `security`."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from qontext import __version__
from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.serve import api
from qontext.serve.errors import Failed, ServeError
from qontext.serve.metrics import ServerMetrics
from qontext.serve.security import Guard, Policy, error_body
from qontext.serve.service import Service
from qontext.serve.web import is_page, render

FAILED = "internal error; see the server log for details"
_FORMS = ("string_type", "list_type", "model_attributes_type")
_FIELD = re.compile("(?!str$)[a-z_]+")
ABOUT = "Search in a collection, and its models."


def create_app(service: Service, policy: Policy, *, mcp: Any = None) -> Any:
    """The application of `qontext serve`; `mcp` is the MCP server to include."""
    from qontext.serve import pages

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if mcp is not None:
                await stack.enter_async_context(mcp.session_manager.run())
            yield
            service.close()

    app = bare_app("Qontext", ABOUT, lifespan)
    app.state.service, app.state.policy = service, policy
    app.include_router(api.router)
    app.include_router(pages.router)
    if mcp is not None:
        from qontext.serve.mcp import routes

        app.router.routes.extend(routes(mcp))
    return Observer(Guard(app, policy), service.metrics)


def bare_app(title: str, about: str, lifespan: Any = None) -> FastAPI:
    """An application without endpoints, with error handlers: JSON for the API, pages for browsers."""
    app = FastAPI(
        title=title,
        description=about,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    for kind, handler in (
        (QontextError, _refused),
        (RequestValidationError, _invalid),
        (HTTPException, _http_error),
        (Exception, _failed),
    ):
        app.add_exception_handler(kind, handler)
    return app


class Observer:
    """ASGI middleware that counts requests, and logs them without their queries."""

    def __init__(self, app: Any, metrics: ServerMetrics | None) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.perf_counter() - started
            if self.metrics is not None:
                self.metrics.request(route, _method(scope), status, seconds)
            log.detail(f"{scope['method']} {route} {status} {1000 * seconds:.1f} ms")


def _method(scope: Any) -> str:
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return scope["method"] if scope["method"] in methods else "OTHER"


def answer(request: Request, status: int, message: str, param: str | None = None, **headers: str) -> Response:
    """An error, as a page for browsers."""
    if is_page(request):
        return HTMLResponse(render("error.html", request, message=message, status=status), status, headers)
    return JSONResponse(error_body(status, message, param), status, headers)


async def _refused(request: Request, error: Any) -> Response:
    status = error.status if isinstance(error, ServeError) else 400
    if isinstance(error, Failed):
        log.warn(f"a request failed: {error}")
        return answer(request, status, FAILED)
    return answer(request, status, str(error), **({"Retry-After": "1"} if status in (429, 503) else {}))


async def _invalid(request: Request, error: Any) -> Response:
    """One sentence for the first problem; the request is not quoted.

    A field that takes one or several values has a problem with either form: that of the form that was sent counts.
    """
    problems = error.errors()
    of_field = [problem for problem in problems if problem["loc"][:2] == problems[0]["loc"][:2]]
    first = max(of_field, key=lambda problem: (problem["type"] not in _FORMS, len(problem["loc"])))
    # Names of types are left out.
    place = [str(part) for part in first["loc"][1:] if isinstance(part, int) or _FIELD.fullmatch(part)]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return answer(request, 400, "the request is not valid JSON")
    if problems[0]["loc"] == ("body",) and not request.headers.get("content-type", "").startswith(
        "application/json"
    ):
        return answer(
            request, 415, "the request is not JSON: send the header 'Content-Type: application/json'"
        )
    name = ".".join(place) or "the request"
    return answer(request, 422, f"{name}: {message[:1].lower()}{message[1:]}", place[0] if place else None)


async def _http_error(request: Request, error: Any) -> Response:
    return answer(request, error.status_code, str(error.detail).lower(), **(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    log.warn("a request failed: " + "".join(traceback.format_exception(error)))
    return answer(request, 500, FAILED)
