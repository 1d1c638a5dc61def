"""The open stores of this process: each is open once for all backends that use it, and none survives a fork."""

from __future__ import annotations

import os
import weakref
from typing import Protocol
from uuid import UUID

from streamkit.errors import Unavailable
from streamkit.reentry import Mutex

from .clock import boot_id
from .files import close_inherited
from .head import release_inherited
from .place import StoreDirectory, create_place
from .store import OpenStore

__all__ = ["User", "enter", "leave", "register"]

_TRIES = 20


class User(Protocol):
    """The user of an open store. It must release the store in a forked child."""

    def forget(self) -> None: ...


_stores: dict[str, OpenStore] = {}
_users: weakref.WeakSet[User] = weakref.WeakSet()
_lock = Mutex()


def register(user: User) -> None:
    _users.add(user)


def enter(root: str, store: UUID, timeout: float, mode: int, *, create: bool) -> OpenStore | None:
    """The open store, to be given back to `leave`; if it is made, with the permissions `mode`.

    None if it does not exist and is not to be made (`create`). PermanentError if the system gives no id of its start.
    """
    path = os.path.realpath(os.path.join(root, str(store)))
    with _lock():
        shared = _stores.get(path)
        if shared is None or not shared.place.current():
            boot_id()  # otherwise the present files cannot be checked, and nothing is created
            for _ in range(_TRIES):
                place = _place(root, store)
                if place is not None or not create:
                    break
                create_place(root, store, mode)  # another process may delete it again
            else:
                raise Unavailable(f"{path} is deleted by others as soon as it is made: try again")
            if place is None:
                return None
            shared = _stores[path] = OpenStore(place, timeout)
        shared.users += 1
        return shared


def _place(root: str, store: UUID) -> StoreDirectory | None:
    try:
        return StoreDirectory(root, store)
    except FileNotFoundError:
        return None


def leave(shared: OpenStore) -> None:
    """The last one to leave closes it."""
    with _lock():
        shared.users -= 1
        if shared.users:
            return
        for path, other in list(_stores.items()):
            if other is shared:
                del _stores[path]
    shared.close()  # it may wait for the disk: others need not wait with it


def _after_fork_in_child() -> None:
    global _lock
    _lock = Mutex()
    for user in list(_users):
        user.forget()
    _stores.clear()
    close_inherited()
    release_inherited()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
