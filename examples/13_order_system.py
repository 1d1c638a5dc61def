"""An order system: aggregates decide, a process manager sends, a projection answers, a route keeps an audit trail."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from uuid import uuid4

import msgspec

import streamkit
from streamkit import Entry, View
from streamkit.eventsourcing import Aggregate, DomainEvent, ProcessManager, Repository, event


class Line(msgspec.Struct, frozen=True):
    item: str
    cents: int


class Order(Aggregate):
    lines: list[Line]
    paid: int

    def __init__(self) -> None:
        super().__init__()
        self.lines = []
        self.paid = 0

    @property
    def due(self) -> int:
        return sum(line.cents for line in self.lines) - self.paid

    @event("line added")
    def add(self, line: Line) -> None:
        if self.paid:
            raise ValueError("it is being paid: nothing can be added")
        self.lines.append(line)

    @event("paid")
    def pay(self, cents: int) -> None:
        if not 0 < cents <= self.due:
            raise ValueError(f"{self.due} cents are due, not {cents}")
        self.paid += cents


class Shipment(Aggregate):
    sent: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.sent = []

    @event("sent")
    def send(self, order: str, items: int) -> None:
        self.sent.append(f"order {order}, {items} items")


def shipping(orders: Repository[Order], shipments: Repository[Shipment]) -> ProcessManager:
    """Send a paid order once, also after repeated deliveries and killed processes."""

    def ship(paid: DomainEvent) -> None:
        order = orders.load(paid.id, at=paid.version)  # as it was then
        if order.due == 0:
            paid.execute(shipments, "today", lambda shipment: shipment.send(paid.id, len(order.lines)))

    return ProcessManager("shipping", orders, {"paid": ship})


class Open(View):
    """The unpaid orders: a projection in SQL."""

    version = 1

    def __init__(self, orders: Repository[Order]) -> None:
        self.orders = orders

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table orders (id text primary key, due integer not null)")

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        for entry in entries:
            name, arguments = self.orders.event(entry)
            cents = arguments["line"].cents if name == "line added" else -arguments["cents"]
            db.execute(
                "insert into orders values (?, ?) on conflict do update set due = due + excluded.due",
                (entry.segment, cents),
            )


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        orders = Repository(store, "orders", Order, snapshot_every=100)
        orders.execute("42", lambda order: order.add(Line("tea", 450)))
        orders.execute("42", lambda order: order.add(Line("pot", 2400)))
        orders.execute("43", lambda order: order.add(Line("cup", 900)))
        for _ in range(2):  # delivered twice, executed once
            orders.execute("42", lambda order: order.pay(1000), idempotency_key="payment 7001")
        try:
            orders.execute("42", lambda order: order.add(Line("tray", 100)))
        except ValueError as error:
            print("refused:", error)
        print("order 42 as it was:", orders.load("42", at=2).due, "and is:", orders.load("42").due)

        shipments = Repository(store, "shipments", Shipment)
        manager = shipping(orders, shipments)
        orders.execute("42", lambda order: order.pay(1850))
        manager.catch_up()
        manager.group.seek("beginning")  # everything is delivered again
        manager.catch_up()
        print("sent:", shipments.load("today").sent)

        with store.view("open", Open(orders), spaces=["orders"]) as projection:
            projection.wait_for(store.end_offset("orders"))
            for order, due in projection.db.execute("select id, due from orders order by due desc"):
                print(f"order {order}: {due} cents are due")

        paid = store.route("audit", source="orders", target="audit", where=lambda e: e.metadata["event"] == "paid")
        with paid as route:
            route.catch_up()
        for entry in store.consume_space("audit"):
            origin = entry.metadata["streamkit.from"].partition("/")[2].partition("?")[0]
            print("audit:", origin, entry.payload.decode())


if __name__ == "__main__":
    main()
