"""Subscriptions as values, and decisions about them. This module does no I/O.

A subscription remembers a position in each of its streams. It wakes a worker when one of them has more. Each wake has a
generation, which fences workers of earlier ones.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from ...decoders import json_decoder
from .state import Refused, offset_text

__all__ = ["Ack", "Config", "Link", "Subscription", "acked", "check_config", "is_match", "pending"]

_MOST_LINKS = 10_000
_RETRY_LEAST, _RETRY_MOST = 1.0, 60.0


class _Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a PUT."""

    type: Literal["webhook", "pull-wake"]
    pattern: str | None = None
    streams: tuple[str, ...] = ()
    webhook: _Webhook | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = 30_000
    description: str | None = None


class Link(msgspec.Struct, frozen=True, array_like=True):
    """A stream of a subscription: the position up to which it is done, and the reasons for which it is linked."""

    acked: int
    explicit: bool
    glob: bool


class Ack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stream: str
    offset: str


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole state of a subscription. Its last entry carries it. Times are in milliseconds since 1970."""

    id: str
    config: Config
    created: int
    url: str
    """The URL under which the creating client found the streams; callbacks name it."""
    links: dict[str, Link] = {}
    generation: int = 0
    wake: str | None = None
    """Id of the wake that is under way."""
    holder: str | None = None
    """The worker that has claimed it."""
    until: int = 0
    """End of the lease; 0: there is none."""
    snapshot: dict[str, int] = {}
    """Tails of the streams that the wake reported."""
    failures: int = 0
    """Deliveries that failed one after the other."""
    next_attempt: int = 0
    deleted: bool = False
    version: int = 1

    def without(self, gone: Collection[str]) -> Subscription:
        """The subscription without the links to deleted streams that only the pattern made."""
        links = {path: link for path, link in self.links.items() if link.explicit or path not in gone}
        return self if len(links) == len(self.links) else replace(self, links=links)

    def linked(self, path: str, begin: int) -> Subscription:
        """The subscription with the stream `path`, which now matched the pattern, from the offset `begin` on."""
        return replace(self, links={**self.links, path: Link(begin, False, True)})

    def woken(self, wake: str, now: int, tails: Mapping[str, int]) -> Subscription:
        """The subscription with a new wake under way. The lease of a webhook begins now, that of a worker when it
        claims."""
        leased = now + self.config.lease_ttl_ms if self.config.type == "webhook" else 0
        return replace(self, generation=self.generation + 1, wake=wake, holder=None, until=leased, snapshot=dict(tails))

    def claimed(self, worker: str, now: int) -> Subscription:
        """Held by `worker`."""
        return replace(self, holder=worker, until=now + self.config.lease_ttl_ms)

    def extended(self, now: int) -> Subscription:
        """The subscription with a lease that begins again."""
        return replace(self, until=now + self.config.lease_ttl_ms)

    def released(self) -> Subscription:
        """The idle subscription: without a wake and without a lease."""
        return replace(self, wake=None, holder=None, until=0, snapshot={})

    def failed(self, now: int) -> Subscription:
        """Idle until the next attempt of a delivery that failed."""
        pause = min(_RETRY_LEAST * 2**self.failures, _RETRY_MOST) * random.uniform(0.8, 1.2)
        return replace(self.released(), failures=min(self.failures + 1, 16), next_attempt=now + int(pause * 1000))

    def is_idle(self, now: int) -> bool:
        """True if pending work may start a wake."""
        return now >= self.next_attempt and (self.wake is None or 0 < self.until <= now)

    def due(self) -> int | None:
        """The time of the next look that is due even if no stream changes; None if there is none."""
        if self.wake is not None and self.until:
            return self.until
        return self.next_attempt if self.wake is None and self.failures else None


def is_match(pattern: str, path: str) -> bool:
    """True if the glob `pattern` matches `path`: `*` is one part of a path, `**` any number of parts."""
    reachable = {0}
    parts = [part for part in pattern.split("/") if part]
    for part in [part for part in path.split("/") if part]:
        reached = set()
        for at in _past_stars(parts, reachable):
            if at < len(parts) and parts[at] == "**":
                reached.add(at)
            elif at < len(parts) and parts[at] in ("*", part):
                reached.add(at + 1)
        reachable = reached
    return len(parts) in _past_stars(parts, reachable)


def _past_stars(parts: list[str], reachable: set[int]) -> set[int]:
    found = set(reachable)
    for start in reachable:
        at = start
        while at < len(parts) and parts[at] == "**":
            at += 1
            found.add(at)
    return found


_decode_config = json_decoder(Config).decode


def check_config(body: bytes) -> Config:
    """The configuration in a request's body. Refused with 400 if it is not one."""
    try:
        config = _decode_config(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(400, f"the body is no subscription: {error}", code="INVALID_REQUEST") from None
    wrong = None
    if config.pattern is None and not config.streams:
        wrong = "pattern or streams is needed"
    elif config.type == "webhook" and config.webhook is None:
        wrong = "a subscription of the type webhook needs webhook.url"
    elif config.type == "pull-wake" and not config.wake_stream:
        wrong = "a subscription of the type pull-wake needs wake_stream"
    elif not 1_000 <= config.lease_ttl_ms <= 600_000:
        wrong = "lease_ttl_ms must be from 1000 to 600000"
    elif len(config.streams) > _MOST_LINKS:
        wrong = f"at most {_MOST_LINKS} streams can be named"
    elif len(config.pattern or "") > 1024 or len(config.description or "") > 4096:
        wrong = "pattern has at most 1024 characters, description at most 4096"
    if wrong is not None:
        raise Refused(400, wrong, code="INVALID_REQUEST")
    return replace(config, streams=tuple(sorted({path.strip("/") for path in config.streams})))


def pending(subscription: Subscription, tails: Mapping[str, int]) -> bool:
    """True if a stream has messages behind the position of the subscription."""
    return any(tails.get(path, 0) > link.acked for path, link in subscription.links.items())


def acked(subscription: Subscription, acks: Mapping[str, int], tails: Mapping[str, int]) -> Subscription:
    """The subscription with later positions. Refused if a stream is not linked, or has no such offset yet."""
    links = dict(subscription.links)
    for path, offset in acks.items():
        link = links.get(path)
        if link is None:
            raise Refused(400, f"the subscription has no stream {path!r}", code="INVALID_REQUEST")
        if offset > tails.get(path, offset):
            raise Refused(409, f"the offset is beyond the end of {path!r}", code="INVALID_OFFSET")
        links[path] = replace(link, acked=max(link.acked, offset))
    return replace(subscription, links=links, failures=0)


def streams_of(subscription: Subscription, tails: Mapping[str, int] | None = None) -> list[dict[str, Any]]:
    """The streams as the protocol shows them; with their tails, if those are given."""
    found: list[dict[str, Any]] = []
    for path, link in sorted(subscription.links.items()):
        shown: dict[str, Any] = {
            "path": path,
            "link_type": "explicit" if link.explicit else "glob",
            "acked_offset": offset_text(link.acked),
        }
        if tails is not None:
            tail = max(tails.get(path, 0), link.acked)
            shown |= {"tail_offset": offset_text(tail), "has_pending": tail > link.acked}
        found.append(shown)
    return found


__all__ += ["streams_of"]
