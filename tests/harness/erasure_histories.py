"""Random histories of a space, killed on the way; then an erasure, and a search of every byte for the erased
entries."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from harness.deep_search import files_below, matches_in
from harness.doomed import doomed, telling_of_tables
from harness.foreign_engines import optimize
from harness.worlds import PATIENCE, World, without_leases
from streamkit import Record, Retention, Store
from streamkit.client import Client
from streamkit.clock import SYSTEM_CLOCK
from streamkit.errors import SpaceExists
from streamkit.service_time import ServiceTime
from streamkit.store import inner
from streamkit.testing import CRASHES, Crash, FaultyBackend, Plan
from streamkit.views import Index

__all__ = ["CLASSES", "History"]

BOUNDARY = "a pack across the archive boundary"
GLOB = "a glob over deleted segments"
PUBLISH = "a killed publish"
KILL = "a kill"
KILLED_ERASURE = "a killed erasure"
HIDDEN_METADATA = "metadata of entries that nobody could read"
CLASSES = (BOUNDARY, GLOB, PUBLISH, KILL, KILLED_ERASURE, HIDDEN_METADATA)
"""The classes by which histories are counted."""

_SPACE = "a"
_SEGMENTS = ("user-17/mails", "user-17/orders", "user-2/mails", "plain")
_SUBJECTS = ("user-17", "user-2", "")
_GRACE = 30.0
_SIZES = (0, 10, 600, 600, 5000, 20_000)
_DEADLY = ("fsync", "fdatasync", "rename", "replace", "unlink")


class _Later:
    """The system's clock, moved forward by those who sleep."""

    def __init__(self) -> None:
        self.offset = 0.0

    def now(self) -> int:
        return SYSTEM_CLOCK.now() + int(self.offset * 1000)

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic() + self.offset

    def sleep(self, seconds: float) -> None:
        self.offset += seconds

    def wait(self, condition: Any, seconds: float) -> bool:
        return SYSTEM_CLOCK.wait(condition, min(seconds, 0.01))


class _ShiftedBackend(FaultyBackend):
    """A service whose clock is moved forward too."""

    clock: _Later

    def service_time(self) -> ServiceTime | None:
        told = self.inner.service_time()
        return None if told is None else ServiceTime(told.earliest, told.latest + self.clock.offset)


class _Selector(NamedTuple):
    segment: str | None
    metadata: dict[str, str] | None

    def takes(self, entry: _Written) -> bool:
        name = self.segment
        is_named = name is None or entry.segment == name or (name.endswith("*") and entry.segment.startswith(name[:-1]))
        if not is_named:
            return False
        return self.metadata is None or self.metadata == {"subject": entry.subject}


class _Written(NamedTuple):
    segment: str
    sequence: int
    tag: bytes
    subject: str


class History:
    """One store, and its committed entries. `seen` counts the classes that the history belongs to."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = Random(seed)
        self.id = UUID(int=self.dice.getrandbits(128), version=4)
        self.clock = _Later()
        self.written: list[_Written] = []
        self.seen: set[str] = set()
        self.steps: list[str] = []
        self._prefix = self.dice.randbytes(8).hex()
        self._tags = 0
        self._client: Client | None = None
        self._views = world.path / f"views-{self.id}"
        self._retained = False

    # -- processes ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _process(self, plan: Plan | None) -> Iterator[Store]:
        """The store in a process that follows a plan; with None it is not killed."""
        driver = doomed(self.world.driver(), plan or Plan())
        open_inner = driver.inner.open

        def open_shifted(store: UUID) -> FaultyBackend:
            backend = _ShiftedBackend(open_inner(store), driver.faults)
            backend.clock = self.clock
            return backend

        driver.open = open_shifted  # type: ignore[method-assign]
        client = Client(self.world.url, driver, PATIENCE, None, 64 << 20, self.clock, self.world.archive)
        with telling_of_tables(driver) if plan else contextlib.nullcontext():
            try:
                yield client.store(self.id)
            finally:
                if not driver.faults.crashed:
                    client.close()

    # -- steps --------------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        with self.world.client() as client, client.store(self.id).lease("first"):
            pass  # on Azure there is a container then
        with without_leases(), contextlib.ExitStack() as stack:
            stack.callback(self._delete)
            with self._process(None) as store:
                partitions = self.dice.choice((1, 1, 2))
                with contextlib.suppress(SpaceExists):
                    store.create_space(_SPACE, partitions=partitions, archive_grace=_GRACE)
                self._produce(store)
            kinds = [self._produce, self._trim, self._delete_segment, self._retain, self._settle, self._settle]
            kinds += [self._archive, self._maintain, self._compact, self._publish, self._publish, self._erase_some]
            while steps > 0:
                plan = Plan.random(self.dice.getrandbits(32), 0.01, CRASHES) if self.dice.random() < 0.5 else None
                try:
                    with self._process(plan) as store:
                        for _ in range(min(steps, self.dice.randint(1, 4))):
                            steps -= 1
                            kind = self.dice.choice(kinds)
                            self.steps.append(kind.__name__)
                            kind(store)
                except Crash:
                    self.steps.append("killed")
                    self.seen.add(KILL)
                    self._see_committed()
            self._check()

    def _delete(self) -> None:
        with self._process(None) as store, self.world.client() as client:
            del store
            client.delete_store(self.id)

    def _produce(self, store: Store) -> None:
        for _ in range(self.dice.randint(1, 3 if self.world.is_service else 8)):
            segment = self.dice.choice(_SEGMENTS)
            subject = self.dice.choice(_SUBJECTS)
            tags = [self._tag() for _ in range(self.dice.randint(1, 3))]
            self._open = segment, subject, tags
            size = self.dice.choice(_SIZES) if self.dice.random() < 0.97 else 900_000
            metadata = {"subject": subject, "note": tags[0].decode()} if subject else None
            status = store.produce(
                _SPACE, segment, [Record(b"%s %s" % (tag, tag) + self._filler(size), metadata) for tag in tags]
            )
            self._note(status.last_sequence)

    def _tag(self) -> bytes:
        self._tags += 1
        return f"{self._prefix}{self._tags:06}".encode()

    def _filler(self, size: int) -> bytes:
        return self.dice.randbytes(size // 2) + b"." * (size - size // 2)

    _open: tuple[str, str, list[bytes]] | None = None

    def _note(self, last: int) -> None:
        """The interrupted write has the sequences up to `last`."""
        assert self._open is not None
        segment, subject, tags = self._open
        self._open = None
        first = last - len(tags) + 1
        self.written += (_Written(segment, first + at, tag, subject) for at, tag in enumerate(tags))

    def _see_committed(self) -> None:
        """True if the write during which the process was killed is in the store."""
        if self._open is None:
            return
        segment, _, tags = self._open
        known = sum(entry.segment == segment for entry in self.written)
        with self._process(None) as store:
            last = store.segment_status(_SPACE, segment).last_sequence
        if last == known:
            self._open = None
        else:
            assert last == known + len(tags)
            self._note(last)

    def _trim(self, store: Store) -> None:
        if self.dice.random() < 0.3:
            store.trim(_SPACE, keep_entries=self.dice.randint(0, 6))
        else:
            store.trim(_SPACE, self.dice.choice(_SEGMENTS), keep_entries=self.dice.randint(0, 2))

    def _delete_segment(self, store: Store) -> None:
        store.delete_segment(_SPACE, self.dice.choice(_SEGMENTS))

    def _retain(self, store: Store) -> None:
        per = self.dice.choice(("segment", "space"))
        limit = self.dice.choice((0, 2, 5))
        store.set_retention(_SPACE, Retention(max_entries=limit, per=per) if limit else Retention())

    def _archive(self, store: Store) -> None:
        store.archive(_SPACE)
        self.clock.sleep(2 * _GRACE)

    def _settle(self, store: Store) -> None:
        """Archive, go on writing, and remove the archived transactions from the log."""
        store.archive(_SPACE)
        self._produce(store)
        store.maintain()
        self.clock.sleep(2 * _GRACE)
        store.maintain()

    def _maintain(self, store: Store) -> None:
        self.clock.sleep(self.dice.choice((0.0, 2 * _GRACE)))
        store.maintain()

    def _compact(self, store: Store) -> None:
        archive = inner(store).archive_root()[0]
        if archive.startswith("file://") and self.dice.random() < 0.3:
            for log in sorted(self.world.path.rglob("_delta_log")):
                if str(self.id) in str(log) and log.parent.name == _SPACE:
                    optimize(log.parent)
        store.compact(_SPACE)

    def _publish(self, store: Store) -> None:
        number = self.dice.randint(1, 12) if self.dice.random() < 0.5 else 0
        try:
            with _killed_by_the_system(number):
                self._with_view(store, lambda view: view.publish())
        except Crash:
            self.steps.append("killed publish")
            self.seen.update((PUBLISH, KILL))
            raise

    def _with_view(self, store: Store, work: Callable[[Any], object]) -> None:
        view = store.view("v", Index(_key), [_SPACE], self._views / "v.sqlite")
        view.catch_up()
        work(view)
        view.close()

    def _erase_some(self, store: Store) -> None:
        store.erase(_SPACE, self.dice.choice(_SEGMENTS), first=1, last=self.dice.randint(1, 3))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        selector = self._selector()
        self.steps.append(repr(selector))
        gone = [entry for entry in self.written if selector.takes(entry)]
        with self._process(None) as store:
            before = self._readable(store)
            self._classify(store, selector, gone, before)
        if self.dice.random() < 0.3:
            plan = Plan.random(self.dice.getrandbits(32), 0.03, CRASHES)
            try:
                with self._process(plan) as store:
                    store.erase(_SPACE, selector.segment, metadata=selector.metadata)
            except Crash:
                self.seen.add(KILLED_ERASURE)
        with self._process(None) as store:
            report = store.erase(_SPACE, selector.segment, metadata=selector.metadata)
            assert not report.unreached or selector.metadata
            self._with_view(store, lambda view: None)
            after = self._readable(store)
            gone_tags = {entry.tag for entry in gone}
            assert after == {place: tag for place, tag in before.items() if tag not in gone_tags}
            if self.dice.random() < 0.25:
                verified = store.verify()
                assert verified.ok, verified.findings[:3]
        stored = (*self.world.stored(), *files_below(self._views))
        found = matches_in(stored, re.compile(self._prefix.encode() + rb"(\d{6})"))
        # The metadata of an entry is lost if only a view still holds the entry.
        forgotten = {entry.tag for entry in gone if selector.metadata and (entry.segment, entry.sequence) not in before}
        left = {
            tag: names
            for tag in gone_tags
            if (names := {name for name in found.get(tag[-6:], ()) if tag not in forgotten or not _is_of_view(name)})
        }
        assert not left, sorted(left.items())[:3]
        for tag in after.values():
            assert tag[-6:] in found, "the search finds nothing at all"

    def _selector(self) -> _Selector:
        name = self.dice.choice(("user-17/*", "user-17/*", "user-*", _SEGMENTS[0], _SEGMENTS[3], None))
        metadata = {"subject": self.dice.choice(_SUBJECTS[:2])} if name is None or self.dice.random() < 0.2 else None
        return _Selector(name, metadata)

    def _readable(self, store: Store) -> dict[tuple[str, int], bytes]:
        return {
            (entry.segment, entry.sequence): entry.payload[: len(self._prefix) + 6]
            for segment in _SEGMENTS
            for entry in store.consume_segment(_SPACE, segment, gaps="skip")
        }

    def _classify(
        self, store: Store, selector: _Selector, gone: list[_Written], before: dict[tuple[str, int], bytes]
    ) -> None:
        space = inner(store).look_up(_SPACE)[0]
        assert space is not None
        for partition in space.partitions:
            released = partition.head.released
            if any(pack.first <= released < pack.last for pack in partition.head.packs):
                self.seen.add(BOUNDARY)
        segments = {entry.segment for entry in gone}
        readable = {segment for segment, _ in before}
        if (selector.segment or "").endswith("*") and not segments <= readable:
            self.seen.add(GLOB)
        if selector.metadata is not None and any((entry.segment, entry.sequence) not in before for entry in gone):
            self.seen.add(HIDDEN_METADATA)


def _is_of_view(name: str) -> bool:
    return "/views-" in name or "/_published/" in name


def _key(entry: Any) -> str:
    return entry.payload[:22].decode()


@contextlib.contextmanager
def _killed_by_the_system(number: int) -> Iterator[None]:
    """The process is killed before call `number`, from 1, of those that change a file; 0: it is not."""
    count = 0

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if 0 < number <= count:
                raise Crash("killed")  # also what it would clean up on its way out
            return call(*arguments, **options)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in _DEADLY:
            patch.setattr(os, name, wrapped(getattr(os, name)))
        yield
