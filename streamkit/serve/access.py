"""Access: the rights of a caller, by scope, store, space and segment."""

from __future__ import annotations

from uuid import UUID

import msgspec

from .problems import Problem

__all__ = ["EVERYTHING", "SCOPES", "Access"]

SCOPES = ("read", "write", "delete", "admin")
"""Admin contains the others, and covers operations on a whole server or store."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of a key or a token. Empty `stores`, `spaces` and `segments` allow all of them."""

    id: str = ""
    """The id of the key; empty for a caller without one."""
    scopes: frozenset[str] = frozenset(SCOPES)
    stores: frozenset[UUID] = frozenset()
    spaces: tuple[str, ...] = ()
    """Prefixes of the names of spaces."""
    segments: tuple[str, ...] = ()
    """Prefixes of the names of segments."""
    priority: int = 0
    expires: float = 0.0
    """The time at which the rights end, in seconds since the epoch; 0: never."""

    def check(self, scope: str) -> None:
        """Raise a Problem unless the key has the scope."""
        if scope not in self.scopes and "admin" not in self.scopes:
            raise Problem("forbidden", f"this needs a key with the scope {scope!r}")

    def check_place(self, store: UUID | None, space: str | None, segment: str | None) -> None:
        """Raise a Problem unless the key is for this store, space and segment; None if the request names none."""
        if self.stores and store not in self.stores:
            raise Problem("forbidden", "the key is for other stores")
        if space is not None:
            self.check_space(space)
        if segment is not None:
            self.check_segment(segment)

    def check_space(self, space: str) -> None:
        """Raise a Problem unless the key is for this space."""
        if self.spaces and not space.startswith(self.spaces):
            raise Problem("forbidden", "the key is for other spaces")

    def check_segment(self, segment: str) -> None:
        """Raise a Problem unless the key is for this segment."""
        if self.segments and not segment.startswith(self.segments):
            raise Problem("forbidden", "the key is for other segments")

    def check_lease(self, name: str) -> None:
        """Raise a Problem unless the key is for this lease. Its name begins with a prefix of the key: `space`; for a
        key with prefixes of segments it is `space/segment`."""
        names = [name[at + 1 :] for at, letter in enumerate(name) if letter == "/"] if self.segments else [name]
        if not name.startswith(self.spaces or "") or not any(one.startswith(self.segments or "") for one in names):
            raise Problem(
                "forbidden",
                "the key is for other leases: use a name that begins with a space prefix of the key, and has the form "
                "space/segment if the key has segment prefixes",
            )

    def check_all_segments(self) -> None:
        """Raise a Problem unless the key is for all segments of its spaces."""
        if self.segments:
            raise Problem("forbidden", "the key is for some segments, and this concerns all of a space")

    def check_all_spaces(self) -> None:
        """Raise a Problem unless the key is for all spaces of its stores."""
        if self.spaces or self.segments:
            raise Problem("forbidden", "the key is for some spaces, and this concerns all of a store")


EVERYTHING = Access()
"""The rights of every caller of a server without keys, which only its own machine reaches."""
