"""Limits of a server; 0 is no limit."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

__all__ = ["Limits", "limits_of"]


def limits_of(given: Iterable[str]) -> Limits:
    """The limits in texts such as "streams=100". ValueError for a name or a number that is none."""
    values: dict[str, str] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in Limits.__struct_fields__:
            known = ", ".join(Limits.__struct_fields__)
            raise ValueError(f"there is no limit {name!r}; write NAME=NUMBER with one of {known}")
        values[name] = value
    try:
        limits = msgspec.convert(values, Limits, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"a limit is NAME=NUMBER: {error}") from None
    for name in values:
        if not getattr(limits, name) >= 0:
            raise ValueError(f"the limit {name} is 0 (off) or more, not {values[name]}")
    return limits


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one process of the server takes."""

    body_bytes: int = 64 << 20
    body_seconds: float = 30.0
    """A body that takes longer to come is refused."""
    write_seconds: float = 60.0
    """A client that reads nothing for so long is cut off."""
    records: int = 10_000
    """Records of one write."""
    header_bytes: int = 32 << 10
    header_seconds: float = 30.0
    """Headers that take longer to come are not waited for."""
    ring_bytes: int = 8 << 20
    """What is kept of the latest entries of each space that is followed."""
    total_bytes: int = 512 << 20
    """Of bodies that are being taken at once."""
    requests_per_key: int = 0
    """Requests of one key at once, streams apart."""
    requests_per_second: float = 0.0
    """Of one key, on the average,"""
    burst: int = 0
    """and so many at once after a pause; 0: as many as in a second."""
    streams: int = 20_000
    """Open streams in all."""
    streams_per_key: int = 0
    stores: int = 1_000
    """Stores that are open at once; the least used one is closed."""
    heartbeat_seconds: float = 15.0
    """A stream is silent for no longer."""
    upkeep_seconds: float = 600.0
    """Seconds between two removals of expired streams from the storage. Clients do not see them in any case."""
    long_poll_seconds: float = 20.0
    """How long a read of the Durable Streams protocol waits for data, where the client cannot say it."""
    drain_seconds: float = 10.0
    """How long a process takes to end after SIGTERM at most."""
