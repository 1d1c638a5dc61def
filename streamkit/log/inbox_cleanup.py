"""Removing messages from an inbox: those that can no longer be committed, and those with entries to be erased."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..backend import Backend
from ..errors import CorruptData
from ..retry import delete_all
from .answers import WINDOW
from .inbox_message import InboxMessage, decode_message, is_in_key, posted_at
from .keys import inbox_key
from .partition import Partition
from .request import Part

__all__ = ["clear_inbox", "drop_inbox"]


def clear_inbox(partition: Partition, is_erased: Callable[[Part], bool] | None = None) -> int:
    """Remove settled and void messages, and messages with a part that `is_erased` is true for. Returns their number.

    If a removed message's request was not committed, its own process commits it.
    """
    if not partition.remote:
        return 0
    backend, key = partition.backend, bytes(inbox_key(partition.space, partition.partition))
    incarnation, last = partition.settings.incarnation, partition.number - WINDOW
    gone: list[bytes] = []
    open_ones: list[bytes] = []
    for message_key in _keys(backend, key):
        # A message of another incarnation came after that incarnation had ended.
        of_this = message_key.startswith(incarnation)
        (open_ones if of_this and posted_at(incarnation, message_key) > last else gone).append(message_key)
    if open_ones:
        settled = _settled(partition, min(posted_at(incarnation, message_key) for message_key in open_ones))
        for message_key, inbox_message in zip(open_ones, _messages(partition, key, open_ones), strict=True):
            if inbox_message is None:
                if is_erased is not None:
                    gone.append(message_key)
            elif inbox_message.ids() <= settled or (
                is_erased is not None
                and any(map(is_erased, (part for request in inbox_message.requests for part in request.parts)))
            ):
                gone.append(message_key)
    delete_all(backend, key, gone)
    return len(gone)


def drop_inbox(backend: Backend, space: str, partition: int, incarnation: bytes) -> None:
    """Remove every message to a space, whose log has ended, and to earlier spaces of its name.

    `incarnation`: that of the space; empty if it is not known: then messages to later spaces go too.
    """
    key = bytes(inbox_key(space, partition))
    messages = _keys(backend, key)
    last = incarnation or b"\xff"
    delete_all(backend, key, [message for message in messages if message[: len(last)] <= last])


def _keys(backend: Backend, key: bytes) -> list[bytes]:
    return [row.key for row in backend.scan(key, b"\x00", b"\xff" * 300, values=False)]


def _messages(partition: Partition, key: bytes, keys: Sequence[bytes]) -> list[InboxMessage | None]:
    """None for one that cannot be read."""
    incarnation = partition.settings.incarnation
    large = [name for name in keys if not is_in_key(incarnation, name)]
    values = dict(zip(large, partition.backend.get(key, large), strict=True)) if large else {}
    messages: list[InboxMessage | None] = []
    for name in keys:
        value = values.get(name)
        try:
            messages.append(decode_message(incarnation, partition.seed, name, value.data if value else b""))
        except CorruptData:
            messages.append(None)
    return messages


def _settled(partition: Partition, since: int) -> set[bytes]:
    """The ids that the transactions after `since` in the log settle."""
    found: set[bytes] = set()
    for number in range(since + 1, partition.number + 1):
        header = partition.header(number)
        if header is not None:
            found.update(id for id, _ in header.answers)
    return found
