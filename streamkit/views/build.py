"""Bringing one build of a view forward: in batches, each with its position in one transaction; and the handling of
errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from ..arguments import completed
from ..errors import CorruptData, PermanentError, StreamkitError, TransientError
from ..gaps import Gap
from ..model import Entry
from ..removing.erasures import begins_late, erased_since, has_erasures, seen_by
from ..run.failure import described
from ..run.reading import RemovedEntries, SpacePosition, after, chunks, is_loss
from ..store import Store
from ..warn import warn, warn_of
from .database import (
    FORMAT,
    State,
    ViewConnection,
    mapped,
    open_writer,
    read_state,
    transaction,
    write_clean,
    write_state,
)
from .view import View, ViewFailure

__all__ = ["Build", "Definition", "is_clean", "pending_erasures_of"]


_ERASED = "the entry was erased"
"""Stands in the table of skipped entries for an error that may quote the entry."""


class Definition(msgspec.Struct, frozen=True):
    """The definition of a view, independent of the place of its database."""

    store: Store
    name: str
    view: View
    spaces: tuple[str, ...]
    on_error: Literal["pause", "skip"]
    batch: int


class Build:
    """A database that this process writes, under the lock. Not for several threads at once."""

    def __init__(self, definition: Definition, path: str) -> None:
        self.path = path
        self._definition = definition
        self._view = definition.view
        self._loaded = -1
        """The revision that the view's memory is of."""
        self._warned: ViewFailure | None = None
        """The failure that the log of the program names already."""
        self.db: ViewConnection = open_writer(path)
        try:
            self.state = self._set_up()
        except BaseException:
            self.db.close()
            raise
        self._told = self._looked = self.state.told
        """Two positions: erasures up to the first are applied in the database, as its next write records; erasures up
        to the second were looked for."""

    def _set_up(self) -> State:
        found = read_state(self.db, self.path)
        if found is not None:
            self._check(found)
            return found
        definition = self._definition
        state = State(
            FORMAT,
            str(definition.store.id),
            definition.name,
            definition.view.version,
            {space: SpacePosition() for space in definition.spaces},
            told={space: seen_by(definition.store, space, fresh=True) for space in definition.spaces},
            clean=True,
        )
        with transaction(self.db, self.path):
            completed("setup", self._view.setup(self.db))  # type: ignore[func-returns-value]
            write_state(self.db, state)
        return state

    def _check(self, state: State) -> None:
        definition = self._definition
        if (state.store, state.name) != (str(definition.store.id), definition.name):
            raise PermanentError(
                f"the database {self.path} is of the view {state.name!r} of the store {state.store}, not of "
                f"{definition.name!r} of {definition.store.id}: give each view a path of its own, or delete this one"
            )

    def refresh(self) -> None:
        """Read the position that another process wrote while this one did not hold the lock."""
        state = read_state(self.db, self.path)
        assert state is not None
        if state != self.state:
            self.state, self._told, self._looked = state, state.told, state.told

    def _load(self) -> None:
        """Make the view's memory agree with the database, before `apply`."""
        if self._loaded != self.state.revision:
            with mapped(self.path):
                completed("load", self._view.load(self.db))  # type: ignore[func-returns-value]
            self._loaded = self.state.revision

    def advance(self, progress: Callable[[int], None], stop: Callable[[], bool]) -> bool:
        """Apply all present entries. False if it pauses at an entry, or was stopped. Errors of the store are raised."""
        if self.state.failure is not None:
            self._warn_paused(self.state.failure)
            return False
        store, began = self._definition.store, [space for space, at in self.state.spaces.items() if not at.offset]
        for chunk, gaps in chunks(store, self.state.spaces, self._definition.batch):
            self._check_complete(began, gaps)
            began = []
            if chunk and not self._apply(chunk):
                return False
            progress(self.state.entries)
            if stop():
                return False
        self._check_complete(began, ())
        return True

    def _check_complete(self, began: Sequence[str], gaps: Sequence[RemovedEntries]) -> None:
        """`began`: spaces that were read from their beginning."""
        if self.state.complete and (
            any(map(is_loss, gaps)) or any(begins_late(self._definition.store, space) for space in began)
        ):
            self._incomplete()

    def _apply(self, entries: Sequence[Entry]) -> bool:
        """Apply the entries in one transaction; if that fails, in halves, down to the failing entry."""
        try:
            self._commit(entries)
            return True
        except Exception as error:
            self._loaded = -1
            if isinstance(error, TransientError) or _is_of_the_database(error):
                raise
            if len(entries) > 1:
                middle = len(entries) // 2
                return self._apply(entries[:middle]) and self._apply(entries[middle:])
            return self._fail(entries[0], error)
        except BaseException:
            self._loaded = -1
            raise

    def _commit(self, entries: Sequence[Entry]) -> None:
        self._load()
        state = self.state
        changed = msgspec.structs.replace(
            state,
            spaces=after(state.spaces, entries),
            revision=state.revision + 1,
            failure=None,
            resumed=None,
            told=self._told,
        )
        with transaction(self.db, self.path):
            completed("apply", self._view.apply(self.db, entries))  # type: ignore[func-returns-value]
            write_state(self.db, changed)
        self.state = changed
        self._loaded = changed.revision

    def _fail(self, entry: Entry, error: Exception) -> bool:
        state = self.state
        said = described(error)
        offset = entry.space_offset.hex()
        failure = ViewFailure(entry.space, entry.segment, entry.sequence, entry.timestamp, offset, said)
        if self._definition.on_error == "skip":
            self.skip(entry, failure)
            return True
        changed = msgspec.structs.replace(state, failure=failure, resumed=None, revision=state.revision + 1)
        with transaction(self.db, self.path):
            write_state(self.db, changed)
        self.state = changed
        self._warn_paused(failure, error)
        return False

    def _warn_paused(self, failure: ViewFailure, error: Exception | None = None) -> None:
        """Name a failure in the log of the program once: a caller that does not look at the status would not know."""
        if error is None and failure == self._warned:
            return
        self._warned = failure
        definition = self._definition
        message = "the view %r is paused at space %r, segment %r, sequence %d: %s. Correct it and resume()"
        said = definition.name, failure.space, failure.segment, failure.sequence, failure.error
        if error is None:
            warn(message, *said, store=definition.store.id, space=failure.space)
        else:
            warn_of(error, message, *said, store=definition.store.id, space=failure.space)

    def skip(self, entry: Entry, failure: ViewFailure) -> None:
        """Go on behind an entry that cannot be applied."""
        state = self.state
        changed = msgspec.structs.replace(
            state,
            spaces=after(state.spaces, [entry]),
            skipped=state.skipped + 1,
            failure=None,
            resumed=None,
            revision=state.revision + 1,
        )
        with transaction(self.db, self.path):
            self.db.execute(
                "insert into streamkit_skipped values (?, ?, ?, ?, ?, ?)",
                (failure.space, failure.segment, failure.sequence, failure.timestamp, failure.offset, failure.error),
            )
            write_state(self.db, changed)
        self.state = changed

    def _incomplete(self) -> None:
        """Entries are gone that it has not seen."""
        changed = msgspec.structs.replace(self.state, complete=False, revision=self.state.revision + 1)
        with transaction(self.db, self.path):
            write_state(self.db, changed)
        self.state = changed

    def pending_erasures(self, *, fresh: bool) -> list[Gap] | None:
        """Find applied entries that were erased since the view last handled erasures. `fresh`: ask the storage. None if
        the log no longer holds the erasures: the view must be rebuilt.
        """
        gaps, now = pending_erasures_of(self._definition.store, self.state, fresh=fresh)
        if gaps is not None:
            self._looked = now
            if not gaps:
                self._told = now
        return gaps

    def erase(self, gaps: Sequence[RemovedEntries], *, all: bool = False) -> bool:
        """Have the view remove the rows that it made of entries that are gone; False if it cannot.

        `all`: the gaps are those that `pending_erasures` gave. The file is not clean then: `cleaned` makes one that is.
        """
        erase = getattr(self._view, "erase", None)
        if erase is None:
            return False
        told = self._looked if all else self._told
        self._loaded = -1
        try:
            with transaction(self.db, self.path):
                for gap in gaps:
                    completed("erase", erase(self.db, gap))
                changed = self._without_reasons(gaps)
                changed = msgspec.structs.replace(changed, revision=changed.revision + 1, told=told, clean=False)
                write_state(self.db, changed)
        except StreamkitError:
            raise
        except Exception as error:
            warn("the view %r cannot erase: %s: %s", self._definition.name, type(error).__name__, error)
            return False
        self.state, self._told = changed, told
        return True

    def _without_reasons(self, gaps: Sequence[RemovedEntries]) -> State:
        """The state without errors that name removed entries, because their text may quote the entries."""
        state = self.state
        for gap in gaps:
            named = (gap.space, gap.segment, gap.first_sequence, gap.last_sequence)
            self.db.execute(
                "update streamkit_skipped set error = ? where space = ? and segment = ? and sequence between ? and ?",
                (_ERASED, *named),
            )
            if _is_in(state.failure, gap):
                state = msgspec.structs.replace(state, failure=None)
            if _is_in(state.resumed, gap):
                state = msgspec.structs.replace(state, resumed=None)
        return state

    def cleaned(self, path: str) -> Build | None:
        """The same build in a new file at `path`, without erased entries; None if SQLite cannot write it, for example
        because the view has a statement open.
        """
        self._load()
        try:
            write_clean(self.db, self.path, path)
        except sqlite3.Error as error:
            warn("the view %r cannot be written without its free space: %s", self._definition.name, error)
            return None
        other = Build(self._definition, path)
        try:
            changed = msgspec.structs.replace(other.state, revision=other.state.revision + 1, clean=True)
            with transaction(other.db, path):
                write_state(other.db, changed)
        except BaseException:
            other.close()
            raise
        other.state = changed
        other._told, other._looked = self._told, self._looked
        return other

    def resume(self, skip: bool) -> None:
        """Forget why it is paused; with `skip`, pass over the entry."""
        failure = self.state.failure or (self.state.resumed if skip else None)
        if failure is None:
            return
        if skip:
            found = (chunk[0] for chunk, _ in chunks(self._definition.store, self.state.spaces, 1) if chunk)
            entry = next(found, None)
            if entry is not None and (entry.segment, entry.sequence) == (failure.segment, failure.sequence):
                self.skip(entry, failure)
                return
            # It was erased meanwhile: there is nothing to pass over any more.
        changed = msgspec.structs.replace(self.state, failure=None, resumed=failure, revision=self.state.revision + 1)
        with transaction(self.db, self.path):
            write_state(self.db, changed)
        self.state = changed

    def close(self) -> None:
        self.db.close()


def pending_erasures_of(
    store: Store, state: State, *, fresh: bool
) -> tuple[list[Gap] | None, dict[str, tuple[int, ...]]]:
    """Find the entries that a view with this `state` has applied and that were erased without its knowledge (see
    `Build.pending_erasures`). Also returns the positions up to which the search went."""
    now = {space: seen_by(store, space, fresh=fresh) for space in state.spaces}
    gaps: list[Gap] = []
    for space, until in now.items():
        found = erased_since(store, space, state.told.get(space, ()), until)
        if found is None:
            return None, now
        refused = [failure.space for failure in (state.failure, state.resumed) if failure is not None]
        gaps += found if state.spaces[space].offset or space in refused else ()
    return gaps, now


def is_clean(store: Store, state: State) -> bool:
    """True if a database in `state` holds no erased entries in its free space."""
    return state.clean or not any(has_erasures(store, space) for space in state.spaces)


def _is_in(failure: ViewFailure | None, gap: RemovedEntries) -> bool:
    if failure is None or (failure.space, failure.segment) != (gap.space, gap.segment):
        return False
    return gap.first_sequence <= failure.sequence <= gap.last_sequence


def _is_of_the_database(error: Exception) -> bool:
    """True if the error is of the database, and not of an entry that `apply` found to be damaged."""
    return isinstance(error, CorruptData) and isinstance(error.__cause__, sqlite3.Error)
