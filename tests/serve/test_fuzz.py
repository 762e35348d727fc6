"""Requests made from the API's own description, and from nothing of the kind: never an answer of 5xx."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from tests.serve.conftest import Running

EXAMPLES = int(os.environ.get("QONTEXT_FUZZ", "15"))


def fuzz(operation: Any, mode: Any, url: str) -> Counter[int]:
    """Send requests of this kind, and count the statuses of the answers."""
    from hypothesis import HealthCheck, given, settings

    statuses: Counter[int] = Counter()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        response = case.call(base_url=url)
        assert response.status_code < 500, (case.as_curl_command(), response.text)
        if response.status_code >= 400 and operation.path.startswith("/v1"):
            assert response.json()["error"]["message"]
        statuses[response.status_code] += 1

    send()
    return statuses


def test_no_request_is_answered_with_a_fault(site: Running) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    described = site.http.get("/openapi.json").json()
    parts = described["components"]["schemas"]
    for part, field, names in (  # few requests with invented names are answered with more than 404
        ("SearchRequest", "system", [*site.service.systems, None]),
        ("EmbeddingRequest", "model", [*site.service.encoders, "mine-query"]),
        ("RerankRequest", "model", [*site.service.encoders, *site.service.rerankers, None]),
    ):
        parts[part]["properties"][field] = {"enum": names}
    parts["SearchRequest"]["properties"].pop("where")  # no field has an invented name, either
    schema = schemathesis.openapi.from_dict(described)
    operations = {result.ok().label: result.ok() for result in schema.get_all_operations()}
    assert {"POST /v1/search", "POST /v1/embeddings", "POST /v1/rerank"} <= operations.keys()
    for label, operation in operations.items():
        statuses = fuzz(operation, schemathesis.GenerationMode.POSITIVE, site.url)
        assert statuses[200] or label == "GET /v1/models/{name}"
        if label.startswith("POST"):  # others have nothing that could be wrong
            assert fuzz(operation, schemathesis.GenerationMode.NEGATIVE, site.url)
