"""Values as HTML tables, for notebooks. Everything is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

__all__ = ["Shown", "html_table"]

_LONGEST = 1000
"""Characters of a value; the rest is left out."""
_MOST = 100
"""Rows of a table."""


def html_table(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """A table of names and values under a title."""
    body = [f"<tr><th style='text-align:left'>{_cell(name)}</th><td>{_cell(value)}</td></tr>" for name, value in rows]
    if len(body) > _MOST:
        body[_MOST:] = [f"<tr><td colspan='2'>… and {len(body) - _MOST:,} more</td></tr>"]
    return f"<table><caption style='text-align:left'><b>{_cell(title)}</b></caption>{''.join(body)}</table>"


def _cell(value: Any) -> str:
    from html import escape  # with its table of entities; no process but a notebook's needs it

    if isinstance(value, bytes):
        try:
            value = value[: 4 * _LONGEST].decode()
        except UnicodeDecodeError:
            value = repr(value[:_LONGEST])
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    text = str(value)
    return escape(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")


class Shown(msgspec.Struct, frozen=True):
    """A value that notebooks show as a table of its fields."""

    def _repr_html_(self) -> str:
        fields = ((name.replace("_", " "), getattr(self, name)) for name in self.__struct_fields__)
        return html_table(type(self).__name__, fields)
