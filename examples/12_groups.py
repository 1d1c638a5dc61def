"""Three groups read one space: shared by two consumers, by key, and with a standby that takes over."""

from __future__ import annotations

import tempfile
from uuid import uuid4

import streamkit
from streamkit import Record, Store


def place(store: Store) -> None:
    """Write three steps of two orders."""
    for step in ("placed", "paid", "sent"):
        for order in ("order-1", "order-2"):
            store.produce("orders", order, [Record(step.encode())])


def share(store: Store) -> tuple[int, int]:
    """Receive with two consumers; the first one acknowledges. The number of entries that each has received."""
    billing = store.group("orders", "billing")
    with billing.consumer("one") as one, billing.consumer("two") as two:
        first, second = one.receive(3), two.receive(3)
        for delivery in first:
            one.ack(delivery)
    return len(first), len(second)


def ship(store: Store, order: str) -> list[str]:
    """Handle the steps of all orders, those of one order in sequence. The steps of `order`."""
    steps = []
    with store.group("orders", "shipping", mode="key_shared").consumer() as consumer:
        while deliveries := consumer.receive(100):
            for delivery in deliveries:
                if delivery.entry.segment == order:
                    steps.append(delivery.entry.payload.decode())
                consumer.ack(delivery)
    return steps


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        place(store)
        first, second = share(store)
        print("shared:", first, "and", second, "entries, none twice")
        print("handed back:", store.group("orders", "billing").status().ready)

        for step in ship(store, "order-1"):
            print("in order:", step)

        audit = store.group("orders", "audit", mode="exclusive")
        leader, standby = audit.consumer("leader"), audit.consumer("standby")
        print("leader:", len(leader.receive(100)), "standby:", len(standby.receive(100)))
        leader.close()
        print("after it ended, standby:", len(standby.receive(100, wait=5)))
        print("groups:", store.get_groups("orders"))


if __name__ == "__main__":
    main()
