"""A store in which all kinds of clients are at work, and the conditions that hold at every point."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from harness.order_system import Account, Order, booking
from streamkit import Entry, Record, Store
from streamkit.eventsourcing import Repository
from streamkit.names import InternalName
from streamkit.store import inner
from streamkit.views import OpenView, Reduce

__all__ = ["At", "at_work", "figures", "finish", "prepare", "spaces_of", "work_once"]

ORDERS = 3
MAIL = "mail"


def view_of(store: Store, path: Path) -> OpenView:
    def total(state: dict[str, int], entry: Entry) -> dict[str, int]:
        state[entry.segment] = state.get(entry.segment, 0) + 3
        return state

    return store.view("paid", Reduce(total, {}), ["orders"], path)


def prepare(store: Store) -> None:
    """Spaces of several kinds, after removals and changes of settings."""
    store.create_space("orders", partitions=2, idempotency_window=3600.0)
    for at in range(12):
        store.produce(
            "old", f"s{at % 3}", [Record(b"%d" % at, {"subject": f"user-{at % 4}"})], idempotency_key=f"k{at}"
        )
    store.trim("old", "s0", before=3)
    store.erase("old", metadata={"subject": "user-1"})
    store.delete_segment("old", "s2")
    with store.lease("leader") as lease:
        store.produce("led", "s", [Record(b"by the leader")], lease=lease)


def work_once(store: Store, at: int) -> None:
    """One step of each client's work: pay, book, copy, send."""
    orders = Repository(store, "orders", Order, snapshot_every=4)
    orders.execute(f"order-{at % ORDERS}", lambda order: order.pay(f"p{at}", 3), idempotency_key=f"p{at}")
    store.queue(MAIL, ack_timeout=1.0).put(b"mail %d" % at)
    if at % 2:
        booking(store).catch_up()
        store.route("audit", "orders", "audit").catch_up()
        send(store, 2)


def send(store: Store, limit: int) -> int:
    """Send mails: the effect is an entry, written once for each mail."""
    with store.queue(MAIL, ack_timeout=1.0).consumer() as consumer:
        deliveries = consumer.receive(limit=limit)
        for delivery in deliveries:
            store.produce("sent", "s", [Record(delivery.entry.payload)], idempotency_key=str(delivery.entry.trx.id))
            consumer.ack(delivery)
    return len(deliveries)


class At:
    """Threads at work, each with its own client. Each does as many steps as it is given: how much there is in the end
    does not depend on how slow the machine is."""

    def __init__(self, open_store: Callable[[], Store], works: list[Callable[[Store, int], Any]]) -> None:
        self._given = 0
        self._changed = threading.Condition()
        self.errors: list[BaseException] = []
        self.steps: Counter[int] = Counter()
        self.threads = [
            threading.Thread(target=self._work, args=(open_store, work, at)) for at, work in enumerate(works)
        ]

    def _work(self, open_store: Callable[[], Store], work: Callable[[Store, int], Any], at: int) -> None:
        try:
            store = open_store()
            while self._may_go_on(at):
                work(store, self.steps[at])
                with self._changed:
                    self.steps[at] += 1
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self.errors.append(error)
                self._changed.notify_all()

    def _may_go_on(self, at: int) -> bool:
        """Wait for a step. False if there are to be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._given < 0 or self.steps[at] < self._given)
            return self._given >= 0

    def give(self, steps: int) -> None:
        """Let each thread do so many more steps, and wait until one step is done."""
        with self._changed:
            before = self.steps.total()
            self._given += steps
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.errors or self.steps.total() > before)

    def wait(self) -> None:
        """Wait until all given steps are done."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.errors or all(self.steps[at] >= self._given for at in range(len(self.threads)))
            )

    def __enter__(self) -> At:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._given = -1
            self._changed.notify_all()
        for thread in self.threads:
            thread.join()


def at_work(open_store: Callable[[], Store]) -> At:
    def pay(store: Store, at: int) -> None:
        orders = Repository(store, "orders", Order, snapshot_every=4)
        orders.execute(f"order-{at % ORDERS}", lambda order: order.pay(f"t{at}", 3), idempotency_key=f"t{at}")
        store.queue(MAIL, ack_timeout=1.0).put(b"threaded %d" % at)

    return At(
        open_store,
        [
            pay,
            lambda store, at: booking(store).catch_up(),
            lambda store, at: (store.route("audit", "orders", "audit").catch_up(), send(store, 5)),
            lambda store, at: store.maintain() if at % 4 == 0 else store.segment_status("orders", "order-0"),
        ],
    )


def spaces_of(store: Store) -> list[str]:
    """The names of all spaces, internal ones included."""
    return list(inner(store).space_names())


def figures(store: Store) -> dict[str, Any]:
    """All that a user can ask of each space."""
    found: dict[str, Any] = {}
    for space in spaces_of(store):
        entries = list(store.consume_space(space, gaps="skip"))
        size = store.size(space)
        found[space] = {
            "entries": [(entry, entry.space_offset, entry.stream_id, entry.tier) for entry in entries],
            "segments": {name: store.segment_status(space, name) for name in store.get_segments(space)},
            "end": store.end_offset(space),
            # The files of a log on a local disk also hold rows that were deleted. A copy does not have these.
            "size": replace(size, tiers=tuple(tier for tier in size.tiers if tier.name != "log")),
            "last": store.peek(space, entries[-1].segment) if entries else None,
        }
        if not isinstance(space, InternalName):
            for group in store.get_groups(space):
                found[space][group] = store.group(space, group, **_SETTINGS.get((space, group), {})).status()
    found["keys"] = [store.lookup("old", f"k{at}") for at in range(12)]
    found["routes"] = store.get_routes()
    return found


_SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("orders", "booking"): {"mode": "key_shared", "ack_timeout": 1.0, "max_deliveries": 1000}
}


def finish(store: Store, path: Path, *, wait: bool = False) -> None:
    """Let every client complete its work. Then every effect must be there once. `wait`: a consumer may have received an
    entry without an acknowledgement."""
    manager = booking(store)
    if wait:
        manager.run(seconds=1.2)  # longer than a delivery belongs to its consumer
    assert (manager.catch_up().failed, manager.status().lag) == (0, 0)
    while send(store, 100):
        pass
    store.route("audit", "orders", "audit").catch_up()
    orders = {f"order-{at}": Repository(store, "orders", Order).load(f"order-{at}") for at in range(ORDERS)}
    accounts = Repository(store, "accounts", Account)
    assert {name: accounts.load(name).booked for name in orders} == {name: order.paid for name, order in orders.items()}
    for name, order in orders.items():
        assert len(order.payments) == len(set(order.payments)), "paid twice"
        copies = [entry.payload for entry in store.consume_segment("audit", name)]
        assert copies == [entry.payload for entry in store.consume_segment("orders", name)]
        fast = Repository(store, "orders", Order, snapshot_every=4).load(name)
        assert (fast.paid, fast.payments) == (order.paid, order.payments)
    sent = Counter(entry.payload for entry in store.consume_space("sent"))
    assert set(sent.values()) <= {1}, "sent twice"
    status = store.queue(MAIL, ack_timeout=1.0).status()
    assert (status.lag, status.pending, status.dead) == (0, 0, 0)
    assert status.acked == len(sent)
    with view_of(store, path) as view:
        view.catch_up()
        assert view.get() == {name: order.paid for name, order in orders.items() if order.paid}
    assert store.verify().ok
