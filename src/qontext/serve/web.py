"""Pages: templates, styles and the script; all data is escaped."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, Response

_STATIC = {"style.css": "text/css; charset=utf-8", "script.js": "text/javascript; charset=utf-8"}


@cache
def _templates() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("qontext.serve", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["url"] = url
    return environment


def render(template: str, request: Request | None, **values: Any) -> str:
    """Render the template. `nav` lists the available pages."""
    state = getattr(getattr(request, "app", None), "state", None)
    service = getattr(state, "service", None)
    nav = []
    if service is not None:
        nav = [("/", "Search")]
        if service.labels.queries:
            nav += [("/compare", "Compare"), ("/queries", "Queries")]
        nav.append(("/docs", "API"))
    here = request.url.path if request is not None else ""
    text: str = _templates().get_template(template).render(nav=nav, here=here, **values)
    return text


def page(template: str, request: Request | None, status: int = 200, **values: Any) -> Response:
    return HTMLResponse(render(template, request, **values), status)


def static(name: str) -> Response | None:
    """One of the two static files."""
    if name not in _STATIC:
        return None
    text = files("qontext.serve").joinpath("static", name).read_bytes()
    return Response(text, media_type=_STATIC[name], headers={"Cache-Control": "max-age=600"})


def url(path: str, **parameters: Any) -> str:
    """A path with a query string; empty parameters are omitted, lists are repeated."""
    query = {name: value for name, value in parameters.items() if value not in (None, "", [])}
    return f"{path}?{urlencode(query, doseq=True)}" if query else path


def is_page(request: Request) -> bool:
    """True if the client accepts HTML."""
    path = request.url.path
    return not path.startswith(("/v1/", "/mcp")) and "text/html" in request.headers.get("accept", "")


def safe_target(target: str) -> str:
    """The page after signing in: a path of this server, else the first page."""
    is_path = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_path and all(ord(c) > 32 for c in target) else "/"
