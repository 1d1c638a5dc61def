"""The driver: one name, the stores under it, and the latency of their requests."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from uuid import UUID

from streamkit.backend import Limits, split_url, unescape, url_options
from streamkit.errors import StoreClosed
from streamkit.reentry import Mutex

from .backend import MemoryBackend
from .state import Service

__all__ = ["MemoryDriver", "connect"]

_named: dict[str, Service] = {}
_named_lock = Mutex()
_services: weakref.WeakSet[Service] = weakref.WeakSet()


def _forget_after_fork() -> None:
    # A lock may be held by a thread that the child does not have, and a copy that diverges is no store.
    global _named_lock
    _named_lock = Mutex()
    for service in _services:
        service.forked = True
    _named.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


def _service(name: str) -> Service:
    with _named_lock():
        service = _named.get(name) or Service()
        if name:
            _named[name] = service
        _services.add(service)
        return service


class MemoryDriver:
    """The stores under one name; without a name they belong to this driver alone.

    With `remote` it behaves as a network service does, see `streamkit.backend.Limits`. `latency` is in seconds, spent
    by `sleep` before every request; `clock` measures leases. Drivers of one name share their stores, so give them the
    same clock.
    """

    def __init__(
        self,
        name: str = "",
        *,
        remote: bool = False,
        latency: float = 0.0,
        page: int = 1000,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if latency < 0:
            raise ValueError(f"latency is zero or more, not {latency}")
        if page < 1:
            raise ValueError(f"page is one row or more, not {page}")
        self._name = name
        self._service = _service(name)
        self._latency = latency
        self._clock = clock
        self._sleep = sleep
        self._closed = False
        self._limits = Limits(remote or latency > 0, page)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._service.stores)} stores"
        return f"<MemoryDriver memory://{self._name} {state}>"

    def stores(self) -> Iterator[UUID]:
        """Iterate over the stores that exist in this process under the name."""
        self._request()
        with self._service.lock():
            return iter([store for store in self._service.stores if not self._service.is_deleted(store)])

    def open(self, store: UUID) -> MemoryBackend:
        """Return the store's backend. StoreClosed if the driver is closed, or in a forked child."""
        self._check_open()
        return MemoryBackend(self._service, store, self._limits, self._clock, self._request)

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        """Remove the store with its archive and its leases: see `Driver.delete`."""
        self._request()
        with self._service.lock():
            rows = self._service.stores.pop(store, {})
            self._service.deleted[store] += 1
            self._service.kept[store] = {}
            for partition, key in keep:
                value = rows[partition].get(key) if partition in rows else None
                if value is not None:
                    self._service.keep(store, partition, key, value.data)
            self._service.forget_archive(store)
            for held in [held for held in self._service.leases if held[0] == store]:
                del self._service.leases[held]

    def archive_root(self) -> tuple[str, dict[str, str]]:
        """A temporary directory that is gone with the stores."""
        return Path(self._service.archive()).as_uri(), {}

    def close(self) -> None:
        """Close the driver. The stores stay in memory for other drivers of this name."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"memory://{self._name} was closed; connect again")
        if self._service.forked:
            raise StoreClosed(
                f"memory://{self._name} lives in the process that made it, and this process is a fork of it; "
                "use file:// for stores that several processes share"
            )

    def _request(self) -> None:
        """Simulate the cost of one request."""
        self._check_open()
        if self._latency:
            self._sleep(self._latency)


def _number(text: str, option: str, least: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number < 1e9:
        raise ValueError(f"the option {option!r} of a memory:// URL is a number >= {least:g}: correct it")
    return number


def connect(url: str, *, timeout: float) -> MemoryDriver:
    """The driver of `memory://[name][?remote=1][&latency=ms][&page=rows]`. ValueError otherwise."""
    parts = split_url(url)
    if parts.scheme != "memory" or parts.fragment or "@" in parts.netloc:
        raise ValueError("expected a URL such as memory:// or memory://name?remote=1, without user or fragment")
    options = url_options(url, ("remote", "latency", "page"))
    remote = options.get("remote", "0")
    if remote not in ("0", "1"):
        raise ValueError("the option 'remote' of a memory:// URL is 0 or 1: correct it")
    return MemoryDriver(
        unescape(parts.netloc + parts.path.rstrip("/")),
        remote=remote == "1",
        latency=_number(options.get("latency", "0"), "latency", 0) / 1000,
        page=int(_number(options.get("page", "1000"), "page", 1)),
    )
