"""An interrupt (Ctrl-C, a handler that raises) anywhere in a route's own code: the next call of the process goes on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

import streamkit
from harness.interrupts import Interrupt
from streamkit import Record, routes


@pytest.mark.parametrize("what", ["catch_up", "wait_for"])
def test_after_an_interrupt_the_route_goes_on(what: str, covered: Callable[[str, int], None]) -> None:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        for at in count(1):
            store, interrupt = client.store(uuid4()), Interrupt(Path(routes.__file__).parent, at)
            end = store.produce("a", "s", [Record(b"1"), Record(b"2")]).space_offset
            with store, store.route("copy", "a", "b") as route:
                interrupt.within(route.catch_up if what == "catch_up" else lambda: route.wait_for(end))  # noqa: B023
                end = store.produce("a", "s", [Record(b"3")]).space_offset
                route.wait_for(end, timeout=20)
                found = [entry.payload for entry in store.consume_space("b")]
                assert found == [b"1", b"2", b"3"], f"interrupted at place {at}"
            if not interrupt.came:
                break
    covered("places at which a route was interrupted", at)
