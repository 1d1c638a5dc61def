"""One leader at a time, and an old leader that wakes up too late cannot write over its successor."""

from __future__ import annotations

import tempfile
from uuid import uuid4

import streamkit
from streamkit import Lease, LeaseNotAcquired, Record, Store


def report(store: Store, lease: Lease) -> int:
    """Write the report, unless another process leads by now. Returns its sequence."""
    return store.produce("reports", "daily", [Record(b"report")], lease=lease).last_sequence


def lead(store: Store) -> int:
    """Become the leader and write the report."""
    return store.with_lease("reporter", lambda lease: report(store, lease), ttl=10)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        print("written by the leader: sequence", lead(store))

        with store.lease("reporter", ttl=10) as lease:
            print("token", lease.token, "held for another", round(lease.remaining()), "s")
            try:
                lead(store)
            except LeaseNotAcquired as error:
                print(f"somebody else: {error}")
            lease.check()  # raises LeaseLost if it is not held any more; lease.lost is an Event to wait for


if __name__ == "__main__":
    main()
