"""Priorities of spaces, groups and keys, as an entry of each store has them: by number, and by recency of use."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID

import msgspec

from ..aio import AsyncStore
from ..decoders import json_decoder
from ..errors import StreamkitError
from ..model import Record
from ..names import internal_name
from .access import Access
from .names import name_of
from .request import Request
from .routing import Route

__all__ = ["Priorities", "Rule", "Rules", "read_rules", "write_rules"]

_SPACE = internal_name("priorities")
_SEGMENT = "rules"
_LOOK = 5.0
"""Seconds between two looks at the rules of a store, while the process is busy."""
_MOST = 10_000
"""Uses that are remembered."""
_RECENT = 100
"""The priority of a use at this moment. It falls by 1 each second."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A priority. `by_recency`: it is higher by 100, less 1 for each second since the last use by this process."""

    priority: Annotated[int, msgspec.Meta(ge=-1000, le=1000)] = 0
    by_recency: bool = False


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of a store: by space, by space and group, and by the id of a key. A queue is a space."""

    spaces: dict[str, Rule] = {}
    groups: dict[str, dict[str, Rule]] = {}
    keys: dict[str, Rule] = {}


_NONE = Rules()
_decode = json_decoder(Rules).decode


async def read_rules(store: AsyncStore) -> Rules:
    """The rules of a store."""
    entry = await store.peek(_SPACE, _SEGMENT)
    return _decode(entry.payload) if entry.sequence else _NONE


async def write_rules(store: AsyncStore, rules: Rules) -> None:
    """Replace the rules of a store."""
    await store.produce(_SPACE, _SEGMENT, [Record(msgspec.json.encode(rules))])


class Priorities:
    """The rules that this process knows, and the times at which it used their subjects."""

    def __init__(self) -> None:
        self._rules: dict[UUID, Rules] = {}
        self._looked: dict[UUID, float] = {}
        self._used: OrderedDict[tuple[Any, ...], float] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self.of_topic: Callable[[Access, str], int] | None = None
        """The priority of a topic, of the interface of topics."""

    def of(self, request: Request, route: Route) -> int:
        """The priority of a request: the sum of those of its key, space and group."""
        access, names = request.access, route.names
        if not names or (names[0] == "t" and self.of_topic is None):
            return access.priority
        if names[0] == "t":
            assert self.of_topic is not None
            return access.priority + self.of_topic(access, name_of(request.parts[0]))
        if names[0] != "st":
            return access.priority
        service, parts = request.service, request.parts
        store_id = service.store_id(name_of(parts[0]))
        rules = self._rules.get(store_id)
        if service.gate.is_busy and time.monotonic() - self._looked.get(store_id, -_LOOK) >= _LOOK:
            self._look(service.store(name_of(parts[0])))
        if rules is None:
            return access.priority
        total = access.priority
        if access.id in rules.keys:
            total += self._value(rules.keys[access.id], (store_id, access.id), True)
        if len(names) > 1 and names[1] == "sp":
            space, is_read = name_of(parts[1]), request.method == "GET"
            if space in rules.spaces:
                total += self._value(rules.spaces[space], (store_id, space, None), is_read)
            if len(names) > 2 and names[2] == "g" and space in rules.groups:
                group = name_of(parts[2])
                if group in rules.groups[space]:
                    total += self._value(rules.groups[space][group], (store_id, space, group), True)
        return total

    def _value(self, rule: Rule, used: tuple[Any, ...], is_use: bool) -> int:
        if not rule.by_recency:
            return rule.priority
        now = time.monotonic()
        last = self._used.get(used)
        if is_use:
            self._used[used] = now
            self._used.move_to_end(used)
            if len(self._used) > _MOST:
                self._used.popitem(last=False)
        return rule.priority + (0 if last is None else max(_RECENT - int(now - last), 0))

    def know(self, store_id: UUID, rules: Rules) -> None:
        """Take note of the rules of a store."""
        self._looked[store_id] = time.monotonic()
        if rules == _NONE:
            self._rules.pop(store_id, None)
        else:
            self._rules[store_id] = rules

    def _look(self, store: AsyncStore) -> None:
        self._looked[store.id] = time.monotonic()

        async def look() -> None:
            try:
                self.know(store.id, await read_rules(store))
            except (StreamkitError, msgspec.DecodeError):
                return  # the known rules hold on

        task = asyncio.ensure_future(look())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
