"""Optimistic concurrency: name the last sequence that you have seen, and lose cleanly to a faster writer."""

from __future__ import annotations

import tempfile
from uuid import uuid4

import streamkit
from streamkit import Record, SequenceMismatch, Store


def withdraw(store: Store, account: str, amount: int) -> int:
    """Read, decide, append; decide again if the account has changed meanwhile. The new balance."""
    while True:
        balance = seen = 0
        for entry in store.consume_segment("accounts", account):
            balance += int(entry.payload)
            seen = entry.sequence
        if balance < amount:
            raise ValueError(f"{account} has {balance}, not {amount}")
        try:
            store.produce("accounts", account, [Record(b"%d" % -amount)], expected_sequence=seen)
            return balance - amount
        except SequenceMismatch as lost:
            print(f"somebody else was at {account}: expected {lost.expected}, found {lost.actual}")


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        store.produce("accounts", "alice", [Record(b"100")], expected_sequence=0)  # 0: the segment is new

        try:
            store.produce("accounts", "alice", [Record(b"-70")], expected_sequence=0)
        except SequenceMismatch as error:
            print(f"refused, and nothing was written: {error}")

        print("left:", withdraw(store, "alice", 70))
        try:
            withdraw(store, "alice", 70)
        except ValueError as error:
            print(error)


if __name__ == "__main__":
    main()
