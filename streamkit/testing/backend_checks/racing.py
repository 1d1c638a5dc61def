"""Races: many threads, some on one backend and some on their own, and exactly one may win."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

from ...backend import ABSENT, ANY, Append, Backend, Conflict, Delete, Put
from ...errors import TransientError
from .subject import Broken, Subject, hold, same

__all__ = ["Racing"]

P = b"racing"
THREADS = 8


class Racing(Subject):
    def runners(self) -> list[Backend]:
        """Half of them share one backend, the others have drivers of their own."""
        return [self.backend] * (THREADS // 2) + [self.stranger() for _ in range(THREADS // 2)]

    def race(self, op: type[Append] | type[Put]) -> None:
        runners = self.runners()
        for turn in range(self.rounds):
            key = b"%06d" % turn

            def run(at: int, key: bytes = key) -> bool:
                mine = b"runner %d" % at
                chosen = Append(key, mine) if op is Append else Put(key, mine, ABSENT)
                return self.wins(runners[at], P, chosen)

            won = self.together(*(partial(run, at) for at in range(THREADS)))
            same(won.count(True), 1, f"winners of {THREADS} writers that each wrote only if nothing was there")
            same(self.data(P, key), b"runner %d" % won.index(True), "the row, which is the winner's")

    def test_only_one_of_many_writers_creates_a_row(self) -> None:
        """Several writers were told that they had created the same row with ABSENT."""
        self.race(Put)

    def test_only_one_of_many_writers_appends_a_row(self) -> None:
        """Several writers were told that they had appended the same row: a commit was overwritten."""
        self.race(Append)
        same(len(self.keys(P)), self.rounds, "the rows after all rounds")

    def test_no_update_is_lost(self) -> None:
        """Of two updates with the same etag both were applied: an update was lost."""
        runners = self.runners()
        steps = max(2, self.rounds // 4)
        self.backend.write(P, [Put(b"counter", b"0")])

        def count(backend: Backend) -> None:
            for _ in range(steps):
                for _ in range(10_000):
                    (value,) = backend.get(P, [b"counter"])
                    if value is None:
                        raise Broken("the counter is gone")
                    number = int(value.data.split()[0]) + 1
                    if self.wins(backend, P, Put(b"counter", b"%d %s" % (number, uuid4().bytes), value.etag)):
                        break

        self.together(*(partial(count, backend) for backend in runners))
        found = int((self.data(P, b"counter") or b"0").split()[0])
        same(found, THREADS * steps, "the counter after all increments")

    def test_only_one_of_many_deletes_a_row(self) -> None:
        """Several callers were told that they had deleted the same row by its etag."""
        runners = self.runners()

        def delete(backend: Backend, op: Delete) -> bool:
            while True:
                try:
                    backend.write(P, [op])
                    return True
                except Conflict:
                    return False
                except TransientError:
                    self.sleep(0.05)

        for turn in range(self.rounds):
            (etag,) = self.backend.write(P, [Put(b"k", b"%d" % turn)])
            op = Delete(b"k", ANY if etag is None else etag)
            won = self.together(*(partial(delete, backend, op) for backend in runners))
            same(won.count(True), 1, f"winners of {THREADS} deletes with one etag")

    def test_a_backend_serves_many_threads(self) -> None:
        """Threads that share a backend got each other's answers, or an error."""

        def work(at: int) -> None:
            partition = b"racing %d" % (at % 3)
            for step in range(self.rounds):
                key = b"%d %04d" % (at, step)
                value = key * (1 + 97 * (step % 5))
                self.backend.write(partition, [Put(key, value, ABSENT)])
                found = [found and found.data for found in self.backend.get(partition, [key, b"none", key])]
                same(found, [value, None, value], "what a thread gets of its own row")
                rows = list(self.backend.scan(partition, b"%d " % at, b"%d!" % at))
                same(len(rows), step + 1, "the rows that a thread scans of its own")
                hold(rows[-1].data == value, "a thread scanned another value than it wrote")

        self.together(*(partial(work, at) for at in range(THREADS)))
