"""The process of the server: uvicorn on the application, and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from ..errors import MissingDependency
from . import app
from .application import Application
from .limits import Limits

__all__ = ["make_server", "serve"]


def serve(
    url: str | None,
    *,
    host: str = "127.0.0.1",
    port: int = 4437,
    store: UUID | str | None = None,
    limits: Limits | None = None,
    started: Callable[[str], object] | None = None,
) -> None:
    """Serve the stores under `url` until SIGTERM or SIGINT. `started` is called with the server's address."""
    make_server(app(url, store=store, limits=limits), host, port, started).run()


def make_server(application: Application, host: str, port: int, started: Callable[[str], object] | None = None) -> Any:
    """A `uvicorn.Server` that ends within the limits' `drain_seconds`. `started` is called with its address."""
    try:
        import uvicorn
    except ImportError as error:
        raise MissingDependency(
            f"the server needs {error.name}: pip install 'streamkit-store[serve]'", name=error.name
        ) from error

    class Server(uvicorn.Server):
        """uvicorn waits for open streams for ever: they are told to end before it waits for them."""

        async def startup(self, sockets: list[Any] | None = None) -> None:
            await super().startup(sockets)
            if started is not None and self.started:
                where = self.servers[0].sockets[0].getsockname()
                started(f"http://{where[0]}:{where[1]}")

        async def shutdown(self, sockets: list[Any] | None = None) -> None:
            application.service.drain()
            await super().shutdown(sockets)

    from .protocol import protocol_of

    limits = application.service.limits
    return Server(
        uvicorn.Config(
            application,
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=max(int(limits.drain_seconds) - 2, 1),
            h11_max_incomplete_event_size=limits.header_bytes,
            ws="none",
            http=protocol_of(limits),
        )
    )
