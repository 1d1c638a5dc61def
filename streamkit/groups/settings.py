"""A group's settings, chosen when it is created."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, TypedDict

import msgspec

from ..arguments import check_choice, check_count, check_names_of, check_seconds, check_type

__all__ = ["MOST_LANES", "GroupChanges", "GroupOptions", "GroupSettings", "Mode", "QueueOptions", "checked"]

Mode = Literal["shared", "exclusive", "key_shared"]
MOST_LANES = 64


class GroupSettings(msgspec.Struct, frozen=True):
    """The settings of a group or of a queue. Times are in seconds."""

    mode: Mode = "shared"
    segments: tuple[str, ...] | None = None
    ack_timeout: float = 30.0
    """Seconds for which a delivery is its consumer's alone."""
    max_deliveries: int = 5
    retry_delay: float = 1.0
    """Seconds until an entry that was given up is ready again, after its first attempt. After attempt n it is
    retry_delay × 2 ** (n - 1), at most an hour, or retry_delay if that is more."""
    max_pending: int = 1000
    """Deliveries that one consumer holds, in each lane, at most."""
    key: str | None = None
    """The metadata that is the key of key_shared; None: the segment."""
    lanes: int = 8
    queue: bool = False
    """The source is a queue: acknowledged entries are trimmed, delays are in metadata, priorities in segment names."""


class GroupChanges(TypedDict, total=False):
    """The arguments of `Group.configure`."""

    ack_timeout: float
    max_deliveries: int
    retry_delay: float
    max_pending: int


class QueueOptions(GroupChanges, total=False):
    """The arguments of `Store.queue` beside the name."""

    lanes: int


class GroupOptions(QueueOptions, total=False):
    """The arguments of `Store.group` beside the names and the start."""

    mode: Mode
    segments: Collection[str] | None
    key: str | None


CHANGEABLE = GroupChanges.__optional_keys__


def checked(given: Mapping[str, Any], queue: bool = False) -> dict[str, Any]:
    """The settings that a caller gave, checked. TypeError or ValueError."""
    given = dict(given)
    known = (QueueOptions if queue else GroupOptions).__optional_keys__
    if not given.keys() <= known:
        raise TypeError(
            f"a {'queue' if queue else 'group'} has no {', '.join(sorted(given.keys() - known))}: it has "
            f"{', '.join(sorted(known))}"
        )
    for name in ("ack_timeout", "retry_delay"):
        if name in given:
            given[name] = check_seconds(name, given[name], positive=name == "ack_timeout")
            if given[name] > 43_200:
                raise ValueError(f"{name} is at most 12 hours, not {given[name]:g} seconds")
    for name, most in (("max_deliveries", 1000), ("max_pending", 100_000), ("lanes", MOST_LANES)):
        if name in given:
            value = given[name]
            check_count(name, value, most=most)
    mode = given.get("mode", "shared")
    check_choice("mode", mode, "shared", "exclusive", "key_shared")
    if mode == "exclusive":
        given["lanes"] = 1
    key = given.get("key")
    if key is not None:
        check_type(key, str, "key is the name of a metadata key, or None for the segment")
        if mode != "key_shared":
            raise ValueError("key is for mode='key_shared': the others keep no order by key")
    segments = given.get("segments")
    if segments is not None:
        given["segments"] = tuple(sorted(check_names_of("segments", segments, "segment")))
        if not given["segments"]:
            raise ValueError("segments is a list of at least one name, or None for all")
    return given
