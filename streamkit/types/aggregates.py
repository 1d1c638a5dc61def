"""The events of an aggregate as types: one definition of their versions for aggregates and for all readers."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from inspect import Parameter
from typing import Any, Literal

import msgspec

from ..arguments import check_subclass
from ..eventsourcing.aggregate import Aggregate, EventType, event_types
from .registry import Registry, Type

__all__ = ["types_of"]


def types_of(aggregate: type[Aggregate], *, codec: Literal["json", "msgpack"] = "json") -> Registry[Any]:
    """A registry of the events of an aggregate, by the versions and upcasters of its `@event` methods.

    The value of an entry has the arguments of the event as attributes. `codec`: the repository's codec. The registry is
    for reading: the aggregate writes. ValueError for an event with `**arguments`, which has no fields.
    """
    check_subclass("types_of takes", aggregate, Aggregate)
    return Registry([_type_of(made, codec) for made in event_types(aggregate).values()])


def _type_of(made: EventType, codec: Literal["json", "msgpack"]) -> Type[Any]:
    fields: list[Any] = []
    for parameter in list(made.signature.parameters.values())[1:]:
        if parameter.kind is Parameter.VAR_KEYWORD:
            raise ValueError(
                f"{made.function.__qualname__} takes **{parameter.name}: such an event has no fixed fields"
            )
        hint = made.types.get(parameter.name, Any)
        if parameter.default is Parameter.empty:
            fields.append((parameter.name, hint))
        else:
            default: Any = msgspec.field(default_factory=partial(deepcopy, parameter.default))
            fields.append((parameter.name, hint, default))
    kind = msgspec.defstruct(made.name, fields, frozen=True, kw_only=True, module=made.function.__module__)
    return Type(kind, made.name, version=made.version, upcast=made.upcast, codec=codec)
