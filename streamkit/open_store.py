"""An open store of a client: the state that all its handles share."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from .backend import Backend, Ends
from .clock import Clock
from .errors import UNREADABLE, CorruptData, PermanentError, StoreClosed, StreamkitError, TransientError, no_space
from .index.block_cache import BlockCache
from .index.runs import Runs
from .log.context import Context
from .log.index_reader import Index
from .log.keys import CATALOG, SPACES, segment_name, space_key
from .log.manifest import Manifest
from .log.moments import Moments
from .log.notifier import Notifier
from .log.packs import TableCache
from .log.partition import Partition
from .log.rows import Settings
from .names import InternalName, internal_name
from .reentry import inside_backend
from .space import Space, catalog_row, check_head, create_space, open_space, settings_of
from .statistics import Counters
from .warn import warn

if TYPE_CHECKING:
    from .archive.read import Archive

__all__ = ["ArchiveRoot", "OpenStore", "open_stores"]

ArchiveRoot = tuple[str, dict[str, str], Callable[[str, bytes], None] | None]
"""The archives' root, its delta-rs storage options, and a function that writes a small file there (`ArchiveWriter`)."""

_ABSENT = 600.0
"""Seconds between two looks at the list of spaces for a missing space: its waiting followers cost no more."""
_MOST_ABSENT = 1000

_open: weakref.WeakValueDictionary[int, OpenStore] = weakref.WeakValueDictionary()
"""The stores by the ids of their objects. Not a set, because other threads may open stores while it is read."""


def open_stores() -> list[OpenStore]:
    """The stores that this process has open, of all clients."""
    return [store for store in _all() if not store.closed]


def _all() -> list[OpenStore]:
    return [store for reference in _open.valuerefs() if (store := reference()) is not None]


def _after_fork() -> None:
    for store in _all():
        for space in list(store.spaces.values()):
            for committer in space.committers:
                committer.leave_to_parent()
        store.forget()


os.register_at_fork(after_in_child=_after_fork)


class _Opening:
    """A space that is being opened. Threads that begin together look for it once, or twice if it does not exist."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held while a thread looks for the space."""
        self.looks = 0
        """The number of looks that were begun."""
        self.absent = 0
        """The last look that found no space. Threads that came before it began need not look again."""


class OpenStore:
    """An open store: its backend, and the spaces and archives that were opened.

    Threads share it, so their commits go together. The client counts the handles, and closes the store with the last.
    """

    def __init__(
        self,
        store_id: UUID,
        backend: Backend,
        counters: Counters,
        clock: Clock,
        poll: tuple[float, float],
        most_bytes: int,
        archive_root: Callable[[], ArchiveRoot],
    ) -> None:
        self.id = store_id
        self.backend = backend
        self.counters = counters
        self.clock = clock
        self.poll = poll
        self.most_bytes = most_bytes
        self.archive_root = archive_root
        self.handles = 0
        """Guarded by the client's lock."""
        self.closed = False
        self.forget()
        _open[id(self)] = self

    def forget(self) -> None:
        """Forget all that was learned, and every lock that another thread may have held at a fork."""
        self.node = uuid4().bytes
        self.spaces: dict[str, Space] = {}
        self._opening: dict[str, _Opening] = {}
        self._resting: dict[str, Space] = {}
        """Spaces that were open before the store rested, and have to be confirmed."""
        self._absent: dict[str, float] = {}
        """Missing spaces, and when they are looked for in the list of spaces again."""
        self.archives: dict[str, Archive] = {}
        self.attached: dict[Any, Any] = {}
        """Objects that clients of the store share in this process. They are freed with the store."""
        self.notifier = Notifier()
        self.blocks = BlockCache()
        tables, moments = TableCache(), Moments(self.clock.now)
        self.context = Context(
            self.backend, self.clock, self.counters, self.notifier, self.index_of, self.archive, tables, moments
        )

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"the store {self.id} is closed; open it again with client.store(…)")

    @property
    def lost(self) -> bool:
        """True if the store was deleted after it was opened, or a space was found deleted. For its handles this stays
        true."""
        if isinstance(self.backend, Ends) and self.backend.has_ended():
            return True
        return any(partition.lost for space in list(self.spaces.values()) for partition in space.partitions)

    def look_up(
        self, space: str, segments: tuple[str, ...] | None = (), *, headless: bool = False
    ) -> tuple[Space | None, int | None]:
        """The space, opened if necessary, and the argument `since` for Partition.refresh.

        A space opened for `segments` is read together with the blocks for their statuses; None: no log is read yet.
        CorruptData if the space has lost its head; with `headless` it counts as missing, which saves a request.
        Only the call that opened the space has seen everything that existed when the call began. The look of another
        thread may be older than this call.
        """
        found = self.spaces.get(space)
        if found is not None:
            return found, None
        self.check_open()
        spaces = self.spaces
        found = self._confirmed(space)
        if found is not None:
            return spaces.setdefault(space, found), None
        opening = self._opening.setdefault(space, _Opening())
        if inside_backend() or opening.lock._is_owned():  # type: ignore[attr-defined]
            # A signal handler's call: it cannot wait for its own thread, or for a lock that this thread holds.
            return self._open(space, segments, headless)
        arrived = opening.looks
        with opening.lock:
            found = spaces.get(space)
            if found is not None or opening.absent > arrived:
                return found, None
            opening.looks += 1
            look = opening.looks
            try:
                opened = self._open(space, segments, headless)
            finally:
                self._opening.pop(space, None)
            if opened[0] is None and not headless:
                opening.absent = look
            return opened

    def _open(self, space: str, segments: tuple[str, ...] | None, headless: bool) -> tuple[Space | None, int | None]:
        found = open_space(self.context, space, self.node, self.most_bytes, segments)
        if found is None:
            now = self.clock.monotonic()
            if not headless and now >= self._absent.get(space, now):
                check_head(self.context, space)
                if len(self._absent) >= _MOST_ABSENT:
                    self._absent.clear()
                self._absent[space] = now + _ABSENT
            return None, None
        # Two threads may have opened it: both go on with the first.
        first = self.spaces.setdefault(space, found)
        return first, 0 if first is found else None

    def space_names(self) -> list[str]:
        """The names of all spaces, internal ones first."""
        self.check_open()
        rows = self.backend.scan(bytes(CATALOG), *SPACES.children(), values=False)
        names = [segment_name(row.key) for row in rows]
        return [InternalName(name) if name < " " else name for name in names]

    def internal_names(self, kind: str) -> list[InternalName]:
        """The names of the internal spaces of one kind: see `names.internal_name`."""
        self.check_open()
        start = bytes(space_key(internal_name(kind)))
        rows = self.backend.scan(bytes(CATALOG), start, start + b"\x20", values=False)
        return [InternalName(segment_name(row.key)) for row in rows]

    def rest(self) -> None:
        """Note that no handle is open. The next handle reuses the known state, as far as it is still true."""
        self._resting.update(self.spaces)
        self.spaces.clear()

    def _confirmed(self, space: str) -> Space | None:
        """The space as it was known before the store rested, if it was not deleted since."""
        found = self._resting.get(space)
        if found is not None:
            try:
                found.partitions[0].read_head()
            except (CorruptData, StoreClosed):
                found = None
                self.archives.pop(space, None)
            self._resting.pop(space, None)
        return found

    def ready(self, space: str, segments: tuple[str, ...]) -> Space:
        """The space, created with the default settings if it is not there."""
        for _ in range(3):
            found = self.look_up(space, segments, headless=True)[0]
            if found is not None:
                return found
            create_space(self.backend, self.clock, space, settings_of(1, "committed", 86_400.0), exact=False)
        raise StoreClosed(
            f"the store {self.id} was deleted while it was written to: open it again with client.store(…)"
        )

    def index_of(self, partition: Partition, manifest: Manifest) -> Index:
        """The runs that a manifest of the partition names."""
        return Runs(self.backend, partition.key, partition.seed, manifest, self.blocks)

    def unread(self, space: str) -> Callable[[int, Settings], Partition]:
        """A function that makes partitions of the space without reading them."""

        def make(number: int, settings: Settings) -> Partition:
            return Partition(self.context, space, number, settings)

        return make

    def archive(self, space: str) -> Archive:
        found = self.archives.get(space)
        if found is None:
            from .archive.location import ArchiveLocation
            from .archive.read import Archive

            found = self.archives.setdefault(space, Archive(ArchiveLocation(*self.archive_root()), self.id, space))
        return found

    def numbers(self, space: str) -> tuple[int, ...]:
        """The numbers of the space's partitions, if this process has opened it; the storage is not asked."""
        known = self.spaces.get(space)
        return tuple(partition.number for partition in known.partitions) if known else ()

    def end(self) -> list[tuple[bytes, bytes]]:
        """End all logs before the store is deleted. Returns the (partition, key) of the rows that must stay.

        Returns nothing if the backend itself refuses stale writers. A log that cannot be read is not ended.
        """
        from .log.log_end import earlier_ends, end_log

        ends: list[tuple[bytes, bytes]] = []
        if not self.backend.limits.remote:
            return ends
        for space in self.space_names():
            try:
                for partition in self.unread_partitions(space):
                    kept = {*end_log(partition), *earlier_ends(partition)}
                    ends += [(partition.key, key) for key in kept]
            except TransientError:
                raise
            except StreamkitError as error:
                message = "space %r is deleted, but processes that have it open cannot be notified: %s"
                warn(message, space, error, store=self.id, space=space)
        return ends

    def forget_space(self, space: str) -> None:
        """Forget the open space. The next access opens it again."""
        for known in (self.spaces, self.archives):
            known.pop(space, None)

    def has_archive(self, space: str) -> bool:
        """True if the storage holds anything of the space's archive.

        A head does not record files of an archiver that was stopped early, so the storage is asked. Without the
        archive's libraries the answer is False.
        """
        if isinstance(space, InternalName):
            return False
        try:
            root = self.archive_root()
        except PermanentError:  # there is no place for one
            return False
        from .archive.location import ArchiveLocation

        try:
            return ArchiveLocation(*root).has(self.id, space)
        except ImportError:
            return False

    def delete_archive(self, space: str) -> None:
        """Remove the archive of a space, if there is one."""
        from .archive.location import ArchiveLocation

        ArchiveLocation(*self.archive_root()).delete(self.id, space)

    def unread_partitions(self, space: str) -> Iterator[Partition]:
        """The partitions of a space whose logs may have ended. Their logs are not read."""
        make = self.unread(space)
        first = make(0, Settings())
        first.read_head()
        if first.head_etag is not None:
            yield first
            yield from (make(number, first.settings) for number in range(1, first.settings.partitions))

    def exists(self, space: str) -> bool:
        """True if the space exists. A damaged space does, also without its head or its place in the list of spaces."""
        try:
            return catalog_row(self.backend, space) is not None or any(self.unread_partitions(space))
        except UNREADABLE:
            return True

    def check_exists(self, space: str) -> None:
        """Raise PermanentError if the space does not exist: a mistyped name must not look like an empty space."""
        if not self.exists(space):
            raise no_space(self.id, space)

    def close(self) -> None:
        """Release all resources and wake all waiters. A second call does nothing."""
        if not self.closed:
            self.closed = True
            self.spaces.clear()
            self._resting.clear()
            self.notifier.notify_waiters()
            self.backend.close()
