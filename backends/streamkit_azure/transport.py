"""The HTTP connections to one account, which its stores share, and the counts of requests and bytes."""

from __future__ import annotations

import os
import time
from collections import Counter
from ssl import SSLContext
from typing import Any
from urllib.parse import urlsplit

import requests
from azure.core.pipeline.transport import HttpTransport, RequestsTransport
from requests.adapters import HTTPAdapter
from requests.utils import DEFAULT_CA_BUNDLE_PATH, select_proxy
from urllib3.util import Retry
from urllib3.util.ssl_ import create_urllib3_context

from streamkit.backend import ServiceClock
from streamkit.reentry import Busy, Mutex

__all__ = ["CONNECTING", "Connections", "Transport"]

_CONNECTIONS = 32
_ONCE = Retry(total=False, redirect=False, raise_on_status=False)
CONNECTING = 10.0
"""Seconds for a connection to be made, and for most requests to be sent."""
_IDLE = 60.0
"""Seconds after which an idle connection is not trusted: a function may have been frozen, a NAT have forgotten it."""


class Connections:
    """One pool of connections. Nothing is retried here: a repeated write would hide what happened to the first.

    An answer may take a third of `timeout`, the time that the engine gives an operation with all its repetitions.
    """

    def __init__(self, timeout: float) -> None:
        session = _Session()
        session.auth = _no_auth
        adapter = _Adapter(pool_maxsize=_CONNECTIONS, max_retries=_ONCE)
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        self._session = session
        self._lock = Mutex()
        self.busy = Busy()
        self._used = time.time()
        self.clock = ServiceClock()
        self.inner = RequestsTransport(
            session=session,
            connection_timeout=min(timeout, CONNECTING),
            read_timeout=max(1.0, timeout / 3),
        )

    def wake(self) -> None:
        """Called before each request: drops the connections that were idle for too long."""
        with self._lock():
            now = time.time()  # also counts the sleep of a frozen machine
            if abs(now - self._used) > _IDLE:
                self._session.close()
            self._used = now

    def close(self) -> None:
        self._session.close()


class _Session(requests.Session):
    """Asks the environment once for the proxy and the certificates of a server. To ask at each request takes a tenth of
    its processor time."""

    def __init__(self) -> None:
        super().__init__()
        self._settings: dict[object, dict[str, Any]] = {}

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> dict[str, Any]:
        parts = urlsplit(url)
        key = parts.scheme, parts.netloc, stream, verify, cert
        found = None if proxies else self._settings.get(key)
        if found is None:
            found = dict(super().merge_environment_settings(url, proxies, stream, verify, cert))
            if not proxies:
                self._settings[key] = found
        return found | {"proxies": dict(found["proxies"])}


class _Adapter(HTTPAdapter):
    """Loads the trusted certificates once. To load them for each connection, as `requests` does, takes the time of 20
    requests."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._contexts: dict[str, SSLContext] = {}

    def get_connection_with_tls_context(self, request: Any, verify: Any, proxies: Any = None, cert: Any = None) -> Any:
        parts = urlsplit(request.url)
        ca = DEFAULT_CA_BUNDLE_PATH if verify is True else verify
        if parts.scheme != "https" or not ca or cert or select_proxy(request.url, proxies) or not os.path.exists(ca):
            return super().get_connection_with_tls_context(request, verify, proxies, cert)
        kept = {"ssl_context": self._context(ca), "cert_reqs": "CERT_REQUIRED"}
        return self.poolmanager.connection_from_host(parts.hostname, parts.port, parts.scheme, kept)

    def _context(self, ca: str) -> SSLContext:
        context = self._contexts.get(ca)
        if context is None:
            context = create_urllib3_context()
            context.load_verify_locations(**{"capath" if os.path.isdir(ca) else "cafile": ca})
            context = self._contexts.setdefault(ca, context)
        return context

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        super().cert_verify(conn, url, verify, cert)
        if conn.conn_kw.get("ssl_context") in self._contexts.values():
            conn.ca_certs = conn.ca_cert_dir = None


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keeps `requests` from looking for a ~/.netrc before each request: Azure's own headers are the credentials."""
    return request


class Transport(HttpTransport[Any, Any]):
    """Send one store's requests over shared connections. `counts` counts them by service and verb, and their bytes."""

    def __init__(self, service: str, connections: Connections, counts: Counter[str], lock: Mutex) -> None:
        self._service = service
        self._connections = connections
        self._counts = counts
        self._lock = lock

    def send(self, request: Any, **kwargs: Any) -> Any:
        self._connections.wake()
        kind = f"{self._service}.{_verb(self._service, request.method, request.url)}"
        self._count(kind, 1)
        self._count("bytes_written", int(request.headers.get("Content-Length") or 0))
        with self._connections.busy():
            response = self._connections.inner.send(request, **kwargs)
            self._connections.clock.hear(response.headers.get("Date"))
            # All of the answer, here: reading it later fails in other ways, which the SDK in part tries again.
            size = len(response.internal_response.content)
        self._count("bytes_read", size)
        return response

    def _count(self, kind: str, more: int) -> None:
        with self._lock():
            self._counts[kind] += more

    def open(self) -> None:
        """Do nothing: the first request opens the connections."""

    def close(self) -> None:
        """Do nothing: the driver closes the connections."""

    def __exit__(self, *_: object) -> None:
        self.close()


def _verb(service: str, method: str, url: str) -> str:
    parts = urlsplit(url)
    if service == "table":
        path = parts.path.rpartition("/")[2]
        if path.startswith("Tables"):
            return {"POST": "create", "DELETE": "drop"}.get(method, "list")
        one = "PartitionKey=" in path
        return {"POST": "insert", "GET": "get" if one else "query"}.get(method, method.lower())
    query = parts.query.split("&")
    for part in query:
        if part in ("comp=lease", "comp=metadata", "comp=list"):
            return part.removeprefix("comp=")
    return "create" if "restype=container" in query else method.lower()
