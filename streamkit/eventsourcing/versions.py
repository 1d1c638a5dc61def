"""Types and versions of payloads: metadata names them, and upcasters bring an earlier version to the present."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..arguments import check_count, check_function
from ..errors import CorruptData, StreamkitError, UnsupportedVersion
from ..model import Entry

__all__ = ["EVENT", "VERSION", "Upcast", "check_versions", "marks_of", "place_of", "upcast_values", "version_of"]

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
EVENT = "event"
VERSION = "event-version"
"""Metadata of an entry: the name of its type, and its version if that is not 1."""


def marks_of(name: str, version: int) -> dict[str, str]:
    """The metadata for a type and its version."""
    return {EVENT: name} | ({VERSION: str(version)} if version > 1 else {})


def check_versions(version: int, upcast: Mapping[int, Upcast] | None) -> dict[int, Upcast]:
    """The upcasters by version. ValueError unless there is one for each version before the present one."""
    check_count("an event's version", version)
    steps = dict(upcast or {})
    for number, step in steps.items():
        check_function(f"upcast[{number!r}]", step, "the arguments of an earlier version, a dict")
    missing = [number for number in range(1, version) if number not in steps]
    if missing or any(number >= version or number < 1 for number in steps):
        raise ValueError(f"upcast has a function for each version before {version}; missing: {missing}")
    return steps


def version_of(entry: Entry, name: str, latest: int) -> int:
    """The version of an entry. CorruptData if it is no number, UnsupportedVersion if it is later than `latest`."""
    text = entry.metadata.get(VERSION, "1")
    version = int(text) if text.isascii() and text.isdecimal() else 0
    if version < 1:
        raise CorruptData(f"{place_of(entry)} is an event {name!r} of version {text!r:.20}, which is no number")
    if version > latest:
        raise UnsupportedVersion(
            f"{place_of(entry)} is an event {name!r} of version {version}; this program knows it up to {latest}"
        )
    return version


def upcast_values(
    entry: Entry, name: str, version: int, latest: int, steps: Mapping[int, Upcast], read: Callable[[], Any]
) -> dict[str, Any]:
    """The values that `read` gives, brought from `version` to `latest`. CorruptData names the entry if that fails."""
    values = _dict_of(entry, "the payload", read)
    while version < latest:
        step, before = steps[version], values
        values = _dict_of(entry, f"upcast[{version}] of the event {name!r}", lambda: step(before))  # noqa: B023
        version += 1
    return values


def _dict_of(entry: Entry, what: str, make: Callable[[], Any]) -> dict[str, Any]:
    try:
        values = make()
    except StreamkitError:
        raise
    except Exception as error:
        raise CorruptData(f"{place_of(entry)}: {what} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(values, dict):
        raise CorruptData(f"{place_of(entry)}: {what} is {type(values).__name__}, not a dict of arguments")
    return values


def place_of(entry: Entry) -> str:
    return f"sequence {entry.sequence} of {entry.segment!r} in the space {entry.space!r}"
