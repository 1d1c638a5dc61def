"""Errors about damaged files of a partition: they name the space, and the next step."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from ..backend import owner_of
from ..errors import UNREADABLE, CorruptData, StreamkitError, remedy_for, repair_for
from .manifest import RunGone

__all__ = ["in_index", "in_log"]

P = ParamSpec("P")
T = TypeVar("T")


class _Files(Protocol):
    """The files of one partition."""

    @property
    def partition(self) -> bytes: ...


F = TypeVar("F", bound=_Files)
Method = Callable[Concatenate[F, P], T]


def _located(method: Method[F, P, T], remedy: Callable[[str], str]) -> Method[F, P, T]:
    @wraps(method)
    def call(self: F, /, *arguments: P.args, **options: P.kwargs) -> T:
        try:
            return method(self, *arguments, **options)
        except RunGone:
            raise  # the head tells whether it was merged
        except UNREADABLE as error:
            raise _named(error, self.partition, remedy) from error

    return call


def _named(error: StreamkitError, partition: bytes, remedy: Callable[[str], str]) -> StreamkitError:
    owner, text = owner_of(partition), str(error)
    if owner is None or text.startswith("space "):
        return error
    space, number = owner
    text = f"space {space!r}, partition {number}: {text}"
    return type(error)(f"{text}: {remedy(space)}" if isinstance(error, CorruptData) else text)


def in_index(method: Method[F, P, T]) -> Method[F, P, T]:
    """Decorate a method that reads runs: its errors say where the runs are, and how to repair the index."""
    return _located(method, repair_for)


def in_log(method: Method[F, P, T]) -> Method[F, P, T]:
    """Decorate a method that reads packs: its errors say where the packs are, and how to salvage the space."""
    return _located(method, remedy_for)
