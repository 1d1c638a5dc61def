"""An erasure, or the deletion of a space, is killed before any request that changes something on Azure."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_azurite import Azurite
from fix_covered import EXHAUSTIVE

from harness.deep_search import found_in
from harness.worlds import account_of, without_leases
from streamkit import Record, Store
from streamkit_azure.transport import Transport

pytestmark = pytest.mark.azure

STEP = 1 if EXHAUSTIVE else 7
"""One of so many requests is a place of a kill."""


class Killed(BaseException):
    """The process has ended."""


class Kill:
    """A transport whose process is killed before its request `at`, from 1, of those that change something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = self._count = 0
        send = Transport.send

        def counted(transport: Any, request: Any, **options: Any) -> Any:
            if self.at and request.method != "GET":
                self._count += 1
            if self.at and self._count >= self.at:
                raise Killed
            return send(transport, request, **options)

        monkeypatch.setattr(Transport, "send", counted)

    def within(self, work: Callable[[], object], at: int) -> bool:
        """True if the work was killed."""
        self.at, self._count = at, 0
        with suppress(Killed):
            work()
        killed = self._count >= at
        self.at = 0
        return killed


def erase(store: Store) -> None:
    store.erase("a", "s", sequences=[1, 3])
    store.erase("a", "t")


def delete(store: Store) -> None:
    store.delete_space("a")


@pytest.mark.parametrize("work", [erase, delete], ids=["erasure", "deletion"])
def test_upkeep_removes_every_byte_that_a_killed_process_has_left(
    azurite: Azurite,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    covered: Callable[[str, int], None],
    work: Callable[[Store], None],
) -> None:
    world, kill, killed, at = account_of(azurite, scratch), Kill(monkeypatch), True, 1
    while killed:
        id, tag = uuid4(), os.urandom(24)
        with world.client() as client:
            store = client.store(id)
            for _ in range(2):
                store.produce("a", "s", [Record(tag + os.urandom(900_000)), Record(b"kept")])
                store.produce("a", "t", [Record(tag)])
            if at % 2:
                store.maintain()
            assert len(found_in(world.stored(), tag)) > 1
        client = world.client()
        killed = kill.within(lambda client=client, id=id: work(client.store(id)), at)  # type: ignore[misc]
        with without_leases(), world.client() as client:
            store = client.store(id)
            store.maintain()
            if work is erase:
                own = [entry for name in ("s", "t") for entry in store.consume_segment("a", name)]
                if any(entry.payload.startswith(tag) for entry in own):
                    erase(store)  # it had not said so in the log
                assert [entry.payload for entry in store.consume_segment("a", "s")] == [b"kept"] * 2
            else:
                delete(store)
            with monkeypatch.context() as later:
                later.setattr("streamkit_azure.leftovers.WRITING", -60.0)  # as an hour later
                store.maintain()
            assert found_in(world.stored(), tag) == [], f"killed before request {at}"
            assert store.verify().ok
            client.delete_store(id)
        at += STEP
    covered(f"kills of the call {work.__name__} of large values between requests to Azure", at // STEP)
