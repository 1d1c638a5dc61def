"""Which stores this process has open: each once, however many backends use it, and none from before a fork."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol
from uuid import UUID

from streamkit.errors import StreamkitError
from streamkit.reentry import Mutex

from .place import Place, close_inherited, create_place
from .store import OpenStore

__all__ = ["User", "enlist", "enter", "leave"]


class User(Protocol):
    """Who holds an open store, and must let go of it in a forked child."""

    def forget(self) -> None: ...


_stores: dict[str, OpenStore] = {}
_users: weakref.WeakSet[User] = weakref.WeakSet()
_lock = Mutex()
_held = False


def enlist(user: User) -> None:
    _users.add(user)


def enter(root: str, store: UUID, timeout: float, mode: int, *, create: bool) -> OpenStore | None:
    """The open store, to be given back to `leave`; if it is made, with the permissions `mode`.

    None if it does not exist and is not to be made (`create`).
    """
    path = os.path.realpath(os.path.join(root, str(store)))
    with _lock():
        shared = _stores.get(path)
        if shared is None or not shared.place.current():
            try:
                place = Place(root, store)
            except FileNotFoundError:
                if not create:
                    return None
                create_place(root, store, mode)
                place = Place(root, store)
            try:
                shared = OpenStore(place, timeout)
            except FileNotFoundError:  # it is being made, and may not be made by this user
                if create:
                    place.check_writable()
                return None
            _stores[path] = shared
        shared.users += 1
        return shared


def leave(shared: OpenStore) -> None:
    """The last one to leave closes it."""
    with _lock():
        shared.users -= 1
        if shared.users:
            return
        for path, other in list(_stores.items()):
            if other is shared:
                del _stores[path]
        shared.close()


def _before_fork() -> None:
    global _held
    _held = not _lock.mine and _lock.acquire()
    for shared in _stores.values():
        shared.env.hold()


def _after_fork_in_parent() -> None:
    for shared in _stores.values():
        shared.env.go_on()
    if _held:
        _lock.release()


def _after_fork_in_child() -> None:
    global _lock
    _lock = Mutex()
    for user in list(_users):
        user.forget()
    for shared in _stores.values():
        with contextlib.suppress(StreamkitError):
            shared.env.abandon()
    _stores.clear()
    close_inherited()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
