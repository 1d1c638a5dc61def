"""Append records to a segment, and read them back: all of them, a range, the latest, the whole space."""

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
        status = store.produce("orders", "order-42", [Record(b'{"placed": 3}'), Record(b'{"paid": true}')])
        print(f"order-42 is at sequence {status.last_sequence}")

        store.produce("orders", "order-43", [Record(b'{"placed": 1}', metadata={"by": "web"})])
        store.produce("orders", "order-42", [Record(b'{"shipped": true}')])

        for entry in store.consume_segment("orders", "order-42"):
            print(entry.sequence, entry.payload.decode())

        (second,) = store.consume_segment("orders", "order-42", min_sequence=2, max_sequence=2)
        print("the second alone:", second.payload.decode())
        print("the latest:", store.peek("orders", "order-42").payload.decode())

        print("the space, in the order of its commits:")
        for entry in store.consume_space("orders"):
            print(f"  {entry.segment} #{entry.sequence}", entry.payload.decode(), entry.metadata)

        print("spaces:", *store.get_spaces(), "segments:", *store.get_segments("orders"))


if __name__ == "__main__":
    main()
