"""The metrics for OpenTelemetry, if it is installed: the program's own readers of metrics get them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..telemetry.names import SERVER, SERVER_COUNTERS, SERVER_GAUGES

if TYPE_CHECKING:
    from .service import Service

__all__ = ["export"]

Values = Iterable[tuple[float, dict[str, str]]]
"""Values, each with its attributes."""


def export(service: Service) -> None:
    """Offer the metrics of a process. They are counted as for Prometheus, so a request costs nothing more.

    They may be read in any thread.
    """
    try:
        from opentelemetry.metrics import Observation, get_meter
    except ImportError:
        return
    reference = weakref.ref(service)  # the meter exists until the process ends

    def observed(values: Callable[[Service], Values]) -> list[Callable[[Any], Any]]:
        def observe(_: Any) -> list[Observation]:
            present = reference()
            return [] if present is None else [Observation(value, names) for value, names in values(present)]

        return [observe]

    meter = get_meter(SERVER)
    counters: dict[str, Callable[[Service], Values]] = {
        SERVER_COUNTERS["requests"]: lambda service: service.metrics.requests(),
        SERVER_COUNTERS["seconds"]: lambda service: service.metrics.seconds(),
        SERVER_COUNTERS["refusals"]: lambda service: service.metrics.refused(),
        SERVER_COUNTERS["ring_misses"]: lambda service: [(service.rings.misses, {})],
        SERVER_COUNTERS["store"]: lambda service: [(n, {"what": name}) for name, n in service.statistics().items()],
    }
    gauges: dict[str, Callable[[Service], Values]] = {
        SERVER_GAUGES["streams"]: lambda service: [(service.gate.streams, {})],
        SERVER_GAUGES["requests"]: lambda service: [(service.gate.requests, {})],
        SERVER_GAUGES["rings"]: lambda service: [(len(service.rings), {})],
        SERVER_GAUGES["stores"]: lambda service: [(service.open_stores, {})],
    }
    for name, values in counters.items():
        meter.create_observable_counter(name, observed(values))
    for name, values in gauges.items():
        meter.create_observable_gauge(name, observed(values))
