"""Keys of the transactions of a space, for tests that look behind the store's back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from streamkit.backend import Backend
from streamkit.log.keys import HEAD, partition_key, transaction_key, transaction_prefix
from streamkit.log.rows import Head, decode_row

__all__ = ["transaction_keys"]


def transaction_keys(backend: Backend, space: str) -> Callable[[int], bytes]:
    """A function from a transaction's number to its key, in the space as it is now."""
    value = backend.get(bytes(partition_key(space, 0)), [bytes(HEAD)])[0]
    assert value is not None, f"there is no space {space!r}"
    settings = decode_row(Head, HEAD, value.data).settings
    return partial(transaction_key, transaction_prefix(settings.incarnation))
