"""Telemetry: one hook around the calls of stores, groups and queues. None is installed by default.

    from streamkit import telemetry

    telemetry.enable()          # OpenTelemetry's traces and metrics; needs the extra `otel`

While no hook is installed, no call is wrapped: the classes hold the functions of their own source, so telemetry costs
nothing then. `opentelemetry-instrument` finds streamkit by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..importing import importer

if TYPE_CHECKING:
    from .hook import Call, Hook, Span
    from .points import install, installed, uninstall

__all__ = ["Call", "Hook", "Span", "disable", "enable", "install", "installed", "uninstall"]

if not TYPE_CHECKING:  # a type checker tells of names that are not there
    __getattr__, __dir__ = importer(
        __name__, {".hook": ("Call", "Hook", "Span"), ".points": ("install", "installed", "uninstall")}
    )


def enable(
    *,
    capture: Iterable[str] = (),
    propagate: bool = True,
    tracer_provider: Any = None,
    meter_provider: Any = None,
) -> None:
    """Send traces and metrics to OpenTelemetry, from now on and for the whole process.

    `capture`: content that spans may name, of "segments", "keys" and "payloads"; by default they name none.
    `propagate`: add `traceparent` to the metadata of new records, so that the spans of consumers have links to it.
    `tracer_provider`, `meter_provider`: OpenTelemetry's global ones if None. MissingDependency without the extra
    `otel`. ValueError for an unknown kind of content.
    """
    from .opentelemetry import OpenTelemetry
    from .points import install

    install(
        OpenTelemetry(
            capture=capture, propagate=propagate, tracer_provider=tracer_provider, meter_provider=meter_provider
        )
    )


def disable() -> None:
    """Remove the hook. Spans that have begun end as usual."""
    from .points import uninstall

    uninstall()
