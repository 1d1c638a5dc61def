"""The OpenAPI 3.1 document, made from the routes and the types of their bodies and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

from ..importing import DECODERS
from .encoding import EntryOut, GapOut
from .operation import Operation
from .request import Request
from .responses import Answer, json_answer
from .routing import Route, Router

__all__ = ["document", "register"]

_REFERENCE = "#/components/schemas/{name}"
_PARTS = {
    "st": "A store: its UUID, or `_` for the server's own.",
    "sp": "A space or queue: its name, or `~` and the base64url of it.",
    "sg": "A segment: its name, or `~` and the base64url of it.",
    "n": "The sequence of an entry.",
    "id": "The UUID of a transaction or operation, or the id of a key.",
    "m": "A group of members.",
    "name": "The name of a member.",
    "r": "A route.",
    "v": "A view.",
    "key": "A key.",
    "g": "A group: its name, or `~` and the base64url of it.",
}


class ProblemOut(msgspec.Struct, rename={"kind": "type"}):
    """A refusal, as RFC 9457 has it; `type` is `urn:streamkit:` and a code. It may have further members."""

    kind: str
    title: str
    status: int
    detail: str
    retryable: bool


def document(router: Router) -> dict[str, Any]:
    """The document of the routes that are described."""
    from .. import __version__

    described = [route for route in router.routes if isinstance(route.describe, Operation)]
    types: list[Any] = [ProblemOut, EntryOut, GapOut]
    for route in described:
        types += [kind for kind in _types(route.describe) if kind not in types]
    with DECODERS:
        schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(map(_name, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in described:
        if route.method == "QUERY":
            continue  # OpenAPI 3.1 has no such method; POST does the same
        pattern = re.sub(r"\*}", "}", route.pattern)
        paths.setdefault(pattern, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "streamkit", "version": __version__, "description": "Event streams over HTTP."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "sk_…, or a JWT"}},
        },
        "security": [{"key": []}, {}],
    }


def _types(operation: Operation) -> Iterable[Any]:
    for kind in (*operation.body.values(), *operation.answers.values()):
        if kind is not None and not isinstance(kind, Mapping):
            yield kind


def _name(kind: Any) -> str:
    return repr(kind)


def _operation(route: Route, schemas: Mapping[str, Any]) -> dict[str, Any]:
    operation: Operation = route.describe
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PARTS.get(name, name),
            "schema": {"type": "string", "minLength": 1},
        }
        for name in route.names
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()]
    parameters += [{"name": name, "in": "header", "schema": schema} for name, schema in operation.headers.items()]
    summary, _, more = (route.handler.__doc__ or "").strip().partition("\n")
    id = f"{route.method.lower()}_{getattr(route.handler, '__name__', 'handler')}"
    found: dict[str, Any] = {
        "operationId": f"{id}_of_queue" if "/queues/" in route.pattern and "queue" not in id else id,
        "summary": summary,
        "x-scope": route.scope,
        "parameters": parameters,
        "responses": {
            **{str(status): _answer(operation, status, kind, schemas) for status, kind in operation.answers.items()},
            "default": {
                "description": "A refusal.",
                "content": {"application/problem+json": {"schema": schemas[_name(ProblemOut)]}},
            },
        },
    }
    if more.strip():
        found["description"] = " ".join(more.split())
    if operation.body:
        found["requestBody"] = {
            "required": operation.needs_body,
            "content": {media: {"schema": _schema(kind, schemas)} for media, kind in operation.body.items()},
        }
    return found


def _schema(kind: Any, schemas: Mapping[str, Any]) -> Any:
    if kind is None:
        return {"type": "string"}
    return kind if isinstance(kind, Mapping) else schemas[_name(kind)]


def _answer(operation: Operation, status: int, kind: Any, schemas: Mapping[str, Any]) -> dict[str, Any]:
    if kind is None:
        return {"description": "There is nothing to say."}
    content: dict[str, Any] = {operation.media: {"schema": _schema(kind, schemas)}}
    for media in operation.others:
        content[media] = {"schema": {"type": "string"}}
    return {"description": "Done.", "content": content}


def register(router: Router) -> None:
    """Add the route of the document."""

    @cache
    def made() -> dict[str, Any]:
        return document(router)

    async def openapi(request: Request) -> Answer:
        """The OpenAPI document of this server."""
        return json_answer(made())

    router.add("GET", "/openapi.json", openapi, "")
