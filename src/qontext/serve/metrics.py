"""Counters of a server, for Prometheus."""

from __future__ import annotations

import time

from qontext.frame.errors import missing_extra

LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram of latencies, in seconds."""
SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Upper bounds of the histogram of batches."""


class ServerMetrics:
    """Requests by route and status, their latencies, and the sizes of computed batches."""

    def __init__(self) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError:
            raise missing_extra("prometheus-client", "serve", "the server") from None
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        own = self._registry = prometheus.CollectorRegistry()
        self._requests = prometheus.Counter(
            "qontext_requests",
            "Requests by route, method and status.",
            ["route", "method", "status"],
            registry=own,
        )
        self._latency = prometheus.Histogram(
            "qontext_request_seconds", "Latency by route.", ["route"], buckets=LATENCIES, registry=own
        )
        self._batches = prometheus.Histogram(
            "qontext_batch_items", "Items per computed batch.", buckets=SIZES, registry=own
        )
        self._waiting = prometheus.Gauge("qontext_queue_jobs", "Jobs waiting to be computed.", registry=own)
        self._capacity = prometheus.Gauge(
            "qontext_queue_capacity", "Maximum number of waiting jobs.", registry=own
        )
        prometheus.Gauge(
            "qontext_start_time_seconds", "Start time of the server, as Unix time.", registry=own
        ).set(time.time())

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.labels(route, method, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def batch(self, items: int) -> None:
        self._batches.observe(items)

    def text(self, waiting: int, capacity: int) -> str:
        """The page for Prometheus."""
        from prometheus_client import generate_latest

        self._waiting.set(waiting)
        self._capacity.set(capacity)
        return generate_latest(self._registry).decode()
