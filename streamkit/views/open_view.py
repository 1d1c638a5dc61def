"""A view as a process has it open: bringing it forward, waiting for it, reading it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

from ..arguments import check_choice, check_count, check_function, check_names_of, check_seconds, check_type
from ..errors import (
    CorruptData,
    InvalidOffset,
    LeaseNotAcquired,
    MissingDependency,
    PermanentError,
    StoreClosed,
    Unavailable,
)
from ..lexkey import LexKey
from ..log.offsets import Offset
from ..names import check_name
from ..run.reading import RemovedEntries, SpacePosition, decode_offset, is_behind, reached, same_space, seconds_behind
from ..run.rounds import Stop, check_stop, run_rounds
from ..store import Store, inner
from ..warn import warn
from .build import Build, Definition, is_clean, pending_erasures_of
from .database import State, open_reader, read_state
from .entries import EntryView
from .files import SCRATCH, ViewFiles, writing
from .publish import Outdated, Published, Snapshots, default_path, delete_published
from .view import View, ViewFailure, ViewStatus

__all__ = ["OpenView", "open_view"]

_T = TypeVar("_T")
_Round = Literal["end", "paused", "stopped", "busy"]
_PAUSE = 0.005
_LONGEST_PAUSE = 0.25
_LONGEST_WAIT = 60.0
"""Seconds that a reader waits for the process that makes the database."""
_LONGEST_CLOSE = 10.0
"""Seconds that `close` waits for the thread that builds."""
_PUBLISHES = 3


def open_view(
    store: Store,
    name: str,
    view: View,
    spaces: Iterable[str],
    path: str | os.PathLike[str] | None,
    publish: bool,
    on_error: Literal["pause", "skip"],
    batch: int,
    publish_every: float,
) -> OpenView:
    """See `Store.view`."""
    check_name(name, "view")
    if isinstance(view, type) and issubclass(view, View):
        raise TypeError(f"a view is an instance, not the class {view.__name__}: write {view.__name__}()")
    check_type(view, View, "a view is an instance of a subclass of streamkit.View")
    for method in ("setup", "apply", "load", "erase"):
        if hasattr(view, method):
            check_function(f"{type(view).__name__}.{method}", getattr(view, method), "a database")
    if getattr(view.apply, "__func__", None) is View.apply:
        raise TypeError(f"{type(view).__name__} has no apply(self, db, entries): a view needs one")
    names = check_names_of("spaces", spaces, "space")
    if not names:
        raise ValueError("a view follows at least one space")
    check_count("a view's version", view.version, 0)
    check_choice("on_error", on_error, "pause", "skip")
    check_count("batch", batch)
    check_seconds("publish_every", publish_every, endless=True)
    inner(store)
    place = default_path(store, name) if path is None else os.fspath(path)
    layout = view.layout if isinstance(view, EntryView) else 0
    definition = Definition(store, name, view, names, on_error, batch)
    return OpenView(definition, ViewFiles(place, view.version, names, layout), bool(publish), publish_every)


class OpenView:
    """An open view, from `store.view`. Safe to share between threads and processes: one builds at a time, the others
    read.

    Methods of the view that it was given may be called on it as well: `store.view("latest", Latest(key), …).get(k)`.
    Every method raises StoreClosed after `close()`, Unavailable where the disk is full, CorruptData where the
    database is damaged.
    """

    def __init__(self, definition: Definition, files: ViewFiles, publish: bool, publish_every: float) -> None:
        self.name = definition.name
        self.spaces = definition.spaces
        self.path = files.path
        """The path that SQLite opens: a link to the present database."""
        self.view = definition.view
        self._definition = definition
        self._store = definition.store
        self._files = files
        self._publishes = publish
        self._publish_every = publish_every
        self._published: tuple[float, int] | None = None
        """The time of the latest publication, by the monotonic clock, and its revision."""
        self._swept = False
        """True if leftovers of stopped processes were removed since the view was opened."""
        self._stops: set[Stop] = set()
        self._closed = False
        self._forget()
        self.view.attach(self)

    @property
    def store(self) -> Store:
        """The store that the view follows."""
        return self._store

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def _forget(self) -> None:
        """Forget locks and connections after a fork: another thread may have held the lock, and SQLite's connections do
        not survive a fork."""
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._builder: list[int] | None = None
        """The thread of this process that builds."""
        self._closes_itself = False
        """True if the view was closed meanwhile: the builder then releases the database at its end."""
        self._left = [getattr(self, "_build", None), getattr(self, "_readers", None)]
        self._build: Build | None = None
        self._readers = threading.local()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the view {self.name!r} is closed; open it again with store.view(…)")
        inner(self._store)
        if self._pid != os.getpid():
            self._forget()

    # -- building -----------------------------------------------------------------------------------------------

    def catch_up(self, *, progress: Callable[[int], None] | None = None) -> ViewStatus:
        """Apply all entries that are committed by now, and return the view's status.

        If another process or thread builds the view, the call waits until that one has applied them. If `apply` raises,
        the view pauses there and this returns: see `status().error`. `progress(entries)` is called after each batch.
        """
        ends: dict[str, Offset] | None = None
        pause = _PAUSE
        while True:
            done = self._round(lambda: False, progress)
            if done == "busy":
                ends = ends or self._ends()
                state = self._state()
                if state is None or (state.failure is None and self._is_behind(state, ends)):
                    self._sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
                    continue
            elif done == "end":
                if self._publishes:
                    self._publish_if_due()
                return self._status(self._state(), None)  # it has just looked at the log
            return self.status()

    def _ends(self) -> dict[str, Offset]:
        return {space: Offset.decode(self._store.end_offset(space), space) for space in self.spaces}

    @staticmethod
    def _is_behind(state: State, ends: dict[str, Offset]) -> bool:
        return any(is_behind(position, ends[space]) for space, position in state.spaces.items() if space in ends)

    def _sleep(self, seconds: float) -> None:
        inner(self._store).clock.sleep(seconds)

    def _round(
        self, stop: Callable[[], bool], progress: Callable[[int], None] | None = None, *, anew: bool = False
    ) -> _Round:
        self._check_open()

        def ends() -> bool:
            return self._closed or stop()

        return self._alone(lambda: self._forward(ends, progress or (lambda entries: None), anew)) or "busy"

    def _alone(self, work: Callable[[], _T]) -> _T | None:
        """`work()` while no other thread or process builds; None, at once, if one does."""
        mine = [threading.get_ident()]
        try:
            with self._mutex:
                if self._builder is not None:
                    return None
                self._builder = mine
            self._prepare()
            with writing(self._files.directory), self._files.building() as free:
                return work() if free else None
        finally:
            if self._builder is mine:  # nothing is called here: an interrupt comes behind calls, and it would stay
                self._builder = None
                if self._closes_itself:
                    self._let_go()

    def _prepare(self) -> None:
        path = self.path
        if os.path.lexists(path) and not os.path.islink(path):
            kind = "a directory" if os.path.isdir(path) else "a file that no view has made"
            raise PermanentError(f"the view {self.name!r} cannot be kept at {path}, which is {kind}: name another path")
        try:
            self._files.prepare()
        except OSError as error:
            raise PermanentError(f"the view {self.name!r} cannot be kept at {path}: {error.strerror}") from error

    def _forward(self, stop: Callable[[], bool], progress: Callable[[int], None], anew: bool) -> _Round:
        """Under the lock. The new build is brought forward first, and shown when it has reached the end."""
        files = self._files
        if not self._swept:
            files.sweep()
            self._sweep_scratches()
            self._swept = True
        if anew:
            self._new_build(fresh=True)
        elif files.current() is None and files.next() is None:
            self._new_build(fresh=False)
        if files.current() is None and files.shown() is None:
            first = files.next()
            assert first is not None
            self._writer(first)
            files.show(first)
        for _ in range(3):
            target = files.next() or files.current()
            assert target is not None
            build = self._writer(target)
            try:
                whole = build.advance(progress, stop)
                erased = build.pending_erasures(fresh=not whole)
                paused = build.state.failure is not None
                if erased != [] or not is_clean(self._store, build.state):
                    self._unpublish()
                    rest = self._take_out(build, erased, all=True) if erased is not None else None
                    if rest is None:
                        warn("the view %r is rebuilt, because entries that it has applied were erased", self.name)
                        self._new_build(fresh=True)
                        continue
                    build, target = rest, rest.path
                    if paused and build.state.failure is None:
                        continue  # the entry at which it paused is gone
                if not whole:
                    self._erase_from_shown(target)
                    return "paused" if paused else "stopped"
            except InvalidOffset as error:
                if not self._made_again(build.state):
                    raise InvalidOffset(
                        f"the view {self.name!r} is ahead of its log: {error}. If this store was set back, rebuild() it"
                    ) from error
                warn("the view %r is rebuilt: a space that it follows was deleted and created again", self.name)
                self._new_build(fresh=True)
                continue
            if files.next() is not None:
                files.show(target)
                files.sweep()
            return "end"
        return "stopped"

    def _erase_from_shown(self, target: str) -> None:
        """Remove erased entries from the build that is read while `target` is being built, if the view can."""
        path = self._files.current()
        state = _state_of(path) if path is not None and path != target else None
        if path is None or state is None:
            return
        if pending_erasures_of(self._store, state, fresh=False)[0] == [] and is_clean(self._store, state):
            return
        build = self._writer(path)
        gaps = build.pending_erasures(fresh=False)
        self._unpublish()
        if gaps is not None:
            self._take_out(build, gaps, all=True)

    def _take_out(self, build: Build, gaps: Sequence[RemovedEntries], *, all: bool = False) -> Build | None:
        """Erase `gaps` from a build, write it without its free space, and return the build that replaces it. None if
        the view has to be rebuilt.

        Readers that have the old file open keep it until they ask `db` again.
        """
        if gaps and not build.erase(gaps, all=all):
            return None
        path = self._files.beside()
        other: Build | None = None
        try:
            other = build.cleaned(path)
        finally:
            if other is None:
                self._files.remove(path)
        if other is None:
            return None
        self._files.replace(build.path, path)
        build.close()
        self._build = other
        self._files.sweep()
        return other

    def _made_again(self, state: State) -> bool:
        """True if a space was deleted and made again since the view read it."""
        ends = self._ends()
        return any(not same_space(position, ends[space]) for space, position in state.spaces.items() if space in ends)

    def _new_build(self, *, fresh: bool) -> None:
        """Begin a build beside the present one; unless `fresh`, from the published one."""
        path = self._files.new()
        if not fresh:
            with contextlib.suppress(PermanentError, MissingDependency):
                found = self._snapshots().fetch(path)
                if found is not None and not self._is_ours(path):
                    warn("the published view %s is passed over: it is of another store", found.name)
                    path = self._files.new()

    def _is_ours(self, path: str) -> bool:
        db = open_reader(path)
        try:
            state = read_state(db, path)
        except (CorruptData, sqlite3.Error):
            return False
        finally:
            db.close()
        return state is not None and (state.store, state.name) == (str(self._store.id), self.name)

    def _writer(self, path: str) -> Build:
        build = self._build
        if build is not None and build.path == path and os.path.exists(path):
            build.refresh()
            return build
        if build is not None:
            build.close()
            self._build = None
        self._build = Build(self._definition, path)
        return self._build

    def new_stop(self) -> Stop:
        """Return an event that ends a `run` when it is set."""
        return Stop(self._store)

    def run(self, stop: Stop | None = None, *, seconds: float | None = None) -> None:
        """Keep the view up to date until `stop` is set, the view or its store is closed, or `seconds` are over.

        Several processes may run it: one builds, and another continues if it stops. With `publish=True` it publishes
        from time to time, and when it ends. It waits while the view is paused. `resume()` may be called from anywhere.
        """
        check_stop(stop)
        stop = stop or Stop(self._store)
        self._stops.add(stop)

        def round() -> bool:
            if self._closed:
                stop.set()
                return False
            state = self._state()
            before = -1 if state is None else state.revision
            if self._round(stop.is_set) == "end" and self._publishes:
                self._publish_if_due()
            state = self._state()
            return state is not None and state.revision != before

        try:
            run_rounds(self._store, self.spaces, round, stop, seconds, f"view {self.name!r}")
            if self._publishes and not self._closed:
                self._publish_if_due(now=True)
        finally:
            self._stops.discard(stop)

    def wait_for(self, offset: LexKey | bytes | str, timeout: float = 10.0) -> ViewStatus:
        """Return when all entries before `offset` of one of the spaces are applied; build the view if no other process
        does.

        `offset` is a `space_offset`. With that of a write's status the view contains the write. TimeoutError after
        `timeout` seconds; PermanentError if the view is paused before it; InvalidOffset for one of another space, or
        beyond the log.
        """
        check_seconds("timeout", timeout, endless=True)
        wanted = decode_offset(offset, self.spaces)
        clock = inner(self._store).clock
        end = clock.monotonic() + timeout
        pause = _PAUSE
        while True:
            state = self._state()
            if state is not None and reached(state.spaces.get(wanted.space, SpacePosition()), wanted):
                return self._status(state, None)
            done = self._round(lambda: clock.monotonic() >= end)
            if done == "end":
                state = self._state()
                assert state is not None
                if not reached(state.spaces[wanted.space], wanted):
                    # The log ends before it, or there are no entries in between.
                    next(self._store.consume_space(wanted.space, offset=wanted.encode(), limit=1, gaps="skip"), None)
                return self._status(state, None)
            if done == "paused":
                failure = self._failure()
                if failure is not None:
                    raise PermanentError(
                        f"the view {self.name!r} is paused at {failure.space!r}, segment {failure.segment!r}, sequence "
                        f"{failure.sequence}: {failure.error}. Correct it and resume(), or resume(skip=True)"
                    )
            rest = end - clock.monotonic()
            if rest <= 0:
                raise TimeoutError(f"the view {self.name!r} has not come as far within {timeout:g} seconds")
            self._sleep(min(pause, rest))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def resume(self, *, skip: bool = False) -> None:
        """Let a paused view try again, at the next `catch_up` or in `run`. With `skip` it leaves out the entry that it
        paused at, also after a `resume()` that it has not tried yet.
        """
        self._locked(lambda: self._each_build(lambda build: build.resume(skip)))

    def _each_build(self, act: Callable[[Build], None]) -> None:
        for path in (self._files.current(), self._files.next()):
            if path is not None:
                act(self._writer(path))

    def rebuild(self, *, progress: Callable[[int], None] | None = None) -> ViewStatus:
        """Build the view again from the log in a new database, which then replaces the present one. Readers continue
        meanwhile."""
        pause = _PAUSE
        while self._round(lambda: False, progress, anew=True) == "busy":
            self._sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        return self.status()

    def erase(self, gap: RemovedEntries) -> None:
        """Remove the traces of erased entries from the view now: `gap` names the entries.

        The view's own `erase(db, gap)` deletes them, and the database is rewritten without its free space. A view
        without such a method is rebuilt. The published database is deleted; `publish` it again.
        """
        if not hasattr(gap, "space"):
            raise TypeError(f"gap is a Gap, not {type(gap).__name__}")
        if gap.space not in self.spaces:
            raise ValueError(f"the view {self.name!r} does not follow the space {gap.space!r}")
        anew: list[bool] = []
        self._locked(lambda: self._each_build(lambda build: anew.append(self._take_out(build, [gap]) is None)))
        if any(anew):
            self.rebuild()
        delete_published(self._store, self.name)

    def _unpublish(self) -> None:
        """Delete the published database, which may hold erased entries. It is published again without them."""
        with contextlib.suppress(MissingDependency):
            delete_published(self._store, self.name)
        self._published = None

    def _locked(self, act: Callable[[], None]) -> None:
        """Do it under the lock, however long another process holds that."""

        def done() -> bool:
            act()
            return True

        self._check_open()
        pause = _PAUSE
        while not self._alone(done):
            self._sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    # -- publishing ---------------------------------------------------------------------------------------------

    def _snapshots(self) -> Snapshots:
        return Snapshots(self._store, self.name, self._files.key)

    def publish(self) -> Published:
        """Copy the present database to the place of the archive. A process that has no database yet begins with the
        copy.

        PermanentError where the store has no such place; MissingDependency without the extra `archive` in the cloud.
        """
        self._check_open()
        if self._state() is None:
            self.catch_up()
        for _ in range(_PUBLISHES):
            with contextlib.suppress(Outdated):
                done, state = self._publish()
                if self._is_told(state):
                    self._published = (inner(self._store).clock.monotonic(), state.revision)
                    return done
            # Entries were erased meanwhile. That erasure may have deleted the published views before this one existed.
            self._unpublish()
            self.catch_up()
        raise PermanentError(f"the view {self.name!r} holds erased entries until it is rebuilt: publish it after that")

    def _is_told(self, state: State) -> bool:
        """True if a database holds no entry that is erased by now."""
        return pending_erasures_of(self._store, state, fresh=True)[0] == [] and is_clean(self._store, state)

    @property
    def _publish_lease(self) -> str:
        from ..archive.location import path_name

        return f"publish/{path_name(self.name)}"  # of a long name, too

    def _publish(self) -> tuple[Published, State]:
        # With the lease, there is a container on Azure.
        with self._store.lease(self._publish_lease, wait=60.0), writing(self._files.directory):
            self._files.remove_scratches()
            path = self._files.current()
            if path is None:
                raise PermanentError(
                    f"the view {self.name!r} is still being built for the first time: publish it later"
                )
            db = open_reader(path)
            try:
                state = read_state(db, path)
                assert state is not None
                if not is_clean(self._store, state):
                    raise Outdated
                scratch = f"{path}.{os.urandom(4).hex()}{SCRATCH}"
                done = self._snapshots().publish(db, state.entries, scratch, lambda: self._is_told(state))
                return done, state
            finally:
                db.close()

    def _sweep_scratches(self) -> None:
        """Remove copies that stopped processes wanted to publish from, unless one publishes right now."""
        if self._files.scratches():
            with contextlib.suppress(LeaseNotAcquired), self._store.lease(self._publish_lease):
                self._files.remove_scratches()

    def _publish_if_due(self, *, now: bool = False) -> None:
        state = self._state()
        clock = inner(self._store).clock
        if state is None:
            return
        if self._published is None:
            try:
                latest = self._snapshots().all()
            except PermanentError:  # on Azure there may be no container yet
                latest = []
            if latest:
                age = max(0.0, (clock.now() - latest[-1].timestamp) / 1000)
                revision = state.revision if latest[-1].entries == state.entries else -1
                self._published = (clock.monotonic() - age, revision)
        due = self._published is None or (
            state.revision != self._published[1]
            and (now or clock.monotonic() - self._published[0] >= self._publish_every)
        )
        if due:
            self.publish()

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def db(self) -> sqlite3.Connection:
        """A read-only connection to the present database, for the calling thread. Each statement sees one state of it.

        Get it again for later statements, because a rebuild replaces the database. Nothing is built here, but missing
        tables are made. If another process makes them, perhaps from a published view, the call waits for it, and raises
        Unavailable after a minute.
        """
        if self._closed or self._pid != os.getpid():
            self._check_open()
        path = self._files.current() or self._files.shown()
        readers = self._readers
        if path is not None and getattr(readers, "path", None) == path:
            found: sqlite3.Connection = readers.db
            return found
        clock, pause = inner(self._store).clock, _PAUSE
        begun, tries = clock.monotonic(), 0
        while tries < 100 and clock.monotonic() - begun < _LONGEST_WAIT:
            if path is not None:
                with contextlib.suppress(
                    OSError, Unavailable
                ):  # or a process that builds a later version would remove it
                    self._files.prepare()
                with contextlib.suppress(FileNotFoundError):
                    readers.db, readers.path = open_reader(path), path
                    db: sqlite3.Connection = readers.db
                    return db
            tries += self._round(lambda: True) != "busy"
            path = self._files.current() or self._files.shown()
            if path is None or not os.path.exists(path):
                self._sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        if tries < 100:
            raise Unavailable(
                f"another thread or process has been making the database of the view {self.name!r} for "
                f"{_LONGEST_WAIT:g} seconds, which takes long where it fetches a published one: ask again"
            )
        raise PermanentError(f"the view {self.name!r} has no database at {self.path}: catch_up() creates it")

    def _state(self) -> State | None:
        """Read the state of this version's present database; None if there is none."""
        self._check_open()
        path = self._files.current()
        if path is None:
            return None
        return _state_of(path)

    def _failure(self) -> ViewFailure | None:
        for path in (self._files.next(), self._files.current()):
            state = _state_of(path) if path is not None else None
            if state is not None and state.failure is not None:
                return state.failure
        return None

    def status(self) -> ViewStatus:
        """Return the view's position, its failure if it is paused, and its lag."""
        self._check_open()
        return self._status(self._state(), self._ends())

    def _status(self, state: State | None, ends: dict[str, Offset] | None) -> ViewStatus:
        """The status of the view. Without `ends` it is taken to be current."""
        path = self._files.next()
        beside = _state_of(path) if path is not None else None
        error = (beside.failure if beside else None) or (state.failure if state else None)
        behind = 0.0
        for space, end in (ends or {}).items():
            position = state.spaces.get(space) if state is not None else None
            behind = max(behind, seconds_behind(self._store, position or SpacePosition(), end))
        situation: Literal["new", "building", "behind", "current", "paused"]
        if error is not None:
            situation = "paused"
        elif beside is not None:
            situation = "building"
        elif state is None:
            situation = "new"
        else:
            situation = "behind" if behind else "current"
        positions = state.spaces if state is not None else {space: SpacePosition() for space in self.spaces}
        return ViewStatus(
            name=self.name,
            version=self._files.version,
            state=situation,
            positions=positions,
            entries=sum(position.entries for position in positions.values()),
            timestamp=max(position.timestamp for position in positions.values()),
            behind=behind,
            complete=state.complete if state is not None else True,
            error=error,
            skipped=state.skipped if state is not None else 0,
            building=beside.entries if beside is not None else None,
            path=self.path,
            bytes=_size(self._files.current()),
        )

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the user's view, such as a query method."""
        if name.startswith("_") or "view" not in self.__dict__ or hasattr(type(self), name):  # a property has raised it
            raise AttributeError(name)
        return getattr(self.view, name)

    def close(self) -> None:
        """Release the database, and end `run`. A repeated call is no error.

        A thread that builds ends after its batch, and its call raises StoreClosed. If that takes more than ten seconds,
        or if the thread itself calls this, in `apply` or a signal handler, the thread releases the database at its end.
        """
        if self._closed:
            return
        self._closed = True
        for stop in list(self._stops):
            stop.set()
        end = time.monotonic() + _LONGEST_CLOSE
        while (builder := self._builder) is not None and self._pid == os.getpid():
            if builder[0] == threading.get_ident() or time.monotonic() >= end:
                self._closes_itself = True
                if self._builder is not None:
                    return
            else:
                time.sleep(_PAUSE)
        self._let_go()

    def _let_go(self) -> None:
        if self._pid == os.getpid() and self._build is not None:
            self._build.close()
        self._build = None
        self._readers = threading.local()
        self._files.close()

    def delete(self) -> None:
        """Close it and delete its databases here. Published ones stay. Unavailable while another thread builds."""
        self.close()
        builder = self._builder
        if builder is not None and builder[0] != threading.get_ident() and self._pid == os.getpid():
            raise Unavailable(f"another thread still builds the view {self.name!r}: delete it again after that")
        self._files.delete()

    def __enter__(self) -> OpenView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<View {self.name!r} of {', '.join(map(repr, self.spaces))}{' closed' if self._closed else ''}>"


def _state_of(path: str) -> State | None:
    try:
        db = open_reader(path)
    except FileNotFoundError:
        return None
    try:
        return read_state(db, path)
    finally:
        db.close()


def _size(path: str | None) -> int:
    size = 0
    for suffix in ("", "-wal") if path is not None else ():
        with contextlib.suppress(OSError):
            size += os.stat(f"{path}{suffix}").st_size
    return size
