"""Channels of the transport for kombu, where kombu's own tests do not look."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("kombu")

import kombu
from kombu.common import Broadcast

import streamkit
from streamkit.adapters.kombu import Transport
from streamkit.groups import Settlement
from streamkit.store import inner


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"url": tmp_path.as_uri(), "store": str(uuid4()), "polling_interval": 0.01}


@pytest.fixture
def connection(options: dict[str, Any]) -> Iterator[Any]:
    with kombu.Connection(transport=Transport, transport_options=options) as made:
        yield made


def send(connection: Any, queue: str, *bodies: str, **properties: Any) -> None:
    with connection.Producer() as producer:
        for body in bodies:
            producer.publish(body, routing_key=queue, exchange="", **properties)


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_get_passes_over_messages_that_expired(connection: Any, no_ack: bool) -> None:
    send(connection, "tasks", "old", "older", expiration=0.001)
    send(connection, "tasks", "new")
    time.sleep(0.005)
    message = connection.default_channel.basic_get("tasks", no_ack=no_ack)
    assert message is not None
    assert message.payload == "new"


def test_a_message_goes_back_if_its_consumer_was_cancelled_meanwhile(connection: Any) -> None:
    send(connection, "tasks", "first", "second")
    connection.channel()  # the transport's first channel is another one
    channel, taken = connection.channel(), []
    consumer = kombu.Consumer(channel, kombu.Queue("tasks"))

    def take(body: str, message: Any) -> None:
        taken.append(body)
        message.ack()
        consumer.cancel()

    consumer.register_callback(take)
    consumer.consume()
    connection.drain_events(timeout=60)
    assert taken == ["first"]
    again = connection.default_channel.basic_get("tasks")
    assert again is not None
    assert again.payload == "second"


def test_a_message_finds_a_queue_that_another_process_has_just_bound(connection: Any, options: dict[str, Any]) -> None:
    exchange = kombu.Exchange("replies", type="direct")
    with connection.Producer(exchange=exchange) as producer:
        producer.publish("nobody waits", routing_key="other")
        with kombu.Connection(transport=Transport, transport_options=options) as caller:
            queue = kombu.Queue("caller", exchange, routing_key="caller")(caller.channel())
            queue.declare()
            producer.publish("answer", routing_key="caller")
            message = queue.get()
    assert message is not None
    assert message.payload == "answer"


def test_a_message_that_went_to_another_consumer_is_told_once(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    options["ack_timeout"] = 0.03
    with kombu.Connection(transport=Transport, transport_options=options) as connection:
        send(connection, "tasks", "task", "more")
        channel = connection.channel()
        message = channel.basic_get("tasks")
        [(consumer, delivery)] = channel.held._held.values()
        with suppress(streamkit.DeliveryLost):
            consumer.group.settle([Settlement(receipt=delivery.receipt)])
        end = time.monotonic() + 60
        while channel.held.holds(message.delivery_tag):
            assert time.monotonic() < end, "its deadline is extended for ever"
            time.sleep(0.01)
        message.ack()
    assert sum("another consumer" in record.message for record in caplog.records) == 1


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def test_messages_of_a_page_stay_with_their_worker_while_it_handles_the_first_one(options: dict[str, Any]) -> None:
    options["ack_timeout"] = 0.6
    with kombu.Connection(transport=Transport, transport_options=options) as connection:
        send(connection, "tasks", "first", "second", "third")
        taken: list[str] = []

        def take(body: str, message: Any) -> None:
            if not taken:
                time.sleep(1.0)
                with kombu.Connection(transport=Transport, transport_options=options) as other:
                    assert other.default_channel.basic_get("tasks") is None
            taken.append(body)
            message.ack()

        with kombu.Consumer(connection, kombu.Queue("tasks"), callbacks=[take]):
            connection.drain_events(timeout=60)
        assert taken == ["first", "second", "third"]


def test_many_messages_are_extended_with_one_commit(options: dict[str, Any]) -> None:
    options["ack_timeout"] = 0.6
    with kombu.Connection(transport=Transport, transport_options=options) as connection:
        send(connection, "tasks", *[str(number) for number in range(40)])
        channel = connection.channel()
        messages = [channel.basic_get("tasks") for _ in range(40)]
        group, commits = channel._queue("tasks").group, []
        settle = group.settle
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(group), "settle", lambda _, wanted: commits.append(len(wanted)) or settle(wanted))
            wait_until(lambda: len(commits) > 4)
        assert max(commits) == 40
        with kombu.Connection(transport=Transport, transport_options=options) as other:
            assert other.default_channel.basic_get("tasks") is None
        for message in messages:
            message.ack()


def settings_of(options: dict[str, Any]) -> tuple[float, int, int]:
    with streamkit.connect(options["url"]) as client:
        settings = client.store(options["store"]).queue("kombu.tasks").group.settings
    return settings.ack_timeout, settings.max_deliveries, settings.max_pending


def test_the_settings_of_the_latest_consumer_hold(options: dict[str, Any]) -> None:
    """As a visibility_timeout of Redis that is changed between two starts of a worker."""
    with streamkit.connect(options["url"]) as client:
        client.store(options["store"]).queue("kombu.tasks", max_pending=10)  # as by another release
    with kombu.Connection(transport=Transport, transport_options=options) as earlier:
        send(earlier, "tasks", "first", "second")
        assert settings_of(options) == (30.0, 5, 10)
        channel = earlier.channel()
        assert channel.basic_get("tasks").payload == "first"
        assert settings_of(options) == (60.0, 5, 100_000)
        changed = options | {"ack_timeout": 90.0, "max_deliveries": 3}
        with kombu.Connection(transport=Transport, transport_options=changed) as later:
            kombu.Queue("tasks")(later.channel()).declare()
            send(later, "tasks", "third")
            assert settings_of(options) == (60.0, 5, 100_000)
            assert {each.basic_get("tasks").payload for each in (later.channel(), channel)} == {"second", "third"}
            assert settings_of(options) == (90.0, 3, 100_000)


def test_a_worker_keeps_its_tasks_when_another_one_shortens_the_timeout(options: dict[str, Any]) -> None:
    with kombu.Connection(transport=Transport, transport_options=options) as earlier:
        channel = earlier.channel()
        send(earlier, "tasks", "held")
        assert channel.basic_get("tasks").payload == "held"
        with kombu.Connection(transport=Transport, transport_options=options | {"ack_timeout": 0.6}) as later:
            assert later.channel().basic_get("tasks") is None
            send(earlier, "tasks", "task")
            wait_until(lambda: channel.basic_get("tasks") is not None)
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                assert later.default_channel.basic_get("tasks") is None
                time.sleep(0.05)


def test_replies_to_many_callers_take_a_bounded_amount_of_memory(
    options: dict[str, Any], connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process that calls `rpc://` or `inspect` has a reply queue of its own."""
    monkeypatch.setattr("streamkit.adapters.kombu._REPLIED", 3)
    exchange = kombu.Exchange("replies", type="direct")
    for number in range(8):
        name = f"caller-{number}"
        with kombu.Connection(transport=Transport, transport_options=options) as caller:
            queue = kombu.Queue(name, exchange, routing_key=name, auto_delete=True)(caller.channel())
            queue.declare()
            connection.Producer(exchange=exchange).publish("answer", routing_key=name)
            assert queue.get(no_ack=True).payload == "answer"
    shared = inner(connection.default_channel._store)
    assert [name for name in shared.spaces if "caller" in name] == [
        "kombu.caller-5",
        "kombu.caller-6",
        "kombu.caller-7",
    ]
    assert not shared.attached


def test_a_queue_that_is_made_again_and_again_takes_no_memory_and_no_files(
    options: dict[str, Any], connection: Any, tmp_path: Path
) -> None:
    """The reply queue of a caller: one process makes and deletes it, another one sends."""
    with kombu.Connection(transport=Transport, transport_options=options) as caller:
        channel = caller.channel()
        for _ in range(3):
            queue = kombu.Queue("caller", auto_delete=True)(channel)
            queue.declare()
            send(connection, "caller", "answer")
            assert queue.get(no_ack=True).payload == "answer"
            channel.after_reply_message_received("caller")
            for transport in (caller.transport, connection.transport):
                assert not transport._client._lost
        assert not inner(channel._store).attached
        assert not channel._lifetimes
        assert not channel._auto_delete
        assert not channel._unacked_queues
    assert len(list(tmp_path.rglob("*.log"))) == 4  # the list of spaces, the exchanges, the queue and its group


def test_a_thousand_tasks_that_wait_for_their_time_do_not_hold_up_the_others(connection: Any) -> None:
    channel = connection.channel()
    queue = channel._queue("tasks")
    queue.put_many([b'{"body": "", "properties": {"delivery_info": {}}}'] * 1001)
    channel.basic_qos(prefetch_count=0)
    assert len(list(channel._messages("tasks", 1001, no_ack=False))) == 1001
    send(connection, "tasks", "urgent")
    assert channel.basic_get("tasks").payload == "urgent"


def test_a_message_on_its_last_attempt_comes_while_a_worker_holds_another_one(options: dict[str, Any]) -> None:
    options["ack_timeout"] = 0.4
    with kombu.Connection(transport=Transport, transport_options=options) as connection:
        send(connection, "tasks", "deadly")
        channel = connection.channel()
        killed = [channel._queue("tasks").consumer() for _ in range(4)]
        for consumer in killed:
            assert consumer.receive(1, wait=60.0)
        send(connection, "tasks", "waits for its time")
        assert channel.basic_get("tasks").payload == "waits for its time"
        wait_until(lambda: channel.basic_get("tasks") is not None)


def test_an_ack_that_fails_does_not_take_up_the_prefetch(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    send(connection, "tasks", "task")
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    message = channel.basic_get("tasks")

    def fail(*_: object) -> None:
        raise streamkit.Unavailable("the storage does not answer")

    monkeypatch.setattr("streamkit.groups.Consumer.ack", fail)
    with pytest.raises(streamkit.Unavailable):
        message.ack()
    assert channel.qos.can_consume()


def test_a_message_that_is_requeued_each_time_becomes_a_dead_letter(connection: Any, options: dict[str, Any]) -> None:
    """With task_reject_on_worker_lost, Celery requeues a task that kills its worker."""
    send(connection, "tasks", "poison")
    channel = connection.channel()
    for attempt in range(5):
        message = channel.basic_get("tasks")
        assert message.delivery_info.get("redelivered", False) == (attempt > 0)
        message.requeue()
    assert channel.basic_get("tasks") is None
    with streamkit.connect(options["url"]) as client:
        [dead] = client.store(options["store"]).queue("kombu.tasks").dead_letters()
    assert dead.attempt == 5


def test_messages_that_were_prefetched_go_back_as_often_as_workers_stop(options: dict[str, Any]) -> None:
    with kombu.Connection(transport=Transport, transport_options=options) as connection:
        send(connection, "tasks", "task")
    for _ in range(7):
        with kombu.Connection(transport=Transport, transport_options=options) as connection:
            message = connection.default_channel.basic_get("tasks")
            assert message.payload == "task"


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_a_queue_that_is_unbound_gets_nothing_more(options: dict[str, Any], kind: str) -> None:
    exchange = kombu.Exchange("orders", type=kind)
    with kombu.Connection(transport=Transport, transport_options=options) as connection:
        for name in ("left", "kept"):
            kombu.Queue(name, exchange, routing_key="new")(connection.channel()).declare()
        kombu.Queue("left")(connection.channel()).unbind_from(exchange, "new")
        with kombu.Connection(transport=Transport, transport_options=options) as other:
            other.Producer(exchange=exchange).publish("order", routing_key="new")
            assert other.default_channel.basic_get("left") is None
            assert other.default_channel.basic_get("kept").payload == "order"


def test_the_changes_of_an_exchange_do_not_grow_for_ever(options: dict[str, Any]) -> None:
    exchange = kombu.Exchange("replies", type="direct")
    with kombu.Connection(transport=Transport, transport_options=options) as connection:
        kombu.Queue("kept", exchange, routing_key="kept")(connection.channel()).declare()
        channel = connection.channel()
        for number in range(150):
            channel._queue_bind("replies", str(number), None, "caller")
            channel.queue_unbind("caller", "replies", str(number))
        assert channel.get_table("replies") == [("kept", "", "kept")]
        channel.queue_unbind("kept", "replies", "kept")
        assert channel.get_table("replies") == []
    with streamkit.connect(options["url"]) as client:
        assert len(list(client.store(options["store"]).consume_segment("kombu", "exchange/replies", gaps="skip"))) < 150


class Clock:
    """The transport's clock: real time plus the seconds that a test has added."""

    added = 0.0

    def time(self) -> float:
        return time.time() + self.added

    def monotonic(self) -> float:
        return time.monotonic() + self.added


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("streamkit.adapters.kombu.time", made)
    return made


def spaces(options: dict[str, Any]) -> list[str]:
    with streamkit.connect(options["url"]) as client:
        return list(client.store(options["store"]).get_spaces())


@pytest.mark.parametrize("kind", ["fanout", "topic"])
def test_queues_of_a_process_that_was_killed_are_removed(options: dict[str, Any], kind: str, clock: Clock) -> None:
    exchange = kombu.Exchange("events", type=kind)

    def bound(name: str, connection: Any, **settings: Any) -> Any:
        queue = kombu.Queue(name, exchange, routing_key="news", **settings)(connection.channel())
        queue.declare()
        return queue

    killed = kombu.Connection(transport=Transport, transport_options=options)
    bound("killed", killed, expires=0.001)
    kombu.Queue("caller", expires=0.001)(killed.channel()).declare()
    with kombu.Connection(transport=Transport, transport_options=options) as process:
        bound("kept", process)
        live = bound("live", process, expires=0.001)
        with process.Producer(exchange=exchange) as producer:
            producer.publish("first", routing_key="news")
            assert live.get(no_ack=True).payload == "first"
            producer.publish("second", routing_key="news")
            clock.added = 86_400.0
            assert live.get(no_ack=True).payload == "second"
            with kombu.Connection(transport=Transport, transport_options=options) as later:
                later.Producer(exchange=exchange).publish("third", routing_key="news")
            assert live.get(no_ack=True).payload == "third"
    assert spaces(options) == ["kombu", "kombu.kept", "kombu.live"]
    send(killed, "caller", "a late reply")
    clock.added *= 2
    for _ in range(2):
        with kombu.Connection(transport=Transport, transport_options=options) as later:
            later.Producer(exchange=exchange).publish("fourth", routing_key="news")
        clock.added += 86_400.0
    assert spaces(options) == ["kombu", "kombu.kept"]
    with streamkit.connect(options["url"]) as client:
        store = client.store(options["store"])
        uses = store.segment_statuses("kombu", prefix="queue/")
        assert [use.segment for use in uses if use.first_sequence <= use.last_sequence and use.last_sequence] == []


def test_a_broadcast_queue_of_a_process_that_was_killed_is_removed(options: dict[str, Any], clock: Clock) -> None:
    killed = kombu.Connection(transport=Transport, transport_options=options)
    queue = Broadcast("news")(killed.channel())
    queue.declare()
    with kombu.Connection(transport=Transport, transport_options=options) as process:
        process.Producer(exchange=queue.exchange).publish("first")
    assert f"kombu.{queue.name}" in spaces(options)
    clock.added = 90_000.0
    with kombu.Connection(transport=Transport, transport_options=options) as process:
        process.Producer(exchange=queue.exchange).publish("second")
    assert spaces(options) == ["kombu"]


def test_a_queue_of_one_process_goes_when_the_process_closes(options: dict[str, Any]) -> None:
    """The reply queue of a caller with `rpc://`."""
    with kombu.Connection(transport=Transport, transport_options=options) as caller:
        kombu.Queue("declared", auto_delete=True)(caller.channel()).declare()
        send(caller, "declared", "message")
        queue = kombu.Queue("caller", auto_delete=True, expires=60.0)(caller.channel())
        queue.declare()
        send(caller, "caller", "answer")
        assert queue.get(no_ack=True).payload == "answer"
    assert spaces(options) == ["kombu", "kombu.declared"]


@pytest.mark.parametrize("bound", [False, True])
def test_a_queue_is_deleted_by_a_process_that_did_not_declare_it(options: dict[str, Any], bound: bool) -> None:
    exchange = kombu.Exchange("orders", type="direct") if bound else ""
    with kombu.Connection(transport=Transport, transport_options=options) as connection:
        kombu.Queue("tasks", exchange, routing_key="tasks")(connection.channel()).declare()
        send(connection, "tasks", "task")
        connection.transport.state.clear()  # as in another process
        kombu.Queue("tasks")(connection.channel()).delete(if_empty=True)
        assert "kombu.tasks" in spaces(options)
        kombu.Queue("tasks")(connection.channel()).delete()
        assert "kombu.tasks" not in spaces(options)
        if bound:
            assert connection.channel().get_table("orders") == []


def test_a_consumer_and_a_producer_go_on_when_another_process_deletes_their_queue(
    options: dict[str, Any], connection: Any
) -> None:
    taken: list[str] = []
    send(connection, "tasks", "first")
    channel = connection.channel()
    consumer = kombu.Consumer(
        channel, kombu.Queue("tasks"), callbacks=[lambda body, _: taken.append(body)], no_ack=True
    )
    consumer.consume()
    connection.drain_events(timeout=60)
    for body in ("second", "third"):
        with kombu.Connection(transport=Transport, transport_options=options) as other:
            kombu.Queue("tasks")(other.channel()).delete()
        send(connection, "tasks", body)
        connection.drain_events(timeout=60)
    assert taken == ["first", "second", "third"]


def test_a_queue_that_another_process_deleted_is_declared_again(options: dict[str, Any], connection: Any) -> None:
    channel = connection.channel()
    with kombu.Connection(transport=Transport, transport_options=options) as other:
        for again in range(3):
            assert channel.queue_declare("tasks").message_count == 0
            send(connection, "tasks", "first", "second")
            assert channel.queue_declare("tasks").message_count == 2
            kombu.Queue("tasks")(other.channel()).delete()
            if again:
                send(other, "tasks", "theirs")
                assert channel.queue_declare("tasks").message_count == 1
                kombu.Queue("tasks")(other.channel()).delete()


_FORK = """
import os, sys
import kombu
from streamkit.adapters.kombu import Transport
options = {"url": sys.argv[1], "store": sys.argv[2]}
connection = kombu.Connection(transport=Transport, transport_options=options)
with connection.Producer() as producer:
    producer.publish("task", routing_key="tasks", exchange="")
channel = connection.channel()
message = channel.basic_get("tasks")
child = os.fork()
if not child:
    connection.close()
    os._exit(0)
os.waitpid(child, 0)
with kombu.Connection(transport=Transport, transport_options=options) as other:
    print(other.channel().basic_get("tasks"))
message.ack()
connection.close()
"""


def test_a_forked_process_that_closes_gives_nothing_of_its_parent_back(options: dict[str, Any]) -> None:
    command = [sys.executable, "-c", _FORK, options["url"], options["store"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "None\n"
    assert "another consumer" not in done.stderr
