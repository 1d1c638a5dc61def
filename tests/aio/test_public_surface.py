"""Every public call for coroutines x wrong arguments x single faults at the seam: the errors that leave are all ours.

A call has the arguments of its twin for threads.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from harness.public_calls import (
    CALLS,
    ENDLESS,
    EXHAUSTIVE,
    FAULTS,
    HARM,
    OF_ITS_ROOM,
    WRONG,
    World,
    assert_ours,
    nothing,
    public_methods,
    use,
)
from streamkit import StreamkitError
from streamkit.aio.client import AsyncClient
from streamkit.aio.clients import AsyncMembers, AsyncMembership, AsyncRoute, AsyncView
from streamkit.aio.groups import AsyncConsumer, AsyncGroup, AsyncQueue
from streamkit.aio.leases import AsyncLease
from streamkit.aio.store import AsyncStore
from streamkit.aio.threads import Threads
from streamkit.aio.transaction import AsyncTransaction
from streamkit.testing import Plan
from streamkit.views import Latest

pytestmark = pytest.mark.timeout(120)  # a call that never returns is a finding too

TWINS: dict[type, str] = {
    AsyncClient: "Client",
    AsyncStore: "Store",
    AsyncTransaction: "Transaction",
    AsyncLease: "Lease",
    AsyncGroup: "Group",
    AsyncQueue: "Queue",
    AsyncConsumer: "Consumer",
    AsyncMembers: "Members",
    AsyncMembership: "Membership",
    AsyncRoute: "Route",
    AsyncView: "OpenView",
}
DELEGATING = {AsyncRoute, AsyncView}
"""Classes that have all methods of their twins, but under other class names."""
ONLY_HERE: dict[type, dict[str, Mapping[str, Any]]] = {
    AsyncGroup: {"hand_back": {"deliveries": []}},
    AsyncView: {"ask": {"query": nothing}},
}
ONLY_THERE = {"new_stop"}
ENDLESS_READERS = {"deliveries"}
"""Calls that wait for ever for the next entry."""


def calls_of(kind: type) -> dict[str, Mapping[str, Any]]:
    """The good arguments of each method."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, arguments in CALLS[TWINS[kind]].items():
        method = inspect.getattr_static(kind, name, None)
        if name in ONLY_THERE or (method is None and kind not in DELEGATING):
            continue
        known = None if method is None else inspect.signature(method).parameters
        is_open = known is None or any(each.kind is each.VAR_KEYWORD for each in known.values())
        found[name] = {key: value for key, value in arguments.items() if is_open or known is None or key in known}
    return found | ONLY_HERE.get(kind, {})


EVERY = [pytest.param(kind, name, id=f"{kind.__name__}-{name}") for kind in TWINS for name in calls_of(kind)]


@pytest.mark.parametrize("kind", TWINS, ids=lambda kind: kind.__name__)
def test_every_public_method_for_coroutines_is_in_the_table(kind: type) -> None:
    others = OF_ITS_ROOM.get(kind.__name__, set()) | ENDLESS_READERS
    assert public_methods(kind) - others <= calls_of(kind).keys()


class AsyncWorld:
    """A world, and its objects for coroutines."""

    def __init__(self, plan: Plan | None = None, remote: bool = True) -> None:
        self.world = World(plan, remote)
        self.client = AsyncClient(self.world.client, Threads(4))
        self.store = self.client.store(self.world.id)
        self._open: list[Any] = []

    async def make(self, kind: type, name: str) -> Any:
        """The object whose method `name` is called; a StreamkitError if its making meets a fault."""
        store = self.store
        if name == "restore_backup":
            with self.world.another() as sound:
                sound.backup(self.world.backups)
            return self.client.store(uuid4())
        if kind is AsyncClient:
            return self.client
        if kind is AsyncStore:
            return store
        if kind is AsyncTransaction:
            return await self._entered(store.transaction("s"))
        if kind is AsyncLease:
            return await self._entered(store.lease("k"))
        if kind is AsyncGroup:
            return await store.group("s", "g")
        if kind is AsyncQueue:
            return await store.queue("q")
        if kind is AsyncConsumer:
            return await self._entered((await store.group("s", "g")).consumer("c"))
        if kind is AsyncMembers:
            return store.members("m")
        if kind is AsyncMembership:
            return await self._entered(await store.members("m").join("me"))
        if kind is AsyncRoute:
            return await self._entered(await store.route("r", "s", "t"))
        return await self._entered(await store.view("v", Latest(lambda entry: entry.segment), ["s"]))

    async def _entered(self, subject: Any) -> Any:
        entered = await subject.__aenter__()
        self._open.append(subject)
        return entered

    async def arguments(self, kind: type, name: str, subject: Any) -> dict[str, Any]:
        found = dict(calls_of(kind)[name])
        if "delivery" in found:
            found["delivery"] = next(iter(await subject.receive(1)), None)
        if "grant" in found:
            entered = subject.enter("me") if kind is AsyncMembers else subject.acquire_lease("k")
            found["grant"] = await entered
        if found.keys() <= {"query"}:
            return found
        return self.world.arguments(TWINS[kind], name, None, found)

    async def close(self) -> None:
        for subject in reversed(self._open):
            with suppress(StreamkitError):
                await subject.__aexit__(None, None, None)
        with suppress(StreamkitError):
            await self.client.close()
        self.world.close()


async def use_async(result: Any) -> None:
    """Read a little of what a call returns, as its caller would."""
    if isinstance(result, Awaitable):
        result = await result
    if isinstance(result, AsyncGenerator):
        left = 3
        try:
            async for _ in result:
                left -= 1
                if not left:
                    break
        finally:
            await result.aclose()
    else:
        use(result)


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_wrong_arguments_raise_errors_of_our_own(
    kind: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a wrong URL may be the name of a directory

    async def call(parameter: str, wrong: Any) -> None:
        world = AsyncWorld(remote=False)
        try:
            subject = await world.make(kind, name)
            arguments = await world.arguments(kind, name, subject)
            try:
                await use_async(getattr(subject, name)(**{**arguments, parameter: wrong}))
            except Exception as error:
                assert_ours(error, f"{kind.__name__}.{name}({parameter}={wrong!r})")
        finally:
            await world.close()

    for place, parameter in enumerate(calls_of(kind)[name]):
        wrongs = WRONG[:6] if parameter in ENDLESS else WRONG
        for wrong in wrongs if EXHAUSTIVE else [wrongs[(place + len(name)) % len(wrongs)]]:
            asyncio.run(call(parameter, wrong))


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_single_fault_of_the_storage_raises_an_error_of_our_own(kind: type, name: str) -> None:
    async def call(plan: Plan) -> int:
        world = AsyncWorld(plan)
        try:
            subject = await world.make(kind, name)
            await use_async(getattr(subject, name)(**await world.arguments(kind, name, subject)))
        except Exception as error:
            assert_ours(error, f"{kind.__name__}.{name} with {plan}")
        finally:
            await world.close()
        assert world.world.faulty is not None
        return len(world.world.faulty.faults.trace)

    calls, at = 1, 0
    while at < calls:
        for fault in (*FAULTS, *HARM) if EXHAUSTIVE else ((*FAULTS, *HARM)[(at + len(name)) % 7],):
            found = asyncio.run(call(Plan.at(at, fault)))
            calls = min(max(calls, found), 1000 if EXHAUSTIVE else 4)
        at += 1
