"""The examples, tested as a user tests a program: with the fixtures of the testing kit."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from streamkit import (
    EntriesRemoved,
    Fenced,
    LeaseNotAcquired,
    Record,
    SequenceMismatch,
    Store,
    TransactionIdMismatch,
    Unavailable,
)
from streamkit.eventsourcing import Repository
from streamkit.testing import ManualClock, given, happened
from streamkit.testing.named_faults import NamedFaults

ROOT = Path(__file__).parents[2]


def example(name: str) -> Any:
    """A fresh copy of an example, as a module."""
    spec = spec_from_file_location(f"example_{name.replace('/', '_')}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def function(name: str, store: Store) -> Any:
    """A function's module, with the test's store in place of the one that its environment names."""
    module = example(name)
    module.store = lambda: store
    return module


def payloads(store: Store, space: str, segment: str | None = None) -> list[bytes]:
    found = store.consume_space(space) if segment is None else store.consume_segment(space, segment)
    return [entry.payload for entry in found]


# -- writing --------------------------------------------------------------------------------------------------------


def test_a_withdrawal_happens_once_also_if_its_answer_is_lost(
    streamkit_store: Store, streamkit_faults: NamedFaults
) -> None:
    withdraw = example("02_expected_sequence").withdraw
    streamkit_store.produce("accounts", "alice", [Record(b"100")])
    streamkit_faults.next("lost_answer", "put")
    assert withdraw(streamkit_store, "alice", 70) == 30
    assert [call.kind for call in streamkit_faults.happened] == ["put"]
    assert payloads(streamkit_store, "accounts", "alice") == [b"100", b"-70"]
    with pytest.raises(ValueError, match="alice has 30, not 70"):
        withdraw(streamkit_store, "alice", 70)


def test_a_withdrawal_decides_anew_if_somebody_was_faster(
    streamkit_store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    withdraw = example("02_expected_sequence").withdraw
    streamkit_store.produce("accounts", "alice", [Record(b"100")])
    produce = streamkit_store.produce
    waiting = [lambda: produce("accounts", "alice", [Record(b"-50")])]

    def late(*arguments: Any, **options: Any) -> Any:
        if waiting:
            waiting.pop()()
        return produce(*arguments, **options)

    monkeypatch.setattr(streamkit_store, "produce", late)
    with pytest.raises(ValueError, match="alice has 50, not 70"):
        withdraw(streamkit_store, "alice", 70)
    assert "somebody else was at alice: expected 1, found 2" in capsys.readouterr().out


@pytest.mark.streamkit(remote=True)
def test_an_order_and_its_stock_are_written_together(streamkit_store: Store, streamkit_faults: NamedFaults) -> None:
    place = example("03_transactions").place
    streamkit_store.produce("shop", "stock-9", [Record(b"+10")])
    with pytest.raises(SequenceMismatch):
        place(streamkit_store, "order-43", "stock-9", 3, seen=7)
    streamkit_faults.next("lost_answer", "put")
    place(streamkit_store, "order-42", "stock-9", 3, seen=1)
    assert streamkit_faults.happened
    assert sorted(payloads(streamkit_store, "shop")) == [b"+10", b"-3", b"placed"]
    assert list(streamkit_store.get_segments("shop")) == ["order-42", "stock-9"]


def test_a_message_is_written_once_also_if_an_answer_is_lost_and_it_comes_again(
    streamkit_store: Store, streamkit_faults: NamedFaults, streamkit_clock: ManualClock
) -> None:
    on_message = example("07_idempotency").on_message
    streamkit_faults.next("lost_answer", "put", times=2)
    assert on_message(streamkit_store, "message-1", b"hello") == 1
    streamkit_clock.sleep(3600)
    assert on_message(streamkit_store, "message-1", b"hello") == 1
    with pytest.raises(TransactionIdMismatch):
        on_message(streamkit_store, "message-1", b"other content")
    assert payloads(streamkit_store, "inbox") == [b"hello"]
    assert streamkit_faults.happened


def test_a_cart_is_saved_once_also_if_an_answer_is_lost(streamkit_store: Store, streamkit_faults: NamedFaults) -> None:
    carts = example("06_event_sourcing")
    cart = carts.Cart()
    streamkit_faults.next("lost_answer", "put", times=2)
    carts.save(streamkit_store, "cart-7", cart, cart.add("tea"), {"type": "paid"})
    loaded = carts.Cart.load(streamkit_store.consume_segment("carts", "cart-7"))
    assert (loaded.items, loaded.paid, loaded.sequence) == ({"tea": 1}, True, 2)
    assert streamkit_faults.happened


# -- reading and forgetting -----------------------------------------------------------------------------------------


def test_pages_give_each_entry_once_whoever_writes_between_them(streamkit_store: Store) -> None:
    page = example("04_page_a_space").page
    for number in range(3):
        streamkit_store.produce("weather", f"city {number}", [Record(b"%d" % number)])
    first, offset = page(streamkit_store, "weather", None, 2)
    streamkit_store.produce("weather", "city 0", [Record(b"late")])
    second, offset = page(streamkit_store, "weather", offset, 2)
    assert first + second == ["0", "1", "2", "late"]
    assert page(streamkit_store, "weather", offset, 2) == ([], offset)


def test_a_follower_reads_the_chat_and_ends_after_the_silence(
    streamkit_store: Store, streamkit_clock: ManualClock
) -> None:
    example("05_follow").chat(streamkit_store)
    began = streamkit_clock.monotonic()
    heard = [entry.payload for entry in streamkit_store.follow_space("chat", timeout=2)]
    assert heard == [b"hello 1", b"hello 2", b"hello 3"]
    assert streamkit_clock.monotonic() - began >= 2


def test_a_person_is_forgotten_once_and_others_are_kept(streamkit_store: Store, streamkit_faults: NamedFaults) -> None:
    forgetting = example("10_forgetting")
    forgetting.send(streamkit_store)
    streamkit_faults.next("lost_answer", "put")
    assert forgetting.forget(streamkit_store, "user-1") == (2, 2)
    assert streamkit_faults.happened
    assert payloads(streamkit_store, "mails", "user-2") == [b"to user-2"]
    assert payloads(streamkit_store, "mails", "newsletter") == [b"read by all"]
    assert forgetting.forget(streamkit_store, "user-1") == (0, 0)


def test_the_last_three_measurements_are_kept(streamkit_store: Store) -> None:
    example("10_forgetting").measure(streamkit_store, range(20, 26))
    assert payloads(streamkit_store, "sensors", "roof") == [b"23", b"24", b"25"]
    with pytest.raises(EntriesRemoved):
        list(streamkit_store.consume_segment("sensors", "roof", min_sequence=1))


def test_delays_are_counted_once_after_the_view_is_opened_again(streamkit_store: Store, tmp_path: Path) -> None:
    flights = example("14_search_flights")
    counted = []
    for _ in range(2):
        flights.write(streamkit_store)
        with streamkit_store.view("delays", flights.Delays(), spaces=["departures"], path=tmp_path / "view") as view:
            view.catch_up()
            counted.append(view.db.execute("select flights, minutes from delays where carrier = 'UA'").fetchall())
    assert counted == [[(3, 18)], [(6, 36)]]


# -- leases, queues and groups --------------------------------------------------------------------------------------


def test_a_leader_that_wakes_up_too_late_writes_nothing(streamkit_store: Store, streamkit_clock: ManualClock) -> None:
    leases = example("08_leases")
    with streamkit_store.lease("reporter", ttl=600) as paused:
        with pytest.raises(LeaseNotAcquired):
            leases.lead(streamkit_store)
        streamkit_clock.sleep(601)
        assert leases.lead(streamkit_store) == 1
        with pytest.raises(Fenced):
            leases.report(streamkit_store, paused)
    assert payloads(streamkit_store, "reports") == [b"report"]


def test_emails_are_sent_by_priority_and_a_bad_one_is_a_dead_letter(
    streamkit_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    emails = example("11_queue")
    queue = emails.emails(streamkit_store)
    emails.enqueue(queue)
    report = queue.run(emails.send, "worker-1", seconds=10.0)
    assert (report.acked, report.failed) == (4, 2)
    sent = capsys.readouterr().out.splitlines()
    assert sent[0] == "sent: password reset attempt 1"
    assert sorted(sent[1:]) == [f"sent: {text} attempt 1" for text in ("newsletter 1", "newsletter 2", "reminder")]
    assert [letter.entry.payload for letter in queue.dead_letters()] == [b"nobody can read this"]


def test_a_reminder_comes_when_it_is_due_and_not_before(streamkit_store: Store, streamkit_clock: ManualClock) -> None:
    emails = example("11_queue")
    queue = emails.emails(streamkit_store)
    emails.enqueue(queue)
    with queue.consumer("worker-1") as consumer:
        for due in (False, True):
            found = consumer.receive(100)
            assert any(delivery.entry.payload == b"reminder" for delivery in found) is due
            streamkit_clock.sleep(1)


def test_an_email_is_queued_once_also_if_an_answer_is_lost(
    streamkit_store: Store, streamkit_faults: NamedFaults
) -> None:
    emails = example("11_queue")
    queue = emails.emails(streamkit_store)
    streamkit_faults.next("lost_answer", "put", times=3)
    emails.enqueue(queue)
    assert streamkit_faults.happened
    assert queue.status().lag == 5


def test_a_group_hands_back_what_a_consumer_left(streamkit_store: Store) -> None:
    groups = example("12_groups")
    groups.place(streamkit_store)
    assert groups.share(streamkit_store) == (3, 3)
    assert streamkit_store.group("orders", "billing").status().ready == 3


def test_an_order_is_shipped_in_sequence_also_if_its_consumer_was_lost(
    streamkit_store: Store, streamkit_clock: ManualClock
) -> None:
    groups = example("12_groups")
    groups.place(streamkit_store)
    lost = streamkit_store.group("orders", "shipping", mode="key_shared", ack_timeout=30.0).consumer("lost")
    order = lost.receive(1)[0].entry.segment
    assert groups.ship(streamkit_store, order) == []
    streamkit_clock.sleep(31)
    assert groups.ship(streamkit_store, order) == ["placed", "paid", "sent"]


# -- the order system -----------------------------------------------------------------------------------------------


def test_the_order_system_decides_and_sends_once(streamkit_store: Store) -> None:
    shop = example("13_order_system")
    tea = happened("line added", line=shop.Line("tea", 450))
    given(shop.Order, tea).when(lambda order: order.pay(450)).then(happened("paid", cents=450)).then_state(paid=450)
    given(shop.Order, tea).when(lambda order: order.pay(451)).then_raises(ValueError, "450 cents are due")
    paid = happened("paid", cents=450)
    given(shop.Order, tea, paid).when(lambda order: order.add(shop.Line("pot", 1))).then_raises(
        ValueError, "being paid"
    )
    orders = Repository(streamkit_store, "orders", shop.Order)
    shipments = Repository(streamkit_store, "shipments", shop.Shipment)
    outcome = given(shop.shipping(orders, shipments)).before("42", tea).when("42", paid)
    outcome.then(shipments, "today", happened("sent", order="42", items=1))


# -- functions in a cloud -------------------------------------------------------------------------------------------


@pytest.mark.streamkit(remote=True)
def test_a_function_answers_a_repeated_call_as_the_first(streamkit_store: Store, streamkit_faults: NamedFaults) -> None:
    module = function("aws_lambda/handler", streamkit_store)
    placed = {"order": "42", "sequence": 0, "event": {"type": "placed"}, "id": "a"}
    streamkit_faults.next("lost_answer", "put", times=2)
    assert module.handler(placed, None) == module.handler(placed, None) == {"statusCode": 200, "sequence": 1}
    assert streamkit_faults.happened
    assert module.handler({**placed, "id": "b"}, None) == {"statusCode": 409, "sequence": 1}
    assert payloads(streamkit_store, "orders") == [b'{"type": "placed"}']


def test_a_function_does_not_hide_that_the_storage_is_away(
    streamkit_store: Store, streamkit_faults: NamedFaults
) -> None:
    module = function("aws_lambda/handler", streamkit_store)
    streamkit_faults.next("unavailable", "put", times=100_000)
    with pytest.raises(Unavailable):
        module.handler({"order": "42", "sequence": 0, "event": {}, "id": "a"}, None)


@pytest.mark.streamkit(remote=True)
def test_the_messages_that_a_function_cannot_write_are_named_and_come_again(
    streamkit_store: Store, streamkit_faults: NamedFaults
) -> None:
    module = function("aws_lambda/sqs", streamkit_store)
    first, second = (
        {"messageId": id, "body": json.dumps({"order": "42", "event": {"type": id}})} for id in ("m1", "m2")
    )
    streamkit_faults.next("lost_answer", "put", times=2)
    assert module.handler({"Records": [first]}, None) == {"batchItemFailures": []}
    streamkit_faults.next("unavailable", "put", times=100_000)
    again = module.handler({"Records": [first, second]}, None)
    assert again == {"batchItemFailures": [{"itemIdentifier": "m2"}]}
    assert payloads(streamkit_store, "orders") == [b'{"type": "m1"}']


def test_a_scheduled_function_leads_again_when_a_lost_leader_has_had_its_time(
    streamkit_store: Store, streamkit_clock: ManualClock
) -> None:
    module = function("aws_lambda/scheduled", streamkit_store)
    streamkit_store.produce("orders", "order-1", [Record(b"{}")])
    with streamkit_store.lease("count-orders", ttl=600):
        assert module.handler({}, None) == {"ran": False, "because": "LeaseNotAcquired"}
        streamkit_clock.sleep(601)
        assert module.handler({}, None) == {"ran": True, "orders": 1}
    assert payloads(streamkit_store, "reports") == [b'{"orders": 1}']


def test_a_job_of_a_function_that_died_is_done_by_the_next(
    streamkit_store: Store, streamkit_clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    module = example("aws_lambda/jobs")
    queue = streamkit_store.queue("jobs", ack_timeout=90.0)
    module.queue = lambda: queue
    context = SimpleNamespace(aws_request_id="next", get_remaining_time_in_millis=lambda: 60_000)
    queue.put(b"resize 7")
    died = queue.consumer("died")
    assert len(died.receive(10)) == 1
    assert module.batch({}, context) == {"done": 0}
    streamkit_clock.sleep(91)
    assert module.drain({}, context) == {"done": 1, "failed": 0}
    assert capsys.readouterr().out == "resize 7\n"


@pytest.mark.streamkit(remote=True)
def test_the_azure_function_appends_once_and_reports_alone(
    streamkit_store: Store, streamkit_faults: NamedFaults
) -> None:
    pytest.importorskip("azure.functions")
    module = function("azure_functions/function_app", streamkit_store)
    body = {"sequence": 0, "event": {"type": "placed"}, "id": "a"}
    streamkit_faults.next("lost_answer", "put", times=2)
    assert module.append("42", body) == module.append("42", body) == (200, 1)
    assert streamkit_faults.happened
    report = next(one for one in module.app.get_functions() if one.get_function_name() == "report").get_user_function()
    with streamkit_store.lease("report", ttl=600):
        report(None)
    assert payloads(streamkit_store, "reports") == []
    report(None)
    assert payloads(streamkit_store, "reports") == [b"1"]
