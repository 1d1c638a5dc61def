"""Correlation and causation: entries that a handler writes name the entry that it handled, and the first of the chain.

    queue.run(caused(handler))          # for a handler of a group, a queue or a process manager
    with caused_by(entry): …            # for your own loop

Records that are written meanwhile, by threads or coroutines, have two more metadata. An id contains no segment name, so
it reveals nothing of an erased entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from .model import Entry, Record

__all__ = ["CAUSATION", "CORRELATION", "caused", "caused_by", "entry_id", "present_causes", "with_causes"]

CORRELATION = "streamkit.correlation"
"""Metadata: the id of the first entry of a chain."""
CAUSATION = "streamkit.causation"
"""Metadata: the id of the entry that was handled when this one was written."""

_causes: ContextVar[dict[str, str] | None] = ContextVar("streamkit_causes", default=None)
present_causes: Callable[[], Mapping[str, str] | None] = _causes.get
"""The metadata that `caused_by` gives to records now; None outside of its blocks."""


def entry_id(entry: Entry) -> str:
    """The id of an entry, as `CAUSATION` and `CORRELATION` give it: its transaction, and its place in the partition."""
    return f"{entry.trx.id}/{entry.stream_id.rpartition('-')[2]}"


@contextmanager
def caused_by(entry: Entry) -> Iterator[None]:
    """Give records that are written in the block the ids of `entry`. An inner block takes the place of an outer one.

    TypeError for anything but an entry.
    """
    if not isinstance(entry, Entry):
        raise TypeError(f"a cause is an Entry, not {type(entry).__name__}: for a delivery pass `delivery.entry`")
    cause = entry_id(entry)
    token = _causes.set({CORRELATION: entry.metadata.get(CORRELATION, cause), CAUSATION: cause})
    try:
        yield
    finally:
        _causes.reset(token)


def caused(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a handler: its writes name the entry that it was called with, as in `caused_by`.

    It takes a delivery, typed or not, a DomainEvent or an entry; it may be an async function.
    """
    from inspect import iscoroutinefunction

    if not callable(handler):
        raise TypeError(f"a handler is a function, not {type(handler).__name__}")
    if iscoroutinefunction(handler):

        @wraps(handler)
        async def call_async(given: Any) -> Any:
            with caused_by(_entry_of(given)):
                return await handler(given)

        return call_async

    @wraps(handler)
    def call(given: Any) -> Any:
        with caused_by(_entry_of(given)):
            return handler(given)

    return call


def _entry_of(given: Any) -> Any:
    return given if isinstance(given, Entry) else getattr(given, "entry", given)


def with_causes(space: str, records: Iterable[Record]) -> Iterable[Record]:
    """The records with the present causes. Their own metadata of these names is kept; internal spaces get none.

    An iterable that is no collection of records is left as it is, for the checks of the write.
    """
    causes = _causes.get()
    if causes is None or space < " " or isinstance(records, (Record, bytes, str, Mapping)):
        return records
    if not isinstance(records, Iterable):
        return records
    return [_with(record, causes) for record in records]


def _with(record: Any, causes: dict[str, str]) -> Any:
    if type(record) is not Record or not isinstance(record.metadata, (Mapping, type(None))):
        return record
    return Record(record.payload, {**causes, **(record.metadata or {})}, record.sequence)
