"""Several segments in one commit: all of it or nothing, for every reader at every moment."""

from __future__ import annotations

import tempfile
from uuid import uuid4

import streamkit
from streamkit import Record, SequenceMismatch, Store


def place(store: Store, order: str, item: str, count: int, seen: int) -> None:
    """Take goods from the stock and write the order, if the stock is still at the sequence that the caller has seen."""
    with store.transaction("shop") as trx:
        trx.produce(order, [Record(b"placed")])
        trx.produce(item, [Record(b"%d" % -count)], expected_sequence=seen)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        with store.transaction("shop") as trx:
            trx.produce("stock-9", [Record(b"+10")], expected_sequence=0)
            trx.produce("order-42", [Record(b"placed")])

        try:
            place(store, "order-43", "stock-9", 3, seen=7)  # it is 1
        except SequenceMismatch as error:
            print(f"neither was written: {error}")

        try:
            with store.transaction("shop") as trx:
                trx.produce("order-44", [Record(b"placed")])
                raise RuntimeError("changed my mind")
        except RuntimeError as error:
            print(f"nor was this: {error}")

        print("segments:", *store.get_segments("shop"))
        for entry in store.consume_space("shop"):
            print(f"transaction {entry.trx.number}: {entry.segment} #{entry.sequence} {entry.payload.decode()}")


if __name__ == "__main__":
    main()
