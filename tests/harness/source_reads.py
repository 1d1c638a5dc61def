"""Reads of a group's source, counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamkit.groups import source
from streamkit.groups.source import Source

__all__ = ["SourceReads"]


class SourceReads:
    """Counts the entries that a group's source gives, from places in partitions and from walks over segments."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        patch.setattr(source, "read_from", self._counting(source.read_from, len))
        patch.setattr(Source, "_walk", self._counting(Source._walk, lambda entry: 1))

    def _counting(self, read: Callable[..., Iterator[Any]], size: Callable[[Any], int]) -> Callable[..., Iterator[Any]]:
        def counted(*where: Any) -> Iterator[Any]:
            for found in read(*where):
                self.count += size(found)
                yield found

        return counted
