"""Costs of removing: trims, erasures, searches, freed disk space, and the effect of a retention on others.

    python -m benchmarks.removing [--only PART …] [--transactions N] [--entries N] [--segments N] [--seconds S]

Prints a JSON object for each line of the table in docs/removing.md. What concerns S3 is counted, not timed: requests to
a store in memory that behaves like a service (benchmarks.requests), and to an archive in a moto server. `cpu_seconds`
are those of all threads of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import streamkit
from streamkit import Client, Record, Retention, Store
from streamkit.clock import SYSTEM_CLOCK
from streamkit.testing import ManualClock

from .archive_requests import Bucket, credentials, moto_server
from .requests import CountingDriver

_GRACE = 1.0
"""Seconds for which what was packed is in the log a second time."""
_TOGETHER = 500
"""Entries of one transaction, where there are very many,"""
_OF_ONE = 10
"""and of one segment in it."""
_PERSON = "person"
"""The segment that is erased."""
_ERASED = 100
"""The entries to be removed, in as many transactions, evenly over the store."""


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _tell(what: str, **figures: object) -> None:
    print(json.dumps({"what": what, **figures}), flush=True)


class _Timed:
    """Seconds of `with`, by the clock and of the processors."""

    def __enter__(self) -> _Timed:
        self._began, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = round(time.perf_counter() - self._began, 3)
        self.cpu_seconds = round(time.process_time() - self._cpu, 3)


@contextmanager
def _directory() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="removing-"))
    try:
        yield root
    finally:
        shutil.rmtree(root)


@contextmanager
def _local() -> Iterator[tuple[Path, Store]]:
    with _directory() as root, streamkit.connect(f"file://{root}") as client:
        yield root, client.store(uuid4())


def _fill(store: Store, transactions: int, segments: int) -> None:
    """Write `transactions` transactions of one entry each."""
    body = os.urandom(1 << 16)
    for number in range(transactions):
        start = number * 97 % 65000
        store.produce("s", f"segment-{number % segments}", [Record(body[start : start + 100])])


def _fill_large(store: Store, first: int, last: int, entries: int, segments: int) -> None:
    """Entries first..last of `entries`, in large transactions, to all segments in turn, some at a time. All have a
    metadata pair."""
    body = os.urandom(1 << 16)
    every = max(1, entries // _ERASED)
    for begin in range(first, last, _TOGETHER):
        with store.transaction("s") as trx:
            for some in range(begin, min(begin + _TOGETHER, last), _OF_ONE):
                records = []
                for number in range(some, some + _OF_ONE):
                    start = number * 97 % 65000
                    subject = f"user-{number * 7919 % 100_003}"
                    records.append(Record(body[start : start + 100], {"subject": subject}))
                trx.produce(f"segment-{some // _OF_ONE % segments}", records)
                if some % every < _OF_ONE:
                    trx.produce(_PERSON, [Record(body[:100], {"subject": _PERSON})])


def trim_space(transactions: int) -> None:
    with _local() as (root, store):
        store.create_space("s", durability="buffered", archive_grace=_GRACE)
        _fill(store, transactions, 1000)
        store.maintain()
        before = _bytes(root)
        with _Timed() as trim:
            store.trim("s", keep_entries=1000)
        with _Timed() as upkeep:
            store.maintain()
        assert sum(1 for _ in store.consume_space("s")) == 1000
        _tell(
            "trim a space to its newest 1,000 transactions, local",
            transactions=transactions,
            trim_seconds=trim.seconds,
            maintain_seconds=upkeep.seconds,
            cpu_seconds=round(trim.cpu_seconds + upkeep.cpu_seconds, 3),
            bytes_before=before,
            bytes_after=_bytes(root),
        )


def trim_space_s3(transactions: int) -> None:
    """Measure the worst case: all transactions are still rows, because the store was not maintained."""
    clock = ManualClock()  # nothing waits
    with _counted(f"removing-{uuid4()}", clock) as (client, driver):
        store = client.store(uuid4())
        _fill(store, transactions, 1000)
        clock.sleep(3700)
        store.produce("s", "segment-0", [Record(b"the answers are dated anew")])
        trim = driver.count(lambda: store.trim("s", keep_entries=1000))
        upkeep = driver.count(store.maintain)
        clock.sleep(3700)
        later = driver.count(store.maintain)
        assert sum(1 for _ in store.consume_space("s")) == 1000
    _tell(
        "trim a space to its newest 1,000 transactions, requests on S3",
        transactions=transactions,
        trim_requests=trim.requests,
        maintain_requests=upkeep.requests,
        maintain_after_the_grace=later.requests,
        kinds=dict(trim + upkeep + later),
    )


def trim_share(transactions: int) -> None:
    for what in ("space", "segments", "retention by segment"):
        with _local() as (root, store):
            store.create_space("s", durability="buffered", archive_grace=_GRACE)
            _fill(store, transactions, 100)
            store.maintain()
            time.sleep(2 * _GRACE)  # nothing is in the log twice any more
            store.maintain()
            before = _bytes(root)
            if what == "space":
                store.trim("s", keep_entries=transactions // 10)
            elif what == "segments":
                for name in list(store.get_segments("s")):
                    store.trim("s", name, keep_entries=transactions // 1000)
            else:
                store.set_retention("s", Retention(max_entries=transactions // 1000))
            store.maintain()
            after = _bytes(root)
            _tell(f"90 % trimmed, by {what}", transactions=transactions, given_back=round(1 - after / before, 3))


def _half_archived(store: Store, entries: int, segments: int) -> None:
    store.create_space("s", durability="buffered", archive_grace=_GRACE)
    _fill_large(store, 0, entries // 2, entries, segments)
    store.archive("s")
    time.sleep(3 * _GRACE)
    store.archive("s")
    _fill_large(store, entries // 2, entries, entries, segments)
    store.maintain()
    time.sleep(3 * _GRACE)
    store.maintain()


def erase_local(root: Path, entries: int, segments: int) -> UUID:
    with streamkit.connect(f"file://{root}") as client:
        store = client.store(uuid4())
        with _Timed() as filling:
            _half_archived(store, entries, segments)
        size = store.size("s")
        _tell(
            "the store of the next lines",
            seconds=filling.seconds,
            cpu_seconds=filling.cpu_seconds,
            entries=size.entries,
            segments=size.segments,
            **{tier.name: tier.bytes for tier in size.tiers},
        )
        store_id = store.id
    _child("search", root, store_id)
    _child("erase", root, store_id)
    return store_id


def _child(what: str, root: Path, store_id: UUID) -> None:
    """Run in a new process, so that the memory is that of the work."""
    subprocess.run([sys.executable, "-m", "benchmarks.removing", "--child", what, str(root), str(store_id)], check=True)


def _erase(root: str, store_id: UUID) -> None:
    with streamkit.connect(f"file://{root}") as client, _Timed() as timed:
        report = client.store(store_id).erase("s", _PERSON)
    _tell(
        "erase one segment, half of the store archived, local",
        erased=report.entries,
        rows=report.rows,
        files=report.files,
        seconds=timed.seconds,
        cpu_seconds=timed.cpu_seconds,
        most_memory_mb=_memory(),
    )


def _search(root: str, store_id: UUID) -> None:
    with streamkit.connect(f"file://{root}") as client:
        archived = client.store(store_id).size("s").tiers[-1].bytes
    tier = "half of the store archived" if archived else "all in the log"
    with streamkit.connect(f"file://{root}") as client, _Timed() as timed:
        report = client.store(store_id).erase("s", metadata={"subject": _PERSON}, dry_run=True)
    _tell(
        f"search by metadata, {tier}, local",
        searched=report.searched,
        found=report.entries,
        seconds=timed.seconds,
        cpu_seconds=timed.cpu_seconds,
        entries_per_second=round(report.searched / timed.seconds),
        entries_per_cpu_second=round(report.searched / timed.cpu_seconds),
        most_memory_mb=_memory(),
    )


def search_local(entries: int, segments: int) -> None:
    with _directory() as root:
        with streamkit.connect(f"file://{root}") as client:
            store = client.store(uuid4())
            store.create_space("s", durability="buffered")
            _fill_large(store, 0, entries, entries, segments)
            store.maintain()
            store_id = store.id
        _child("search", root, store_id)


def _memory() -> int:
    """The most MB that this process had at once. `getrusage` would include its parent."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) >> 10


def erase_s3(entries: int, segments: int) -> None:
    """The log is in memory, its requests are counted; the archive is in a moto server, which counts its own."""
    os.environ.update(credentials())
    with moto_server() as endpoint:
        bucket = Bucket(endpoint)
        os.environ.update(AWS_ENDPOINT_URL=endpoint, AWS_ALLOW_HTTP="true", AWS_REGION="us-east-1")
        name, store_id = f"removing-{uuid4()}", uuid4()
        with _counted(name, archive=bucket.archive) as (client, _):
            store = client.store(store_id)
            with _Timed() as filling:
                _half_archived(store, entries, segments)
            tiers = {tier.name: tier.bytes for tier in store.size("s").tiers}
        with _counted(name, archive=bucket.archive) as (client, driver):
            bucket.asked()
            with _Timed() as timed:
                log = driver.count(lambda: _erase_person(client.store(store_id)))
            archive = bucket.asked()
    _tell(
        "erase one segment, half of the store archived, requests on S3",
        entries=entries,
        log=log.requests,
        archive=archive.total(),
        together=log.requests + archive.total(),
        kinds=dict(log),
        kinds_of_the_archive=dict(archive),
        cpu_seconds=timed.cpu_seconds,
        cpu_seconds_of_filling=filling.cpu_seconds,
        tiers=tiers,
    )


def _erase_person(store: Store) -> None:
    assert store.erase("s", _PERSON).entries == _ERASED


@contextmanager
def _counted(
    name: str, clock: ManualClock | None = None, archive: str | None = None
) -> Iterator[tuple[Client, CountingDriver]]:
    """A process of its own that uses a store in memory as if it were a service."""
    driver = CountingDriver(name, clock)
    with Client("memory://", driver, 30.0, None, 64 << 20, clock or SYSTEM_CLOCK, archive) as client:
        yield client, driver


def beside(seconds: float) -> None:
    """Measure appends, and reads of the latest entries, without and with a retention and a thread that maintains all
    the time; in turns, so that a disturbance meets both."""
    rates: dict[tuple[str, bool], list[float]] = {}
    for _ in range(5):
        for retained in (False, True):
            with _local() as (_, store):
                store.create_space("s", durability="buffered")
                if retained:
                    store.set_retention("s", Retention(max_entries=2000, per="space"))
                stop = threading.Event()

                def keep(store: Store = store, stop: threading.Event = stop) -> None:
                    while not stop.wait(0.5):
                        store.maintain()

                thread = threading.Thread(target=keep)
                if retained:
                    thread.start()
                count = 0

                def append() -> None:
                    nonlocal count
                    store.produce("s", f"segment-{count % 10}", [Record(b"x" * 100)])
                    count += 1

                def read() -> None:
                    assert sum(1 for _ in store.consume_space("s", reverse=True, limit=1000)) == 1000

                for what, work in (("append", append), ("read", read)):
                    rates.setdefault((what, retained), []).append(_rate(work, seconds))
                stop.set()
                if retained:
                    thread.join()
    for what in ("append", "read"):
        without, with_it = (sorted(rates[what, retained])[2] for retained in (False, True))
        _tell(
            f"{what} beside a retention that trims all the time",
            without=round(without),
            beside=round(with_it),
            share=round(with_it / without, 2),
        )


def _rate(work: Callable[[], None], seconds: float) -> float:
    began, count = time.perf_counter(), 0
    while (now := time.perf_counter()) < began + seconds:
        work()
        count += 1
    return count / (now - began)


_PARTS = ("share", "beside", "trim", "trim-s3", "search", "erase", "erase-s3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=_PARTS, default=_PARTS)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--segments", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        what, root, store_id = given.child
        {"search": _search, "erase": _erase}[what](root, UUID(store_id))
        return
    parts: dict[str, Callable[[], object]] = {
        "share": lambda: trim_share(given.transactions // 5),
        "beside": lambda: beside(given.seconds),
        "trim": lambda: trim_space(given.transactions),
        "trim-s3": lambda: trim_space_s3(given.transactions),
        "search": lambda: search_local(given.entries, given.segments),
        "erase": lambda: _in_directory(lambda root: erase_local(root, given.entries, given.segments)),
        "erase-s3": lambda: erase_s3(given.entries, given.segments),
    }
    for name in given.only:
        parts[name]()


def _in_directory(work: Callable[[Path], object]) -> None:
    with _directory() as root:
        work(root)


if __name__ == "__main__":
    main()
