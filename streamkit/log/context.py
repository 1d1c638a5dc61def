"""The objects that all partitions of an open store share."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..backend import Backend
from ..clock import Clock
from ..statistics import Counters
from .archive_reader import ArchiveReader
from .index_reader import MakeIndex
from .moments import Moments
from .notifier import Notifier
from .packs import TableCache

__all__ = ["Context"]


class Context(msgspec.Struct, frozen=True):
    backend: Backend
    clock: Clock
    counters: Counters
    notifier: Notifier
    make_index: MakeIndex
    archive_of: Callable[[str], ArchiveReader]
    """Opens the archive of a space."""
    tables: TableCache
    moments: Moments
