"""Event sourcing by hand: one segment for each aggregate; its state is the fold of its events.

`streamkit.eventsourcing` does this for you: see 13_order_system.py.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import uuid4

import streamkit
from streamkit import Entry, Record, Store


@dataclass
class Cart:
    items: dict[str, int] = field(default_factory=dict)
    paid: bool = False
    sequence: int = 0

    @classmethod
    def load(cls, events: Iterable[Entry]) -> Cart:
        cart = cls()
        for entry in events:
            cart.apply(json.loads(entry.payload))
            cart.sequence = entry.sequence
        return cart

    def apply(self, event: dict[str, str]) -> None:
        match event:
            case {"type": "added", "item": item}:
                self.items[item] = self.items.get(item, 0) + 1
            case {"type": "paid"}:
                self.paid = True

    def add(self, item: str) -> dict[str, str]:
        if self.paid:
            raise ValueError("the cart is paid: nothing can be added")
        return {"type": "added", "item": item}


def save(store: Store, name: str, cart: Cart, *events: dict[str, str]) -> None:
    """Save the cart if it has not changed since it was loaded; else SequenceMismatch, and load it again."""
    records = [Record(json.dumps(event).encode()) for event in events]
    store.produce("carts", name, records, expected_sequence=cart.sequence)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        cart = Cart()
        save(store, "cart-7", cart, cart.add("tea"), cart.add("tea"), cart.add("pot"))

        cart = Cart.load(store.consume_segment("carts", "cart-7"))
        save(store, "cart-7", cart, {"type": "paid"})

        cart = Cart.load(store.consume_segment("carts", "cart-7"))
        print(cart)
        try:
            cart.add("cup")
        except ValueError as error:
            print(error)


if __name__ == "__main__":
    main()
