"""Fences: the highest token of each lease that has written to a partition. They only grow.

The index holds a row for each lease. This module keeps the tokens that were written since, and those that were looked
up. A lease that has never written has no fence.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Fences"]

_KNOWN = 10_000


class Fences:
    """The known fences of one partition. The partition calls every method under its lock."""

    def __init__(self) -> None:
        self._tail: dict[str, tuple[int, int]] = {}
        """(number, token) of leases that wrote transactions after the watermark."""
        self._known: dict[str, int] = {}
        """Tokens of other leases, as of the latest known transaction; 0: the lease has never written."""

    def get(self, name: str) -> int | None:
        """The highest token of a lease, 0 if it has never written; None if the index must be asked."""
        return self._tail[name][1] if name in self._tail else self._known.get(name)

    def keep(self, name: str, token: int) -> None:
        """Remember a token that was looked up in the index."""
        if name not in self._tail:
            self._keep(name, token)

    def _keep(self, name: str, token: int) -> None:
        if len(self._known) >= _KNOWN:
            del self._known[next(iter(self._known))]
        self._known[name] = token

    def apply(self, number: int, written: Mapping[str, int]) -> None:
        """Note the leases and tokens with which transaction `number` was written."""
        for name, token in written.items():
            if name not in self._tail or token > self._tail[name][1]:
                self._tail[name] = number, token

    def drop_tail(self, watermark: int) -> None:
        """The index holds everything up to `watermark`."""
        for name, (number, token) in list(self._tail.items()):
            if number <= watermark:
                self._keep(name, token)  # first: a thread may be stopped between the two
                del self._tail[name]

    def forget(self) -> None:
        """Forget all tokens: the index is ahead of the known state."""
        self._tail.clear()
        self._known.clear()

    def tail(self) -> dict[str, int]:
        """The tokens of transactions after the watermark."""
        return {name: token for name, (_, token) in self._tail.items()}
