"""A diagnosis of a store in words: slow calls, their causes and remedies. From counts and a few requests."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from .backend import KeepsCopies
from .errors import StreamkitError
from .log.policy import policy_of
from .names import InternalName
from .statistics import Statistics
from .store import Store, inner
from .terminal import amount

__all__ = ["Diagnosis", "Finding", "Probe", "SpaceProbe", "diagnose", "findings_of", "probe"]

_FEW = 20
"""Events below which a share says nothing."""
_MOST_SPACES = 100
_DAY = 86_400.0


class Finding(msgspec.Struct, frozen=True):
    """An observation of the diagnosis, with its cause and its remedy."""

    subject: Literal["requests", "conflicts", "retries", "index", "cache", "clock", "groups", "copies", "damage"]
    text: str
    """The observation, its cause and the remedy."""
    space: str = ""


class Diagnosis(msgspec.Struct, frozen=True):
    """Result of `diagnose`: the findings, and the measurements that they come from."""

    findings: tuple[Finding, ...]
    probe: Probe

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.findings


class SpaceProbe(msgspec.Struct, frozen=True):
    """One space, as its heads and its log say."""

    space: str
    partitions: int = 1
    unindexed: int = 0
    """Transactions of the partition with the most that its index does not hold yet."""
    runs: int = 0
    """Files of the index of the partition with the most."""
    newest: int = 0
    """The timestamp of its last transaction, in ms."""
    lag: int = 0
    """Entries of its groups that are not done."""
    dead: int = 0
    error: str = ""


class Probe(msgspec.Struct, frozen=True):
    """The observations that a diagnosis is made from."""

    statistics: Statistics
    remote: bool
    request_seconds: float
    """The median duration of a look at a head: one request."""
    upkeep: int
    """Transactions after which upkeep is due."""
    most_runs: int
    now: int
    """This machine's clock, in ms."""
    service_now: int | None
    """The service's clock, in ms; None if it has none of its own."""
    spaces: tuple[SpaceProbe, ...] = ()
    left: int = 0
    """Spaces that were not looked at."""
    copies: str = ""
    """A sentence on replaced and deleted values that the storage keeps, or ""."""


def diagnose(store: Store) -> Diagnosis:
    """Look at up to 100 spaces of the store, and name slow parts and their causes.

    Nothing is written. Call it in the slow process: conflicts, retries and cache misses are counted in each process.
    """
    found = probe(store)
    return Diagnosis(tuple(findings_of(found)), found)


def probe(store: Store) -> Probe:
    """Measure the store, with a few requests for each space, and return the observations."""
    shared = inner(store)
    policy = policy_of(shared.backend.limits)
    names = [name for name in shared.space_names() if not isinstance(name, InternalName)]
    durations: list[float] = []
    spaces = [_space(store, name, durations) for name in names[:_MOST_SPACES]]
    told = shared.backend.service_time()
    now = shared.clock.now()
    service = None if told is None else int(told.latest * 1000)
    if service is not None and abs(service - now) > _DAY * 1000:
        service = None  # a clock with another epoch
    return Probe(
        store.statistics(),
        shared.backend.limits.remote,
        sorted(durations)[len(durations) // 2] if durations else 0.0,
        policy.upkeep,
        policy.runs,
        now,
        service,
        tuple(spaces),
        max(0, len(names) - _MOST_SPACES),
        (shared.backend.kept_copies() or "") if isinstance(shared.backend, KeepsCopies) else "",
    )


def _space(store: Store, name: str, durations: list[float]) -> SpaceProbe:
    try:
        known, _ = inner(store).look_up(name)
        if known is None:
            return SpaceProbe(name)
        for partition in known.partitions:
            began = time.perf_counter()
            partition.read_head()
            durations.append(time.perf_counter() - began)
            partition.refresh()
        lag = dead = 0
        for group in store.get_groups(name):
            found = store.find_group(name, group)
            if found is not None:
                status = found.status()
                lag, dead = lag + status.lag, dead + status.dead
        return SpaceProbe(
            name,
            len(known.partitions),
            max(partition.number - partition.watermark for partition in known.partitions),
            max(len(partition.head.manifest.runs) for partition in known.partitions),
            max(partition.known_end()[2] for partition in known.partitions),
            lag,
            dead,
        )
    except StreamkitError as error:
        return SpaceProbe(name, error=f"{type(error).__name__}: {error}")


def findings_of(found: Probe) -> Iterator[Finding]:
    """The findings of a probe, the most urgent subject first."""
    for judge in _JUDGES:
        yield from judge(found)


def _damage(found: Probe) -> Iterator[Finding]:
    for space in found.spaces:
        if space.error:
            text = f"it could not be read ({space.error}). `streamkit verify` says where it is damaged"
            yield Finding("damage", text, space.space)


def _requests(found: Probe) -> Iterator[Finding]:
    slow = 0.25 if found.remote else 0.02
    if found.request_seconds > slow:
        where = (
            "the service is far away or throttles: run in its region, and give few processes the same partition"
            if found.remote
            else "the disk or the machine is busy, or the directory is on a network file system: use a local disk"
        )
        text = (
            f"a request takes {found.request_seconds * 1000:,.0f} ms, more than {slow * 1000:,.0f} ms. Probably {where}"
        )
        yield Finding("requests", text)


def _conflicts(found: Probe) -> Iterator[Finding]:
    counts = found.statistics
    tried = counts.transactions + counts.conflicts
    if counts.conflicts >= _FEW and counts.conflicts * 5 > tried:
        yield Finding(
            "conflicts",
            f"{counts.conflicts:,} of {tried:,} commits of this process lost against another writer and were "
            "repeated. Many processes write to one partition: create the space with more partitions, or put more "
            "records into a commit",
        )
    if counts.taken_over >= 3:
        yield Finding(
            "conflicts",
            f"{counts.taken_over:,} times a process did not write the requests of others that it had to write. "
            "Processes are frozen or stopped in the middle of a commit: close stores before a process ends",
        )


def _retries(found: Probe) -> Iterator[Finding]:
    counts = found.statistics
    requests = sum(value for kind, value in counts.requests.items() if not kind.startswith("bytes_"))
    if counts.retries >= _FEW and counts.retries * 20 > requests:
        yield Finding(
            "retries",
            f"{counts.retries:,} of {requests:,} requests were made again, after throttling or an error. Lower the "
            "rate, spread the load over more stores or prefixes, or raise the service's limit",
        )
    if counts.settled >= 3:
        yield Finding(
            "retries",
            f"the answers of {counts.settled:,} commits were lost and had to be read back. The network breaks "
            "connections: look for a proxy or a timeout between this machine and the service",
        )


def _index(found: Probe) -> Iterator[Finding]:
    failed = found.statistics.upkeep_failures
    if failed:
        text = f"upkeep of the index failed {failed:,} times here. The logger `streamkit` says why"
        yield Finding("index", text)
    for space in found.spaces:
        if space.unindexed > 4 * found.upkeep:
            yield Finding(
                "index",
                f"{space.unindexed:,} transactions are not in the index, and upkeep is due after {found.upkeep:,}. "
                "Each process that opens the space reads them all. Writers end before they do the upkeep: run "
                "`streamkit maintain`",
                space.space,
            )
        if space.runs > 2 * found.most_runs:
            yield Finding(
                "index",
                f"its index has {space.runs:,} files, more than {found.most_runs:,}. A lookup may ask each: run "
                "`streamkit maintain`",
                space.space,
            )


def _cache(found: Probe) -> Iterator[Finding]:
    counts = found.statistics
    looks = counts.cache_hits + counts.cache_misses
    if counts.cache_misses >= 5 * _FEW and counts.cache_misses * 2 > looks:
        yield Finding(
            "cache",
            f"{counts.cache_misses:,} of {looks:,} lookups were not in memory. Caches are cold: keep one client open "
            "for the life of the process, and do not connect for each request",
        )


def _clock(found: Probe) -> Iterator[Finding]:
    if found.service_now is not None and abs(behind := found.service_now - found.now) > 5000:
        side = "behind" if behind > 0 else "ahead of"
        text = f"this machine's clock is {abs(behind) / 1000:,.0f} s {side} the service's. Set it by NTP,"
        yield Finding("clock", f"{text} because retention by age and `min_age` use it")
    for space in found.spaces:
        if space.newest - found.now > 5000:
            yield Finding(
                "clock",
                f"its newest entry is {(space.newest - found.now) / 1000:,.0f} s in the future of this machine. The "
                "clock of a writer is fast, or this one is slow: new entries get that timestamp until the "
                "clocks have caught up",
                space.space,
            )


def _groups(found: Probe) -> Iterator[Finding]:
    for space in found.spaces:
        if space.dead:
            command = f"`streamkit group dead {shlex.quote(space.space)} GROUP`"
            text = f"{amount(space.dead, 'dead letter')} in its groups. {command} lists the reasons"
            yield Finding("groups", text, space.space)
        if space.lag > 10_000:
            text = f"its groups are {space.lag:,} entries behind. Run more consumers, or more `lanes`"
            yield Finding("groups", text, space.space)


def _copies(found: Probe) -> Iterator[Finding]:
    if found.copies:
        yield Finding("copies", f"erased entries stay in the storage. {found.copies[0].upper()}{found.copies[1:]}")


_JUDGES: tuple[Callable[[Probe], Iterator[Finding]], ...] = (
    _damage,
    _requests,
    _conflicts,
    _retries,
    _index,
    _cache,
    _clock,
    _groups,
    _copies,
)
