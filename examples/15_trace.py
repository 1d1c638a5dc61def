"""Telemetry: the trace of produce → queue → handler → produce, drawn as a tree. It needs `opentelemetry-sdk`."""

from __future__ import annotations

from uuid import uuid4

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import streamkit
from streamkit import Record, telemetry
from streamkit.groups import Delivery


def draw(spans: list[ReadableSpan]) -> None:
    """Print the spans below their parents, and the links between traces."""
    names = {span.context.span_id: span.name for span in spans if span.context}

    def below(parent: int | None, depth: int) -> None:
        for span in spans:
            if span.context and (span.parent.span_id if span.parent else None) == parent:
                linked = [names[link.context.span_id] for link in span.links if link.context.span_id in names]
                note = f"  <- linked to: {', '.join(linked)}" if linked else ""
                print(f"{'   ' * depth}{span.kind.name.lower():9}{span.name}{note}")
                below(span.context.span_id, depth + 1)

    below(None, 0)


def main() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.enable(tracer_provider=provider)
    tracer = provider.get_tracer("shop")
    with streamkit.connect("memory://") as client, client.store(uuid4()) as store:
        queue = store.queue("emails")

        def send(delivery: Delivery) -> None:
            store.produce("sent", "emails", [Record(delivery.entry.payload)])

        with tracer.start_as_current_span("checkout"):
            store.produce("orders", "order-42", [Record(b"placed")])
            queue.put(b"thank you for order-42")
        queue.run(send, drain=True)
    telemetry.disable()
    draw(sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0))


if __name__ == "__main__":
    main()
