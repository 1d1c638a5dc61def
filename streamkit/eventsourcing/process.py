"""Process managers: they react to events with commands that are executed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from ..arguments import check_function, check_type, completed
from ..model import Entry
from ..names import check_name
from ..store import Store, inner
from .aggregate import Aggregate, event_types
from .events import EVENT
from .repository import Repository

if TYPE_CHECKING:
    from ..groups import Delivery, Group, GroupOptions, GroupStatus, RunReport

__all__ = ["DomainEvent", "ProcessManager"]

A = TypeVar("A", bound=Aggregate)
R = TypeVar("R")
CAUSE = "streamkit.cause"
"""On the events of a command: the key that it was executed with, which names the event that it reacts to."""

Reaction = Callable[["DomainEvent"], Any]


class DomainEvent:
    """An event as a process manager sees it, for one thread.

    `id`: of the aggregate; `version`: its sequence; `name` and `arguments`: as `Repository.events` tells them;
    `timestamp` in ms; `metadata`; `entry`: all of it; `attempt`: how often it was delivered, from 1.
    """

    def __init__(self, manager: str, entry: Entry, name: str, arguments: dict[str, Any], attempt: int) -> None:
        self.entry = entry
        self.name = name
        self.arguments = arguments
        self.attempt = attempt
        self.key = f"{manager}/{entry.space}/{entry.segment}/{entry.sequence}/{entry.trx.id}"
        """An idempotency key for further effects of this event in this manager."""
        self._executed: dict[tuple[Store, str, str], int] = {}

    @property
    def id(self) -> str:
        """The id of the aggregate: its segment."""
        return self.entry.segment

    @property
    def version(self) -> int:
        """The event's sequence: the aggregate's version after it."""
        return self.entry.sequence

    @property
    def timestamp(self) -> int:
        """The time of the commit, in ms since the epoch, UTC."""
        return self.entry.timestamp

    @property
    def metadata(self) -> Mapping[str, str]:
        """The record's metadata."""
        return self.entry.metadata

    def execute(
        self,
        repository: Repository[A],
        id: str,
        command: Callable[[A], R],
        *,
        name: str | None = None,
        retries: int = 5,
        metadata: dict[str, str] | None = None,
    ) -> R | None:
        """Call `repository.execute`, once for this event however often it is delivered; None if it was done before.

        Several commands for one aggregate are identified by their order. If the order may differ at the next delivery,
        because one of them is not always executed, give each a `name`.
        """
        check_function("command", command, "the aggregate")
        ordinal = (repository.store, repository.space, id)
        if name is None:
            self._executed[ordinal] = self._executed.get(ordinal, 0) + 1
            name = str(self._executed[ordinal])
        key = f"{self.key}/{name}"
        since = self._since(repository)

        def once(aggregate: A) -> R | None:
            if since is not None and _is_done(repository, aggregate, key, since):
                return None
            return command(aggregate)

        marks = {**(metadata or {}), CAUSE: key}
        return repository.execute(id, once, retries=retries, idempotency_key=key, metadata=marks)

    def _since(self, repository: Repository[A]) -> int | None:
        """The time in ms from which to search for the events of the command. None while its key is surely remembered.

        Clocks may differ by half of the idempotency window that the space was created with.
        """
        known = inner(repository.store).look_up(repository.space)[0]
        if known is None:
            return None
        window = known.settings.idempotency_window  # the value at creation: no change makes it less than a tenth
        age = inner(repository.store).clock.now() - self.timestamp
        return None if 0 <= age < window * 50 else int(max(self.timestamp - window * 500, 0))

    def __repr__(self) -> str:
        return f"<DomainEvent {self.name!r}, {self.version} of {self.id!r}: {self.arguments!r}>"


def _is_done(repository: Repository[A], aggregate: A, key: str, since: int) -> bool:
    """True if `aggregate` contains the events of a command. If not, no event can come between, because the save expects
    the aggregate's version."""
    entries = repository.store.consume_segment(
        repository.space, aggregate.id, max_sequence=aggregate.version, min_timestamp=since, reverse=True, gaps="skip"
    )
    return aggregate.version > 0 and any(entry.metadata.get(CAUSE) == key for entry in entries)


def _check_names(aggregate: type[Aggregate], reactions: Mapping[str, Reaction]) -> None:
    """Raise ValueError for a reaction that no event would ever cause."""
    known = event_types(aggregate).keys()
    unknown = ", ".join(sorted(map(repr, reactions.keys() - known)))
    if unknown or not reactions:
        events = ", ".join(map(repr, sorted(known))) or "none"
        refused = f"{aggregate.__name__} has no event {unknown}" if unknown else "there is no reaction"
        raise ValueError(f"{refused}: name a reaction after an event as the log names it; there are {events}")


class ProcessManager:
    """A process manager reacts to the events of a repository with commands: `ProcessManager("shipping", orders,
    {"paid": ship})`.

    `reactions`: functions of a DomainEvent by the event's name (other events are skipped), or one function for all
    events. A command of `event.execute(repository, id, command)` is executed once, however often the event is
    delivered. Reactions must depend on the event and on aggregates alone; an aggregate may hold the state of the
    process. It is a group of the space, with the manager's name: key_shared, so that the events of an aggregate come in
    order. An event whose reaction raises is delivered again, each time after a longer delay, and becomes a dead letter
    in the end: `group.dead_letters()`, `group.redrive()`. `start` and `settings` are those of `Store.group`. Any number
    of processes may run one.
    """

    def __init__(
        self,
        name: str,
        source: Repository[Any],
        reactions: Mapping[str, Reaction] | Reaction,
        *,
        start: Any = "beginning",
        **settings: Unpack[GroupOptions],
    ) -> None:
        self.name = check_name(name, "group")
        check_type(
            source,
            Repository,
            "a process manager reacts to the events of a Repository, or of the `sync` of an AsyncRepository",
        )
        self.source = source
        if isinstance(reactions, Mapping):
            _check_names(source.aggregate, reactions)
            reactions = dict(reactions)
        for reaction in reactions.values() if isinstance(reactions, dict) else [reactions]:
            check_function("a reaction", reaction, "a DomainEvent")
        self._reactions = reactions
        self._start = start
        self._settings: GroupOptions = {"mode": "key_shared", **settings}
        self._group: Group | None = None

    @property
    def store(self) -> Store:
        """The store of the process manager."""
        return self.source.store

    @property
    def group(self) -> Group:
        """The group of the manager. The first use opens it: GroupExists if it has other settings."""
        if self._group is None:
            self._group = self.store.group(self.source.space, self.name, start=self._start, **self._settings)
        return self._group

    def catch_up(self, *, seconds: float | None = None, stop: Any = None) -> RunReport:
        """React to all events that there are now, and to the events that follow from them.

        It ends after `seconds` at the latest, or when `stop` is set. A reaction that failed is tried again later: by
        the next call, or by `run`.
        """
        return self.group.run(self._react, drain=True, seconds=seconds, stop=stop)

    def run(self, stop: Any = None, *, seconds: float | None = None, concurrency: int = 1) -> None:
        """React to existing and new events, until `stop` (an Event) is set or `seconds` are over; in `concurrency`
        threads.
        """
        self.group.run(self._react, concurrency=concurrency, seconds=seconds, stop=stop)

    def status(self) -> GroupStatus:
        """Return the manager's progress: see `Group.status`."""
        return self.group.status()

    def _react(self, delivery: Delivery) -> None:
        entry, reaction = delivery.entry, self._reactions
        if isinstance(reaction, Mapping):
            found = reaction.get(entry.metadata.get(EVENT, ""))
            if found is None:
                return
            reaction = found
        name, arguments = self.source.event(entry)
        completed("the reaction", reaction(DomainEvent(self.name, entry, name, arguments, delivery.attempt)))

    def __repr__(self) -> str:
        return f"<ProcessManager {self.name!r} of {self.source.space!r}>"
