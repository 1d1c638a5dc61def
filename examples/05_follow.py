"""Follow a space live: first what is there, then what comes, until nothing has come for a while."""

from __future__ import annotations

import tempfile
import threading
from uuid import uuid4

import streamkit
from streamkit import Record, Store


def chat(store: Store) -> None:
    for number in range(1, 4):
        store.produce("chat", "lobby", [Record(f"hello {number}".encode())])


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        store.produce("chat", "lobby", [Record(b"written before")])

        writer = threading.Thread(target=chat, args=(store,))  # it could be in any process
        writer.start()
        for entry in store.follow_space("chat", timeout=2):  # seconds of silence; without: for ever
            print(f"{entry.segment} #{entry.sequence} {entry.payload.decode()}")
        writer.join()


if __name__ == "__main__":
    main()
