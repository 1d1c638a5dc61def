"""The contenders. Each appends the same payloads to numbered segments, and reads them back, as its users would.

streamkit            file://, durability committed or buffered
bare file            append, with fdatasync or without: the limit of the disk. Keeps no segments
eventsourcing        its SQLite recorder as it comes: WAL, and synced with every commit
SQLite               one table with a position and (segment, sequence), WAL, synchronous=FULL or NORMAL
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Protocol
from uuid import UUID

import streamkit
from streamkit import Record

from .payloads import random_batches

__all__ = [
    "BareFile",
    "Contender",
    "EventSourcing",
    "Filled",
    "Peeker",
    "Reader",
    "SQLite",
    "Streamkit",
    "bytes_on_disk",
    "fill",
]

STORE = UUID(int=1)
_POOL = 64_007
"""Payloads that are drawn: more than a block, a frame or a segment holds of them, and a prime number."""


class Contender(Protocol):
    def append(self, segment: int, first: int, payloads: Sequence[bytes]) -> None:
        """Append a batch, whose first record has sequence `first`, and return when it is as durable as promised."""
        ...

    def close(self) -> None: ...


class Reader(Protocol):
    def read_all(self) -> int:
        """Read everything in commit order, entry by entry; returns how many there were."""
        ...

    def read_segment(self, segment: int) -> int: ...

    def close(self) -> None: ...


class Peeker(Protocol):
    def peek(self, segment: int) -> object:
        """The latest entry of a segment; raises, or None, if there is none."""
        ...

    def close(self) -> None: ...


class Filled(Protocol):
    def append_to_many(self, segments: Sequence[int], first: int, payloads: Sequence[bytes], count: int) -> None: ...

    def close(self) -> None: ...


class Streamkit:
    """A store with a space for each durability."""

    def __init__(self, path: Path, durability: str = "committed", archive_grace: float = 3600.0) -> None:
        self.client = streamkit.connect(path.absolute().as_uri())
        self.store = self.client.store(STORE)
        self.space = durability
        self.store.create_space(self.space, durability=durability, archive_grace=archive_grace)

    def append(self, segment: int, first: int, payloads: Sequence[bytes]) -> None:
        self.store.produce(self.space, f"segment-{segment}", [Record(payload) for payload in payloads])

    def append_to_many(self, segments: Sequence[int], first: int, payloads: Sequence[bytes], count: int) -> None:
        """`count` records for each of `segments`, from sequence `first` on, in one transaction."""
        with self.store.transaction(self.space) as trx:
            for segment, part in zip(segments, batched(payloads, count), strict=False):
                trx.produce(f"segment-{segment}", [Record(payload) for payload in part])

    def peek(self, segment: int) -> streamkit.Entry:
        return self.store.peek(self.space, f"segment-{segment}")

    def read_all(self) -> int:
        count = 0
        for _ in self.store.consume_space(self.space):
            count += 1
        return count

    def read_segment(self, segment: int) -> int:
        count = 0
        for _ in self.store.consume_segment(self.space, f"segment-{segment}"):
            count += 1
        return count

    def close(self) -> None:
        self.client.close()


class BareFile:
    def __init__(self, path: Path, *, synced: bool = True) -> None:
        self._file = os.open(path / "bare", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._synced = synced

    def append(self, segment: int, first: int, payloads: Sequence[bytes]) -> None:
        os.write(self._file, b"".join(payloads))
        if self._synced:
            os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


class SQLite:
    _INSERT = "INSERT INTO entries (segment, sequence, payload) VALUES (?, ?, ?)"

    def __init__(self, path: Path, synchronous: str = "FULL") -> None:
        self._db = sqlite3.connect(path / "sqlite.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={synchronous}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS entries (position INTEGER PRIMARY KEY, segment TEXT NOT NULL, "
            "sequence INTEGER NOT NULL, payload BLOB NOT NULL, UNIQUE (segment, sequence))"
        )

    def append(self, segment: int, first: int, payloads: Sequence[bytes]) -> None:
        name = f"segment-{segment}"
        rows = [(name, sequence, payload) for sequence, payload in enumerate(payloads, first)]
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(self._INSERT, rows)
        self._db.execute("COMMIT")

    def append_to_many(self, segments: Sequence[int], first: int, payloads: Sequence[bytes], count: int) -> None:
        """`count` records for each of `segments`, from sequence `first` on, in one transaction."""
        rows = [
            (f"segment-{segment}", sequence, payload)
            for segment, part in zip(segments, batched(payloads, count), strict=False)
            for sequence, payload in enumerate(part, first)
        ]
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(self._INSERT, rows)
        self._db.execute("COMMIT")

    def read_all(self) -> int:
        count = 0
        for _ in self._db.execute("SELECT position, segment, sequence, payload FROM entries ORDER BY position"):
            count += 1
        return count

    def read_segment(self, segment: int) -> int:
        count = 0
        found = self._db.execute(
            "SELECT position, segment, sequence, payload FROM entries WHERE segment = ? ORDER BY sequence",
            (f"segment-{segment}",),
        )
        for _ in found:
            count += 1
        return count

    def peek(self, segment: int) -> tuple[int, str, int, bytes]:
        found = self._db.execute(
            "SELECT position, segment, sequence, payload FROM entries WHERE segment = ? ORDER BY sequence DESC LIMIT 1",
            (f"segment-{segment}",),
        )
        row: tuple[int, str, int, bytes] = found.fetchone()
        return row

    def close(self) -> None:
        self._db.close()


class EventSourcing:
    _PAGE = 1000

    def __init__(self, path: Path, *, synced: bool = True) -> None:
        from eventsourcing.persistence import StoredEvent
        from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

        self._event = StoredEvent
        self._datastore = SQLiteDatastore(str(path / "eventsourcing.db"), lock_timeout=60)
        if not synced:
            # One thread has one connection of the pool, which all its commits use.
            with self._datastore.get_connection(commit=True) as connection:
                connection.cursor().execute("PRAGMA synchronous=OFF")
        self._recorder = SQLiteApplicationRecorder(self._datastore)
        self._recorder.create_table()

    def append(self, segment: int, first: int, payloads: Sequence[bytes]) -> None:
        event, name = self._event, UUID(int=segment)
        self._recorder.insert_events(
            [event(name, version, "topic", payload) for version, payload in enumerate(payloads, first)]
        )

    def append_to_many(self, segments: Sequence[int], first: int, payloads: Sequence[bytes], count: int) -> None:
        """`count` records for each of `segments`, from sequence `first` on, in one transaction."""
        event = self._event
        self._recorder.insert_events(
            [
                event(UUID(int=segment), version, "topic", payload)
                for segment, part in zip(segments, batched(payloads, count), strict=False)
                for version, payload in enumerate(part, first)
            ]
        )

    def read_all(self) -> int:
        count, start = 0, 1
        while True:
            page = self._recorder.select_notifications(start, self._PAGE)
            for _ in page:
                count += 1
            if not page:
                return count
            start = page[-1].id + 1

    def read_segment(self, segment: int) -> int:
        count = 0
        for _ in self._recorder.select_events(UUID(int=segment)):
            count += 1
        return count

    def close(self) -> None:
        self._datastore.close()


def batched(payloads: Sequence[bytes], count: int) -> Iterator[Sequence[bytes]]:
    """Parts of `count` payloads, again from the start where they end."""
    return (payloads[at : at + count] for _ in repeat(None) for at in range(0, len(payloads), count))


def fill(contender: Filled, segments: int, entries: int, times: int, together: int, say: Callable[[str], None]) -> None:
    """Write `times` rounds: in each, `entries` more for every segment; `together` segments a commit.

    A segment's entries differ, and so do its neighbours': a block of the index shrinks by its heads alone.
    """
    size = together * entries
    (payloads,) = random_batches(1, _POOL + size)
    for turn in range(times):
        for at in range(0, segments, together):
            begin = (turn * segments + at) * entries % _POOL
            some = range(at, min(at + together, segments))
            contender.append_to_many(some, turn * entries + 1, payloads[begin : begin + size], entries)
            if at % 10_000 == 0:
                say(f"writing: {turn * segments + at:,} of {segments * times:,} segments")
    contender.close()


def bytes_on_disk(path: Path) -> int:
    """The bytes that the files below `path` occupy, without holes."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())
