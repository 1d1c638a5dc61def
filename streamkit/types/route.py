"""The functions of a route, from functions of objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arguments import check_function
from ..eventsourcing.versions import EVENT, VERSION
from ..model import Entry, Record
from .registry import Policy, Registry, Typed

__all__ = ["routed"]


def routed(
    registry: Registry[Any],
    policy: Policy,
    where: Callable[[Typed[Any]], bool] | None,
    segment: Callable[[Typed[Any]], str] | str | None,
    transform: Callable[[Typed[Any]], Any] | None,
) -> tuple[
    Callable[[Entry], bool] | None, Callable[[Entry], str] | str | None, Callable[[Entry], Record | None] | None
]:
    """`where`, `segment` and `transform` for entries. A route skips the entries that the policy skips."""
    if where is None and transform is None and (segment is None or isinstance(segment, str)):
        return None, segment, None
    for name, function in (("where", where), ("segment", segment), ("transform", transform)):
        if function is not None and not isinstance(function, str):
            check_function(name, function, "a Typed")
    last: list[tuple[Entry, Typed[Any] | None]] = []

    def read(entry: Entry) -> Typed[Any] | None:
        """Read an entry once for all functions."""
        for known, found in last:
            if known is entry:
                return found
        found = registry.read_or(entry, policy)
        last[:] = [(entry, found)]
        return found

    def is_copied(entry: Entry) -> bool:
        found = read(entry)
        return found is not None and (where is None or where(found))

    def segment_of(entry: Entry) -> str:
        found = read(entry)
        assert found is not None, "the entry is not copied"
        assert callable(segment)
        return segment(found)

    def record_of(entry: Entry) -> Record | None:
        found = read(entry)
        assert found is not None, "the entry is not copied"
        assert transform is not None
        value = transform(found)
        if value is None or isinstance(value, Record):
            return value
        kept = {key: text for key, text in entry.metadata.items() if key not in (EVENT, VERSION)}
        return registry.record(value, kept)

    return (
        is_copied,
        segment_of if callable(segment) else segment,
        record_of if transform is not None else None,
    )
