"""The process of the server: uvicorn on the application, and its end."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import ipaddress
import socket
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec

from ..errors import MissingDependency, PermanentError
from . import app
from .application import Application
from .limits import Limits
from .tokens import Tokens

__all__ = ["Options", "make_application", "make_server", "prepare", "serve"]

_SWITCH_SECONDS = 0.001
_M_ARENA_MAX = -8
"""The name of the setting in malloc.h."""
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Options(msgspec.Struct, kw_only=True):
    """The options of `streamkit serve`."""

    url: str | None = None
    archive: str | None = None
    """The URL of the archives; None: beside the stores."""
    host: str = "127.0.0.1"
    port: int = 4437
    store: UUID | None = None
    keys: str | None = None
    jwt_secret: str | None = None
    """The file that holds it."""
    jwks: str | None = None
    audience: str | None = None
    issuer: str | None = None
    allow_hosts: list[str] = []
    allow_origins: list[str] = []
    certificate: str | None = None
    private_key: str | None = None
    topics: bool = False
    """Serve `/v0`, the interface of topics, too."""
    http2: bool = False
    """Speak HTTP/2, too."""
    console: bool = True
    """Serve `/console/`, pages for browsers, too."""
    code: str | None = None
    """A one-time code that begins a session of the console, with the first of the keys."""
    limits: Limits = msgspec.field(default_factory=Limits)

    @property
    def is_open(self) -> bool:
        """True if callers need neither a key nor a token."""
        return self.keys is None and self.jwt_secret is None and self.jwks is None


def serve(options: Options, started: Callable[[str], object] | None = None, sockets: list[Any] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. `started` is called with the server's address."""
    application = make_application(options)
    sockets = sockets or [listen(options.host, options.port)]
    server = make_server(
        application,
        options.host,
        options.port,
        started,
        certificate=options.certificate,
        private_key=options.private_key,
        http2=options.http2,
    )
    prepare()
    server.run(sockets)


def prepare() -> None:
    """Tune the interpreter for a server, once the application is made."""
    # A commit's thread waits for the interpreter while the loop is busy, and each commit does so several times.
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Requests leave few cycles. Collections after every 700 objects took a seventh of a server's time.
    gc.freeze()
    gc.set_threshold(10_000)
    # Each of two dozen threads gets its own arena, which keeps the memory that a page or an upkeep once needed.
    with contextlib.suppress(AttributeError, OSError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. PermanentError if the address is not free or not of this machine."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(4096)
    except OSError as error:
        listening.close()
        raise PermanentError(
            f"the server cannot listen on port {port} of {host}: {error.strerror}; choose another --host or --port "
            "(0 takes a free port)"
        ) from None
    return listening


def make_application(options: Options) -> Application:
    """The application that the options ask for. PermanentError if it would be open to other machines."""
    hosts = list(options.allow_hosts)
    if options.is_open:
        if not _is_loopback(options.host):
            raise PermanentError(
                f"the server will not listen on {options.host} without keys: every caller could read and "
                "delete everything. Make a key (streamkit keys create FILE --scope read) and give --keys FILE, or "
                "listen on 127.0.0.1"
            )
        hosts += _LOOPBACK
    tokens = None
    if options.jwt_secret is not None or options.jwks is not None:
        secret = None
        if options.jwt_secret is not None:
            with open(options.jwt_secret, "rb") as file:
                secret = file.read().strip()
        tokens = Tokens(secret=secret, jwks=options.jwks, audience=options.audience, issuer=options.issuer)
    application = app(
        options.url,
        archive=options.archive,
        store=options.store,
        limits=options.limits,
        keys=options.keys,
        tokens=tokens,
        hosts=hosts,
        origins=options.allow_origins,
        topics=options.topics,
        console=options.console,
    )
    if application.service.keys is not None:
        if not application.service.keys.path.exists():
            raise PermanentError(
                f"{options.keys} does not exist, so no request would be allowed; `streamkit keys create {options.keys} "
                "--scope read` creates it"
            )
        keys = application.service.keys.read()  # a damaged file is refused now
        if options.code is not None:
            application.service.codes[options.code] = keys[0].id
    return application


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def make_server(
    application: Application,
    host: str,
    port: int,
    started: Callable[[str], object] | None = None,
    *,
    certificate: str | None = None,
    private_key: str | None = None,
    http2: bool = False,
) -> Any:
    """A `uvicorn.Server` that ends within the limits' `drain_seconds`. `started` is called with its address. `http2`:
    it speaks HTTP/2 as well."""
    try:
        import uvicorn

        from .protocol import protocol_of
        from .socket_protocol import socket_protocol_of
    except ImportError as error:
        raise MissingDependency(
            f"the server needs {error.name}: pip install 'streamkit-store[serve]'", name=error.name
        ) from error

    class Server(uvicorn.Server):
        """A uvicorn server that ends open streams before it stops, because uvicorn waits for them without end."""

        async def startup(self, sockets: list[Any] | None = None) -> None:
            await super().startup(sockets)
            if started is not None and self.started:
                where = self.servers[0].sockets[0].getsockname()
                name = f"[{where[0]}]" if ":" in where[0] else where[0]
                started(f"http{'s' if certificate else ''}://{name}:{where[1]}")

        async def shutdown(self, sockets: list[Any] | None = None) -> None:
            application.service.drain()
            await super().shutdown(sockets)

    limits = application.service.limits
    protocol = protocol_of(limits)
    if http2:
        try:
            from .http2 import dual_protocol_of
        except ImportError as error:
            raise MissingDependency(
                f"HTTP/2 needs {error.name}: pip install 'streamkit-store[http2]'", name=error.name
            ) from error
        protocol = dual_protocol_of(limits)
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
            timeout_keep_alive=75,
            backlog=4096,
            ws=socket_protocol_of(limits),
            ws_max_size=limits.message_bytes or sys.maxsize,
            ws_per_message_deflate=False,
            http=protocol,
            proxy_headers=False,  # the protocol sees to it, for requests that have them
            ssl_certfile=certificate,
            ssl_keyfile=private_key,
        )
    )
