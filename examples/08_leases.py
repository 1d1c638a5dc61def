"""One leader at a time, and an old leader that wakes up too late cannot write over its successor."""

from __future__ import annotations

import tempfile
from uuid import uuid4

import streamkit
from streamkit import Lease, LeaseNotAcquired, Record


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):

        def report(lease: Lease) -> int:
            status = store.produce("reports", "daily", [Record(b"report")], lease=lease)
            return status.last_sequence

        print("written by the leader: sequence", store.with_lease("reporter", report, ttl=10))

        with store.lease("reporter", ttl=10) as lease:
            print("token", lease.token, "held for another", round(lease.remaining()), "s")
            try:
                store.with_lease("reporter", report)
            except LeaseNotAcquired as error:
                print(f"somebody else: {error}")
            lease.check()  # raises LeaseLost if it is not held any more; lease.lost is an Event to wait for


if __name__ == "__main__":
    main()
