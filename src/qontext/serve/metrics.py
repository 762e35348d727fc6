"""Counters of a server, in the Prometheus text format."""

from __future__ import annotations

import threading
import time
from collections import Counter

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram of latencies, in seconds."""
_SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Requests by route and status, their latencies, and the sizes of computed batches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._latencies: dict[str, list[int]] = {}
        self._sums: Counter[str] = Counter()
        self._batches = [0] * (len(_SIZES) + 1)
        self._items = 0
        self._started = time.time()

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[route, method, status] += 1
            counts = self._latencies.setdefault(route, [0] * (len(BUCKETS) + 1))
            counts[_bucket(BUCKETS, seconds)] += 1
            self._sums[route] += seconds  # type: ignore[assignment]

    def batch(self, items: int) -> None:
        with self._lock:
            self._batches[_bucket(_SIZES, items)] += 1
            self._items += items

    def text(self, waiting: int, capacity: int) -> str:
        """The page for Prometheus."""
        with self._lock:
            lines = _head("qontext_requests_total", "counter", "Requests by route, method and status.")
            for (route, method, status), count in sorted(self._requests.items()):
                labels = f'route="{route}",method="{method}",status="{status}"'
                lines.append(f"qontext_requests_total{{{labels}}} {count}")
            lines += _head("qontext_request_seconds", "histogram", "Latency by route.")
            for route, counts in sorted(self._latencies.items()):
                label = f'route="{route}"'
                lines += _histogram("qontext_request_seconds", label, BUCKETS, counts, self._sums[route])
            lines += _head("qontext_batch_items", "histogram", "Items per computed batch.")
            lines += _histogram("qontext_batch_items", "", _SIZES, self._batches, self._items)
        lines += _head("qontext_queue_jobs", "gauge", "Jobs waiting to be computed.")
        lines += [f"qontext_queue_jobs {waiting}"]
        lines += _head("qontext_queue_capacity", "gauge", "Maximum number of waiting jobs.")
        lines += [f"qontext_queue_capacity {capacity}"]
        lines += _head("qontext_start_time_seconds", "gauge", "Start time of the server, as Unix time.")
        lines += [f"qontext_start_time_seconds {self._started:.3f}"]
        return "\n".join(lines) + "\n"


def _bucket(bounds: tuple[float, ...], value: float) -> int:
    return next((n for n, bound in enumerate(bounds) if value <= bound), len(bounds))


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _histogram(
    name: str, label: str, bounds: tuple[float, ...], counts: list[int], total: float
) -> list[str]:
    lines, below, comma = [], 0, "," if label else ""
    for bound, count in zip((*bounds, "+Inf"), counts):
        below += count
        lines.append(f'{name}_bucket{{{label}{comma}le="{bound}"}} {below}')
    braces = f"{{{label}}}" if label else ""
    return [*lines, f"{name}_sum{braces} {total:.6f}", f"{name}_count{braces} {below}"]
