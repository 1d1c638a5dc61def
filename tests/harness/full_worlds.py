"""A store in which every place that keeps data of entries holds those of one person, and an erasure of all of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from uuid import UUID

from harness.deep_search import files_below, found_in
from harness.worlds import World
from streamkit import Entry, Record, Retention, Store
from streamkit.eventsourcing import Aggregate, Repository, event
from streamkit.groups import Delivery
from streamkit.views import Index

__all__ = ["FullWorld"]

SPACE, ORDERS, QUEUE = "chat", "orders", "mails"
_ANN, _BOB = "{c}/user-17", "{c}/user-2"


class Order(Aggregate):
    """An aggregate whose snapshots hold its notes."""

    notes: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.notes = []

    @event
    def note(self, text: str) -> None:
        self.notes.append(text)


class FullWorld:
    """Log, packs, index, archive, groups, dead letters, a queue, a route, snapshots and published views."""

    def __init__(self, world: World, id: UUID, tag: str | None = None, kept: str | None = None) -> None:
        self.world, self.id = world, id
        self.tag, self.kept = tag or os.urandom(12).hex(), kept or os.urandom(12).hex()
        self._views = world.path / f"views-{id}"

    def fill(self, store: Store, archived: bool) -> None:
        tag = self.tag
        store.create_space(SPACE, partitions=2)
        orders = Repository(store, ORDERS, Order, snapshot_every=2)
        for turn in range(3):
            for size in (0, 700, 20_000):
                filler = os.urandom(size)
                store.produce(
                    SPACE,
                    f"user-17/{turn}",
                    [Record(tag.encode() + filler, {"note": tag})],
                    idempotency_key=f"{tag} {turn} {size}",
                )
                with store.transaction(SPACE) as trx:
                    for user, text in ((_ANN, tag), (_BOB, self.kept)):
                        trx.produce(user, [Record(text.encode() + filler, {"subject": user, "note": text})])
            for user, text in ((_ANN, tag), (_BOB, self.kept)):
                for at in range(3):
                    orders.execute(user, lambda order, at=at, text=text: order.note(f"{text} {at}"))  # type: ignore[misc]
                store.queue(QUEUE, max_deliveries=1).put(text.encode(), key=user)
            self._groups(store)
            if turn == 0:
                store.trim(SPACE, _ANN, before=2)
                store.delete_segment(SPACE, "user-17/0")
            if archived and turn < 2:
                store.archive(SPACE)
                store.archive(ORDERS)
            store.maintain()
        store.set_retention(SPACE, Retention(max_entries=7))
        if archived:
            self.view(store, publish=True)

    def _groups(self, store: Store) -> None:
        def fail(delivery: Delivery) -> None:
            raise ValueError(delivery.entry.payload[:24].decode())

        store.group(SPACE, "dead", max_deliveries=1).run(fail, drain=True)
        store.group(SPACE, "waits", max_deliveries=9, retry_delay=3600.0).run(fail, drain=True)
        store.queue(QUEUE, max_deliveries=1).run(fail, drain=True)
        store.route("copies", SPACE, "nowhere", fail_at).catch_up()

    def view(self, store: Store, *, publish: bool = False) -> None:
        with store.view("words", Index(lambda entry: entry.payload[:24].decode()), [SPACE], self._views / "v") as view:
            view.catch_up()
            if publish:
                view.publish()

    def erase(self, store: Store) -> tuple[str, ...]:
        """Erase the person everywhere, and return what was not reached."""
        reports = [
            store.erase(SPACE, "*user-17*"),
            store.erase(SPACE, metadata={"subject": _ANN}),
            store.erase(ORDERS, _ANN),
            store.erase(QUEUE, metadata={"streamkit.key": _ANN}),
        ]
        return tuple(text for report in reports for text in report.unreached)

    def is_said(self, store: Store) -> bool:
        """True if no reader gets an entry of the person."""
        found = [
            entry
            for space in (SPACE, ORDERS, QUEUE)
            for entry in store.consume_space(space, gaps="skip")
            if self.tag.encode() in entry.payload
        ]
        return not found

    def stored(self) -> Iterator[tuple[str, bytes]]:
        yield from self.world.stored()
        yield from files_below(self._views)

    def check(self, store: Store) -> None:
        with contextlib.suppress(ImportError):
            self.view(store)
        stored = list(self.stored())
        assert found_in(stored, self.tag.encode()) == []
        assert found_in(stored, self.kept.encode()), "the search finds nothing at all"
        assert self.is_said(store)
        report = store.verify()
        assert report.ok, report.findings[:3]
        assert len(list(store.consume_segment(SPACE, _BOB, gaps="skip"))) == 7
        assert len(Repository(store, ORDERS, Order).load(_BOB).notes) == 9


def fail_at(entry: Entry) -> bool:
    raise ValueError(entry.payload[:24].decode())
