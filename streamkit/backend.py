"""The seam: what a storage service must do for streamkit, and nothing about streams.

A backend knows partitions, keys, bytes and preconditions. It is found by its URL scheme through the entry point group
`streamkit.backends`: the entry point is a function `connect(url, *, timeout) -> Driver`. It imports its SDK when it is
opened, lets no foreign exception out, keeps no retry loop around a write, and logs no secret.
`streamkit.testing.conformance` checks all that is promised here.

A row is addressed by (partition, key), both bytes. Partitions are independent of each other; b"" is one like every
other. Within a partition rows are ordered by key, as bytes. Partitions are at most 300 bytes, keys at most 300.

Errors that a backend raises, beside its own bug:

| error | means |
|---|---|
| Conflict | a precondition does not hold: the operation was not applied |
| Ambiguous | a write was sent and the answer is lost: it may have been applied, or may be later |
| Throttled, Unavailable | the operation was not applied and will not be; try again |
| AccessDenied, CorruptData, StoreClosed, PermanentError | final; says what to do |

Of a write that is atomic, and of one with a single operation, each of them speaks for the whole. Of several operations
that are not atomic it speaks for one: see `Backend.write`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from os import urandom
from typing import Final, NamedTuple, Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

from .errors import StreamkitError
from .service_time import ServiceClock, ServiceTime

__all__ = [
    "ABSENT",
    "ANY",
    "Ambiguous",
    "Append",
    "ArchiveHost",
    "Backend",
    "Conflict",
    "Delete",
    "Driver",
    "Etag",
    "Expect",
    "Grant",
    "Limits",
    "Op",
    "Put",
    "Range",
    "Row",
    "ServiceClock",
    "ServiceTime",
    "Value",
    "first_token",
    "url_options",
]

Etag = str | bytes
"""Changes with every change of a row's value; opaque, compared for equality only."""


class Expect(Enum):
    """A precondition that is not an etag."""

    ANY = "any"
    ABSENT = "absent"


ANY: Final = Expect.ANY
ABSENT: Final = Expect.ABSENT


class Conflict(StreamkitError):
    """A precondition does not hold. `key` is a row that failed it, or None where the service does not say which."""

    def __init__(self, key: bytes | None = None) -> None:
        super().__init__(f"precondition failed on {key!r}")
        self.key = key


class Ambiguous(StreamkitError):
    """A write was sent and its answer was lost. Whoever sent it reads back to learn what happened."""


class Value(NamedTuple):
    data: bytes
    etag: Etag


class Row(NamedTuple):
    key: bytes
    data: bytes
    etag: Etag


class Range(NamedTuple):
    """`length` bytes of the value of `key`, from `start`."""

    key: bytes
    start: int
    length: int


class Put(NamedTuple):
    """Set a row: whatever is there (ANY), only if there is nothing (ABSENT), or only if its etag is `expect`."""

    key: bytes
    value: bytes
    expect: Expect | Etag = ANY


class Append(NamedTuple):
    """Put with ABSENT, of a row that is never replaced. Conflict if there is a row with its key.

    The caller sees to it that the key is greater than that of every earlier Append of the partition, and that a key
    that was ever appended is never put. A backend need not check that: one that can see the order (memory, local)
    refuses a lower key with Conflict, one that sees only the row (S3, Azure) stores it. Neither harms other rows.

    Rows written so are mostly read in key order and deleted from the front, and a backend may keep them apart: the
    local one does, in append-only files. Get, read, scan and Delete see them like other rows.
    """

    key: bytes
    value: bytes


class Delete(NamedTuple):
    """Remove a row; one that is not there is fine, unless `expect` is an etag."""

    key: bytes
    expect: Expect | Etag = ANY


Op = Put | Append | Delete


class Limits(NamedTuple):
    """What the engine must know of a backend to use it well."""

    atomic: bool
    """True: the operations of one write are applied all or not at all, for every reader."""
    atomic_rows: bool = False
    """True: at least a write without an Append is."""
    ops: int = 1000
    """The most operations in one write."""
    batch_bytes: int = 1 << 30
    """The most bytes, keys and values, in one atomic write. A single Append above it is still taken."""
    inline: int = 0
    """Frames up to this many bytes are copied into the index, so that reading needs no second request; 0: never."""
    row: int = 1 << 16
    """An index row is filled up to about this many bytes."""
    upkeep: int = 1024
    """Where writes are not atomic: the number of transactions after which the index is brought forward."""
    page: int = 1000
    """Rows that one request of a scan brings."""
    poll: tuple[float, float] = (0.002, 0.05)
    """Seconds between two looks while following: at first, and at most when nothing happens."""
    remote: bool = False
    """True: a call is a network request, and the clock that matters is the service's."""


class Grant(NamedTuple):
    """A lease that was acquired. `token` is greater than that of every earlier grant of the name, for ever.

    That holds also if somebody deleted what the service keeps of the lease: then it begins at `first_token`.
    """

    name: str
    token: int
    ttl: float
    """Seconds, from the moment that acquire or renew was called."""
    handle: str
    """What the backend needs to renew and release; opaque."""


class Backend(Protocol):
    """One store. Safe to share between threads. Opening it does no I/O; a store that nobody wrote to reads empty.

    A call that a signal handler or a finalizer makes while its own thread is in the middle of another one works, or
    raises `streamkit.reentry.Reentered`; it never waits for itself. After close every call raises StoreClosed. After a
    fork, the child's copy works or raises StoreClosed; it never disturbs the parent's.
    """

    @property
    def limits(self) -> Limits:
        """Constant, and known without I/O."""
        ...

    @property
    def requests(self) -> Mapping[str, int]:
        """What was asked of the service since opening, by kind: requests and bytes. Counted at the transport."""
        ...

    def service_time(self) -> ServiceTime | None:
        """The service's clock as its answers have told it, those that refused something too; asks nothing.

        None before the first answer, and where answers are not dated: then nothing that was archived is removed from
        the log. None for ever where all who use the store share this machine's clock (not `limits.remote`).
        """
        ...

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        """The rows' values in the order of `keys`, None for one that is not there.

        Sees every write that was acknowledged before the call, by any process. Several keys are fetched in parallel
        where that is faster, and are not one snapshot.
        """
        ...

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        """Parts of values, like get. A range that reaches beyond the value is cut there, as bytes are."""
        ...

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        """Rows with start <= key < end in key order, lazily, at most `limit` (0: all).

        A row that is there from before the scan until after it is never left out. An empty page is not the end.
        A failed read raises; the iterator never just stops early. Nothing (cursor, lock, read transaction) is held
        while the caller thinks. With `values` False only keys are needed: data and etag may be empty.
        """
        ...

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        """Apply the operations; returns the new etags in their order (None for Delete).

        Atomic if `limits.atomic`, and without an Append if `limits.atomic_rows`. Otherwise the operations are
        independent, in any order and at the same time. All are tried, then one error is raised, for one of them:
        Ambiguous if any was, else the first. The others may have been applied or refused. So after any other error than
        Ambiguous nothing of it is still on its way, and to send all of it again is right where each operation is
        unconditional, or Conflict is looked into.
        Returns when the write is on stable storage; with `durable` False a local backend may return earlier, but
        a reader in any process sees it, and only a power cut can take it back.
        `ops` is not empty, names no key twice, and holds at most `limits.ops`.
        """
        ...

    def acquire(self, name: str, ttl: float) -> Grant | None:
        """Take the lease `name` for `ttl` seconds, or None if someone holds it. Leases are not rows.

        At most one grant is live at a moment by the service's clock: a holder's lease ends no earlier than ttl after
        it asked for it. Never compares the clocks of two machines.
        """
        ...

    def renew(self, grant: Grant) -> Grant:
        """The same lease (same token) for another ttl from now. LeaseLost if it was taken or released."""
        ...

    def release(self, grant: Grant) -> None:
        """Give it up, so that it can be acquired at once. One that was lost already is fine."""
        ...

    def close(self) -> None:
        """Release what is held. Again is fine."""
        ...


class Driver(Protocol):
    """One root URL, under which there are stores. Making it does no I/O."""

    def stores(self) -> Iterator[UUID]:
        """The stores that exist: those that something was written to. In any order."""
        ...

    def open(self, store: UUID) -> Backend:
        """The store's backend; no I/O, and the store need not exist."""
        ...

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        """Remove all of it. A store that does not exist is fine. If it fails half-way, calling again goes on.

        Who has it open may go on writing, and then its rows are those of a store that was made again. A backend that
        refuses an Append for its order must refuse these writes too: the two know nothing of each other's keys.

        `keep`: rows (partition, key) that are left where they are, for such processes to find; the store is gone all
        the same, and not listed. They are named only if `limits.atomic` and `limits.atomic_rows` are False. Deleting
        again removes what is not named again.
        """
        ...

    def close(self) -> None:
        """Close what the driver shares between its stores. Again is fine."""
        ...


@runtime_checkable
class ArchiveHost(Protocol):
    """A driver that can also say where archives are kept. A driver need not: then `connect(archive=URL)` says it."""

    def archive_root(self) -> tuple[str, dict[str, str]]:
        """The URL of a directory for the archives of all stores, and delta-rs storage options with credentials.

        `delete` removes what is below `<url>/<store>/` too. `stores` is not disturbed by it. No I/O.
        """
        ...


def first_token(now: float) -> int:
    """The token of a lease of which nothing is stored; `now`: seconds since the epoch by the service's clock.

    Something may have been stored, and deleted behind streamkit's back. A token grows by one with each grant, which is
    less than a million times a second, so those of before are lower. The clock is exact to the second; what is below
    keeps two tokens of the same second apart.
    """
    return int(now) * 1_000_000 + int.from_bytes(urandom(4)) % 1_000_000


def url_options(url: str, known: Sequence[str]) -> dict[str, str]:
    """The query of `url` as a dict. ValueError for an option that is not in `known`, or is given twice."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if name not in known:
            options = ", ".join(sorted(known)) or "none"
            raise ValueError(f"unknown option {name!r} in the store URL; known here: {options}")
        if name in found:
            raise ValueError(f"the option {name!r} is given twice in the store URL")
        found[name] = value
    return found
