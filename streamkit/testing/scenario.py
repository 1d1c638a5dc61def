"""Scenarios: given these events, when this happens, then these events follow.

given(Order, happened("placed", cents=450)).when(lambda order: order.pay(450)).then(happened("paid", cents=450))
given(manager).when("42", happened("paid", cents=450)).then(shipments, "today", happened("sent", order="42"))

Events are written to a store and read again, so that a test also fails for an argument that does not come back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload
from uuid import uuid4

from ..client import connect
from ..eventsourcing.aggregate import Aggregate, Pending, event_types
from ..eventsourcing.codecs import Codec
from ..eventsourcing.events import EventFormat
from ..eventsourcing.process import ProcessManager
from ..eventsourcing.repository import Repository

__all__ = [
    "AggregateOutcome",
    "AggregateScenario",
    "Happened",
    "ManagerOutcome",
    "ManagerScenario",
    "given",
    "happened",
]

A = TypeVar("A", bound=Aggregate)
_ID = "aggregate"


class Happened:
    """An event by its name in the log, and its arguments."""

    __slots__ = ("arguments", "name")

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self.name = name
        self.arguments = arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Happened) and (self.name, self.arguments) == (other.name, other.arguments)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})"


def happened(name: str, /, **arguments: Any) -> Happened:
    """Name an event: `happened("paid", cents=450)`."""
    return Happened(name, arguments)


@overload
def given(subject: type[A], /, *events: Happened) -> AggregateScenario[A]: ...
@overload
def given(subject: ProcessManager, /) -> ManagerScenario: ...


def given(subject: Any, /, *events: Happened) -> Any:
    """Begin a scenario: of a class of aggregates that had `events`, or of a process manager."""
    if isinstance(subject, ProcessManager):
        if events:
            raise TypeError("the events of a manager are of aggregates: given(manager).before(id, …)")
        return ManagerScenario(subject)
    if isinstance(subject, type) and issubclass(subject, Aggregate):
        return AggregateScenario(subject, events)
    raise TypeError(f"a scenario is of a subclass of Aggregate or of a ProcessManager, not of {subject!r:.60}")


class AggregateScenario(Generic[A]):
    """An aggregate with the events that it was given."""

    def __init__(self, aggregate: type[A], events: tuple[Happened, ...], codec: Codec | None = None) -> None:
        self._aggregate = aggregate
        self._events = events
        self._codec = codec

    def when(self, command: Callable[[A], Any]) -> AggregateOutcome[A]:
        """Load the aggregate, and execute `command(aggregate)`, as `Repository.execute` does."""
        with connect(f"memory://{uuid4().hex}") as client, client.store(uuid4()) as store:
            repository = Repository(store, "scenario", self._aggregate, codec=self._codec)
            _write(repository, _ID, self._events)
            before = len(self._events)
            result, error = None, None
            try:
                result = repository.execute(_ID, command)
            except Exception as raised:
                error = raised
            events = [Happened(*event) for event in repository.events(_ID)]
            return AggregateOutcome(repository.load(_ID), events[before:], result, error)


class AggregateOutcome(Generic[A]):
    """The outcome of a command: `aggregate` as it is now, `events`, `result`, and `error` if it raised one."""

    def __init__(self, aggregate: A, events: list[Happened], result: Any, error: Exception | None) -> None:
        self.aggregate = aggregate
        self.events = events
        self.result = result
        self.error = error

    def then(self, *events: Happened) -> AggregateOutcome[A]:
        """AssertionError unless these events happened, and no others. Without events: nothing happened."""
        if self.error is not None:
            raise AssertionError(f"the command raised {self.error!r}") from self.error
        _compare(list(events), self.events)
        return self

    def then_raises(self, kind: type[Exception], match: str = "") -> AggregateOutcome[A]:
        """Check that the command raised an error of this kind whose text contains `match` (a regular expression).

        Otherwise AssertionError. Then no event happened.
        """
        if not isinstance(self.error, kind):
            raise AssertionError(
                f"expected {kind.__name__}; the command raised {self.error!r}"
                if self.error is not None
                else f"expected {kind.__name__}; the command raised nothing, and these events happened: {self.events}"
            ) from self.error
        if not re.search(match, str(self.error)):
            raise AssertionError(f"{match!r} is not in the text of the error: {self.error}") from self.error
        _compare([], self.events)
        return self

    def then_state(self, **attributes: Any) -> AggregateOutcome[A]:
        """Check that the aggregate has these attributes after a new load. Otherwise AssertionError."""
        found = {name: getattr(self.aggregate, name) for name in attributes}
        if found != attributes:
            raise AssertionError(f"expected the state {attributes!r}; it is {found!r}")
        return self


class ManagerScenario:
    """A process manager in a store of the test: the fixture `streamkit_store` makes one."""

    def __init__(self, manager: ProcessManager) -> None:
        self._manager = manager

    def before(self, id: str, *events: Happened) -> ManagerScenario:
        """Write earlier events of an aggregate, to which the manager reacts before the scenario begins."""
        _write(self._manager.source, id, events)
        self._manager.catch_up()
        return self

    def when(self, id: str, *events: Happened) -> ManagerOutcome:
        """Write events of an aggregate, and let the manager react. Each event is delivered twice: the commands of a
        reaction must be executed once."""
        counts = _Counts(self._manager)
        _write(self._manager.source, id, events)
        self._manager.catch_up()
        self._manager.group.seek("beginning")
        self._manager.catch_up()
        return ManagerOutcome(self._manager, counts)


class _Counts:
    """The number of entries of each segment of a store before a scenario."""

    def __init__(self, manager: ProcessManager) -> None:
        store = manager.store
        self._known = {
            (space, status.segment): status.last_sequence
            for space in store.get_spaces()
            for status in store.segment_statuses(space)
        }

    def of(self, space: str, segment: str) -> int:
        return self._known.get((space, segment), 0)


class ManagerOutcome:
    """The outcome of a reaction."""

    def __init__(self, manager: ProcessManager, before: _Counts) -> None:
        self._manager = manager
        self._before = before

    def then(self, repository: Repository[Any], id: str, *events: Happened) -> ManagerOutcome:
        """AssertionError unless these events of an aggregate followed, and no others of it."""
        failed = self._manager.group.pending(limit=1) or self._manager.group.dead_letters(limit=1)
        if failed:
            raise AssertionError(f"a reaction has failed and is tried again later: {failed[0]}")
        found = [Happened(*event) for event in repository.events(id)]
        _compare(list(events), found[self._before.of(repository.space, id) :])
        return self


def _write(repository: Repository[Any], id: str, events: tuple[Happened, ...]) -> None:
    """Write events as the aggregate would. ValueError for one that it does not have."""
    types = event_types(repository.aggregate)
    pending = []
    for event in events:
        if not isinstance(event, Happened):
            raise TypeError(f"an event is happened(name, …), not {event!r:.60}")
        type = types.get(event.name)
        if type is None:
            known = ", ".join(map(repr, sorted(types))) or "none"
            raise ValueError(f"{repository.aggregate.__name__} has no event {event.name!r}; there are {known}")
        if not type.takes(event.arguments):
            raise ValueError(f"the event {event.name!r} does not take {', '.join(event.arguments) or 'no arguments'}")
        pending.append(Pending(type, event.arguments))
    if pending:
        format = EventFormat(repository.aggregate, repository.codec)
        repository.store.produce(repository.space, id, format.records(pending, None))


def _compare(expected: list[Happened], found: list[Happened]) -> None:
    if expected == found:
        return
    lines = ["other events happened", "  expected:"]
    lines += [f"    {event!r}" for event in expected] or ["    nothing"]
    lines += ["  happened:", *([f"    {event!r}" for event in found] or ["    nothing"])]
    raise AssertionError("\n".join(lines))
