"""The methods that a hook wraps. To remove the hook puts the plain methods back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..aio.groups import AsyncConsumer, AsyncGroup, AsyncQueue
from ..aio.store import AsyncStore
from ..aio.transaction import AsyncTransaction
from ..groups import Consumer, Group, Queue
from ..open_store import OpenStore
from ..reading import Reader
from ..routes.route import Route
from ..store import Store
from ..transaction import Transaction
from ..views.open_view import OpenView
from . import group_calls, store_calls
from .around import installed_hook, set_hook
from .hook import Hook

__all__ = ["install", "installed", "uninstall"]

_lock = threading.Lock()
_plain: list[tuple[type, str, Any]] = []
"""The methods that are wrapped, in order."""


def installed() -> Hook | None:
    """Return the hook, or None."""
    return installed_hook()


def install(hook: Hook) -> None:
    """Install `hook` for the whole process, in place of an earlier one. TypeError if it is not a hook."""
    for name in ("begin", "lagging", "closing", "stop"):
        if not callable(getattr(hook, name, None)):
            raise TypeError(f"a hook has the method {name}(…), and {type(hook).__name__} lacks it: see telemetry.Hook")
    with _lock:
        before = set_hook(hook)
        if not _plain:
            _wrap_all()
    if before is not None and before is not hook:
        before.stop()


def uninstall() -> None:
    """Remove the hook. Without one, nothing happens."""
    with _lock:
        before = set_hook(None)
        while _plain:
            owner, name, method = _plain.pop()
            setattr(owner, name, method)
    if before is not None:
        before.stop()


def _wrap(owner: type, name: str, wrap: Callable[[str, Any], Any]) -> None:
    method = owner.__dict__[name]
    _plain.append((owner, name, method))
    setattr(owner, name, wrap(name, method))


def _wrap_all() -> None:
    for name in store_calls.CALLS:
        _wrap(Store, name, store_calls.called)
        _wrap(AsyncStore, name, store_calls.awaited)
    for name in store_calls.READS:
        _wrap(Store, name, store_calls.read)
        _wrap(AsyncStore, name, store_calls.read)
    _wrap(Reader, "entries", store_calls.timed)
    _wrap(Store, "transaction", store_calls.opened)
    _wrap(AsyncStore, "transaction", store_calls.opened)
    _wrap(Transaction, "produce", store_calls.added)
    _wrap(AsyncTransaction, "produce", store_calls.added)
    _wrap(Transaction, "__exit__", store_calls.committed)
    _wrap(AsyncTransaction, "__aexit__", store_calls.committed_async)
    _wrap(OpenStore, "close", store_calls.closing)
    _wrap(Queue, "put_many", group_calls.sent)
    _wrap(AsyncQueue, "put_many", group_calls.sent_async)
    _wrap(AsyncQueue, "put", group_calls.sent_async)
    _wrap(Consumer, "receive", group_calls.received)
    _wrap(Group, "receive", group_calls.received)
    _wrap(AsyncConsumer, "receive", group_calls.received_async)
    _wrap(AsyncGroup, "receive", group_calls.received_async)
    for name in group_calls.SETTLEMENTS:
        _wrap(Consumer, name, group_calls.settled)
        _wrap(AsyncConsumer, name, group_calls.settled_async)
    _wrap(Group, "settle", group_calls.settled)
    _wrap(AsyncGroup, "settle", group_calls.settled_async)
    _wrap(Group, "run", group_calls.handled)
    _wrap(AsyncGroup, "run", group_calls.handled_async)
    for part in (OpenView, Route):
        _wrap(part, "catch_up", group_calls.quiet)
        _wrap(part, "run", group_calls.quiet)
