"""Readers of the archive that a trim or an erasure overtakes: they are told, and are given nothing that is not so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import streamkit
from streamkit import EntriesRemoved, Gap, Record, Store

pytest.importorskip("deltalake")


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """A reader's store, and another process's; ten files of four transactions."""
    url = tmp_path.as_uri()
    with streamkit.connect(url) as one, streamkit.connect(url) as other:
        store = one.store(uuid4())
        for at in range(40):
            store.produce("a", "s", [Record(b"%d" % (at + 1))])
            if at % 4 == 3:
                store.archive("a")
        yield store, other.store(store.id)


def trim(store: Store, until: int) -> None:
    (offset,) = [entry.space_offset for entry in store.consume_space("a") if entry.sequence == until]
    store.trim("a", before=offset)
    store.maintain()


def test_a_reader_of_a_space_is_told_what_was_trimmed_in_the_middle(stores: tuple[Store, Store]) -> None:
    store, other = stores
    strict = store.consume_space("a")
    yielding, skipping = (store.consume_space("a", gaps=gaps) for gaps in ("yield", "skip"))
    assert [next(reader).sequence for reader in (strict, yielding, skipping)] == [1, 1, 1]
    trim(other, 31)
    told = list(yielding)
    gaps = [one for one in told if isinstance(one, Gap)]
    assert [(gap.segment, gap.last_sequence, gap.reason) for gap in gaps] == [("", 31, "trimmed")]
    assert [one.sequence for one in told if not isinstance(one, Gap)] == [2, 3, 4, *range(32, 41)]
    assert [entry.sequence for entry in skipping] == [2, 3, 4, *range(32, 41)]
    assert [next(strict).sequence for _ in range(3)] == [2, 3, 4]
    with pytest.raises(EntriesRemoved, match="to 31 were trimmed"):
        next(strict)
    assert [entry.sequence for entry in store.consume_space("a")] == list(range(32, 41))


def test_a_reader_that_goes_backwards_is_told_what_was_trimmed_in_the_middle(stores: tuple[Store, Store]) -> None:
    store, other = stores
    strict, skipping = (store.consume_space("a", reverse=True, gaps=gaps) for gaps in ("raise", "skip"))
    yielding = store.consume_space("a", reverse=True, gaps="yield")
    assert [next(reader).sequence for reader in (strict, skipping, yielding)] == [40, 40, 40]
    trim(other, 32)
    assert [entry.sequence for entry in skipping] == list(range(39, 32, -1))
    *rest, gap = yielding
    assert [entry.sequence for entry in rest] == list(range(39, 32, -1))
    assert (gap.first_sequence, gap.last_sequence, gap.reason) == (1, 32, "trimmed")
    assert [next(strict).sequence for _ in range(7)] == list(range(39, 32, -1))
    with pytest.raises(EntriesRemoved, match="to 32 were trimmed"):
        next(strict)


def test_a_reader_of_a_segment_is_told_what_was_trimmed_in_the_middle(stores: tuple[Store, Store]) -> None:
    store, other = stores
    strict, skipping = store.consume_segment("a", "s"), store.consume_segment("a", "s", gaps="skip")
    assert [next(reader).sequence for reader in (strict, skipping)] == [1, 1]
    trim(other, 31)
    assert [entry.sequence for entry in skipping] == [2, 3, 4, *range(32, 41)]
    with pytest.raises(EntriesRemoved, match="sequences 5 to 31 were trimmed"):
        list(strict)


def test_columns_are_never_fewer_rows_than_were_there(stores: tuple[Store, Store]) -> None:
    store, other = stores
    offset = next(iter(store.consume_space("a"))).space_offset
    reader = store.to_arrow("a")
    assert reader.read_next_batch()["sequence"].to_pylist() == [1, 2, 3, 4]
    trim(other, 31)
    with pytest.raises(EntriesRemoved, match="to 31 were trimmed"):
        reader.read_all()
    with pytest.raises(EntriesRemoved, match=r"to 31 were trimmed.*Without an offset"):
        store.to_arrow("a", offset=offset)
    assert store.to_arrow("a").read_all()["sequence"].to_pylist() == list(range(32, 41))
    offset = next(iter(store.consume_space("a"))).space_offset
    assert store.to_arrow("a", offset=offset).read_all().num_rows == 8


def test_what_is_erased_in_the_middle_is_no_row_without_a_payload(stores: tuple[Store, Store]) -> None:
    store, other = stores
    reader = store.to_arrow("a")
    assert reader.read_next_batch().num_rows == 4
    other.erase("a", "s", first=9, last=11)
    assert reader.read_all()["payload"].to_pylist() == [b"%d" % at for at in range(5, 41) if not 9 <= at <= 11]
