"""Races: many threads, some on one backend and some on their own, and exactly one may win."""

from __future__ import annotations

from functools import partial
from itertools import count
from random import Random
from unittest import SkipTest
from uuid import uuid4

from ...backend import ABSENT, NEXT, Backend, Conflict, Expect
from .subject import Broken, Subject, hold, same

__all__ = ["Racing"]

P = b"racing"
THREADS = 8


class Racing(Subject):
    def runners(self) -> list[Backend]:
        """Return a backend for each thread. Half of the threads share one, the others have drivers of their own."""
        return [self.backend] * (THREADS // 2) + [self.stranger() for _ in range(THREADS // 2)]

    def race(self, expect: Expect) -> None:
        """Let all threads put the same row, `rounds` times. Broken unless exactly one wins each time."""
        runners = self.runners()
        for turn in range(self.rounds):
            key = b"%06d" % turn

            def run(at: int, key: bytes = key) -> bool:
                mine = b"runner %d" % at
                return self.wins(runners[at], P, key, mine, expect)

            won = self.together(*(partial(run, at) for at in range(THREADS)))
            same(won.count(True), 1, f"winners of {THREADS} writers that each wrote only if there was no row")
            same(self.data(P, key), b"runner %d" % won.index(True), "the row, which is the winner's")

    def test_only_one_of_many_writers_creates_a_row(self) -> None:
        """Several writers were told that they had created the same row with ABSENT."""
        self.race(ABSENT)

    def test_only_one_of_many_writers_puts_the_next_row(self) -> None:
        """Several writers were told that they had put the same row with NEXT: a commit was overwritten."""
        self.race(NEXT)
        same(len(self.keys(P)), self.rounds, "the rows after all rounds")

    def test_no_update_is_lost(self) -> None:
        """Two updates with the same etag were both applied: an update was lost."""
        runners = self.runners()
        steps = max(2, self.rounds // 4)
        self.backend.put(P, b"counter", b"0")

        def increment(backend: Backend) -> None:
            for _ in range(steps):
                for _ in range(10_000):
                    (value,) = backend.get(P, [b"counter"])
                    if value is None:
                        raise Broken("the counter is gone")
                    number = int(value.data.split()[0]) + 1
                    if self.wins(backend, P, b"counter", b"%d %s" % (number, uuid4().bytes), value.etag):
                        break

        self.together(*(partial(increment, backend) for backend in runners))
        found = int((self.data(P, b"counter") or b"0").split()[0])
        same(found, THREADS * steps, "the counter after all increments")

    def test_the_keys_of_a_log_grow_whoever_writes(self) -> None:
        """A key was put with NEXT after a greater one had been acknowledged to another writer, or had been read."""
        if self.limits.remote:
            raise SkipTest("a remote backend need not compare the keys of a log")
        runners = self.runners()
        stamps = count()
        puts: list[tuple[int, int, int]] = []
        highest = [0]
        writing = set(range(1, THREADS))

        def write(at: int) -> None:
            chance = Random(at)
            for _ in range(3 * self.rounds):
                began, key = next(stamps), max(0, highest[0] + chance.randint(-3, 3))
                try:
                    runners[at].put(P, b"%06d" % key, b"", NEXT)
                except Conflict:
                    continue
                puts.append((key, began, next(stamps)))
                highest[0] = max(highest[0], key)

        def run(at: int) -> None:
            if not at:
                self._watch_log(writing)
                return
            try:
                write(at)
            finally:
                writing.discard(at)

        self.together(*(partial(run, at) for at in range(THREADS)))
        hold(puts, "nobody could put a row with NEXT")
        for key, began, _ in puts:
            before = max((other for other, _, ended in puts if ended < began), default=-1)
            hold(key > before, f"the key {key} was put after {before} was there")
        same(len(self.keys(P)), len({key for key, _, _ in puts}), "the rows, each put once")
        same(len(puts), len({key for key, _, _ in puts}), "the winners, one for each row")

    def _watch_log(self, writing: set[int]) -> None:
        """Read the keys of the log while other threads are `writing` it. A scan need not be of one moment. But all keys
        that it finds exist before the next scan begins, and so do all lower keys."""
        last = b""
        there: set[bytes] = set()
        while writing:
            keys = self.keys(P)
            late = [key for key in keys if key < last and key not in there]
            hold(not late, f"the keys {late} came after {last!r} had been seen")
            last, there = max(there, default=b""), set(keys)

    def test_a_backend_serves_many_threads(self) -> None:
        """Threads that share a backend got each other's answers, or an error."""

        def work(at: int) -> None:
            partition = b"racing %d" % (at % 3)
            for step in range(self.rounds):
                key = b"%d %04d" % (at, step)
                value = key * (1 + 97 * (step % 5))
                self.backend.put(partition, key, value, ABSENT)
                found = [found and found.data for found in self.backend.get(partition, [key, b"none", key])]
                same(found, [value, None, value], "the thread's read of its own row")
                rows = list(self.backend.scan(partition, b"%d " % at, b"%d!" % at))
                same(len(rows), step + 1, "the rows that a thread scans of its own")
                hold(rows[-1].data == value, "a thread scanned another value than it wrote")

        self.together(*(partial(work, at) for at in range(THREADS)))
