"""The first line of a public docstring can be read alone."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

PUBLIC = (
    "streamkit",
    "streamkit.aio",
    "streamkit.backend",
    "streamkit.dcb",
    "streamkit.eventsourcing",
    "streamkit.groups",
    "streamkit.routes",
    "streamkit.run",
    "streamkit.testing",
    "streamkit.views",
)
CLAUSE = re.compile(r"(What|Of|Whether|How|That|Who|Which|Where|As)\b")
"""Words that begin a part of a sentence. A docstring that begins so leaves out the noun or the verb."""


def documented(module: str) -> Iterator[tuple[str, str]]:
    """The name and the docstring of each public class, function, method and property of a module."""
    names = import_module(module)
    yield module, names.__doc__ or ""
    for name in names.__all__:
        value: Any = getattr(names, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        yield f"{module}.{name}", value.__doc__ or ""
        for base in value.__mro__ if inspect.isclass(value) else ():
            if base.__module__.startswith("streamkit"):
                for member, kept in vars(base).items():
                    if not member.startswith("_"):
                        yield f"{module}.{name}.{member}", inspect.getdoc(kept) or ""


@pytest.mark.parametrize("module", PUBLIC)
def test_the_first_line_of_a_public_docstring_begins_with_a_noun_or_a_verb(module: str) -> None:
    refused = [f"{name}: {text.splitlines()[0]}" for name, text in documented(module) if CLAUSE.match(text)]
    assert not refused, "\n".join(refused)
