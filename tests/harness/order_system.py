"""The order system as one of many processes: payments with keys of their own, a process manager, a view, a route."""

from __future__ import annotations

import random
import sys

import streamkit
from streamkit.eventsourcing import Aggregate, DomainEvent, ProcessManager, Repository, event
from streamkit.views import OpenView, Reduce

__all__ = ["ORDERS", "Account", "Order", "booking", "open_view", "work"]

ORDERS = 5


class Order(Aggregate):
    paid: int
    payments: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.paid = 0
        self.payments = []

    @event
    def pay(self, key: str, cents: int) -> None:
        if key in self.payments:
            raise ValueError("paid twice")
        self.payments.append(key)
        self.paid += cents


class Account(Aggregate):
    booked: int

    def __init__(self) -> None:
        super().__init__()
        self.booked = 0

    @event
    def book(self, order: str, cents: int) -> None:
        self.booked += cents


def booking(store: streamkit.Store) -> ProcessManager:
    """A process manager that books each payment once, on the account of its order."""
    accounts = Repository(store, "accounts", Account)

    def book(paid: DomainEvent) -> None:
        cents = paid.arguments["cents"]
        paid.execute(accounts, paid.id, lambda account: account.book(paid.id, cents), retries=1000)

    return ProcessManager(
        "booking", Repository(store, "orders", Order), {"pay": book}, ack_timeout=1.0, max_deliveries=1000
    )


def open_view(store: streamkit.Store, url: str) -> OpenView:
    def total(state: dict[str, int], entry: streamkit.Entry) -> dict[str, int]:
        state[entry.segment] = state.get(entry.segment, 0) + 3
        return state

    return store.view("paid", Reduce(total, {}), ["orders"], url.removeprefix("file://") + "-paid.sqlite")


def work(url: str, id: str, name: str, payments: int) -> None:
    """Make all payments of `name` from the first one, also those that were made before."""
    with streamkit.connect(url) as client:
        store = client.store(id)
        orders = Repository(store, "orders", Order, snapshot_every=7)
        view, route, manager = open_view(store, url), store.route("audit", "orders", "audit"), booking(store)
        for at in range(payments):
            key = f"{name}/{at}"
            order = f"order-{random.Random(key).randrange(ORDERS)}"
            orders.execute(order, lambda o, key=key: o.pay(key, 3), retries=1000, idempotency_key=key)  # type: ignore[misc]
            if at % 5 == 0:
                view.catch_up()
                route.catch_up()
                manager.catch_up()


if __name__ == "__main__":
    work(*sys.argv[1:4], int(sys.argv[4]))
    print("done")
