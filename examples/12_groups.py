"""Three groups read one space: shared by two consumers, by key, and with a standby that takes over."""

from __future__ import annotations

import tempfile
from uuid import uuid4

import streamkit
from streamkit import Record


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        for step in ("placed", "paid", "sent"):
            for order in ("order-1", "order-2"):
                store.produce("orders", order, [Record(step.encode())])

        billing = store.group("orders", "billing")
        with billing.consumer("one") as one, billing.consumer("two") as two:
            first, second = one.receive(3), two.receive(3)
            print("shared:", len(first), "and", len(second), "entries, none twice")
            for delivery in first:
                one.ack(delivery)
        print("handed back:", billing.status().ready)

        by_order = store.group("orders", "shipping", mode="key_shared")
        with by_order.consumer() as consumer:
            while deliveries := consumer.receive(100):
                for delivery in deliveries:
                    if delivery.entry.segment == "order-1":
                        print("in order:", delivery.entry.payload.decode())
                    consumer.ack(delivery)

        audit = store.group("orders", "audit", mode="exclusive")
        leader, standby = audit.consumer("leader"), audit.consumer("standby")
        print("leader:", len(leader.receive(100)), "standby:", len(standby.receive(100)))
        leader.close()
        print("after it ended, standby:", len(standby.receive(100, wait=5)))
        print("groups:", store.get_groups("orders"))


if __name__ == "__main__":
    main()
