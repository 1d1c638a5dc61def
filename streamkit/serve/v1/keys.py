"""Keys over HTTP: their list, a new one, and the end of one. Only a key for the whole server uses them."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec

from ..keys import Key, KeyFile
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer, no_content
from .records import body_of

__all__ = ["create_key", "list_keys", "revoke_key"]

_NO_STORE = (b"cache-control", b"no-store")
_LONGEST = 200
"""Letters of the remark of a key."""


class KeyIn(msgspec.Struct, forbid_unknown_fields=True):
    """The rights of a new key. `spaces` and `segments` are prefixes; empty lists allow all. `ttl` is in seconds."""

    scopes: list[str]
    stores: list[UUID] = []
    spaces: list[str] = []
    segments: list[str] = []
    ttl: float | None = None
    name: str = ""
    priority: int = 0


class KeyOut(msgspec.Struct):
    """A key without its secret. `created` and `expires` are in seconds since 1970; `expires` 0: never."""

    id: str
    name: str
    scopes: tuple[str, ...]
    stores: tuple[UUID, ...]
    spaces: tuple[str, ...]
    segments: tuple[str, ...]
    priority: int
    created: int
    expires: int


class KeysOut(msgspec.Struct):
    """All keys of the server, in the order of their creation."""

    keys: list[KeyOut]


class NewKeyOut(msgspec.Struct):
    """A new key. This answer alone has it; the server keeps its SHA-256."""

    id: str
    key: str


def _keys(request: Request) -> KeyFile:
    request.query(())
    access, keys = request.access, request.service.keys
    if access.stores:
        raise Problem("forbidden", "the key is for some stores, and this concerns all of the server")
    access.check_all_spaces()
    if keys is None:
        raise Problem("conflict", "the server has no file of keys; start it with --keys FILE")
    return keys


def _out(key: Key) -> KeyOut:
    return KeyOut(
        key.id, key.name, key.scopes, key.stores, key.spaces, key.segments, key.priority, key.created, key.expires
    )


async def list_keys(request: Request) -> Answer:
    """All keys, without their secrets."""
    found = await asyncio.to_thread(_keys(request).read)
    return json_answer(KeysOut([_out(key) for key in found]), headers=(_NO_STORE,))


async def create_key(request: Request) -> Answer:
    """Make a key. Only this answer has it."""
    keys = _keys(request)
    given = await body_of(request, KeyIn)
    if len(given.name) > _LONGEST:
        raise Problem("invalid-argument", f"the name of a key has at most {_LONGEST} letters")
    if not -1000 <= given.priority <= 1000:
        raise Problem("invalid-argument", f"priority is a number from -1000 to 1000, not {given.priority}")
    if "" in given.spaces or "" in given.segments:
        raise Problem("invalid-argument", "a prefix is not empty; leave the list out to allow all names")
    made = await asyncio.to_thread(
        keys.create,
        given.scopes,
        stores=given.stores,
        spaces=given.spaces,
        segments=given.segments,
        ttl=given.ttl,
        name=given.name,
        priority=given.priority,
    )
    return json_answer(NewKeyOut(made.split("_")[1], made), 201, (_NO_STORE,))


async def revoke_key(request: Request) -> Answer:
    """End a key. Its streams end within seconds."""
    keys, id = _keys(request), request.name(0)
    try:
        await asyncio.to_thread(keys.revoke, id)
    except ValueError:
        raise Problem(
            "not-found", "the server has no key with this id; GET /v1/keys lists the ones that there are"
        ) from None
    return no_content()
