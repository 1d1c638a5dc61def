"""The base of every check: a store to try, and the invariants of every store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import Generic, TypeVar
from uuid import uuid4

from streamkit.client import Client
from streamkit.model import Entry, Record
from streamkit.store import Store
from streamkit.testing.backend_checks.subject import Broken, hold, same

from .agreement import agree

__all__ = ["StoreSubject", "numbered", "refusing"]

E = TypeVar("E", bound=Exception)


def numbered(first: int, last: int) -> list[bytes]:
    """Payloads that tell their sequence."""
    return [b"%d" % number for number in range(first, last + 1)]


class refusing(Generic[E]):
    """A block that must raise `error`, which is `.error` then. Broken if it raises none; another goes through."""

    error: E

    def __init__(self, error: type[E], what: str) -> None:
        self._wanted = error
        self._what = what

    def __enter__(self) -> refusing[E]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            raise Broken(f"{self._what}: expected {self._wanted.__name__}, but it was taken")
        if isinstance(error, self._wanted):
            self.error = error
            return True
        return False


class StoreSubject:
    """One check's own store. pytest calls `setup_method` and `teardown_method` by itself, as `run_store_conformance`
    does. Override `make_client`; the rest where the service is slow.
    """

    rounds: int = 10
    """How often a race is run."""
    partitions: tuple[int, ...] = (1, 4)
    """Most checks are made on a space of each; (1,) takes a quarter of the requests. Some always need four."""
    patience: float = 120.0
    """Seconds after which something that should have come is said to hang."""
    keeps: bool = False
    """The stores are left there: the storage under test is thrown away as a whole."""

    def make_client(self) -> Client:
        """A new client of one and the same root, with nothing shared but the service: another process, as it were."""
        raise NotImplementedError("override make_client: it returns a new client of the root under test")

    def setup_method(self, method: object = None) -> None:
        self._clients: list[Client] = []
        self.store_id = uuid4()

    def teardown_method(self, method: object = None) -> None:
        for client in self._clients:
            client.close()
        if self._clients and not self.keeps:
            with self.make_client() as client:
                client.delete_store(self.store_id)

    @cached_property
    def client(self) -> Client:
        return self.connect()

    @cached_property
    def store(self) -> Store:
        return self.client.store(self.store_id)

    def connect(self) -> Client:
        client = self.make_client()
        self._clients.append(client)
        return client

    def stranger(self) -> Store:
        """The same store through a client of its own."""
        return self.connect().store(self.store_id)

    def spaces(self) -> Iterator[str]:
        """A space for each of `partitions`; one of a single partition is created by the first write."""
        if 1 in self.partitions:
            yield "one partition"
        if 4 in self.partitions:
            self.store.create_space("four partitions", partitions=4)
            yield "four partitions"

    def put(self, space: str, segment: str, payloads: Sequence[bytes], store: Store | None = None) -> None:
        (store or self.store).produce(space, segment, [Record(payload) for payload in payloads])

    def payloads(self, space: str, segment: str, store: Store | None = None) -> list[bytes]:
        return [entry.payload for entry in (store or self.store).consume_segment(space, segment)]

    def agree(self, space: str, store: Store | None = None) -> list[Entry]:
        """The entries of `space`, after all readers of `store` have told the same."""
        return agree(store or self.store, space)

    @contextmanager
    def nothing_written(self, space: str) -> Iterator[None]:
        """Broken unless `space`, and the list of spaces, are the same to a stranger after the block."""
        with self.make_client() as client:
            store = client.store(self.store_id)
            spaces, entries = list(store.get_spaces()), list(store.consume_space(space))
        yield
        with self.make_client() as client:
            store = client.store(self.store_id)
            same(list(store.get_spaces()), spaces, "the spaces after a refusal")
            same(list(store.consume_space(space)), entries, "the entries after a refusal")

    def check_log(self, entries: Sequence[Entry]) -> None:
        """Numbers of the one partition are dense from 1, and so are the sequences of each segment."""
        numbers = sorted({entry.trx.number for entry in entries})
        same(numbers, list(range(1, len(numbers) + 1)), "the transaction numbers")
        last: dict[str, int] = {}
        for entry in entries:
            hold(
                entry.sequence == last.get(entry.segment, 0) + 1,
                f"segment {entry.segment!r} goes from sequence {last.get(entry.segment, 0)} to {entry.sequence}",
            )
            last[entry.segment] = entry.sequence
