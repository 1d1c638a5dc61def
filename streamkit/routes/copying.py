"""Copies of entries: which entries are copied, to which segment, with which content, and the metadata that names their
path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from urllib.parse import quote

from ..arguments import completed
from ..errors import PermanentError
from ..log.validate import prepare
from ..model import Entry, Record
from ..names import check_name

__all__ = ["FROM", "VIA", "Copies", "Failed", "Rules"]

FROM = "streamkit.from"
"""Metadata of a copy: its original, as `store/space/segment/sequence?route=name.generation`, percent-encoded."""
VIA = "streamkit.via"
"""Metadata of a copy: the spaces that it has passed, as `store/space`, percent-encoded, separated by spaces."""

_MUCH = 8 << 10
"""Characters of metadata. With more, a copy with its marks may have more metadata than a record can have."""

Where = Callable[[Entry], bool]
Segment = Callable[[Entry], str] | str
Transform = Callable[[Entry], "Record | bytes | None"]


Copies = list[tuple[str, Record, int]]
"""(segment, record, bytes of payload) of each: plain tuples, as there are many."""


class Failed(Exception):
    """A function of the route raised, or its result cannot be written."""

    def __init__(self, entry: Entry, cause: Exception) -> None:
        super().__init__(str(cause))
        self.entry = entry
        self.cause = cause


class Rules:
    """The functions of one route. They depend on the entry alone, because they are called again after a crash."""

    def __init__(
        self,
        source: str,
        target: str,
        route: str,
        where: Where | None,
        segment: Segment | None,
        transform: Transform | None,
        most_bytes: int,
    ) -> None:
        self._most_bytes = most_bytes
        self._source = source
        self._target = target
        self._suffix = f"?route={route}"
        self._where = where
        self._segment = segment
        self._transform = transform
        self._via = lru_cache(1024)(self._next_via)

    def _next_via(self, via: str) -> str | None:
        """Return the copy's VIA; None if the entry has been in the target already."""
        visited = via.split()
        if self._target in visited:
            return None
        return via if self._source in visited else f"{via} {self._source}".lstrip()

    def mark(self, entry: Entry) -> str:
        """Return the FROM of the entry's copy."""
        return f"{self._path(entry.segment)}{entry.sequence}{self._suffix}"

    def _path(self, segment: str) -> str:
        return f"{self._source}/{quote(segment, safe='')}/"

    def copies(self, entries: Iterable[Entry]) -> Copies:
        """Copy the entries that the rules accept, in order. Raises Failed for an entry that cannot be copied."""
        found: Copies = []
        where, segment, transform = self._where, self._segment, self._transform
        name, path, suffix = None, "", self._suffix
        plain = self._next_via("")
        for entry in entries:
            metadata = entry.metadata
            via = self._via(metadata[VIA]) if VIA in metadata else plain
            if via is None:
                continue
            try:
                if where is not None and not completed("where", where(entry)):
                    continue
                target = entry.segment
                if segment is not None:
                    target = check_name(
                        segment if isinstance(segment, str) else completed("segment", segment(entry)), "segment"
                    )
                payload = entry.payload
                if transform is not None:
                    changed = completed("transform", transform(entry))
                    if changed is None:
                        continue
                    payload, metadata = _changed(changed, metadata)
                large = len(payload) > self._most_bytes
                if metadata and not large:
                    large = len("".join([*metadata, *metadata.values()])) > _MUCH
            except Exception as error:
                raise Failed(entry, error) from error
            if entry.segment != name:
                name = entry.segment
                path = self._path(name)
            marks = {FROM: f"{path}{entry.sequence}{suffix}", VIA: via}
            record = Record(payload, {**metadata, **marks} if metadata else marks)
            if large:
                try:
                    prepare([record], None, self._most_bytes)
                except PermanentError as error:
                    raise Failed(entry, error) from error
            found.append((target, record, len(payload)))
        return found


def _changed(found: Record | bytes, metadata: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
    if isinstance(found, Record):
        if not isinstance(found.payload, bytes):
            raise TypeError(f"transform gives a Record with bytes, not {type(found.payload).__name__}")
        return found.payload, metadata if found.metadata is None else found.metadata
    if isinstance(found, bytes):
        return found, metadata
    raise TypeError(f"transform gives a Record, bytes, or None to leave it out, not {type(found).__name__}")


def place_of(store: object, space: str) -> str:
    """A space, as FROM and VIA have it."""
    return f"{store}/{quote(space, safe='')}"
