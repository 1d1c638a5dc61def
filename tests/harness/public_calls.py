"""Every public call with good arguments, a world to call it in, and the errors that may leave it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from streamkit import Gap, Record, Retention, Store, StreamkitError, errors
from streamkit.archive_url import archive_place
from streamkit.client import Client
from streamkit.eventsourcing import Aggregate, Repository, event
from streamkit.groups import Settlement
from streamkit.testing import Fault, FaultyDriver, ManualClock, Plan
from streamkit.types import Registry
from streamkit.views import Latest
from streamkit_memory import MemoryDriver

__all__ = [
    "CALLS",
    "ENDLESS",
    "EVERY",
    "EXHAUSTIVE",
    "FAULTS",
    "HARM",
    "OF_ITS_ROOM",
    "WRONG",
    "World",
    "assert_ours",
    "nothing",
    "public_methods",
    "use",
]

EXHAUSTIVE = bool(os.environ.get("STREAMKIT_EXHAUSTIVE"))
Arguments = Mapping[str, Any]


class Order(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.paid = 0

    @event
    def pay(self, amount: int) -> None:
        self.paid += amount


@dataclass
class Paid:
    amount: int


def nothing(*_: Any) -> None:
    """Do nothing, as a handler, a command or a progress."""


STORE: dict[str, Arguments] = {
    "acquire_lease": {"key": "k", "ttl": 30.0},
    "follow": {"offsets": {"s": None}, "timeout": 0.0, "gaps": "skip"},
    "release_lease": {"grant": None},
    "renew_lease": {"grant": None},
    "segment_statuses": {"space": "s", "prefix": "", "after": None, "limit": 0},
    "space_settings": {"space": "s"},
    "backup": {"url": None, "keep": 1, "progress": None},
    "backups": {"url": None},
    "restore_backup": {"url": None, "point": None, "spaces": None, "backup_of": None, "progress": None},
    "archive": {"space": "s", "until": 1, "min_age": 1.0, "target_file_bytes": 1 << 20},
    "change_space": {"space": "s", "idempotency_window": 50_000.0, "archive_grace": 1000.0, "trimmed_rows": "keep"},
    "close": {},
    "compact": {"space": "s", "target_file_bytes": 1 << 20, "retention_hours": 1.0},
    "consume": {"offsets": {"s": None}, "min_timestamp": 0, "max_timestamp": 0, "limit": 1, "gaps": "skip"},
    "consume_segment": {
        "space": "s",
        "segment": "a",
        "min_sequence": 1,
        "max_sequence": 2,
        "limit": 1,
        "reverse": True,
    },
    "consume_space": {"space": "s", "offset": None, "min_timestamp": 1, "limit": 2, "reverse": True, "gaps": "raise"},
    "create_space": {"space": "n", "partitions": 1, "durability": "committed", "idempotency_window": 9.0},
    "delete_segment": {"space": "s", "segment": "a"},
    "delete_space": {"space": "s"},
    "end_offset": {"space": "s"},
    "find_group": {"space": "s", "name": "g"},
    "find_queue": {"name": "q"},
    "find_route": {"name": "r"},
    "get_queues": {},
    "typed": {"registry": Registry([Paid]), "unknown": "raise"},
    "erase": {"space": "s", "segment": "a", "first": 1, "last": 2, "metadata": None, "dry_run": False},
    "follow_segment": {"space": "s", "segment": "a", "after": 0, "timeout": 0.0, "gaps": "skip"},
    "follow_space": {"space": "s", "offset": None, "timeout": 0.0, "gaps": "skip"},
    "get_groups": {"space": "s"},
    "get_routes": {},
    "get_segments": {"space": "s"},
    "get_spaces": {},
    "group": {"space": "s", "name": "g", "start": "beginning", "ack_timeout": 30.0},
    "lease": {"key": "k", "ttl": 30.0, "wait": None},
    "lookup": {"space": "s", "idempotency_key": "key", "segment": None},
    "maintain": {"space": "s"},
    "members": {"group": "m"},
    "outcome": {"transaction_id": str(uuid4())},
    "peek": {"space": "s", "segment": "a"},
    "produce": {"space": "s", "segment": "a", "records": [Record(b"1")], "expected_sequence": None, "lease": None},
    "queue": {"name": "q"},
    "repair": {"space": "s"},
    "restore": {"space": "s", "source": None, "until": None, "tier": "all"},
    "route": {"name": "r", "source": "s", "target": "t", "segment": None, "start": "beginning"},
    "salvage": {"space": "s", "target": "salvaged", "into": None, "dry_run": False},
    "segment_status": {"space": "s", "segment": "a"},
    "set_retention": {"space": "s", "retention": Retention(max_entries=100)},
    "size": {"space": "s"},
    "statistics": {},
    "subscribe_to_segment": {"space": "s", "segment": "a", "timeout": 0.0},
    "subscribe_to_space": {"space": "s", "timeout": 0.0},
    "to_arrow": {"space": "s", "offset": None, "columns": ["segment"], "tier": "all"},
    "transaction": {"space": "s", "idempotency_key": "k", "lease": None},
    "trim": {"space": "s", "segment": "a", "before": 2},
    "verify": {"space": "s"},
    "view": {"name": "v", "view": Latest(lambda entry: entry.segment), "spaces": ["s"]},
    "with_lease": {"key": "k", "fn": nothing, "ttl": 30.0},
}
RUN = {"handler": nothing, "consumer": None, "concurrency": 1, "batch": 1, "seconds": 0.0, "drain": True}
RECEIVE = {"limit": 1, "wait": 0.0, "consumer": None, "auto_ack": False}
PUT = {"metadata": None, "key": None, "delay": 0.0, "priority": 0, "idempotency_key": None}
CALLS: dict[str, dict[str, Arguments]] = {
    "Client": {
        "close": {},
        "delete_store": {"store_id": str(uuid4())},
        "store": {"store_id": str(uuid4())},
        "stores": {},
    },
    "Store": STORE,
    "Transaction": {"produce": {"segment": "a", "records": [Record(b"1")], "expected_sequence": None}},
    "Lease": {"check": {}, "remaining": {}},
    "Group": {
        "configure": {"ack_timeout": 20.0},
        "consumer": {"name": "c", "linger": 0.0, "prefetch": 1},
        "dead_letters": {"limit": 1},
        "delete": {},
        "delivery": {"receipt": "x"},
        "pending": {"consumer": None, "limit": 1},
        "receipts": {"consumer": "c"},
        "receive": RECEIVE,
        "redrive": {"deliveries": None},
        "run": RUN,
        "seek": {"offset": "end"},
        "settle": {"settlements": [Settlement(receipt="x", action="ack")]},
        "status": {},
        "still_pending": {"deliveries": []},
        "unfinished": {"segment": "a"},
    },
    "Queue": {
        "consumer": {"name": "c", "linger": 0.0, "prefetch": 1},
        "dead_letters": {"limit": 1},
        "pending": {"consumer": None, "limit": 1},
        "put": {"payload": b"1", **PUT},
        "put_many": {"payloads": [b"1"], **PUT},
        "receive": RECEIVE,
        "redrive": {"deliveries": None},
        "run": RUN,
        "settle": {"settlements": [Settlement(receipt="x", action="ack")]},
        "status": {},
    },
    "Consumer": {
        "ack": {"delivery": None},
        "close": {"give_back": True},
        "extend": {"delivery": None, "seconds": 1.0},
        "flush": {},
        "is_held": {"delivery": None},
        "nack": {"delivery": None, "delay": 0.0},
        "receive": {"limit": 1, "wait": 0.0, "auto_ack": False},
        "reject": {"delivery": None, "reason": "x"},
        "release": {"delivery": None},
        "seen": {},
        "until_change": {},
    },
    "Members": {
        "check_grant": {"name": "me", "grant": None},
        "enter": {"name": "me", "metadata": None, "ttl": 15.0},
        "exit": {"name": "me", "grant": None},
        "join": {"name": "me", "metadata": None, "ttl": 15.0},
        "list": {},
        "watch": {"timeout": 0.0, "every": 1.0},
    },
    "Membership": {"leave": {}},
    "Route": {
        "catch_up": {},
        "close": {},
        "delete": {},
        "new_stop": {},
        "pause": {},
        "resume": {"skip": False},
        "run": {"stop": None, "seconds": 0.0},
        "status": {},
        "wait_for": {"offset": None, "timeout": 0.0},
    },
    "OpenView": {
        "catch_up": {},
        "close": {},
        "delete": {},
        "erase": {"gap": None},
        "new_stop": {},
        "publish": {},
        "rebuild": {},
        "resume": {"skip": False},
        "run": {"stop": None, "seconds": 0.0},
        "status": {},
        "wait_for": {"offset": None, "timeout": 0.0},
    },
    "Repository": {
        "event": {"entry": None},
        "events": {"id": "1"},
        "execute": {"id": "1", "command": lambda order: order.pay(1), "retries": 1, "idempotency_key": None},
        "ids": {},
        "load": {"id": "1", "at": None, "must_exist": False},
        "perform": {"id": "1", "command": lambda order: order.pay(1), "retries": 1, "idempotency_key": None},
        "save": {"aggregate": None, "metadata": None, "idempotency_key": None, "lease": None},
        "snapshot": {"id": "1"},
    },
}
OF_ITS_ROOM = {
    "AsyncStore": {"commit"},
    "AsyncTransaction": {"encode"},
    "Consumer": {"leave", "look_until"},
    "Members": {"note_gone"},
}
"""Methods that only the same room calls, with values that no user has."""


def public_methods(kind: type) -> set[str]:
    names = [name for name in dir(kind) if not name.startswith("_")]
    return {name for name in names if not isinstance(inspect.getattr_static(kind, name), property)} - {
        name for name in names if inspect.ismemberdescriptor(getattr(kind, name))
    }


class World:
    """One store with a little of everything, and each object of it as another process has it.

    `archive`: where its archive is. It has two files, and the log has entries after them.
    """

    def __init__(self, plan: Plan | None = None, remote: bool = True, archive: Path | None = None) -> None:
        self.clock = ManualClock()
        self.driver = self._driver(remote)
        self.archive = None if archive is None else archive_place(archive.as_uri())
        self._open = ExitStack()
        id = uuid4()
        with self._client(self.driver).store(id) as store:
            store.produce("s", "a", [Record(b"1", {"k": "v"}), Record(b"2"), Record(b"3")], idempotency_key="key")
            for _ in range(2 if archive else 0):
                store.archive("s")
                store.produce("s", "a", [Record(b"4", {"k": "v"})])
            store.group("s", "g")
            store.queue("q").put(b"job")
            Repository(store, "orders", Order).execute("1", lambda order: order.pay(1))
        self.faulty = FaultyDriver(self.driver, plan) if plan is not None else None
        self.client = self._client(self.faulty or self.driver)
        self.id: UUID = id
        self.store = self.client.store(id)

    def _driver(self, remote: bool) -> MemoryDriver:
        return MemoryDriver(uuid4().hex, remote=remote, clock=self.clock.monotonic, sleep=self.clock.sleep)

    def _client(self, driver: Any) -> Client:
        return self._open.enter_context(Client("memory://", driver, 0.5, None, 64 << 20, self.clock, self.archive))

    def another(self) -> Store:
        """The store as a process has it open that meets no fault."""
        return self._client(self.driver).store(self.id)

    @property
    def backups(self) -> str:
        return f"memory://{self.id}"

    def make(self, kind: str, name: str) -> Any:
        """The object whose method `name` is called; a StreamkitError if its making meets a fault."""
        if name == "restore_backup":
            self.another().backup(self.backups)
            return self.client.store(uuid4())
        store, enter = self.store, self._open.enter_context
        makers: dict[str, Callable[[], Any]] = {
            "Client": lambda: self.client,
            "Store": lambda: store,
            "Transaction": lambda: enter(store.transaction("s")),
            "Lease": lambda: enter(store.lease("k")),
            "Group": lambda: store.group("s", "g"),
            "Queue": lambda: store.queue("q"),
            "Consumer": lambda: enter(store.group("s", "g").consumer("c")),
            "Members": lambda: store.members("m"),
            "Membership": lambda: enter(store.members("m").join("me")),
            "Route": lambda: enter(store.route("r", "s", "t")),
            "OpenView": lambda: enter(store.view("v", Latest(lambda entry: entry.segment), spaces=["s"])),
            "Repository": lambda: Repository(store, "orders", Order),
        }
        return makers[kind]()

    def arguments(self, kind: str, name: str, subject: Any, found: dict[str, Any] | None = None) -> dict[str, Any]:
        """The good arguments, with the objects of this world. `found`: those of a twin, which has received and
        acquired."""
        is_twin = found is not None
        found = dict(CALLS[kind][name]) if found is None else found
        if "delivery" in found and not is_twin:
            found["delivery"] = next(iter(subject.receive(1)), None)
        if "url" in found:
            found["url"] = self.backups
        if "backup_of" in found:
            found["backup_of"] = self.id
        if (kind, name) == ("Store", "restore"):
            found["source"] = self.another()
        if name == "wait_for":
            found["offset"] = self.another().end_offset("s")
        if "grant" in found and not is_twin:
            found["grant"] = subject.enter("me") if kind == "Members" else subject.acquire_lease("k")
        if "entry" in found:
            found["entry"] = next(self.another().consume_space("orders"))
        if "gap" in found:
            found["gap"] = Gap("s", "a", 1, 1, "erased")
        if "aggregate" in found:
            found["aggregate"] = subject.load("1")
            found["aggregate"].pay(2)
        return found

    def close(self) -> None:
        with suppress(StreamkitError):
            self._open.close()


def use(result: Any) -> None:
    """Read a little of a call's result, as its caller would."""
    if isinstance(result, Iterator):
        list(islice(result, 3))


OURS = {error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, StreamkitError)}


def assert_ours(error: BaseException, call: str) -> None:
    """One of the contract's classes: an internal error of the seam, or a library's error, is none of them."""
    told = TypeError, ValueError, TimeoutError  # the last one by `wait_for`, whose time is over
    own = type(error) in told or any(type(error) is one for one in OURS)
    own = own or (isinstance(error, StreamkitError) and type(error).__bases__[0] in OURS - {StreamkitError})
    assert own, f"{call} let out {type(error).__module__}.{type(error).__name__}: {error}"


WRONG: tuple[Any, ...] = (object(), -1, "", b"\xff", float("nan"), "\ud800", 1 << 70, [object()], {"x": object()}, None)
ENDLESS = {"timeout", "seconds", "wait"}
"""Arguments that may wait for ever with None or a large number."""
EVERY = [(kind, name) for kind, table in CALLS.items() for name in table]


FAULTS = (Fault.UNAVAILABLE, Fault.THROTTLED, Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.CONFLICT)
HARM = (Fault.TRUNCATED, Fault.CORRUPT)
