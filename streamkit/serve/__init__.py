"""The server: an ASGI application over the stores of a client. It needs the extra `serve`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from uuid import UUID

from ..aio import AsyncClient
from ..clock import SYSTEM_CLOCK, Clock
from . import durable, openapi, operating, telemetry, v1
from .application import Application
from .keys import KeyFile
from .limits import Limits
from .routing import Router
from .service import Service
from .tokens import Tokens

__all__ = ["Application", "Limits", "Tokens", "app"]


def app(
    client: AsyncClient | str | None = None,
    *,
    archive: str | None = None,
    store: UUID | str | None = None,
    limits: Limits | None = None,
    clock: Clock = SYSTEM_CLOCK,
    keys: str | os.PathLike[str] | None = None,
    tokens: Tokens | None = None,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    topics: bool = False,
    console: bool = True,
) -> Application:
    """The ASGI application that serves the stores of `client`.

    `client`: a client of `streamkit.aio.connect`, or a URL (None: STREAMKIT_URL, else ./streamkit-data). The
    application does not close a client that is given. `archive`: the URL of archives that are not beside the stores, as
    in `streamkit.connect`; a given client has its own. `store`: the UUID of the store that `_` names in paths. `clock`:
    the clock by which streams expire. `keys`: the file of keys that callers need. `tokens`: verifies JWT beside keys,
    or in place of them. Without keys and tokens, every caller may do everything. `hosts`: the host names that requests
    may use; empty for any. `origins`: sites whose pages may send requests. `topics`: serve `/v0` too, the interface of
    topics. `console`: serve `/console/` too, pages for browsers.
    """
    router = Router()
    service = Service(client, store, limits or Limits(), archive)
    service.keys = None if keys is None else KeyFile(keys)
    service.tokens = tokens
    service.hosts = frozenset(host.lower() for host in hosts)
    service.origins = frozenset(origin.encode() for origin in origins)
    operating.register(router)
    v1.register(router)
    openapi.register(router)
    durable.register(router, service, clock)
    application = Application(service, router)
    application.sockets[v1.messages.PATH] = v1.messages.INTERFACE
    if topics:
        from .topics import messages
        from .topics import register as register_topics

        register_topics(router, service)
        application.sockets[messages.PATH] = messages.INTERFACE
    if console:
        from .console import register as register_console

        service.has_console = True
        register_console(router)
    service.on_start.append(telemetry.export)
    return application
