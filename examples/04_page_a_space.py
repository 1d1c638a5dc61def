"""Read a space page by page, as an HTTP API would: the offset goes out with a page and comes back for the next.

Every entry comes exactly once, also while others write.
"""

from __future__ import annotations

import tempfile
from uuid import uuid4

import streamkit
from streamkit import Record, Store


def page(store: Store, space: str, after: str | None, size: int) -> tuple[list[str], str | None]:
    """The texts of one page, and the offset to ask for the next one with."""
    entries = list(store.consume_space(space, offset=after, limit=size))
    return [entry.payload.decode() for entry in entries], entries[-1].space_offset.hex() if entries else after


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        for day in ("mon", "tue", "wed"):
            for city in ("oslo", "rome"):
                store.produce("weather", city, [Record(f"{city} {day}".encode())])

        offset: str | None = None
        while True:
            texts, offset = page(store, "weather", offset, 4)
            if not texts:
                break
            print(texts)
            if texts[-1] == "rome tue":
                store.produce("weather", "bonn", [Record(b"bonn, late, but not missed")])
        print("the reader waits at", offset)


if __name__ == "__main__":
    main()
