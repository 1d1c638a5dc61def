"""The seam: the duties of a storage service. It knows nothing about streams.

A backend knows partitions, keys, bytes and preconditions. It is found by its URL scheme through the entry point group
`streamkit.backends`: the entry point is a function `connect(url, *, timeout) -> Driver`. It imports its SDK when it is
opened, lets no foreign exception out, keeps no retry loop around a write, and logs no secret.
`streamkit.testing.run_conformance` checks all promises of this module.

A row is addressed by (partition, key), both bytes of at most 300. Its value has any size up to 256 MiB. Partitions are
independent of each other; b"" is one like every other. Within a partition rows are ordered by key, as bytes.

Errors that a backend raises, beside its own bug:

| error | means |
|---|---|
| Conflict | a precondition does not hold: the operation was not applied |
| Ambiguous | a write was sent and the answer is lost: it may have been applied, or may be later |
| Throttled, Unavailable | the operation was not applied and will not be; try again |
| AccessDenied, CorruptData, StoreClosed, PermanentError | final; says what to do |

Every write is one row with its precondition. There are no batches, and nothing that outlives a call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from os import urandom
from typing import Final, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from .errors import StreamkitError
from .service_time import ServiceClock, ServiceTime
from .url import split_url, unescape, url_options

__all__ = [
    "ABSENT",
    "ANY",
    "NEXT",
    "Ambiguous",
    "ArchiveHost",
    "ArchiveWriter",
    "Backend",
    "Conflict",
    "DeletesIf",
    "Discards",
    "Driver",
    "Ends",
    "Etag",
    "Expect",
    "Grant",
    "KeepsCopies",
    "Limits",
    "OpenedRow",
    "OpensRows",
    "Range",
    "RemovesLeftovers",
    "Row",
    "Salvaged",
    "Salvages",
    "Scrubs",
    "ServiceClock",
    "ServiceTime",
    "ShowsLeases",
    "TellsChanges",
    "TellsSize",
    "Value",
    "first_token",
    "owner_of",
    "split_url",
    "unescape",
    "url_options",
]

Etag = str
"""Changes with every change of a row's value; opaque, compared for equality only."""


class Expect(Enum):
    """A precondition that is not an etag."""

    ANY = "any"
    ABSENT = "absent"
    NEXT = "next"


ANY: Final = Expect.ANY
"""Write whether or not a row has the key."""
ABSENT: Final = Expect.ABSENT
"""The precondition that no row has the key."""
NEXT: Final = Expect.NEXT
"""The precondition ABSENT for a row of a log. Such a row is never replaced, and its key is greater than every key that
was put with NEXT into the partition before. If `limits.remote` is False, the backend refuses a lower key with Conflict,
also if the row of that key was deleted since. A remote backend checks only that the row is absent; the engine keeps the
order there. Such rows are mostly read in key order and deleted from the front, so a backend may store them apart: the
local backend uses append-only files."""


class Conflict(StreamkitError):
    """A precondition does not hold. `key` is a row that failed it, or None where the service does not say which."""

    def __init__(self, key: bytes | None = None) -> None:
        super().__init__(f"precondition failed on {key!r}")
        self.key = key


class Ambiguous(StreamkitError):
    """A write was sent and its answer was lost. The caller reads the row to learn the outcome."""


class Value(NamedTuple):
    """The value of a row."""

    data: bytes
    etag: Etag


class Row(NamedTuple):
    """A row: its key, its value and its etag."""

    key: bytes
    data: bytes
    etag: Etag


class Range(NamedTuple):
    """`length` bytes of the value of `key`, from `start`.

    `etag`, if the caller knows it, may spare the backend a look-up. A value that has another one by now may be read as
    None.
    """

    key: bytes
    start: int
    length: int
    etag: Etag | None = None


class Limits(NamedTuple):
    """Facts about a backend's service. The engine draws the conclusions."""

    remote: bool = False
    """True: a call is a network request, and the service's clock counts. False: all processes that use the store are on
    this machine, and NEXT refuses keys that are too low."""
    page: int = 1000
    """Rows that one request of a scan returns."""
    rate: float = float("inf")
    """Requests a second that the service takes for one partition before it throttles, as far as it says."""


class Grant(NamedTuple):
    """A lease that was acquired. `token` is greater than the token of every earlier grant of the name.

    That also holds if the stored state of the lease was deleted: then tokens begin at `first_token`.
    """

    name: str
    token: int
    ttl: float
    """Seconds, from the moment that acquire or renew was called."""
    handle: str
    """The backend's own data for renew and release; opaque."""


class Backend(Protocol):
    """One store. Safe to share between threads. Opening it does no I/O; an empty store reads as empty.

    A call that a signal handler or a finalizer makes while its own thread is in the middle of another one works, or
    raises `streamkit.reentry.Reentered`; it never waits for itself. The engine protects calls that it makes for such a
    handler: it looks for a method of the backend's class on the thread's stack. A generator that `scan` returns is
    therefore a method of that class. After close every call raises StoreClosed. After a fork, the child's copy works
    or raises StoreClosed; it never disturbs the parent's.
    """

    @property
    def limits(self) -> Limits:
        """The limits of the service. They are constant, and known without I/O."""
        ...

    @property
    def requests(self) -> Mapping[str, int]:
        """Requests to the service and bytes since opening, by kind. Counted at the transport."""
        ...

    def service_time(self) -> ServiceTime | None:
        """Return the service's clock, known from the dates of its answers, refusals included. Sends no request.

        None before the first answer, and if answers have no date: then no archived transaction is removed from the log.
        Always None if all processes that use the store share this machine's clock (not `limits.remote`).
        """
        ...

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        """Return the rows' values in the order of `keys`, None for a missing row.

        Sees every write that was acknowledged before the call, by any process. Several keys are fetched in parallel if
        that is faster. They are not one snapshot.
        """
        ...

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        """Return parts of values, like get. A range that reaches beyond the value is cut off, like a slice of bytes."""
        ...

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        """Yield rows with start <= key < end in key order, lazily, at most `limit` (0: all).

        A row that exists from before the scan until after it is never left out. An empty page is not the end. A failed
        read raises; the iterator never just stops early. No cursor, lock or read transaction is held between two rows.
        With `values` False only keys are needed: data and etag may be empty.
        """
        ...

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        """Set one row, if its precondition holds, and return its new etag.

        Returns when the row is on stable storage, together with every row that any process put into the partition
        before. With `durable` False a local backend may return earlier: a reader in any process sees the row, and only
        a power cut can take it back.
        """
        ...

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        """Remove rows, each for itself and in any order. A missing row is no error.

        After an error some of them may be removed, or be removed later: call it again.
        """
        ...

    def acquire(self, name: str, ttl: float) -> Grant | None:
        """Take the lease `name` for `ttl` seconds, or None if someone holds it. Leases are not rows.

        At most one grant is live at a moment by the service's clock: a holder's lease ends no earlier than ttl after
        it asked for it. Never compares the clocks of two machines.
        """
        ...

    def renew(self, grant: Grant) -> Grant:
        """Return the same lease (same token) for another ttl from now. LeaseLost if it was taken or released."""
        ...

    def release(self, grant: Grant) -> None:
        """Release the lease, so that it can be acquired at once. Releasing a lost lease is no error."""
        ...

    def close(self) -> None:
        """Release all resources. A second call does nothing."""
        ...


class Driver(Protocol):
    """One root URL, under which there are stores. Making it does no I/O."""

    def stores(self) -> Iterator[UUID]:
        """Yield the stores that exist, in any order. A store exists once something was written to it."""
        ...

    def open(self, store: UUID) -> Backend:
        """Return the store's backend. No I/O; the store need not exist."""
        ...

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        """Remove the store. A missing store is no error. After a failure, a second call continues.

        A process that has the store open may continue to write; its rows then belong to a new store of this id. If
        `limits.remote` is False, such writes are refused with StoreClosed.

        `keep`: rows (partition, key) that stay, so that such processes find them. The store counts as deleted and is
        not listed. Rows are named only if `limits.remote`. A second call removes the rows that it does not name.
        """
        ...

    def close(self) -> None:
        """Close the resources that the driver's stores share. A second call does nothing."""
        ...


@runtime_checkable
class ArchiveHost(Protocol):
    """A driver that also names the place of archives. For other drivers `connect(archive=URL)` names it."""

    def archive_root(self) -> tuple[str, dict[str, str]]:
        """Return the URL of a directory for the archives of all stores, and delta-rs storage options with credentials.

        `delete` also removes everything below `<url>/<store>/`. `stores` ignores the directory. No I/O.
        """
        ...


@runtime_checkable
class ArchiveWriter(Protocol):
    """A driver that writes a file of an archive with one request. Others need not: delta-rs takes three on S3."""

    def put_archived(self, path: str, data: bytes) -> None:
        """Write the file at `path` below `archive_root`, durably. Its name is new; again, the data are the same.

        The errors of `put`; whether it was written may then be unknown.
        """
        ...


@runtime_checkable
class DeletesIf(Protocol):
    """A backend that deletes a row only if it has an etag. Others need not: beside them, the deletion of a space may
    delete the row of a space of the same name that another process makes at that moment."""

    def delete_if(self, partition: bytes, key: bytes, etag: Etag) -> None:
        """Remove a row if it has this etag; Conflict if it has another one.

        A missing row is no error, or is Conflict. After a lost answer, call it again.
        """
        ...


@runtime_checkable
class Scrubs(Protocol):
    """A backend that can remove replaced, deleted and refused values, which its storage keeps for a while.
    Others need not.

    A local row that was put with NEXT is replaced where it is, if its etag is given and the value has the same length.
    """

    def scrub(self, partition: bytes) -> str | None:
        """Remove the bytes of all values of a partition that were replaced or deleted before the call.

        A sentence for the user if something may be, and when to try again; else None.
        """
        ...


@runtime_checkable
class RemovesLeftovers(Protocol):
    """A backend in whose storage a stopped process can leave values that no row has. Others need not."""

    def remove_leftovers(self) -> str | None:
        """Remove such values of all partitions, as soon as nobody can be writing them.

        A sentence for the user if some are too young, and when to try again; else None.
        """
        ...


@runtime_checkable
class KeepsCopies(Protocol):
    """A backend whose storage may keep replaced and deleted values by its own settings. Others need not."""

    def kept_copies(self) -> str | None:
        """A sentence for the user if the storage keeps versions, snapshots or deleted values, with the next step.

        None if it keeps none, or does not tell. It asks the storage.
        """
        ...


class Salvaged(NamedTuple):
    """The readable rows of a damaged partition."""

    rows: Mapping[bytes, Callable[[], bytes]]
    """A function for each key, which reads the value. It may raise CorruptData, or return a damaged value."""
    damage: Sequence[str] = ()
    """A description of each damaged place that may have held a row."""
    pieces: Sequence[bytes] = ()
    """The bytes of damaged places with unreadable keys. Values in them may be intact."""


@runtime_checkable
class Salvages(Protocol):
    """A backend that can read around damage. It keeps rows together, so a damaged row hides others."""

    def salvage(self, partition: bytes) -> Salvaged:
        """Return the readable rows of a partition. No process writes meanwhile, and nothing is changed.

        A row whose newest version is damaged has an older version, or none. A row whose deletion is damaged exists.
        Values put with NEXT may be damaged: their reader has its own checksums.
        """
        ...


@runtime_checkable
class Discards(Protocol):
    """A backend that can remove a partition whose rows cannot be read. It keeps rows together, so a damaged row hides
    others. `delete` is enough for the other backends."""

    def discard(self, partition: bytes) -> None:
        """Remove all rows of a partition, readable or not. A missing partition, or a second call, is no error.

        A process that has the partition open gets StoreClosed, or sees a partition without rows.
        """
        ...


@runtime_checkable
class Ends(Protocol):
    """A backend whose calls raise StoreClosed once the store was deleted. On a service, the log tells it."""

    def has_ended(self) -> bool:
        """True if the store was deleted since the backend had it open. No request is made."""
        ...


class OpenedRow(Protocol):
    """A row that a backend has opened."""

    @property
    def compiled(self) -> object | None:
        """The row's `streamkit_speed.OpenRow`; None without the compiled codec."""
        ...

    def part(self, start: int, length: int) -> bytes:
        """Return `length` bytes of the value, from `start`. The caller checks them by a checksum of its own.

        Fewer bytes, or none, if they cannot be read: then `read` raises the error.
        """
        ...


@runtime_checkable
class OpensRows(Protocol):
    """A backend with rows in files of their own, which the index reads by itself. Others need not."""

    def open_row(self, partition: bytes, key: bytes) -> OpenedRow | None:
        """Open a row whose value never changes. None if there is no such row or file: then `read` raises the
        error."""
        ...


@runtime_checkable
class ShowsLeases(Protocol):
    """A backend that can show if a lease is held. Otherwise a look at a lease acquires and releases it."""

    def is_held(self, name: str) -> bool:
        """True if a holder has the lease `name` now, by the service's clock. Changes nothing.

        A lease whose end cannot be told yet counts as held, as for `acquire`.
        """
        ...


@runtime_checkable
class TellsChanges(Protocol):
    """A backend that knows without a request whether a partition was written to. Others need not."""

    def change(self, partition: bytes) -> int | None:
        """Return a number that differs from all earlier ones after each write to the partition, by any process.

        None if it is not known. Sees every write that was acknowledged before the call. StoreClosed as `get`.
        """
        ...


@runtime_checkable
class TellsSize(Protocol):
    """A backend that knows how much its storage holds of a partition. For others, the engine adds up what it has noted,
    which lacks large transactions that are still rows of their own."""

    def stored_bytes(self, partition: bytes) -> int:
        """Return the bytes of a partition's rows, and of replaced and deleted rows that the storage still has."""
        ...


def owner_of(partition: bytes) -> tuple[str, int] | None:
    """The space and the number of a partition, for errors. None for a partition that belongs to the whole store."""
    name, number = partition[:-9], partition[-9:]
    if not name or number[0]:
        return None
    return name.decode(errors="replace"), int.from_bytes(number[1:], "big")


def first_token(now: float) -> int:
    """The first token of a lease that is not stored; `now`: seconds since the epoch by the service's clock.

    The stored token may have been deleted behind streamkit's back. A token grows by one with each grant, which is less
    than a million times a second, so earlier tokens are lower. The clock is exact to the second; the lower digits are
    random, so that two tokens of the same second differ.
    """
    return int(now) * 1_000_000 + int.from_bytes(urandom(4)) % 1_000_000
