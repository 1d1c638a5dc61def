"""The actions in the log of a Delta table, as typed values. A value of another type is a ValueError."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from ..decoders import convert, json_decoder

__all__ = ["Action", "Add", "Metadata", "Protocol", "Remove", "action_of_row", "actions_of", "column_types"]

Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A 64-bit integer: pyarrow and the log take no larger one."""
Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Vector(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A deletion vector. In a checkpoint each of its fields may be null: then the file has none."""

    storage_type: str | None = None
    path_or_inline_dv: str | None = None
    offset: int | None = None


class Add(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    size: Size
    stats: str | None = None
    data_change: bool = True
    deletion_vector: _Vector | None = None


class Remove(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    data_change: bool = True
    deletion_vector: _Vector | None = None


class Transaction(msgspec.Struct, frozen=True, rename="camel", gc=False):
    app_id: str
    version: Number


class Protocol(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Metadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    schema_string: str
    id: str | None = None
    name: str | None = None
    description: str | None = None
    partition_columns: list[str] | None = None
    created_time: Number | None = None
    configuration: dict[str, str] | None = None


class Sidecar(msgspec.Struct, frozen=True, gc=False):
    path: str


class Action(msgspec.Struct, frozen=True, rename={"metadata": "metaData", "info": "commitInfo"}):
    """One line of the log, or one row of a checkpoint. Actions of other kinds have no field."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txn: Transaction | None = None
    add: Add | None = None
    remove: Remove | None = None
    sidecar: Sidecar | None = None
    info: Any = None
    """Engines write into it whatever they like."""


class _Kind(msgspec.Struct, gc=False):
    type: str


class _Column(msgspec.Struct):
    name: str
    type: str | _Kind


class _Schema(msgspec.Struct):
    fields: list[_Column]


_line = json_decoder(Action)
_schema = json_decoder(_Schema)


def actions_of(text: str) -> Iterator[Action]:
    """The actions of a JSON file of the log, one a line."""
    # Names may hold other characters that separate lines. An empty log changes nothing; its missing actions are found
    # where the marks are compared with the store.
    for line in text.split("\n"):
        if line and not line.isspace():
            try:
                yield _line.decode(line)
            except RecursionError:
                raise ValueError("its JSON is nested too deeply") from None


def action_of_row(row: Mapping[str, Any]) -> Action:
    """The action of a row of a Parquet checkpoint."""
    return convert({kind: _plain(kind, body) for kind, body in row.items() if _is_there(body)}, Action)


def _is_there(body: Any) -> bool:
    """False for an action of another row: its value is null, or each of its fields is."""
    return body is not None and not (isinstance(body, dict) and all(value is None for value in body.values()))


def _plain(kind: str, body: Any) -> Any:
    """The configuration as a dictionary: Arrow has a map as a list of pairs."""
    pairs = body.get("configuration") if kind == "metaData" and isinstance(body, dict) else None
    if isinstance(pairs, list) and all(isinstance(pair, tuple) and isinstance(pair[0], str) for pair in pairs):
        return {**body, "configuration": dict(pairs)}
    return body


def column_types(schema: str) -> dict[str, str]:
    """The columns of a table's schema, each with Delta's name for its type."""
    try:
        columns = _schema.decode(schema).fields
    except RecursionError:
        raise ValueError("its schema is nested too deeply") from None
    return {column.name: column.type if isinstance(column.type, str) else column.type.type for column in columns}
