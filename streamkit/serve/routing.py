"""The router: from a method and the raw path to a handler. It never decodes a path, so `%2F` stays within a name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .problems import Problem
from .responses import Answer

if TYPE_CHECKING:
    from .request import Request

__all__ = ["Handler", "Route", "Router"]

_RECENT = 4096
_LONGEST = 256
"""Bytes of the longest path that is remembered among the recent ones."""

Handler = Callable[["Request"], Awaitable[Answer | None]]
"""Returns the answer, or None if it has streamed one."""


@dataclass(frozen=True)
class Route:
    """One method of one resource.

    `pattern` has `{name}` for one part of the path, and may end with `{name*}` for all that follows.
    """

    method: str
    pattern: str
    handler: Handler
    scope: str
    """The scope that a key needs: "read", "write", "delete", "admin"; "" is open to all."""
    describe: Any = None
    """The description in the OpenAPI document; None for a route that is not in it."""
    names: tuple[str, ...] = ()
    narrow: bool = False
    """The handler itself heeds which segments a key is for; else a route of a whole space needs a key for all."""


@dataclass
class _Node:
    literal: dict[bytes, _Node] = field(default_factory=dict)
    name: _Node | None = None
    routes: dict[str, Route] = field(default_factory=dict)
    rest: dict[str, Route] = field(default_factory=dict)
    """The routes of a pattern that ends with `{name*}` here."""


class Router:
    """The routes of an application. Rooms register theirs with `add`."""

    def __init__(self) -> None:
        self.routes: list[Route] = []
        self._root = _Node()
        self._recent = lru_cache(_RECENT)(self._find)

    def add(
        self, methods: str, pattern: str, handler: Handler, scope: str, describe: Any = None, *, narrow: bool = False
    ) -> None:
        """Register `handler` for `methods`, such as "GET HEAD", of the resource that `pattern` names."""
        node = self._root
        names: list[str] = []
        parts = pattern.split("/")[1:]
        for part in parts:
            if part.startswith("{"):
                names.append(part.strip("{}*"))
                if not part.endswith("*}"):
                    node.name = node.name or _Node()
                    node = node.name
            else:
                node = node.literal.setdefault(part.encode(), _Node())
        table = node.rest if parts[-1].endswith("*}") else node.routes
        for method in methods.split():
            route = Route(method, pattern, handler, scope, describe, tuple(names), narrow)
            assert method not in table, (method, pattern)
            table[method] = route
            self.routes.append(route)

    def find(self, method: str, path: bytes) -> tuple[Route, list[bytes]]:
        """The route, and the raw parts of the path that its pattern names. A Problem if there is none."""
        return self._recent(method, path) if len(path) <= _LONGEST else self._find(method, path)

    def _find(self, method: str, path: bytes) -> tuple[Route, list[bytes]]:
        parts = path.split(b"/")
        found: list[bytes] = []
        node: _Node | None = self._root
        rest: tuple[_Node, list[bytes]] | None = None
        for at in range(1, len(parts)):
            assert node is not None
            if node.rest:
                rest = node, [*found, b"/".join(parts[at:])]
            part = parts[at]
            following = node.literal.get(part)
            if following is None:
                following = node.name if part else None
                if following is None:
                    node = None
                    break
                found.append(part)
            node = following
        if node is None or not node.routes:
            if rest is None:
                raise Problem(
                    "not-found",
                    "there is no such resource; /openapi.json has the ones that there are. A slash in a name is %2F",
                )
            table, found = rest[0].rest, rest[1]
        else:
            table = node.routes
        route = table.get(method)
        if route is None:
            allowed = ", ".join(dict.fromkeys([*table, "OPTIONS"]))
            header = (b"allow", allowed.encode())
            if method == "OPTIONS":
                return Route("OPTIONS", "", _options(header), ""), found
            raise Problem("method-not-allowed", f"the resource has the methods {allowed}", headers=(header,))
        return route, found


def _options(allow: tuple[bytes, bytes]) -> Handler:
    async def options(request: Request) -> Answer:
        return Answer(204, b"", (allow,))

    return options
