"""Routes for operators of the server: health, readiness, metrics, tickets."""

from __future__ import annotations

import msgspec

from .keys import refused
from .operation import JSON, Operation
from .problems import Problem
from .request import Request
from .responses import Answer, json_answer
from .routing import Router

__all__ = ["register"]


_TICKETS = "/v1/tickets"


class Health(msgspec.Struct):
    """The state of the process: "ok" or "draining"."""

    status: str


class TicketIn(msgspec.Struct, forbid_unknown_fields=True):
    """The path that a ticket is for, without its query."""

    path: str


class Ticket(msgspec.Struct):
    """A ticket replaces the key in a URL, for one path, as `?ticket=…`, until `expires` (seconds since 1970)."""

    ticket: str
    expires: int


async def health(request: Request) -> Answer:
    """The process answers."""
    return json_answer(Health("ok"))


async def ready(request: Request) -> Answer:
    """200 while the process takes requests, 503 when it is about to end."""
    if request.service.is_draining:
        return json_answer(Health("draining"), 503)
    return json_answer(Health("ok"))


async def metrics(request: Request) -> Answer:
    """Counts and latencies as Prometheus reads them."""
    if request.access.stores:
        raise Problem("forbidden", "the key is for some stores, and this concerns all of the server")
    request.access.check_all_spaces()
    text = request.service.metrics.text(request.service)
    return Answer(200, text.encode(), ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),))


async def ticket(request: Request) -> Answer:
    """A ticket for an EventSource, which sends no headers."""
    from .v1.records import body_of

    path = (await body_of(request, TicketIn)).path
    if not path.startswith("/") or "?" in path or not path.isascii():
        raise Problem("invalid-argument", "path is the path of a resource as it is in its URL, without a query")
    if path == _TICKETS:
        raise Problem("invalid-argument", "no ticket makes other tickets; name the path that the ticket is to open")
    keys = request.service.keys
    made = None if keys is None else keys.ticket(request.access.id, path.encode())
    if made is None:
        raise refused()
    return json_answer(Ticket(*made), 201)


def register(router: Router) -> None:
    """Add these routes."""
    router.add("GET HEAD", "/healthz", health, "")
    router.add("GET HEAD", "/readyz", ready, "")
    router.add("GET", "/metrics", metrics, "admin")
    router.add("POST", _TICKETS, ticket, "read", Operation(body={JSON: TicketIn}, answers={201: Ticket}))
