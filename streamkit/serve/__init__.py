"""The server: an ASGI application over the stores of a client. It needs the extra `serve`."""

from __future__ import annotations

from uuid import UUID

from ..aio import AsyncClient
from ..clock import SYSTEM_CLOCK, Clock
from . import durable, v1
from .application import Application
from .limits import Limits
from .routing import Router
from .service import Service

__all__ = ["Application", "Limits", "app"]


def app(
    client: AsyncClient | str | None = None,
    *,
    store: UUID | str | None = None,
    limits: Limits | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Application:
    """The ASGI application that serves the stores of `client`.

    `client`: from `streamkit.aio.connect`, or its URL (None: STREAMKIT_URL, else ./streamkit-data). A client that is
    given stays open when the application ends. `store`: the UUID of the store that `_` names in paths. `clock`: the
    time by which streams expire.
    """
    router = Router()
    service = Service(client, store, limits or Limits())
    v1.register(router)
    durable.register(router, service, clock)
    return Application(service, router)
