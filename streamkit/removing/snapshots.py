"""Snapshots of aggregates, beside their space: they contain data of events, and are erased with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..model import Entry
from ..names import InternalName, internal_name
from ..space import Space
from .erase import erase_matching
from .report import Rewritten

if TYPE_CHECKING:
    from .copies import Copies

__all__ = ["VERSION", "erase_snapshots", "snapshots_of"]

VERSION = "version"
"""The metadata of a snapshot that says which event was its last."""


def snapshots_of(space: str) -> InternalName:
    """The internal space of a space's snapshots: a segment is an aggregate, there too."""
    return internal_name("snapshots", space)


def erase_snapshots(snapshots: Space, since: Mapping[str, int], copies: Copies) -> Rewritten:
    """Erase the snapshots that were made of an event of `since`, the first that is erased of each segment; and older
    snapshots, which are no longer used."""

    def matches(entry: Entry) -> bool:
        version = entry.metadata.get(VERSION, "")
        return not version.isdecimal() or int(version) >= since[entry.segment]

    return erase_matching(snapshots, since, matches, copies)
