"""JSON Schemas of a registry's types, and the check that a later registry reads the entries of an earlier one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from .registry import Registry, Type

__all__ = ["breaking_changes", "schema_of", "schemas_of"]

_BOUNDS = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "uniqueItems",
    "format",
    "contentEncoding",
    "const",
    "prefixItems",
)
"""A payload of an earlier schema may fail each of these in a later one, unless it was the same before."""


_JSON = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", list: "array"}
_Seen = frozenset[tuple[int, int]]
"""Pairs of schemas that are being compared: a type may contain itself."""


class _Schemas(NamedTuple):
    """The documents that references of an earlier and a later schema point into."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]


def schemas_of(registry: Registry[Any]) -> dict[str, Any]:
    """The types by name: each with its version and its JSON Schema. Keep it with a release, as JSON."""
    return {"types": {made.name: {"version": made.version, "schema": schema_of(made)} for made in registry}}


def breaking_changes(before: Mapping[str, Any], registry: Registry[Any]) -> list[str]:
    """The reasons why the registry would fail to read entries of the types of `before`, a line for each.

    `before` is a result of `schemas_of`. ValueError if it is something else.
    """
    try:
        earlier = {name: (told["version"], told["schema"]) for name, told in before["types"].items()}
    except (AttributeError, KeyError, TypeError):
        raise ValueError("types of a release are a JSON document, as `streamkit types export` prints it") from None
    now = {made.name: made for made in registry}
    found = []
    for name, (version, schema) in sorted(earlier.items()):
        made = now.get(name)
        if made is None:
            found.append(f"the type {name!r} was removed: keep it while the log has entries of it")
        elif version > made.version:
            found.append(f"the type {name!r} has version {made.version}, after version {version}: versions only grow")
        elif version == made.version:
            after = schema_of(made)
            for change in _changes(schema, after, _Schemas(schema, after), name, frozenset()):
                found.append(f"{change}: raise the version of {name!r} from {version}, and upcast the earlier one")
    return found


def schema_of(made: Type[Any]) -> dict[str, Any]:
    """The JSON Schema of a type's payloads."""
    kind: Any = made.kind
    schema: dict[str, Any] = kind.model_json_schema() if made.is_pydantic else msgspec.json.schema(kind)
    return schema


def _changes(before: Any, after: Any, documents: _Schemas, path: str, seen: _Seen) -> Iterator[str]:
    """Why a value of the schema `before` may not fit the schema `after`."""
    before, after = _resolved(before, documents.before), _resolved(after, documents.after)
    pair = (id(before), id(after))
    if pair in seen:
        return
    seen |= {pair}
    if "anyOf" in before or "anyOf" in after:
        for choice in before.get("anyOf", [before]):
            kinds = after.get("anyOf", [after])
            if all(any(True for _ in _changes(choice, kind, documents, path, seen)) for kind in kinds):
                yield f"{path} is no longer {_text(_resolved(choice, documents.before))}"
        return
    kinds, taken = _types(before), _types(after)
    if taken is not None and (kinds is None or not kinds <= taken):
        yield f"{path} was {_text(before)} and is {_text(after)}"
        return
    if "enum" in after and not set(before.get("enum", [object()])) <= set(after["enum"]):
        yield f"{path} takes fewer values"
    for bound in _BOUNDS:
        if bound in after and after[bound] != before.get(bound):
            yield f"{path} has another {bound}"
    if "items" in after and isinstance(after["items"], dict):
        yield from _changes(before.get("items", {}), after["items"], documents, f"{path}[]", seen)
    yield from _changed_fields(before, after, documents, path, seen)


def _changed_fields(
    before: dict[str, Any], after: dict[str, Any], documents: _Schemas, path: str, seen: _Seen
) -> Iterator[str]:
    fields, later = before.get("properties", {}), after.get("properties", {})
    for name in after.get("required", []):
        if name not in before.get("required", []):
            yield f"{path}.{name} is required, and earlier payloads may lack it"
    for name, field in fields.items():
        if name in later:
            yield from _changes(field, later[name], documents, f"{path}.{name}", seen)
        elif after.get("additionalProperties") is False:
            yield f"{path}.{name} is refused"
    rest = after.get("additionalProperties")
    if isinstance(rest, dict):
        yield from _changes(before.get("additionalProperties") or {}, rest, documents, f"{path}.*", seen)


def _resolved(schema: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = document.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {})
    return schema if isinstance(schema, dict) else {}


def _types(schema: dict[str, Any]) -> frozenset[str] | None:
    """The JSON types of a schema, None for any. An integer is a number."""
    kinds = schema.get("type")
    if kinds is None and "enum" in schema:
        kinds = [_JSON.get(type(value), "object") for value in schema["enum"]]
    if kinds is None:
        return None
    names = frozenset([kinds] if isinstance(kinds, str) else kinds)
    return names | {"integer"} if "number" in names else names


def _text(schema: dict[str, Any]) -> str:
    kinds = schema.get("type", "anything")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)
