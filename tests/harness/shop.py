"""The store of a shop with all kinds of data, for the pages of the server's console."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from collections.abc import Iterable
from typing import Any

import streamkit
from streamkit import Entry, Record, Store

__all__ = ["HOSTILE", "fill"]

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
_STEPS = ("placed", "paid", "packed", "shipped")
_TOWNS = ("Lisbon", "Oslo", "Graz", "Utrecht", "Cork")


class Totals(streamkit.View):
    """Cents by town, and a table of statuses."""

    version = 1

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table orders (id text primary key, town text, status text, cents int) strict")

    def apply(self, db: sqlite3.Connection, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if not entry.payload.startswith(b'{"status"'):
                continue
            order: dict[str, Any] = json.loads(entry.payload)
            db.execute("insert or ignore into orders values (?, '', '', 0)", (entry.segment,))
            for name in {"town", "status", "cents"} & order.keys():
                db.execute(f"update orders set {name} = ? where id = ?", (order[name], entry.segment))


class Broken(streamkit.View):
    """Raises at the first entry."""

    version = 1

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table revenue (day text)")

    def apply(self, db: sqlite3.Connection, entries: Iterable[Entry]) -> None:
        raise ValueError("no exchange rate for the currency XTS")


def _order(number: int, step: str, chance: random.Random) -> dict[str, Any]:
    if step == "placed":
        lines = [
            {"item": f"sku-{chance.randrange(100, 999)}", "count": chance.randrange(1, 5)}
            for _ in range(chance.randrange(1, 4))
        ]
        return {
            "status": "placed",
            "customer": {"id": number * 7, "name": f"Customer {number}"},
            "town": chance.choice(_TOWNS),
            "lines": lines,
            "cents": chance.randrange(500, 20_000),
        }
    more = {"paid": {"payment": {"method": "card", "reference": f"P-{number:05}"}}, "packed": {"boxes": 1}}
    return {"status": step, **more.get(step, {"carrier": "post", "tracking": f"T{number:08}"})}


def fill(store: Store, orders: int = 60, hostile: bool = False) -> None:
    """Write it: orders with gaps, a group and a queue with dead letters, views and routes, and one paused route."""
    chance = random.Random(7)
    for at, step in enumerate(_STEPS):
        for number in range(1, orders + 1 - at * (orders // 6)):
            record = Record(json.dumps(_order(number, step, chance)).encode(), {"event": step, "by": "web"})
            store.produce("orders", f"order-{number:03}", [record])
    patch = [{"op": "replace", "path": "/status", "value": "returned"}, {"op": "add", "path": "/refund", "value": 450}]
    store.produce("orders", "order-001", [Record(json.dumps(patch).encode(), {"event": "returned"})])
    store.erase("orders", "order-003", first=2, last=2)
    if hostile:
        named = {"event": HOSTILE, HOSTILE: "1"}
        store.produce("orders", HOSTILE, [Record(json.dumps({HOSTILE: HOSTILE}).encode(), named)])
        store.produce("orders", HOSTILE, [Record(HOSTILE.encode(), named), Record(b"\xff\x00", named)])
        store.produce(HOSTILE, "javascript:alert(1)", [Record(b'{"__proto__": {"hacked": 1}}', named)])
    numbers = (Record(b'{"celsius": %d}' % (n % 40)) for n in range(300))
    store.produce("sensors", "cellar", numbers)
    store.trim("sensors", "cellar", keep_entries=120)
    store.create_space("empty")
    _consume(store)
    _follow(store)


def _consume(store: Store) -> None:
    group = store.group("orders", "billing", max_deliveries=1)
    with group.consumer("worker-1") as consumer:
        deliveries = consumer.receive(limit=12, wait=0.0)
        for delivery in deliveries[:8]:
            consumer.ack(delivery)
        for delivery in deliveries[8:10]:
            consumer.reject(delivery, "the card was declined")
    queue = store.queue("emails", max_deliveries=1)
    for number in range(30):
        queue.put(json.dumps({"to": f"customer-{number}@example.org", "order": number + 1}).encode())
    with queue.consumer("mailer") as mailer:
        for at, job in enumerate(mailer.receive(limit=9, wait=0.0)):
            if at % 3:
                mailer.ack(job)
            else:
                mailer.reject(job, "550 mailbox unavailable")


def _follow(store: Store) -> None:
    with contextlib.closing(store.view("orders-by-town", Totals(), spaces=["orders"])) as view:
        view.catch_up()
    broken = store.view("revenue", Broken(), spaces=["sensors"])
    with contextlib.closing(broken), contextlib.suppress(streamkit.StreamkitError, ValueError):
        broken.catch_up()
    with contextlib.closing(store.route("audit", source="sensors", target="audit")) as audit:
        audit.catch_up()

    def refuse(entry: Entry) -> bytes:
        raise KeyError("tax_id")

    invoices = store.route("invoices", source="orders", target="invoices", transform=refuse)
    with contextlib.closing(invoices), contextlib.suppress(streamkit.StreamkitError, KeyError):
        invoices.catch_up()
