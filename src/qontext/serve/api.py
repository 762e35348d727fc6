"""The HTTP API: search, and embeddings and reranking in the formats of popular services."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool

from qontext.frame.errors import QontextError
from qontext.models.folder import TextKind
from qontext.retrieve.ask.evidence import Evidence
from qontext.retrieve.searcher import Answer
from qontext.serve.errors import Unknown
from qontext.serve.passages import conditions
from qontext.serve.schemas import (
    ERRORS,
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    Model,
    ModelList,
    RerankDocument,
    RerankedText,
    RerankRequest,
    RerankResponse,
    RerankResult,
    SearchHit,
    SearchRequest,
    SearchResponse,
    SearchResult,
    Usage,
)
from qontext.serve.service import Service, TimedHits
from qontext.serve.systems import ServedSystem

AT_ONCE = 100
"""Hits that are put together without a thread; meanwhile no other request is read."""
router = APIRouter(responses=ERRORS)
_SUFFIXES: dict[str, TextKind] = {"-query": "query", "-passage": "passage"}
_KINDS: dict[str, TextKind] = {
    "query": "query", "search_query": "query",
    "passage": "passage", "document": "passage", "search_document": "passage",
}  # fmt: skip


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.post("/v1/search", response_model=SearchResponse)
async def search(body: SearchRequest, request: Request) -> Response:
    """The best passages for one or several queries."""
    service = service_of(request)
    system = service.system(body.system)
    queries = [body.query] if isinstance(body.query, str) else body.query
    where = conditions(body.where, body.folder, body.document, body.source)
    results = await service.search(system, queries, body.k, where, group=body.group, min_score=body.min_score)
    if body.explain:
        pairs = zip(queries, results.hits)
        found = [await service.explain(system, text, hits, where) for text, hits in pairs]
        return _searched(system, queries, results, found)
    if len(queries) * body.k <= AT_ONCE:
        return _searched(system, queries, results)
    return await run_in_threadpool(_searched, system, queries, results)


@router.post("/v1/embeddings", response_model_exclude_none=True)
async def embeddings(body: EmbeddingRequest, request: Request) -> EmbeddingResponse:
    """Vectors of texts, in the format of OpenAI's endpoint of the same name."""
    service = service_of(request)
    name, kind = _model_and_kind(body, service)
    encoder = service.encoders[name]
    if body.dimensions is not None and body.dimensions > encoder.dimension:
        raise QontextError(
            f"the vectors of {name} have {encoder.dimension} dimensions, not {body.dimensions:,}"
        )
    texts = [body.input] if isinstance(body.input, str) else body.input
    vectors, tokens = await service.embed(encoder, texts, kind)
    if body.dimensions is not None:
        vectors = vectors[:, : body.dimensions]
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    data = [
        Embedding(index=number, embedding=_encoded(vector, body.encoding_format))
        for number, vector in enumerate(vectors)
    ]
    return EmbeddingResponse(
        data=data, model=body.model, usage=Usage(prompt_tokens=tokens, total_tokens=tokens)
    )


@router.post("/v1/rerank", response_model_exclude_none=True)
async def rerank(body: RerankRequest, request: Request) -> RerankResponse:
    """Texts in the order of their relevance to a query, in the format of Cohere's and Jina's endpoints."""
    texts = [d.text if isinstance(d, RerankDocument) else d for d in body.documents]
    model, scores = await service_of(request).rerank(body.model, body.query, texts)
    order = sorted(range(len(texts)), key=lambda n: (-scores[n], n))[: body.top_n]
    results = [
        RerankResult(
            index=n,
            relevance_score=scores[n],
            document=RerankedText(text=texts[n]) if body.return_documents else None,
        )
        for n in order
    ]
    return RerankResponse(id=f"rerank-{uuid.uuid4().hex}", model=model, results=results)


@router.get("/v1/models")
async def models(request: Request) -> ModelList:
    """All systems and models."""
    return ModelList(data=_models(service_of(request)))


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> Model:
    """One of the models."""
    for one in _models(service_of(request)):
        if one.id == name:
            return one
    raise Unknown(f"unknown model {name!r}", remedy="GET /v1/models lists all models.")


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answers as soon as the server can search."""
    return {"status": "ok"}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> PlainTextResponse:
    """Counters in the Prometheus text format."""
    service = service_of(request)
    text = service.metrics.text(service.batcher.waiting, service.batcher.capacity)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _searched(
    system: ServedSystem, queries: list[str], outcome: TimedHits, found: list[list[Evidence]] | None = None
) -> Response:
    results = [
        SearchResult(query=query, hits=[_hit(system, answer) for answer in system.answers(query, hits)])
        for query, hits in zip(queries, outcome.hits)
    ]
    for result, evidence in zip(results, found or ()):
        for hit, one in zip(result.hits, evidence):
            hit.evidence = one.as_json()
    answer = SearchResponse(system=system.name, seconds=round(outcome.seconds, 6), results=results)
    return Response(answer.model_dump_json(), media_type="application/json")


def _hit(system: ServedSystem, answer: Answer) -> SearchHit:
    position, count = system.passages.position(answer.id)
    own = {name: getattr(answer, name) for name in SearchHit.model_fields.keys() & vars(answer).keys()}
    more = {"place": str(answer.place), "metadata": dict(answer.place.metadata), "evidence": None}
    return SearchHit(**{**own, **more}, position=position, passages=count)


def _model_and_kind(body: EmbeddingRequest, service: Service) -> tuple[str, TextKind]:
    name, in_name = body.model, None
    for suffix, kind in _SUFFIXES.items():
        if name not in service.encoders and name.endswith(suffix):
            name, in_name = name.removesuffix(suffix), kind
            break
    if name not in service.encoders:
        remedy = f"Choose from: {', '.join(service.encoders) or 'none, because no encoder is served'}."
        raise Unknown(f"unknown model {body.model!r}", remedy=remedy)
    typed = _KINDS[body.input_type] if body.input_type else None
    if in_name and typed and in_name != typed:
        raise QontextError(f"the model {body.model} is not for texts of the type {body.input_type!r}")
    return name, in_name or typed or "passage"


def _encoded(vector: np.ndarray[Any, Any], encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    numbers: list[float] = vector.tolist()
    return numbers


def _models(service: Service) -> list[Model]:
    created = service.started
    models = []
    for system in service.systems.values():
        capabilities: list[Any] = ["search"]
        if system.name in service.encoders:
            capabilities += ["embeddings", "rerank"]
        models.append(
            Model(id=system.name, created=created, capabilities=capabilities, description=system.label)
        )
    for name in service.encoders:
        for suffix, kind in _SUFFIXES.items():
            text = f"the encoder of {name}, for {'queries' if kind == 'query' else 'passages'}"
            models.append(
                Model(id=name + suffix, created=created, capabilities=["embeddings"], description=text)
            )
    for name in service.rerankers:
        models.append(Model(id=name, created=created, capabilities=["rerank"], description="a cross-encoder"))
    return models
