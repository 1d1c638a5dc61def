"""The priorities of a store's spaces, groups and keys."""

from __future__ import annotations

from ..priorities import Rules, read_rules, write_rules
from ..request import Request
from ..responses import Answer, json_answer
from .records import body_of

__all__ = ["get_priorities", "put_priorities"]


async def get_priorities(request: Request) -> Answer:
    """The priorities of spaces, groups and keys."""
    request.query(())
    request.access.check_all_spaces()
    return json_answer(await read_rules(request.store()))


async def put_priorities(request: Request) -> Answer:
    """Replace the priorities of spaces, groups and keys. Other processes follow within seconds."""
    request.query(())
    request.access.check_all_spaces()
    rules = await body_of(request, Rules)
    store = request.store()
    await write_rules(store, rules)
    request.service.priorities.know(store.id, rules)
    return json_answer(rules)
