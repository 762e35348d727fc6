"""`qontext serve`: search page, HTTP API and MCP for directories of `adapt`, `encode` and `index`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from qontext.frame import log
from qontext.frame.config import ComputeConfig, Input
from qontext.frame.errors import missing_extra
from qontext.frame.stages import Server
from qontext.retrieve.ask.prepared import compute_vectors, is_documents, prepare

if TYPE_CHECKING:
    from qontext.serve.service import MarkedQueries, Service


class ServeConfig(ComputeConfig):
    directories: Annotated[tuple[str, ...], Input(positional=True)] = Field(min_length=1)
    """One or several directories of adapt, encode or index, or folders of documents as they are. A directory is named
    after the last part of its path; NAME=DIR sets another name."""

    passages: Annotated[str | None, Input()] = None
    """Passages, if they are not at the recorded path."""

    reranker: Annotated[tuple[str, ...], Input()] = ()
    """Cross-encoder to rerank the best results: a directory or Hub name. May be repeated."""

    data: Annotated[str | None, Input()] = None
    """A BEIR folder with labeled queries, whose relevant passages are marked in results."""

    split: str = "test"
    """Split of the judgments in --data."""

    about: str = ""
    """A sentence about the collection, for the search page and for agents."""

    refresh: Annotated[float | None, Field(gt=0)] = None
    """Look for changed documents every so many seconds, and index them while questions are answered."""

    host: str = "127.0.0.1"
    """Address to listen on. Addresses reachable from other machines need a token in QONTEXT_TOKEN."""

    port: int = Field(8000, ge=0, le=65_535)
    """Port to listen on; 0 selects a free one."""

    allow_host: tuple[str, ...] = ()
    """Additional accepted host name, besides localhost, such as that of a reverse proxy."""

    mcp: bool = False
    """Serve MCP over standard input and output, for an agent that starts this command, instead of HTTP."""

    queue: int = Field(64, ge=1, le=10_000)
    """Maximum number of waiting requests; more are refused with status 429."""

    timeout: float = Field(30, gt=0, le=3_600)
    """Timeout of a request in seconds, after which it fails with status 503."""

    dry_run: bool = False
    """Open everything, show what would be served, and stop."""

    log_queries: bool = False
    """Log the text of queries. By default it is not logged."""


def run(config: ServeConfig) -> dict[str, Any]:
    if config.mcp:
        require("mcp", "serving MCP")
        service = open_service(config)
        if config.dry_run:
            return _summary(service)
        from qontext.serve.mcp import build

        log.note("Serving MCP over standard input and output.")
        with refreshing(service, config):
            try:
                build(service).run("stdio")
            finally:
                service.close()
        return {}
    require("fastapi", "the server")
    require("uvicorn", "the server")
    from qontext.serve.listen import bind, listen, policy_of

    policy = policy_of(config.host, config.allow_host, os.environ)
    with bind(config.host, config.port) as socket:
        service = open_service(config)
        if config.dry_run:
            return _summary(service)
        with refreshing(service, config):
            listen(make_app(service, config, policy), socket, "Serving " + ", ".join(service.systems))
    return {}


@contextlib.contextmanager
def refreshing(service: Service, config: ServeConfig) -> Iterator[None]:
    """Meanwhile, the served directories follow their documents, if the configuration says so."""
    from qontext.retrieve.directory import is_adapted
    from qontext.serve.refresh import Refresher
    from qontext.serve.systems import path_of, served_path

    if config.refresh is None:
        yield
        return
    open_all = partial(service.opener.open_all, config.directories)
    paths = (Path(served_path(path_of(text))) for text in config.directories)
    thread = Refresher(service, [path for path in paths if is_adapted(path)], open_all, config.refresh)
    thread.start()
    try:
        yield
    finally:
        thread.stop()


def _summary(service: Service) -> dict[str, Any]:
    """Show what would be served."""
    systems = {
        name: f"{system.label}, {len(system.passages):,} passages of {system.passages.documents:,} documents"
        for name, system in service.systems.items()
    }
    service.close()
    log.show_table("Systems", systems)
    return {"systems": list(systems), "models": [*service.encoders, *service.rerankers]}


def make_app(service: Service, config: ServeConfig, policy: Any) -> Any:
    """The ASGI application."""
    from importlib.util import find_spec

    from qontext.serve.app import create_app

    mcp = None
    if find_spec("mcp") is not None:
        from qontext.serve.mcp import build

        mcp = build(service)
    return create_app(service, policy, mcp=mcp)


def open_service(config: ServeConfig) -> Service:
    """Open and warm up all systems and models of the configuration."""
    from qontext.serve.service import Service
    from qontext.serve.systems import Opener, path_of

    labels = _labels(config)
    for text in config.directories:
        _prepare(path_of(text))
    opener = Opener(config.device, config.precision, config.passages)
    service = Service(
        opener.open_all(config.directories),
        _rerankers(config),
        labels=labels,
        about=config.about,
        capacity=config.queue,
        seconds=config.timeout,
        log_queries=config.log_queries,
    )
    service.opener = opener
    service.warm_up()
    return service


def _prepare(path: str) -> None:
    """Index documents that nobody prepared, as `search` does."""
    if is_documents(path):
        prepare(path)
        compute_vectors(path)


def require(package: str, what: str) -> None:
    """Raise an error with the install command, unless the package is installed."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise missing_extra(package, "serve", what)


def _labels(config: ServeConfig) -> MarkedQueries | None:
    from qontext.data.collection import load_collection
    from qontext.serve.service import MarkedQueries

    if config.data is None:
        return None
    collection = load_collection(config.data)
    return MarkedQueries(collection.queries(config.split), collection.qrels(config.split))


def _rerankers(config: ServeConfig) -> dict[str, Any]:
    """Cross-encoders by the last part of their paths."""
    from qontext.models.cross_encoder import CrossEncoder

    return {
        Path(path).name: CrossEncoder(path, device=config.device, precision=config.precision)
        for path in config.reranker
    }


COMMAND = Server(
    verb="serve",
    config=ServeConfig,
    run=run,
    examples="""
        qontext serve runs/mine
        qontext serve runs/mine vectors fast=index --reranker reranker --data data --port 8080
        qontext serve runs/mine --refresh 60
        qontext serve runs/mine --mcp
        qontext serve runs/mine --dry-run
    """,
)
