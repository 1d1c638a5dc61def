"""Stores that Spark reads and writes, the other processes that work on them, and an independent oracle: the
acknowledged entries must be found, each once."""

from __future__ import annotations

import random
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import streamkit
from streamkit import Record

from .spark_rounds import FRAMES, OUT, SOURCE

FRAME = 3000
"""Rows of each frame that is written."""


class World:
    """The stores, the other processes that work on them, and the entries that they must hold."""

    def __init__(self, url: str, path: Path, seed: int, pause: float) -> None:
        self.url, self.path, self.pause = url, path, pause
        self.chance = random.Random(seed)
        self.client = streamkit.connect(url)
        self.source, self.into, self.restored = (self.client.store(uuid4()) for _ in range(3))
        # In the cloud the service's clock measures the grace, and a commit may take a part of it.
        grace = 0.5 if url.startswith("file:") else 60.0
        self.source.create_space(SOURCE, 2, archive_grace=grace)
        self.into.create_space(OUT, 2, archive_grace=grace)
        self.into.create_space(FRAMES, 2, archive_grace=grace)
        self.written: dict[str, list[bytes]] = {}
        """The acknowledged entries of each writer and segment, in order."""
        self.frames: list[str] = []
        self.done = Counter[str]()
        self.allowed = 60
        """Transactions that the writer may write until the next question, so that few are unread."""
        self._stop = threading.Event()
        self._hold = threading.Lock()
        self._failed: list[BaseException] = []

    def write(self, transactions: int) -> None:
        for _ in range(transactions):
            segment = f"s{self.chance.randrange(12)}"
            so_far = self.written.setdefault(segment, [])
            count = self.chance.choice((1, 3, 40))
            payloads = [b"%d of %s" % (len(so_far) + at, segment.encode()) for at in range(count)]
            self.source.produce(SOURCE, segment, [Record(payload) for payload in payloads])
            so_far.extend(payloads)
            self.done["transactions"] += 1

    @contextmanager
    def beside(self) -> Iterator[None]:
        """A writer, an archiver and compaction, until the end of the block."""
        threads = [threading.Thread(target=self._again, args=[work]) for work in (self._writes, self._archives)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        if self._failed:
            raise self._failed[0]

    def _again(self, work: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set():
                work()
                self._stop.wait(self.pause)
        except BaseException as error:
            self._failed.append(error)

    def _writes(self) -> None:
        with self._hold:
            if self.allowed > 0:
                self.allowed -= 3
                self.write(3)

    def _archives(self) -> None:
        for store, space in ((self.source, SOURCE), (self.into, OUT), (self.into, FRAMES)):
            store.archive(space, target_file_bytes=4000)
            self.done["archive runs"] += 1
            if self.done["archive runs"] % 9 == 0:
                store.compact(space)
                self.done["compactions"] += 1

    def end(self) -> tuple[str, list[int]]:
        """An offset, and the digests of the entries before it: of the segments from s3 on, and of all."""
        with self._hold:
            offset = self.source.end_offset(SOURCE).hex()
            rows = [(s, at, p) for s, payloads in self.written.items() for at, p in enumerate(payloads, 1)]
        sums = [(s, zlib.crc32(b"%b/%d/%b" % (s.encode(), at, p))) for s, at, p in rows]
        some = [crc for segment, crc in sums if segment >= "s3"]
        return offset, [len(some), sum(some), len(sums), sum(crc for _, crc in sums)]

    def check_copies(self) -> None:
        """Everything is there once, and in its order."""
        with streamkit.connect(self.url) as stranger:
            source, into = stranger.store(self.source.id), stranger.store(self.into.id)
            found: dict[str, list[bytes]] = {}
            for entry in source.consume_space(SOURCE):
                found.setdefault(entry.segment, []).append(entry.payload)
            assert found == self.written
            for segment, payloads in self.written.items():
                copied = [entry.payload for entry in into.consume_segment(OUT, segment)]
                assert Counter(copied) == Counter(payloads), f"{segment}: {len(copied)} instead of {len(payloads)}"
            assert sorted(into.get_segments(OUT)) == sorted(self.written)
            frames: dict[tuple[str, str], list[int]] = {}
            for entry in into.consume_space(FRAMES):
                name, _, number = entry.payload.decode().rpartition("-")
                frames.setdefault((name, entry.segment), []).append(int(number))
            assert frames == {(f, f"w{at}"): list(range(at, FRAME, 40)) for f in self.frames for at in range(40)}

    def check_restored(self) -> None:
        """Check that every transaction is there, whole and in its order, also across partitions."""
        with streamkit.connect(self.url) as stranger:
            source, copy = (
                [
                    (entry.segment, entry.sequence, entry.trx.number, entry.payload)
                    for entry in store.consume_space(SOURCE)
                ]
                for store in (stranger.store(self.source.id), stranger.store(self.restored.id))
            )
        assert copy == source

    def check_rollup(self, output: str) -> None:
        """Check that every entry is counted once."""
        from deltalake import DeltaTable

        counted: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for row in DeltaTable(output).to_pyarrow_table().to_pylist():
            counted[row["segment"]] += row["n"]
            sizes[row["segment"]] += row["size"]
        assert counted == {segment: len(payloads) for segment, payloads in self.written.items()}
        assert sizes == {segment: sum(map(len, payloads)) for segment, payloads in self.written.items()}

    def close(self) -> None:
        self.client.close()
