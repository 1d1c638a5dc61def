"""Keeping what is needed, and forgetting a person: retention, trim, erase, and what readers are told."""

from __future__ import annotations

import tempfile
from uuid import uuid4

import streamkit
from streamkit import EntriesRemoved, Gap, Record, Retention


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        store.set_retention("sensors", Retention(max_entries=3))
        for degrees in range(20, 26):
            store.produce("sensors", "roof", [Record(b"%d" % degrees)])
        print("kept of six:", [entry.payload for entry in store.consume_segment("sensors", "roof")])

        for user in ("user-1", "user-2"):
            store.produce("mails", user, [Record(b"to " + user.encode(), {"subject": user})])
        store.produce("mails", "newsletter", [Record(b"read by user-1", {"subject": "user-1"}), Record(b"read by all")])

        print("would be erased:", store.erase("mails", metadata={"subject": "user-1"}, dry_run=True).entries)
        report = store.erase("mails", metadata={"subject": "user-1"})
        print(f"erased: {report.entries} entries in {report.segments} segments")
        for found in store.consume_space("mails", gaps="yield"):
            print("  ", f"{found.segment}: {found.reason}" if isinstance(found, Gap) else found.payload)

        try:
            list(store.consume_segment("sensors", "roof", min_sequence=1))
        except EntriesRemoved as error:
            print("missing:", error.gap)
        print("entries in all:", store.size().entries)


if __name__ == "__main__":
    main()
