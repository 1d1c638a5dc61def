"""The entry point of `opentelemetry-instrument`: it enables telemetry without a line of code."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from . import disable, enable

__all__ = ["StreamkitInstrumentor"]


class StreamkitInstrumentor(BaseInstrumentor):
    """`StreamkitInstrumentor().instrument()` is `streamkit.telemetry.enable()`, with the same options."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """The packages that are instrumented: this one."""
        return ("streamkit-store",)

    def _instrument(self, **options: Any) -> None:
        wanted = ("capture", "propagate", "tracer_provider", "meter_provider")
        enable(**{name: options[name] for name in wanted if name in options})

    def _uninstrument(self, **options: Any) -> None:
        disable()
