"""Everything that Client and Store offer is here, under the same name, with the same parameters."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator

import pytest

import streamkit
import streamkit.aio

PAIRS = [
    (streamkit.Client, streamkit.aio.AsyncClient),
    (streamkit.Store, streamkit.aio.AsyncStore),
    (streamkit.Transaction, streamkit.aio.AsyncTransaction),
    (streamkit.Lease, streamkit.aio.AsyncLease),
]


def members() -> Iterator[object]:
    for plain, twin in PAIRS:
        for name in sorted(vars(plain)):
            if not name.startswith("_"):
                yield pytest.param(plain, twin, name, id=f"{plain.__name__}.{name}")


@pytest.mark.parametrize(("plain", "twin", "name"), list(members()))
def test_a_public_name_is_there_with_the_same_parameters(plain: type, twin: type, name: str) -> None:
    assert hasattr(twin, name), f"{twin.__name__} lacks {name}"
    here, there = getattr(plain, name), getattr(twin, name)
    if not callable(here):
        return
    mine, theirs = inspect.signature(here).parameters, inspect.signature(there).parameters
    assert list(mine) == list(theirs)
    for parameter in mine.values():
        twins = theirs[parameter.name]
        assert (parameter.kind, parameter.default) == (twins.kind, twins.default), parameter
    assert there.__doc__, f"{twin.__name__}.{name} says nothing"


def test_connect_takes_what_the_other_takes_and_says_how_many_threads() -> None:
    here = dict(inspect.signature(streamkit.connect).parameters)
    there = dict(inspect.signature(streamkit.aio.connect).parameters)
    assert there.pop("threads").default == 8
    assert {name: (p.kind, p.default) for name, p in here.items()} == {
        name: (p.kind, p.default) for name, p in there.items()
    }


def test_streamkit_itself_imports_no_asyncio() -> None:
    program = "import sys, streamkit; assert 'asyncio' not in sys.modules, 'asyncio'"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
