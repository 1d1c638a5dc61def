"""The configuration of a topic, and the forms of names."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from ...decoders import convert
from .errors import Refused

__all__ = ["Stored", "TopicConfig", "check_router_name", "check_text", "check_topic_name", "config_of"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_ROUTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,199}")
_MOST = (1 << 53) - 1


def check_topic_name(name: Any, what: str = "topic") -> str:
    """`name`, the name of a topic. Refused if it is none."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Refused(
            "invalid_request",
            f"{what} is 1 to 255 letters, digits and . _ : -, and begins with a letter or digit; not {name!r:.60}",
        )
    return name


def check_router_name(name: str) -> str:
    """`name`, the name of a router. Refused if it is none."""
    if not _ROUTER.fullmatch(name):
        raise Refused("invalid_request", "a router's name is 1 to 200 letters, digits and . _ : - >")
    return name


def check_text(name: str, value: str | None, most: int) -> str | None:
    """`value`, a text of at most `most` bytes. Refused if it is longer, empty, or has control characters."""
    if value is None:
        return None
    if not value or len(value.encode()) > most or any(ord(character) < 32 for character in value):
        raise Refused("invalid_request", f"{name} is 1 to {most} bytes without control characters")
    return value


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration, in the order and with the defaults of topics."""

    type: Literal["log", "queue"] = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Literal["old", "reject"] = "old"
    durable: bool = False
    durability: Literal["ephemeral", "memory", "disk", "fsync"] = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The entry that holds the configuration of a topic."""

    version: int = 1
    generation: int
    """1, and 1 more each time that the topic is made again under its name."""
    created: int
    config: TopicConfig
    deleted: bool = False

    def segment(self, topic: str) -> str:
        """The segment of its records. No name of a topic has a "/"."""
        return topic if self.generation == 1 else f"{topic}/{self.generation}"


_NUMBERS = ("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries")
_CLAMPED = {"lease_ms": (100, 86_400_000), "claim_jitter_ms": (0, 5_000), "priority": (-1_000, 1_000)}


def config_of(topic: str, given: Any) -> TopicConfig:
    """The configuration that a request holds, with defaults for the rest. Refused if it is none."""
    if not isinstance(given, dict):
        raise Refused("invalid_request", "a topic's configuration is an object")
    unknown = given.keys() - set(TopicConfig.__struct_fields__)
    if unknown:
        raise Refused("invalid_request", f"a topic has no setting {sorted(unknown)[0]!r:.60}", topic=topic)
    given = dict(given)
    if given.get("durability") is None:
        given["durability"] = "fsync" if given.get("durable") is True else "disk"
    try:
        config = convert(given, TopicConfig)
    except msgspec.ValidationError as error:
        raise Refused("invalid_request", f"the configuration is not valid: {error}", topic=topic) from None
    for name in _NUMBERS:
        if not 0 <= getattr(config, name) <= _MOST:
            raise Refused("invalid_request", f"{name} is 0 (off) or more, not {getattr(config, name)}", topic=topic)
    changes: dict[str, Any] = {"durable": config.durability == "fsync"}
    for name, (least, most) in _CLAMPED.items():
        value = getattr(config, name)
        if value is not None:
            changes[name] = min(max(value, least), most)
    if config.dead_letter is not None:
        check_topic_name(config.dead_letter, "dead_letter")
        if config.dead_letter == topic:
            raise Refused("invalid_request", "dead_letter names a topic other than the queue itself", topic=topic)
    return msgspec.structs.replace(config, **changes)
