"""An inbox that is always in play: every request is posted, and a process of its own commits it for its caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch
from uuid import UUID

from harness.passing import PassingBackend, PassingDriver
from streamkit import Client, Store
from streamkit.backend import ANY, Backend, Driver, Etag, Expect
from streamkit.errors import StreamkitError
from streamkit.lexkey import LexKey
from streamkit.log import inbox, pace, policy
from streamkit.log.request import Request
from streamkit.log.rows import Lead

__all__ = ["CombiningDriver", "combine", "posting"]

_INBOX = LexKey.encode("INB")


@contextmanager
def posting(losses: int = 0) -> Iterator[None]:
    """Stores that are opened in here post a request after so many losses: 0, before anything else."""
    with (
        patch.object(policy, "REMOTE", policy.REMOTE._replace(losses=losses)),
        patch.object(inbox, "_EMPTY", 1),
        patch.object(pace, "_ROUND", (0.0005, 0.002, 2.0)),
    ):
        yield


def combine(store: Store, space: str, partition: int) -> None:
    """Commit what others have posted, and nothing else."""
    known = store._handle.look_up(space)[0]
    assert known is not None
    committer = known.committers[partition]
    assert committer.inbox is not None
    known.partitions[partition].refresh()
    if not committer.inbox._read():
        return
    known.partitions[partition].answers.lead = Lead(committer.node)  # as if it was its turn
    committer.inbox._left = known.partitions[partition].clock.monotonic()  # and more to be done: it takes all along
    committer.commit(Request(()))


class CombiningDriver(PassingDriver):
    """A driver around `inner`. Another process commits each posted request at once."""

    def __init__(self, inner: Driver, other: Client) -> None:
        super().__init__(inner)
        self.other = other
        self._stores: dict[UUID, Store] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def combiner(self, store: UUID) -> Store:
        found = self._stores.get(store)
        return found or self._stores.setdefault(store, self.other.store(store))

    def open(self, store: UUID) -> Backend:
        return _CombiningBackend(self, store, self.inner.open(store))

    def close(self) -> None:
        self.other.close()
        super().close()


class _CombiningBackend(PassingBackend):
    def __init__(self, driver: CombiningDriver, store: UUID, inner: Backend) -> None:
        super().__init__(inner)
        self._driver = driver
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        etag = super().put(partition, key, value, expect, durable=durable)
        if partition.endswith(b"\x00" + bytes(_INBOX)):
            space, number = partition[: -len(_INBOX) - 10].decode(), partition[-len(_INBOX) - 9 : -len(_INBOX) - 1]
            with suppress(StreamkitError):
                combine(self._driver.combiner(self._store), space, int.from_bytes(number, "big"))
        return etag
