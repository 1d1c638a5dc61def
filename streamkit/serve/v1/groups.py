"""Groups and queues: their lists, settings, statuses and dead letters."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ...aio.groups import AsyncGroup
from ...errors import InvalidOffset
from ...groups import ConsumerStatus, GroupGap, GroupSettings
from ...groups.settings import Mode
from ...lexkey import LexKey
from ..encoding import EntryOut, entry_out, name_of_transaction
from ..names import encode_name
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer, no_content
from .parameters import listing, number
from .records import body_of, optional_body_of

__all__ = [
    "change_group",
    "create_group",
    "create_queue",
    "delete_group",
    "delete_queue",
    "get_group",
    "group_of",
    "list_dead",
    "list_groups",
    "list_pending",
    "list_queues",
    "redrive",
    "seek",
]


class GroupChange(msgspec.Struct, forbid_unknown_fields=True):
    """New settings of a group or queue. Times are in seconds."""

    ack_timeout: float | UnsetType = UNSET
    max_deliveries: int | UnsetType = UNSET
    retry_delay: float | UnsetType = UNSET
    max_pending: int | UnsetType = UNSET


class QueueIn(GroupChange, forbid_unknown_fields=True):
    """The settings of a queue. Those that are left out have their defaults, or are as they are."""

    lanes: int | UnsetType = UNSET


class GroupIn(QueueIn, forbid_unknown_fields=True):
    """The settings of a group. `start`: "beginning", "end" or an offset, for a new group."""

    mode: Mode | UnsetType = UNSET
    segments: list[str] | UnsetType = UNSET
    key: str | UnsetType = UNSET
    start: str = "beginning"


class GroupOut(msgspec.Struct):
    """A group or queue: its settings, and the counts of its entries. `lag` is everything that is not done."""

    space: str
    name: str
    href: str
    settings: GroupSettings
    lag: int
    unread: int
    pending: int
    ready: int
    delayed: int
    dead: int
    acked: int
    delivered_to: str | None
    acked_to: str | None
    consumers: tuple[ConsumerStatus, ...]
    gaps: tuple[GroupGap, ...]


class GroupName(msgspec.Struct):
    """A group or queue."""

    name: str
    href: str


class GroupsOut(msgspec.Struct):
    """A page of groups or queues; `next` is the `after` of the next page."""

    groups: list[GroupName]
    next: str | None


class PendingOut(msgspec.Struct):
    """An entry that a consumer has until `deadline`, in milliseconds."""

    entry: EntryOut
    consumer: str
    attempt: int
    deadline: int


class AllPendingOut(msgspec.Struct):
    """Entries that consumers have, the oldest first."""

    pending: list[PendingOut]


class DeadOut(msgspec.Struct):
    """A dead letter. `id` names it in a redrive."""

    id: str
    entry: EntryOut
    attempt: int
    reason: str
    timestamp: int


class AllDeadOut(msgspec.Struct):
    """Dead letters, the oldest first."""

    dead: list[DeadOut]


class RedriveIn(msgspec.Struct, forbid_unknown_fields=True):
    """The dead letters to bring back; null for all."""

    ids: list[str] | None = None


class RedriveOut(msgspec.Struct):
    """The number of dead letters that were brought back."""

    redriven: int


class SeekIn(msgspec.Struct, forbid_unknown_fields=True):
    """The position to go on from: "beginning", "end" or an offset of the space."""

    to: str


def group_of(request: Request) -> tuple[str, str | None]:
    """Return (space, group) that the path names; the group is None for a queue."""
    return request.name(1), request.name(2) if len(request.parts) > 2 else None


async def found_group(request: Request) -> AsyncGroup:
    """The group or queue of the path. A Problem if it does not exist."""

    async def same(group: AsyncGroup) -> AsyncGroup:
        return group

    return await request.service.groups.use(request.store(), *group_of(request), same)


def _given(settings: msgspec.Struct) -> dict[str, Any]:
    found = {name: value for name, value in msgspec.structs.asdict(settings).items() if value is not UNSET}
    found.pop("start", None)
    return found


def _start(text: str) -> str:
    if text in ("beginning", "end"):
        return text
    try:
        LexKey.from_hex(text)
    except ValueError:
        raise InvalidOffset(f'a place is "beginning", "end" or an offset of the space, not {text[:40]!r}') from None
    return text


def _href(request: Request, space: str, name: str | None) -> str:
    base = f"/v1/stores/{request.store().id}"
    if name is None:
        return f"{base}/queues/{encode_name(space)}"
    return f"{base}/spaces/{encode_name(space)}/groups/{encode_name(name)}"


async def _out(request: Request, group: AsyncGroup) -> GroupOut:
    space, name = group_of(request)
    status = await group.status()
    return GroupOut(
        space,
        name or space,
        _href(request, space, name),
        group.settings,
        status.lag,
        status.unread,
        status.pending,
        status.ready,
        status.delayed,
        status.dead,
        status.acked,
        None if status.delivered_to is None else status.delivered_to.hex(),
        None if status.acked_to is None else status.acked_to.hex(),
        status.consumers,
        status.gaps,
    )


async def list_groups(request: Request) -> Answer:
    """The groups of a space."""
    return _page(request, await request.store().get_groups(request.name(1)), request.name(1))


async def list_queues(request: Request) -> Answer:
    """The queues of a store; those that the key is for."""
    request.access.check_all_segments()
    prefixes = request.access.spaces
    names = await request.store().get_queues()
    return _page(request, [name for name in names if not prefixes or name.startswith(prefixes)], None)


def _page(request: Request, names: list[str], space: str | None) -> Answer:
    wanted = listing(request)
    found = [name for name in names if name.startswith(wanted.prefix) and (not wanted.after or name > wanted.after)]
    page = found[: wanted.limit]
    out = [
        GroupName(name, _href(request, name, None) if space is None else _href(request, space, name)) for name in page
    ]
    return json_answer(GroupsOut(out, page[-1] if len(found) > len(page) else None))


async def create_group(request: Request) -> Answer:
    """Make a group; 200 if it exists with these settings, 409 if it has others."""
    request.query(())
    given = await optional_body_of(request, GroupIn)
    store, (space, name) = request.store(), group_of(request)
    assert name is not None
    is_new = await store.find_group(space, name) is None
    group = await store.group(space, name, start=_start(given.start), **_given(given))
    return json_answer(await _out(request, group), 201 if is_new else 200)


async def create_queue(request: Request) -> Answer:
    """Make a queue; 200 if it exists with these settings, 409 if it has others."""
    request.query(())
    given = await optional_body_of(request, QueueIn)
    store, name = request.store(), request.name(1)
    is_new = await store.find_queue(name) is None
    queue = await store.queue(name, **_given(given))
    return json_answer(await _out(request, queue.group), 201 if is_new else 200)


async def get_group(request: Request) -> Answer:
    """The settings and the status."""
    request.query(())
    return json_answer(await _out(request, await found_group(request)))


async def change_group(request: Request) -> Answer:
    """Change settings, from the next delivery on."""
    request.query(())
    given = await body_of(request, GroupChange)
    group = await found_group(request)
    await group.configure(**_given(given))
    return json_answer(await _out(request, group))


async def delete_group(request: Request) -> Answer:
    """Forget a group. The entries stay."""
    request.query(())
    await (await found_group(request)).delete()
    return no_content()


async def delete_queue(request: Request) -> Answer:
    """Delete a queue and its jobs."""
    request.query(())
    group = await found_group(request)
    await group.delete()
    await request.store().delete_space(request.name(1))
    return no_content()


async def list_pending(request: Request) -> Answer:
    """The entries that consumers have, the oldest first."""
    query = request.query(("consumer", "limit"))
    group = await found_group(request)
    found = await group.pending(query.get("consumer"), number(query, "limit", 100, 1_000, 1))
    out = [
        PendingOut(
            entry_out(each.entry, name_of_transaction(each.entry.trx)), each.consumer, each.attempt, each.deadline
        )
        for each in found
    ]
    return json_answer(AllPendingOut(out))


async def list_dead(request: Request) -> Answer:
    """The dead letters, the oldest first."""
    query = request.query(("limit",))
    group = await found_group(request)
    found = await group.dead_letters(number(query, "limit", 100, 1_000, 1))
    out = [
        DeadOut(
            each.id,
            entry_out(each.entry, name_of_transaction(each.entry.trx)),
            each.attempt,
            each.reason,
            each.timestamp,
        )
        for each in found
    ]
    return json_answer(AllDeadOut(out))


async def redrive(request: Request) -> Answer:
    """Bring dead letters back. They are delivered again as if for the first time."""
    request.query(())
    given = await optional_body_of(request, RedriveIn)
    return json_answer(RedriveOut(await (await found_group(request)).redrive(given.ids)))


async def seek(request: Request) -> Answer:
    """Continue at another place. Pending, waiting and dead entries are forgotten."""
    request.query(())
    given = await body_of(request, SeekIn)
    group = await found_group(request)
    if group.settings.queue:
        raise Problem("invalid-request", "a queue cannot seek, because its jobs are removed when they are done")
    await group.seek(_start(given.to))
    return json_answer(await _out(request, group))
