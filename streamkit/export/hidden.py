"""A backend in which the head of one partition has another key: so a space is not there while it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backend import ANY, Backend, Etag, Expect, Value
from ..log.keys import HEAD

__all__ = ["HIDDEN_HEAD", "HiddenHead"]

HIDDEN_HEAD = b"IMPORT\x00HEAD"


class HiddenHead:
    """A Backend around another one."""

    def __init__(self, inner: Backend, partition: bytes) -> None:
        self._inner = inner
        self._partition = partition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _key(self, partition: bytes, key: bytes) -> bytes:
        return HIDDEN_HEAD if key == bytes(HEAD) and partition == self._partition else key

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        return self._inner.get(partition, [self._key(partition, key) for key in keys])

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        return self._inner.put(partition, self._key(partition, key), value, expect, durable=durable)
