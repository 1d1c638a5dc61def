"""Routers append each record of one topic to another topic, once.

The cursor of a router is an entry beside the records, written in one transaction with the copies. So any process may
forward at any time: a read of the target does so first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from ...decoders import convert, json_decoder
from ...errors import SequenceMismatch
from ...model import Entry, Record
from ...names import internal_name
from .config import TopicConfig, check_router_name, check_topic_name
from .errors import Refused
from .predicate import Predicate, predicate_of
from .topics import META, NODE, SPACE, TAG, Topic, Topics

__all__ = ["Router", "Routers"]

_ROUTERS = internal_name("topics", "routers")
_VIA = "topics.via"
"""The topics that a copy has been in."""
_BATCH = 500
_TRIES = 50


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a router."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: Any = None
    allow_cycle: bool = False


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    config: RouterConfig
    made: int
    """The number of times that a router of this name was made or got another source; each time has its own cursor."""
    created: int
    deleted: bool = False


class _Cursor(msgspec.Struct, frozen=True):
    segment: str
    position: int
    forwarded: int


class Router(NamedTuple):
    """A router that exists."""

    name: str
    stored: _Stored
    sequence: int

    @property
    def config(self) -> RouterConfig:
        return self.stored.config

    @property
    def cursor(self) -> str:
        """The segment of its cursor. No name of a topic has a "/"."""
        return f"{self.name}/router-{self.stored.made}"

    def is_for(self, prefixes: tuple[str, ...]) -> bool:
        """True if a key for names with these prefixes may see the router."""
        return all(one.startswith(prefixes) for one in (self.name, self.config.source, self.config.dest))


_stored = json_decoder(_Stored)
_cursor = json_decoder(_Cursor)


class Routers:
    """The routers of a store."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._known: tuple[bytes, list[Router]] = (b"", [])

    def all(self) -> list[Router]:
        """All routers, by name."""
        store = self._topics.store
        end = bytes(store.end_offset(_ROUTERS))
        if self._known[0] != end:
            found = [self.find(name) for name in store.get_segments(_ROUTERS)]
            self._known = end, [router for router in found if router is not None]
        return self._known[1]

    def _peek(self, name: str) -> tuple[_Stored | None, int]:
        entry = self._topics.store.peek(_ROUTERS, name)
        return (_stored.decode(entry.payload) if entry.sequence else None), entry.sequence

    def find(self, name: str) -> Router | None:
        """The router if it exists."""
        stored, sequence = self._peek(name)
        return None if stored is None or stored.deleted else Router(name, stored, sequence)

    def get(self, name: str) -> Router:
        """The router. Refused if it does not exist."""
        found = self.find(check_router_name(name))
        if found is None:
            raise Refused("router_not_found", f"router {name!r} does not exist", router=name)
        return found

    def put(self, name: str, given: dict[str, Any], prefixes: tuple[str, ...]) -> tuple[Router, bool]:
        """Make a router, or replace its configuration; whether it is new. A refusal names only topics with one of the
        prefixes."""
        check_router_name(name)
        given = dict(given)
        create = given.pop("create_dest", True)
        given.pop("guarantee", None)
        unknown = given.keys() - set(RouterConfig.__struct_fields__)
        if unknown or not isinstance(create, bool):
            raise Refused("invalid_request", f"a router has no setting {sorted(unknown or ['create_dest'])[0]!r:.60}")
        try:
            config = convert(given, RouterConfig)
        except msgspec.ValidationError as error:
            raise Refused("invalid_request", f"the router is not valid: {error}") from None
        check_topic_name(config.source, "source")
        check_topic_name(config.dest, "dest")
        predicate_of(config.filter)
        if config.source == config.dest:
            raise Refused("invalid_request", "source and dest are two topics")
        source = self._topics.get(config.source)
        self._check_graph(name, config, prefixes)
        if self._topics.find(config.dest) is None:
            if not create:
                self._topics.get(config.dest)
            self._topics.put(config.dest, TopicConfig())
        for _ in range(_TRIES):
            stored, sequence = self._peek(name)
            is_new = stored is None or stored.deleted
            if stored is not None and not is_new and stored.config == config:
                return Router(name, stored, sequence), False
            made = 1 if stored is None else stored.made + (is_new or stored.config.source != config.source)
            new = _Stored(config=config, made=made, created=int(time.time() * 1000))
            router = Router(name, new, sequence + 1)
            if stored is None or made != stored.made:
                self._begin(router, source)
            try:
                self._topics.store.produce(
                    _ROUTERS, name, [Record(msgspec.json.encode(new))], expected_sequence=sequence
                )
            except SequenceMismatch:
                continue
            return router, is_new
        raise Refused("topic_exists_incompatible", "others change this router all the time; try again")

    def _begin(self, router: Router, source: Topic) -> None:
        """Have it forward records that are appended from now on."""
        start = _Cursor(source.segment, self._topics.head(source), 0)
        try:
            self._topics.store.produce(SPACE, router.cursor, [Record(msgspec.json.encode(start))], expected_sequence=0)
        except SequenceMismatch:
            return  # another request creates the same router at this moment

    def _check_graph(self, name: str, config: RouterConfig, prefixes: tuple[str, ...]) -> None:
        others = [router.config for router in self.all() if router.name != name]
        for other in others:
            if other.dest == config.dest and other.source != config.source:
                source = repr(other.source) if other.source.startswith(prefixes) else "a topic that the key is not for"
                raise Refused(
                    "topic_exists_incompatible",
                    f"topic {config.dest!r} already gets the records of {source}: a topic has one source",
                    reason="router_dest_fan_in",
                )
        if not config.allow_cycle and (way := _way(others, config.dest, config.source)):
            cycle = [topic if topic.startswith(prefixes) else "…" for topic in (config.source, *way)]
            raise Refused("router_cycle", f"the router would make a cycle: {' -> '.join(cycle)}", cycle=cycle)

    def delete(self, name: str) -> bool:
        """Remove a router. Its copies stay. True if it existed."""
        for _ in range(_TRIES):
            router = self.find(check_router_name(name))
            if router is None:
                return False
            gone = msgspec.structs.replace(router.stored, deleted=True)
            try:
                self._topics.store.produce(
                    _ROUTERS, name, [Record(msgspec.json.encode(gone))], expected_sequence=router.sequence
                )
            except SequenceMismatch:
                continue
            self._topics.store.delete_segment(SPACE, router.cursor)
            return True
        return False

    def delete_of(self, topic: str) -> list[Router]:
        """Remove the routers from and to a topic, and return them."""
        found = [router for router in self.all() if topic in (router.config.source, router.config.dest)]
        return [router for router in found if self.delete(router.name)]

    def forwarded(self, router: Router) -> int:
        """The number of records that it has copied."""
        entry = self._topics.store.peek(SPACE, router.cursor)
        return _cursor.decode(entry.payload).forwarded if entry.sequence else 0

    # -- forwarding ---------------------------------------------------------------------------------------------

    def upstream(self, topic: str) -> set[str]:
        """The topics whose records reach `topic`, directly or through others."""
        found: set[str] = set()
        left = [topic]
        routers = self.all()
        while left:
            name = left.pop()
            for router in routers:
                if router.config.dest == name and router.config.source not in found:
                    found.add(router.config.source)
                    left.append(router.config.source)
        return found - {topic}

    def bring(self, topic: str, seen: frozenset[str] = frozenset()) -> None:
        """Forward everything that is to come to `topic` by now."""
        for router in self.all():
            if router.config.dest == topic and router.config.source not in seen:
                self.bring(router.config.source, seen | {topic})
                self.forward(router)

    def push(self, topic: str, seen: frozenset[str] = frozenset()) -> None:
        """Forward new records of `topic` through all routers that they reach."""
        for router in self.all():
            if router.config.source == topic and router.config.dest not in seen:
                self.forward(router)
                self.push(router.config.dest, seen | {topic})

    def forward(self, router: Router) -> None:
        """Copy the records that the source has by now."""
        topics, config = self._topics, router.config
        predicate = predicate_of(config.filter)
        for _ in range(1_000_000):
            source, dest = topics.find(config.source), topics.find(config.dest)
            if source is None or dest is None:
                return
            at = topics.store.peek(SPACE, router.cursor)
            if not at.sequence:
                return
            cursor = _cursor.decode(at.payload)
            if cursor.segment != source.segment:
                cursor = _Cursor(source.segment, 0, cursor.forwarded)
            if topics.head(source) <= cursor.position:
                return
            copies, position = self._copies(source, config, predicate, cursor.position)
            if position <= cursor.position:
                return
            if copies and dest.config.discard == "reject":
                try:
                    topics.room_for(dest, copies)
                except Refused:
                    return  # it stays where it is until there is room
            moved = _Cursor(source.segment, position, cursor.forwarded + len(copies))
            try:
                with topics.store.transaction(SPACE) as transaction:
                    transaction.produce(
                        router.cursor, [Record(msgspec.json.encode(moved))], expected_sequence=at.sequence
                    )
                    if copies:
                        transaction.produce(dest.segment, copies)
            except SequenceMismatch:
                continue  # another process forwards too
            if at.sequence % 100 == 0:
                topics.store.trim(SPACE, router.cursor, before=at.sequence)
            topics.evict(dest)

    def _copies(
        self, source: Topic, config: RouterConfig, predicate: Predicate, after: int
    ) -> tuple[list[Record], int]:
        copies: list[Record] = []
        position = after
        read = self._topics.store.consume_segment(SPACE, source.segment, min_sequence=after + 1, gaps="yield")
        for found in read:
            if not isinstance(found, Entry):
                position = found.last_sequence
                continue
            position = found.sequence
            via = found.metadata.get(_VIA, "").split("\n") if _VIA in found.metadata else []
            if config.dest not in via and predicate(found.metadata.get(TAG)):
                copies.append(Record(found.payload, dict(_metadata(found, config, [*via, config.source]))))
            if len(copies) >= _BATCH:
                break
        return copies, position


def _metadata(entry: Entry, config: RouterConfig, via: list[str]) -> Iterator[tuple[str, str]]:
    yield _VIA, "\n".join(via)
    kept = [(META, True), (NODE, config.preserve_node), (TAG, config.preserve_tag)]
    for name, keep in kept:
        if keep and name in entry.metadata:
            yield name, entry.metadata[name]


def _way(routers: list[RouterConfig], start: str, end: str) -> list[str] | None:
    """The topics from `start` to `end` along routers; None if there is no way."""
    ways = [[start]]
    seen = {start}
    while ways:
        way = ways.pop(0)
        if way[-1] == end:
            return way
        for router in routers:
            if router.source == way[-1] and router.dest not in seen:
                seen.add(router.dest)
                ways.append([*way, router.dest])
    return None
