"""The ring and a connection that joins it: entries of a page do not come again, and entries that have left the ring are
read from the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from fix_serve import Served

from streamkit import Record
from streamkit.serve import Limits
from streamkit.serve.v1.cursors import SpaceCursor


def overlapping(served: Served, monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """Entries are written during the read of the first page, and the ring has them before the page does."""
    read, written = SpaceCursor._read, []

    def late(self: SpaceCursor, store: Any, offset: Any) -> Any:
        if not written:
            (ring,) = served.application.service.rings
            for number in range(batches):
                before = ring.end
                written.append(store.produce("s", f"segment {number}", [Record(b"%d" % number)]))
                while ring.end == before:
                    time.sleep(0.001)
        return read(self, store, offset)

    monkeypatch.setattr(SpaceCursor, "_read", late)


@pytest.mark.parametrize("partitions", [1, 4])
def test_an_entry_that_is_on_the_page_and_in_the_ring_comes_once(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    served = serve()
    served.store.create_space("s", partitions=partitions)
    overlapping(served, monkeypatch, 6)
    events = served.events("spaces/s/entries")
    found = [entry["segment"] for entry in events.entries(6)]
    served.store.produce("s", "last", [Record(b"-")])
    found += [entry["segment"] for entry in events.entries(1)]
    assert sorted(found) == ["last", *(f"segment {number}" for number in range(6))]


def test_what_has_left_the_ring_is_read_from_the_store(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(limits=Limits(ring_bytes=1))
    overlapping(served, monkeypatch, 6)
    events = served.events("spaces/s/entries")
    assert len(events.entries(6)) == 6
    served.store.produce("s", "last", [Record(b"-")])
    assert events.entries(1)[0]["segment"] == "last"
    assert served.application.service.rings.misses >= 1
