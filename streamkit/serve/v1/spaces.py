"""Stores and spaces: sizes, lists, settings."""

from __future__ import annotations

import contextlib
import hashlib

import msgspec

from ...errors import SpaceExists, StoreClosed
from ...removing.limits import stored
from ...retention import Retention
from ...space import SpaceSettings
from ...store import Store
from ..names import encode_name
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer, no_content
from ..tags import has_tag
from .conditions import refuse_conditions
from .parameters import listing
from .records import body_of, optional_body_of
from .values import RetentionIn, SettingsIn, SizeOut, SpaceName, SpacesOut, StoresOut, TierOut

__all__ = [
    "change_space",
    "create_space",
    "delete_space",
    "get_space",
    "list_spaces",
    "list_stores",
    "size",
    "space_size",
]


async def list_stores(request: Request) -> Answer:
    """The stores that exist, in the order of their UUIDs."""
    wanted = listing(request)
    allowed = request.access.stores
    found = sorted([str(id) async for id in request.service.client.stores() if not allowed or id in allowed])
    found = [id for id in found if id.startswith(wanted.prefix) and (wanted.after is None or id > wanted.after)]
    page = found[: wanted.limit]
    return json_answer(StoresOut(page, page[-1] if len(found) > len(page) else None))


def _size(store: Store, space: str | None) -> SizeOut:
    size = store.size(space)
    tiers = [TierOut(tier.name, tier.bytes) for tier in size.tiers]
    return SizeOut(size.entries, size.segments, size.bytes, size.stored, tiers)


async def size(request: Request) -> Answer:
    """The size of a store."""
    request.query(())
    request.access.check_all_spaces()
    store = request.store()
    return json_answer(await store.calls.call(_size, store.sync, None))


async def space_size(request: Request) -> Answer:
    """The size of a space."""
    request.query(())
    store, space = request.store(), request.name(1)
    return json_answer(await store.calls.call(_size, store.sync, space))


async def list_spaces(request: Request) -> Answer:
    """The spaces of a store, in code-point order; those that the key is for."""
    store, wanted, prefixes = request.store(), listing(request), request.access.spaces
    base = f"/v1/stores/{store.id}/spaces/"

    def read(plain: Store) -> list[str]:
        found = []
        for name in plain.get_spaces():
            if (wanted.after is None or name > wanted.after) and name.startswith(wanted.prefix):
                if prefixes and not name.startswith(prefixes):
                    continue
                found.append(name)
                if len(found) > wanted.limit:
                    break
        return found

    found = await store.calls.call(read, store.sync)
    page = found[: wanted.limit]
    names = [SpaceName(name, base + encode_name(name)) for name in page]
    return json_answer(SpacesOut(names, page[-1] if len(found) > len(page) else None))


def _tag(settings: SpaceSettings) -> str:
    return f'"{hashlib.blake2b(msgspec.json.encode(settings), digest_size=12).hexdigest()}"'


def _described(settings: SpaceSettings, status: int = 200) -> Answer:
    return json_answer(settings, status, ((b"etag", _tag(settings).encode()),))


async def _settings(request: Request) -> SpaceSettings:
    space = request.name(1)
    settings = await request.store().space_settings(space)
    if settings is None:
        raise Problem("not-found", f"the store has no space {space!r}")
    return settings


async def get_space(request: Request) -> Answer:
    """The settings of a space."""
    request.query(())
    return _described(await _settings(request))


async def create_space(request: Request) -> Answer:
    """Create a space: 201, 200 if it exists with these settings, 409 if it has others."""
    request.query(())
    refuse_conditions(request, "the status is 201 if the space is new, and 200 if it exists with these settings")
    store, space = request.store(), request.name(1)
    given = await optional_body_of(request, SettingsIn)
    retention = None if given.retention is None else _retention(given.retention)
    before = await store.space_settings(space)
    await store.create_space(
        space,
        given.partitions,
        given.durability,
        idempotency_window=given.idempotency_window,
        archive_grace=given.archive_grace,
    )
    if retention is not None:
        await _give_retention(request, retention)
    return _described(await _settings(request), 201 if before is None else 200)


async def _give_retention(request: Request, retention: Retention) -> None:
    """Set the retention of a new space. SpaceExists if it has another one, or entries that this one could drop.

    A process may have ended between the creation and this, so an empty space without a retention counts as new.
    """
    store, space = request.store(), request.name(1)
    while True:
        settings = await _settings(request)
        if settings.retention == retention:
            return
        used = [name async for name in store.get_segments(space, limit=1)]
        if used or settings.retention != Retention():
            raise SpaceExists(f"the space {space!r} exists with another retention; PATCH changes it")
        with contextlib.suppress(SpaceExists):
            await store.set_retention(space, retention, expected=settings)


def _retention(given: RetentionIn) -> Retention:
    retention = Retention(given.max_age, given.max_entries, given.max_bytes, given.per, given.when_full)
    stored(retention)  # checks it before anything is written
    return retention


async def change_space(request: Request) -> Answer:
    """Change the retention of a space. With If-Match, only if its settings are those that were read."""
    request.query(())
    store, space = request.store(), request.name(1)
    given = await body_of(request, RetentionIn)
    settings = await _settings(request)
    match = request.joined(b"if-match")
    if match is None or match == b"*":
        await store.set_retention(space, _retention(given))
        return _described(await _settings(request))
    if not has_tag(match, _tag(settings).encode()):
        raise _other_settings(settings)
    try:
        await store.set_retention(space, _retention(given), expected=settings)
    except SpaceExists:
        raise _other_settings(await _settings(request)) from None
    return _described(await _settings(request))


def _other_settings(settings: SpaceSettings) -> Problem:
    return Problem(
        "precondition-failed",
        "the space has other settings than If-Match names; read them again",
        headers=((b"etag", _tag(settings).encode()),),
    )


async def delete_space(request: Request) -> Answer:
    """Delete a space with all that is in it. One that does not exist is fine."""
    request.query(())
    request.access.check_all_segments()
    refuse_conditions(request, "a deletion is not conditional")
    store, space = request.store(), request.name(1)
    await store.delete_space(space)
    request.service.rings.end(store.id, StoreClosed(f"the space {space!r} was deleted"), space)
    return no_content()
