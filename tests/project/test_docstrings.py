"""Docstrings: every public name has one, and its first line can be read alone."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = tomllib.loads((ROOT / "infra" / "site" / "pages.toml").read_text())
PUBLIC = sorted(
    {part["module"] for page in PAGES["api"] for part in page["parts"]}
    | {"streamkit.clock", "streamkit_azure", "streamkit_local", "streamkit_memory", "streamkit_s3"}
)
"""The modules of the reference, the clock that a program may inject, and the backends."""
CLAUSE = re.compile(r"(What|Of|Whether|How|That|Who|Which|Where|As|Their|Those|They|These|The ones?)\b")
"""Words that begin a part of a sentence. A docstring that begins so leaves out the noun or the verb."""


def documented(module: str) -> Iterator[tuple[str, str]]:
    """The name and the docstring of each public class, function, method and property of a module."""
    names = import_module(module)
    yield module, names.__doc__ or ""
    for name in names.__all__:
        value: Any = getattr(names, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)) or not value.__module__.startswith("streamkit"):
            continue
        yield f"{module}.{name}", _own(value)
        for base in value.__mro__ if inspect.isclass(value) else ():
            if base.__module__.startswith("streamkit"):
                for member, kept in vars(base).items():
                    if not member.startswith("_") and _is_method(kept):
                        yield f"{module}.{name}.{member}", inspect.getdoc(getattr(value, member)) or _own(kept)


def _own(value: Any) -> str:
    """The docstring that its author wrote. Tuples and dataclasses without one get their signature from Python."""
    text: str = value.__doc__ or ""
    generated = inspect.isclass(value) and text.startswith(f"{value.__name__}(")
    return "" if generated else text


def _is_method(kept: Any) -> bool:
    return isinstance(kept, (property, cached_property, classmethod, staticmethod)) or inspect.isfunction(kept)


@pytest.mark.parametrize("module", PUBLIC)
def test_the_first_line_of_a_public_docstring_begins_with_a_noun_or_a_verb(module: str) -> None:
    refused = [f"{name}: {text.splitlines()[0]}" for name, text in documented(module) if CLAUSE.match(text)]
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_docstring(module: str) -> None:
    missing = [name for name, text in documented(module) if not text]
    assert not missing, "\n".join(missing)
