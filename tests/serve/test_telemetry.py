"""The metrics as OpenTelemetry reads them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from fix_serve import Served

from streamkit.serve import app

metrics = pytest.importorskip("opentelemetry.metrics")


class Meter:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callable[[Any], Any]]] = {}

    def create_observable_counter(self, name: str, callbacks: list[Callable[[Any], Any]]) -> None:
        self.callbacks[name] = callbacks

    create_observable_gauge = create_observable_counter

    def read(self) -> dict[str, list[tuple[float, dict[str, str]]]]:
        return {
            name: [(found.value, dict(found.attributes)) for callback in callbacks for found in callback(None)]
            for name, callbacks in self.callbacks.items()
        }


def test_open_telemetry_reads_what_was_answered(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter()
    monkeypatch.setattr(metrics, "get_meter", lambda name: meter)
    served = serve()
    assert served.ask("POST", "spaces/s/segments/a/entries", {"text": "secret"}).status == 201
    assert served.ask("GET", "spaces/s/segments/a/entries?after=x").status == 400
    with served.events("spaces/s/entries"):
        found = meter.read()
    route = "/v1/stores/{st}/spaces/{sp}/segments/{sg}/entries"
    assert (1, {"method": "POST", "route": route, "status": "201"}) in found["streamkit.requests"]
    assert (1, {"code": "invalid-argument"}) in found["streamkit.refusals"]
    assert found["streamkit.streams"] == found["streamkit.rings"] == [(1, {})]
    assert (1, {"what": "entries"}) in found["streamkit.store"]
    assert [names for _, names in found["streamkit.request_seconds"]] == [{"route": route}]
    assert "secret" not in str(found)


def test_a_meter_does_not_keep_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter()
    monkeypatch.setattr(metrics, "get_meter", lambda name: meter)
    application = app("memory://")
    for begin in application.service.on_start:
        begin(application.service)
    left = weakref.ref(application.service)
    del application, begin
    gc.collect()
    assert left() is None
    assert not any(meter.read().values())
