"""Limits of a server; 0 is no limit."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..decoders import convert

__all__ = ["Limits", "limits_of"]


def limits_of(given: Iterable[str]) -> Limits:
    """The limits in texts such as "streams=100". ValueError for an unknown name or a malformed number."""
    values: dict[str, str] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in Limits.__struct_fields__:
            known = ", ".join(Limits.__struct_fields__)
            raise ValueError(f"there is no limit {name!r}; write NAME=NUMBER with one of {known}")
        values[name] = value
    try:
        limits = convert(values, Limits, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"a limit is NAME=NUMBER: {error}") from None
    for name in values:
        if not getattr(limits, name) >= 0:
            raise ValueError(f"the limit {name} is 0 (off) or more, not {values[name]}")
    return limits


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one process of the server."""

    body_bytes: int = 64 << 20
    body_seconds: float = 30.0
    """Seconds for the arrival of a body. A slower one is refused."""
    write_seconds: float = 60.0
    """Seconds after which a client that reads nothing is cut off."""
    records: int = 10_000
    """Records of one write."""
    header_bytes: int = 32 << 10
    header_seconds: float = 30.0
    """Seconds for the arrival of the headers. A slower request is cut off."""
    ring_bytes: int = 8 << 20
    """Bytes of the latest entries that are kept for each followed space."""
    total_bytes: int = 512 << 20
    """Bytes of all bodies that arrive at the same time."""
    requests_per_key: int = 0
    """Requests of one key at once, streams apart."""
    requests_per_second: float = 0.0
    """Requests of one key each second, on average."""
    burst: int = 0
    """Requests of one key at once after a pause; 0: as many as in a second."""
    streams: int = 20_000
    """Open streams in all."""
    streams_per_key: int = 0
    subscriptions: int = 1_000
    """Subscriptions, and requests that wait, of one WebSocket. Each counts as a stream, too."""
    message_bytes: int = 16 << 20
    """Bytes of one message of a WebSocket, and of those of one that are being handled."""
    spaces: int = 10_000
    """Spaces that the process follows for its streams and long-polls, in all."""
    spaces_per_key: int = 0
    """Followed spaces that one key was the first to follow."""
    stores: int = 1_000
    """Stores that are open at once; the least used one is closed."""
    heartbeat_seconds: float = 15.0
    """Seconds after which a silent stream gets a comment."""
    upkeep_seconds: float = 600.0
    """Seconds between two removals of expired streams from the storage. Clients do not see them in any case."""
    long_poll_seconds: float = 20.0
    """Seconds that a read of the Durable Streams protocol waits for data, because the client cannot name a time."""
    drain_seconds: float = 10.0
    """The most seconds that a process takes to end after SIGTERM."""
