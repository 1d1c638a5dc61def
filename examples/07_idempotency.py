"""The same request twice, as queues and web hooks deliver it: written once, answered twice."""

from __future__ import annotations

import tempfile
from uuid import uuid4

import streamkit
from streamkit import Record, Store, TransactionIdMismatch


def on_message(store: Store, message_id: str, body: bytes) -> int:
    """Safe to call again with the same message, from any process, also after a crash between write and answer."""
    return store.produce("inbox", "mails", [Record(body)], idempotency_key=message_id).last_sequence


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        print("first delivery: sequence", on_message(store, "message-1", b"hello"))
        print("next message:   sequence", on_message(store, "message-2", b"and goodbye"))
        print("delivered again: sequence", on_message(store, "message-1", b"hello"))
        print("entries:", len(list(store.consume_segment("inbox", "mails"))))

        try:
            on_message(store, "message-1", b"other content")
        except TransactionIdMismatch as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    main()
