"""The secret of a store: by it the processes of the server recognise texts that one of them has signed."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..base64url import encode_base64url
from ..errors import SequenceMismatch
from ..model import Record
from ..names import internal_name

if TYPE_CHECKING:
    from ..aio import AsyncStore

__all__ = ["has_tag", "secret_of", "tag"]

_SPACE = internal_name("streams")
"""An internal space: no name in a URL leads to it."""
_SEGMENT = "signing-key"
_known: WeakKeyDictionary[AsyncStore, bytes] = WeakKeyDictionary()


async def secret_of(store: AsyncStore) -> bytes:
    """32 bytes that only the processes of the store know. The first use makes them."""
    secret = _known.get(store)
    if secret is None:
        entry = await store.peek(_SPACE, _SEGMENT)
        secret = entry.payload
        if entry.sequence == 0:
            secret = secrets.token_bytes(32)
            try:
                await store.produce(_SPACE, _SEGMENT, [Record(secret)], expected_sequence=0)
            except SequenceMismatch:
                secret = (await store.peek(_SPACE, _SEGMENT)).payload
        _known[store] = secret
    return secret


def tag(secret: bytes, use: bytes, text: str) -> str:
    """The signature of a text. `use`: a name of its use, so that no other text passes for it."""
    key = hashlib.blake2b(use, key=secret, digest_size=32).digest()
    return encode_base64url(hmac.digest(key, text.encode(), "sha256"))


def has_tag(secret: bytes, use: bytes, text: str, given: str) -> bool:
    """True if `given` is the signature of the text, compared in constant time."""
    return hmac.compare_digest(given.encode(), tag(secret, use, text).encode())
