"""Metrics of a process, as Prometheus reads them. No label holds a name, a key or a token."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .service import Service

__all__ = ["Metrics"]

_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)


class _Series:
    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(_BOUNDS) + 1)
        self.seconds = 0.0


class Metrics:
    """Counts of a process's answers, by method, route and status."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._latencies: dict[str, _Series] = {}
        self.refusals: Counter[str] = Counter()
        """The number of refused requests, by the code of the problem."""

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request to `route`, a pattern, was answered."""
        self._requests[method, route, status] += 1
        series = self._latencies.get(route)
        if series is None:
            series = self._latencies[route] = _Series()
        series.buckets[bisect_left(_BOUNDS, seconds)] += 1
        series.seconds += seconds

    def requests(self) -> list[tuple[int, dict[str, str]]]:
        """The number of requests, each with its method, route and status."""
        return [
            (count, {"method": method, "route": route, "status": str(status)})
            for (method, route, status), count in list(self._requests.items())
        ]

    def seconds(self) -> list[tuple[float, dict[str, str]]]:
        """The seconds that all requests to a route took together."""
        return [(series.seconds, {"route": route}) for route, series in list(self._latencies.items())]

    def refused(self) -> list[tuple[int, dict[str, str]]]:
        """The number of refusals, each with its code."""
        return [(count, {"code": code}) for code, count in list(self.refusals.items())]

    def text(self, service: Service) -> str:
        """All metrics, those of the service included, in the format of Prometheus."""
        return "\n".join([*self._lines(service), ""])

    def _lines(self, service: Service) -> Iterator[str]:
        yield "# TYPE streamkit_requests_total counter"
        for (method, route, status), count in sorted(self._requests.items()):
            yield f'streamkit_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
        yield "# TYPE streamkit_request_seconds histogram"
        for route, series in sorted(self._latencies.items()):
            total = 0
            for bound, count in zip((*_BOUNDS, "+Inf"), series.buckets, strict=True):
                total += count
                yield f'streamkit_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}'
            yield f'streamkit_request_seconds_sum{{route="{route}"}} {series.seconds:.6f}'
            yield f'streamkit_request_seconds_count{{route="{route}"}} {total}'
        yield "# TYPE streamkit_refusals_total counter"
        for code, count in sorted(self.refusals.items()):
            yield f'streamkit_refusals_total{{code="{code}"}} {count}'
        gauges = {
            "streams": service.gate.streams,
            "requests_in_flight": service.gate.requests,
            "requests_waiting": service.gate.waiting,
            "rings": len(service.rings),
            "open_stores": service.open_stores,
            "draining": int(service.is_draining),
        }
        for name, value in gauges.items():
            yield f"# TYPE streamkit_{name} gauge"
            yield f"streamkit_{name} {value}"
        yield "# TYPE streamkit_ring_misses_total counter"
        yield f"streamkit_ring_misses_total {service.rings.misses}"
        for name, value in sorted(service.statistics().items()):
            yield f"# TYPE streamkit_store_{name}_total counter"
            yield f"streamkit_store_{name}_total {value}"
