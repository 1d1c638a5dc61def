"""Removing letters from an inbox: those that nobody commits any more, and those with entries to be erased."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..backend import Backend
from ..errors import CorruptData
from ..retry import delete_rows
from .answers import WINDOW
from .keys import inbox_key
from .letters import Letter, decode_letter, is_in_key, posted_at
from .partition import Partition

__all__ = ["clear_inbox", "drop_inbox"]

_KEYS = 1000


def clear_inbox(partition: Partition, segments: Collection[str] = ()) -> int:
    """Remove the letters that are settled or void, and all that write to `segments`. Returns their number.

    If a removed letter's request was not committed, its own process commits it.
    """
    if not partition.remote:
        return 0
    backend, key = partition.backend, bytes(inbox_key(partition.space, partition.partition))
    incarnation, last = partition.settings.incarnation, partition.number - WINDOW
    gone: list[bytes] = []
    open_ones: list[bytes] = []
    for found in _keys(backend, key):
        # A letter of another incarnation came after that incarnation had ended.
        of_this = found.startswith(incarnation)
        (open_ones if of_this and posted_at(incarnation, found) > last else gone).append(found)
    if open_ones:
        settled = _settled(partition, min(posted_at(incarnation, found) for found in open_ones))
        for found, letter in zip(open_ones, _letters(partition, key, open_ones), strict=True):
            if letter is None:
                if segments:
                    gone.append(found)
            elif letter.ids() <= settled or any(
                part.segment in segments for request in letter.requests for part in request.parts
            ):
                gone.append(found)
    _delete(backend, key, gone)
    return len(gone)


def drop_inbox(backend: Backend, space: str, partition: int) -> None:
    """Remove every letter: the log has ended."""
    key = bytes(inbox_key(space, partition))
    _delete(backend, key, _keys(backend, key))


def _keys(backend: Backend, key: bytes) -> list[bytes]:
    return [row.key for row in backend.scan(key, b"\x00", b"\xff" * 300, values=False)]


def _delete(backend: Backend, key: bytes, letters: Sequence[bytes]) -> None:
    for at in range(0, len(letters), _KEYS):
        delete_rows(backend, key, letters[at : at + _KEYS])


def _letters(partition: Partition, key: bytes, keys: Sequence[bytes]) -> list[Letter | None]:
    """None for one that cannot be read."""
    incarnation = partition.settings.incarnation
    large = [letter for letter in keys if not is_in_key(incarnation, letter)]
    values = dict(zip(large, partition.backend.get(key, large), strict=True)) if large else {}
    letters: list[Letter | None] = []
    for letter in keys:
        value = values.get(letter)
        try:
            letters.append(decode_letter(incarnation, partition.seed, letter, value.data if value else b""))
        except CorruptData:
            letters.append(None)
    return letters


def _settled(partition: Partition, since: int) -> set[bytes]:
    """The ids that the transactions after `since` in the log settle."""
    found: set[bytes] = set()
    for number in range(since + 1, partition.number + 1):
        header = partition.header(number)
        if header is not None:
            found.update(id for id, _ in header.answers)
    return found
