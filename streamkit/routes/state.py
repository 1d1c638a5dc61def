"""The state of a route: a segment in an internal space of the source's store. Each record is the whole state, and the
last one counts.

Before a batch is copied, a record names it by its two ends. So a process that comes after a crash, however late, copies
exactly that batch again, under the same idempotency key. If two processes run the same route, only one writes the next
record.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import msgspec

from ..decoders import json_decoder
from ..errors import CorruptData, SequenceMismatch, StreamkitError, UnsupportedVersion
from ..model import Record
from ..names import InternalName, internal_name
from ..run.reading import SpacePosition
from ..store import Store

__all__ = ["CopyBatch", "Register", "RouteFailure", "RouteState", "RouteStatus", "forget_failures"]

FORMAT = 1
_SPACE = internal_name("routes")
_KEPT = 1000
"""Records after which the earlier ones are removed."""


class RouteFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reason of a pause: an entry that the route could not copy, or a target that refuses (sequence 0)."""

    error: str
    """The class and message."""
    segment: str = ""
    sequence: int = 0
    timestamp: int = 0
    """The entry's timestamp, in ms."""


class CopyBatch(msgspec.Struct, frozen=True):
    """The batch that is being copied: from the route's position to `end`."""

    end: SpacePosition
    copied: int
    began: int
    """The time of the pause in ms, by the clock of the process that paused the route."""
    target: str
    """The end of the target before, as hex text; "" of one that did not exist."""


class RouteState(msgspec.Struct, frozen=True, omit_defaults=True):
    format: int
    source: str
    target: str
    target_store: str
    generation: str
    """Random. It changes when the route starts again, and so do its idempotency keys."""
    position: SpacePosition
    batch: CopyBatch | None = None
    copied: int = 0
    paused: bool = False
    failure: RouteFailure | None = None
    skipped: int = 0
    missing: int = 0
    """Times that entries were gone before the route came by."""
    deleted: bool = False
    resumed: RouteFailure | None = None
    """The failure at which the route was paused when it was resumed. The entry may still be skipped while it is the
    next one."""
    earlier: tuple[str, ...] = ()
    """The sources of deleted routes of this name, whose records may still be stored, with the texts of failures."""


class RouteStatus(msgspec.Struct, frozen=True):
    """Status of a route."""

    name: str
    source: str
    target: str
    target_store: str
    state: Literal["current", "behind", "paused", "unknown"]
    """"unknown" if the source was not asked: in `get_routes`."""
    position: SpacePosition
    """The position in the source. Earlier entries are in the target."""
    entries: int
    """Entries that were read since the route began, or started again."""
    copied: int
    skipped: int
    behind: float
    """Seconds from the last entry that it has read, or if none from the first, until the newest; 0 at the end."""
    error: RouteFailure | None
    missing: int
    """Times that entries of the source were gone (trimmed, expired) before the route came by."""


class Register:
    """The record of one route."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self.sequence = 0
        self.state: RouteState | None = None
        self.deleted: RouteState | None = None
        """The last record of a route that was deleted."""

    def read(self) -> RouteState | None:
        """The state, None if there is none (any more)."""
        entry = self._store.peek(_SPACE, self._name)
        if entry.sequence != self.sequence:
            found = decode(self._name, entry.payload) if entry.sequence else None
            self.state, self.deleted = (None, found) if found is None or found.deleted else (found, None)
            self.sequence = entry.sequence
        return self.state

    def write(self, state: RouteState) -> bool:
        """False if another process wrote since it was read: read it again."""
        record = Record(msgspec.json.encode(state))
        try:
            self.sequence = self._store.produce(
                _SPACE, self._name, [record], expected_sequence=self.sequence
            ).last_sequence
        except SequenceMismatch:
            return False
        self.state = None if state.deleted else state
        if self.sequence % _KEPT == 0:
            with suppress(StreamkitError):  # a later write repeats it
                self._store.trim(_SPACE, self._name, before=self.sequence)
        return True


def decode(name: str, payload: bytes) -> RouteState:
    try:
        state = json_decoder(RouteState).decode(payload)
    except msgspec.DecodeError as error:
        raise CorruptData(f"the state of the route {name!r} cannot be read: {error}") from error
    if state.format > FORMAT:
        raise UnsupportedVersion(
            f"the state of the route {name!r} has format {state.format}; this release reads {FORMAT}. "
            "Upgrade streamkit."
        )
    return state


def status_of(name: str, state: RouteState, behind: float | None) -> RouteStatus:
    situation: Literal["current", "behind", "paused", "unknown"]
    if state.paused or state.failure is not None:
        situation = "paused"
    elif behind is None:
        situation = "unknown"
    else:
        situation = "behind" if behind else "current"
    return RouteStatus(
        name,
        state.source,
        state.target,
        state.target_store,
        situation,
        state.position,
        state.position.entries,
        state.copied,
        state.skipped,
        behind or 0.0,
        state.failure,
        state.missing,
    )


def get_routes(store: Store) -> list[RouteStatus]:
    """See `Store.get_routes`."""
    found = []
    for name in list(store.get_segments(_SPACE)):
        state = Register(store, name).read()
        if state is not None:
            found.append(status_of(name, state, None))
    return found


def forget_failures(
    store: Store, space: str, is_gone: Callable[[RouteFailure], bool]
) -> tuple[InternalName, list[str]]:
    """Remove the failure of each route from a space that failed at a removed entry: its text may quote the entry. The
    route continues then. Earlier states are trimmed.

    Yields (internal space, segments): trimmed records may hold a text.
    """

    def forgotten(failure: RouteFailure | None) -> RouteFailure | None:
        return None if failure is not None and is_gone(failure) else failure

    names = []
    for name in list(store.get_segments(_SPACE)):
        register = Register(store, name)
        if register.read() is None and (old := register.deleted) is not None and (old.failure or old.resumed):
            register.write(msgspec.structs.replace(old, failure=None, resumed=None))
        while (state := register.read()) is not None and state.source == space:
            clean = msgspec.structs.replace(state, failure=forgotten(state.failure), resumed=forgotten(state.resumed))
            if clean == state or register.write(clean):
                break
        if state is None or space in (state.source, *state.earlier):
            store.trim(_SPACE, name, before=register.sequence)
            names.append(name)
    return _SPACE, names
