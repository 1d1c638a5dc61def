"""Keeping the entries that are needed, and forgetting a person: retention, trim, erase, and the reports to readers."""

from __future__ import annotations

import tempfile
from uuid import uuid4

import streamkit
from streamkit import EntriesRemoved, Gap, Record, Retention, Store


def measure(store: Store, degrees: range) -> None:
    """Write measurements, and keep the last three."""
    store.set_retention("sensors", Retention(max_entries=3))
    for one in degrees:
        store.produce("sensors", "roof", [Record(b"%d" % one)])


def send(store: Store) -> None:
    """Write mails to two users, and a newsletter that names one of them."""
    for user in ("user-1", "user-2"):
        store.produce("mails", user, [Record(b"to " + user.encode(), {"subject": user})])
    store.produce("mails", "newsletter", [Record(b"read by user-1", {"subject": "user-1"}), Record(b"read by all")])


def forget(store: Store, user: str) -> tuple[int, int]:
    """Erase all that is about a user. The numbers of entries and of segments."""
    report = store.erase("mails", metadata={"subject": user})
    return report.entries, report.segments


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        measure(store, range(20, 26))
        print("kept of six:", [entry.payload for entry in store.consume_segment("sensors", "roof")])

        send(store)
        print("would be erased:", store.erase("mails", metadata={"subject": "user-1"}, dry_run=True).entries)
        entries, segments = forget(store, "user-1")
        print(f"erased: {entries} entries in {segments} segments")
        for found in store.consume_space("mails", gaps="yield"):
            print("  ", f"{found.segment}: {found.reason}" if isinstance(found, Gap) else found.payload)

        try:
            list(store.consume_segment("sensors", "roof", min_sequence=1))
        except EntriesRemoved as error:
            print("missing:", error.gap)
        print("entries in all:", store.size().entries)


if __name__ == "__main__":
    main()
