"""Telemetry: spans around calls, links from consumers to producers, metrics; and nothing while it is off."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest

import streamkit
import streamkit.aio
from streamkit import Entry, Record, SequenceMismatch, Store, TransactionIdMismatch, telemetry
from streamkit.groups import Delivery
from streamkit.open_store import open_stores
from streamkit.store import inner

pytest.importorskip("opentelemetry.sdk")
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Seen(NamedTuple):
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader
    tracer: trace.Tracer

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        [found] = self.spans(name)
        return found

    def metrics(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}


def _enabled(**options: Any) -> Seen:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider(metric_readers=[reader])
    telemetry.enable(tracer_provider=provider, meter_provider=meters, **options)
    return Seen(exporter, reader, provider.get_tracer("test"))


@pytest.fixture
def seen() -> Iterator[Seen]:
    found = _enabled()
    try:
        yield found
    finally:
        telemetry.disable()


@pytest.fixture
def store() -> Iterator[Store]:
    with streamkit.connect("memory://") as client, client.store(uuid4()) as store:
        yield store


def _links(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def test_without_a_hook_every_method_is_the_plain_one() -> None:
    """Telemetry that is off costs nothing: no call of the interface is wrapped, before it was on and after."""
    plain = {name: value for name, value in vars(Store).items() if callable(value)}
    assert telemetry.installed() is None
    _enabled()
    assert vars(Store)["produce"] is not plain["produce"]
    telemetry.disable()
    assert telemetry.installed() is None
    assert {name: value for name, value in vars(Store).items() if callable(value)} == plain


def test_importing_streamkit_loads_no_telemetry() -> None:
    program = "import sys, streamkit; print([name for name in sys.modules if 'telemetry' in name])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_a_call_of_a_store_is_a_span_with_the_names_of_the_conventions(seen: Seen, store: Store) -> None:
    store.produce("orders", "order-42", [Record(b"a"), Record(b"b")])
    span = seen.span("produce orders")
    assert span.kind is trace.SpanKind.CLIENT
    assert dict(span.attributes or {}) == {
        "db.system.name": "streamkit",
        "db.namespace": str(store.id),
        "db.collection.name": "orders",
        "db.operation.name": "produce",
        "db.operation.batch.size": 2,
    }
    [point] = seen.metrics()["db.client.operation.duration"]
    assert point.count == 1
    assert point.attributes["db.operation.name"] == "produce"


def test_a_read_is_one_span_however_many_entries_it_gives(seen: Seen, store: Store) -> None:
    store.produce("orders", "a", [Record(b"%d" % n) for n in range(100)])
    assert len(list(store.consume_space("orders"))) == 100
    span = seen.span("consume_space orders")
    assert (span.attributes or {})["db.response.returned_rows"] == 100
    next(iter(store.consume_segment("orders", "a")))  # given up after the first entry
    assert len(seen.spans("consume_segment orders")) == 1


def test_a_failed_call_says_the_type_of_its_error_and_no_content(seen: Seen, store: Store) -> None:
    store.produce("orders", "secret-segment", [Record(b"secret-payload")], idempotency_key="secret-key")
    with pytest.raises(SequenceMismatch):
        store.produce("orders", "secret-segment", [Record(b"x")], expected_sequence=7)
    store.queue("jobs").put(b"secret-payload", metadata={"secret-name": "secret-value"})
    failed = seen.spans("produce orders")[1]
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "SequenceMismatch"
    told = [span.to_json() for span in seen.exporter.get_finished_spans()]
    assert len(told) == 3
    assert "secret" not in "".join(told)
    assert "secret" not in json.dumps({name: str(points) for name, points in seen.metrics().items()})


def test_names_and_payloads_are_told_to_those_who_ask(store: Store) -> None:
    seen = _enabled(capture=("segments", "keys", "payloads"))
    try:
        store.produce("orders", "order-42", [Record(b"a")], idempotency_key="once")
        store.queue("jobs").put(b"pay")
        store.queue("jobs").run(lambda delivery: None, drain=True)
    finally:
        telemetry.disable()
    attributes = seen.span("produce orders").attributes or {}
    assert attributes["streamkit.segment"] == "order-42"
    assert attributes["streamkit.idempotency_key"] == "once"
    assert (seen.span("process jobs").attributes or {})["streamkit.payload"] == "pay"


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="'segments', 'keys', 'payloads', not 'names'"):
        telemetry.enable(capture=("names",))
    with pytest.raises(TypeError, match="not a str"):
        telemetry.enable(capture="keys")
    with pytest.raises(TypeError, match="lacks it"):
        telemetry.install(object())  # type: ignore[arg-type]
    assert telemetry.installed() is None


def test_a_handler_is_linked_to_the_producer_and_is_the_parent_of_its_writes(seen: Seen, store: Store) -> None:
    queue = store.queue("jobs")

    def handler(delivery: Delivery) -> None:
        store.produce("done", "all", [Record(delivery.entry.payload)])

    queue.put(b"job")
    queue.run(handler, drain=True)
    sent, received, processed = seen.span("put jobs"), seen.span("receive jobs"), seen.span("process jobs")
    assert sent.kind is trace.SpanKind.PRODUCER
    assert processed.kind is trace.SpanKind.CONSUMER
    assert _links(processed) == _links(received) == {_id(sent)}
    written = seen.span("produce done")
    assert written.parent is not None
    assert written.parent.span_id == _id(processed)
    types = [(span.attributes or {})["messaging.operation.type"] for span in (sent, received, processed)]
    assert types == ["send", "receive", "process"]
    assert (seen.span("ack jobs").attributes or {})["messaging.operation.type"] == "settle"
    assert store.peek("done", "all").metadata["traceparent"].split("-")[2] == f"{_id(written):016x}"


def test_a_look_that_finds_nothing_is_no_span(seen: Seen, store: Store) -> None:
    with store.queue("jobs").consumer() as consumer:
        assert consumer.receive() == []
    assert seen.spans("receive jobs") == []


def test_a_failing_handler_is_an_error(seen: Seen, store: Store) -> None:
    queue = store.queue("jobs", max_deliveries=1)
    queue.put(b"job")

    def handler(delivery: Delivery) -> None:
        raise ZeroDivisionError("secret")

    queue.run(handler, drain=True)
    assert (seen.span("process jobs").attributes or {})["error.type"] == "ZeroDivisionError"
    assert len(seen.spans("nack jobs")) == 1


def test_records_of_a_transaction_name_its_span(seen: Seen, store: Store) -> None:
    with store.transaction("orders") as transaction:
        transaction.produce("a", [Record(b"1", {"own": "kept"})])
        transaction.produce("b", [Record(b"2")])
    span = f"{_id(seen.span('transaction orders')):016x}"
    for segment in ("a", "b"):
        assert store.peek("orders", segment).metadata["traceparent"].split("-")[2] == span
    assert store.peek("orders", "a").metadata["own"] == "kept"


def test_a_retry_in_another_trace_is_a_replay(seen: Seen, store: Store) -> None:
    first = store.produce("orders", "a", [Record(b"1", {"who": "me"})], idempotency_key="k")
    with seen.tracer.start_as_current_span("another"):
        again = store.produce("orders", "a", [Record(b"1", {"who": "me"})], idempotency_key="k")
    assert again.trx == first.trx
    telemetry.disable()
    assert store.produce("orders", "a", [Record(b"1", {"who": "me"})], idempotency_key="k").trx == first.trx
    given = {
        "who": "me",
        "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        "tracestate": "vendor=of-any-length",
    }
    assert store.produce("orders", "a", [Record(b"1", given)], idempotency_key="k").trx == first.trx
    with pytest.raises(TransactionIdMismatch):
        store.produce("orders", "a", [Record(b"1", {"who": "you"})], idempotency_key="k")
    assert store.segment_status("orders", "a").last_sequence == 1


def test_a_record_without_metadata_is_replayed_in_a_trace(seen: Seen, store: Store) -> None:
    telemetry.disable()
    first = store.produce("orders", "a", [Record(b"1"), Record(b"2")], idempotency_key="k")
    _enabled()
    assert store.produce("orders", "a", [Record(b"1"), Record(b"2")], idempotency_key="k").trx == first.trx


def test_nothing_is_added_to_records_if_it_is_not_wanted(store: Store) -> None:
    _enabled(propagate=False)
    try:
        store.produce("orders", "a", [Record(b"1")])
    finally:
        telemetry.disable()
    assert store.peek("orders", "a").metadata == {}


def test_metadata_that_just_fits_is_written_as_it_is(seen: Seen, store: Store) -> None:
    store.produce("orders", "a", [Record(b"1", {"large": "x" * 65_000})])
    assert "traceparent" not in store.peek("orders", "a").metadata


def test_wrong_records_are_refused_as_without_telemetry(seen: Seen, store: Store) -> None:
    for wrong in (Record(b"x"), b"x", [b"x"], [Record("x")], [Record(b"x", {"a": 1})], None):  # type: ignore[list-item, arg-type, dict-item]
        with pytest.raises(TypeError) as with_telemetry:
            store.produce("orders", "a", wrong)  # type: ignore[arg-type]
        hook = telemetry.installed()
        assert hook is not None
        telemetry.uninstall()
        with pytest.raises(TypeError) as without:
            store.produce("orders", "a", wrong)  # type: ignore[arg-type]
        telemetry.install(hook)
        assert str(with_telemetry.value) == str(without.value)
    assert list(store.get_spaces()) == []


def test_coroutines_have_the_same_spans(seen: Seen) -> None:
    async def work() -> None:
        async with streamkit.aio.connect("memory://") as client:
            store = client.store(uuid4())
            await store.produce("orders", "a", [Record(b"1")])
            assert (await store.peek("orders", "a")).payload == b"1"
            assert len([entry async for entry in store.consume_space("orders")]) == 1
            queue = await store.queue("jobs")
            await queue.put(b"job")

            async def handler(delivery: Delivery) -> None:
                await store.produce("done", "all", [Record(delivery.entry.payload)])

            await queue.run(handler, drain=True)

    asyncio.run(work())
    names = {span.name for span in seen.exporter.get_finished_spans()}
    assert names == {
        "produce orders",
        "peek orders",
        "consume_space orders",
        "put jobs",
        "receive jobs",
        "process jobs",
        "produce done",
        "ack jobs",
    }
    assert _links(seen.span("process jobs")) == {_id(seen.span("put jobs"))}
    parent = seen.span("produce done").parent
    assert parent is not None
    assert parent.span_id == _id(seen.span("process jobs"))


def test_counts_of_closed_stores_stay_and_lags_are_read(seen: Seen) -> None:
    def total() -> float:
        return sum(point.value for point in seen.metrics()["streamkit.entries"])

    before = total()
    with streamkit.connect("memory://") as client:
        with client.store(uuid4()) as store:
            store.produce("orders", "a", [Record(b"1"), Record(b"2")])
            queue = store.queue("jobs")
            queue.put(b"1")
            queue.put(b"2")
            with queue.consumer() as consumer:
                consumer.ack(consumer.receive(1)[0])
                consumer.flush()
                found = seen.metrics()
                assert [point.value for point in found["streamkit.group.lag"]] == [1]
                kinds = {point.attributes["streamkit.request.kind"] for point in found["streamkit.storage.requests"]}
                assert "put" in kinds
            during = total()
        assert during - before >= 4
    assert total() >= during


def test_the_open_stores_are_counted_while_another_thread_opens_some() -> None:
    stop, before = threading.Event(), sys.getswitchinterval()
    with streamkit.connect("memory://") as client:
        kept = [client.store(uuid4()) for _ in range(50)]
        others = deque[Store](maxlen=50)

        def opens() -> None:
            while not stop.is_set():
                others.append(client.store(uuid4()))

        thread = threading.Thread(target=opens)
        sys.setswitchinterval(1e-5)
        try:
            thread.start()
            for _ in range(300):
                assert {*map(inner, kept)} <= {*open_stores()}
        finally:
            sys.setswitchinterval(before)
            stop.set()
            thread.join()


def test_views_and_routes_have_a_lag_and_no_spans(seen: Seen, store: Store, tmp_path: Path) -> None:
    from streamkit.views import Latest

    store.produce("orders", "a", [Record(b"1")])
    view = store.view("latest", Latest(lambda entry: entry.segment), ["orders"], tmp_path / "view.sqlite")
    view.catch_up()
    names = [span.name for span in seen.exporter.get_finished_spans()]
    assert names == ["produce orders"]
    assert [point.value for point in seen.metrics()["streamkit.view.behind"]] == [0]
    view.close()


class Failing:
    """A hook that raises in the method `where`, for the hook itself or for its spans."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _fail(self, where: str) -> None:
        if where == self.where:
            raise RuntimeError("the exporter is full")

    def begin(self, call: Any, **_: Any) -> Failing:
        self._fail("begin")
        return self

    def current(self) -> Any:
        self._fail("current")
        return self

    def __enter__(self) -> None:
        self._fail("enter")

    def __exit__(self, *_: object) -> None:
        self._fail("exit")

    def carrier(self) -> dict[str, str]:
        self._fail("carrier")
        return {}

    def end(self, error: BaseException | None = None, **_: Any) -> None:
        self._fail("end")

    def lagging(self, kind: str, part: Any) -> None:
        self._fail("lagging")

    def closing(self, store: Any) -> None:
        self._fail("closing")

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("where", ["begin", "current", "enter", "exit", "carrier", "end", "lagging", "closing"])
def test_a_hook_that_raises_fails_no_call(where: str, caplog: pytest.LogCaptureFixture) -> None:
    hook = Failing(where)
    telemetry.install(hook)
    try:
        with caplog.at_level(logging.WARNING, "streamkit"), streamkit.connect("memory://") as client:
            store = client.store(uuid4())
            assert store.produce("orders", "a", [Record(b"1")]).last_sequence == 1
            with store.transaction("orders") as trx:
                trx.produce("a", [Record(b"2")])
            with pytest.raises(SequenceMismatch):
                store.produce("orders", "a", [Record(b"3")], expected_sequence=7)
            assert [entry.payload for entry in store.consume_space("orders")] == [b"1", b"2"]
            queue = store.queue("jobs")
            queue.put(b"job")
            handled: list[bytes] = []
            queue.run(lambda delivery: handled.append(delivery.entry.payload), drain=True)
            assert handled == [b"job"]
            store.close()
        assert telemetry.installed() is hook
        assert ["the exporter is full" in str(record.exc_info) for record in caplog.records] == [True]
    finally:
        telemetry.uninstall()


def test_log_records_have_the_fields_of_their_place(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    queue = store.queue("jobs", max_deliveries=1)
    status = queue.put(b"job")

    def handler(delivery: Delivery) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.WARNING, "streamkit"):
        queue.run(handler, drain=True)
    [record] = caplog.records
    assert status.trx is not None
    assert vars(record)["store"] == str(store.id)
    assert vars(record)["space"] == "jobs"
    assert vars(record)["transaction"] == str(status.trx.id)


def test_the_log_record_of_a_lost_delivery_has_the_same_fields_in_coroutines(caplog: pytest.LogCaptureFixture) -> None:
    async def handle() -> tuple[UUID, Entry, int]:
        async with streamkit.aio.connect("memory://") as client:
            store = client.store(uuid4())
            queue = await store.queue("jobs")
            await queue.put(b"job")
            lost: list[Entry] = []

            async def handler(delivery: Delivery) -> None:
                if not lost:
                    lost.append(delivery.entry)
                    await queue.group.seek("beginning")

            report = await queue.run(handler, drain=True)
            return store.id, lost[0], report.lost

    with caplog.at_level(logging.WARNING, "streamkit"):
        store, entry, count = asyncio.run(handle())
    assert count == 1
    [record] = caplog.records
    assert vars(record)["store"] == str(store)
    assert vars(record)["space"] == "jobs"
    assert vars(record)["transaction"] == str(entry.trx.id)


def test_the_instrumentor_enables_and_disables_it(store: Store) -> None:
    pytest.importorskip("opentelemetry.instrumentation")
    from streamkit.telemetry.instrumentor import StreamkitInstrumentor

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = StreamkitInstrumentor()
    instrumentor.instrument(tracer_provider=provider, meter_provider=MeterProvider(), skip_dep_check=True)
    try:
        store.produce("orders", "a", [Record(b"1")])
    finally:
        instrumentor.uninstrument()
    assert [span.name for span in exporter.get_finished_spans()] == ["produce orders"]
    assert telemetry.installed() is None


def test_without_opentelemetry_the_error_names_the_extra() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from streamkit import telemetry
try:
    telemetry.enable()
except Exception as error:
    print(type(error).__name__, error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("MissingDependency")
    assert "pip install 'streamkit-store[otel]'" in said
