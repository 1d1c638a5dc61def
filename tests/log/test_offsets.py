"""Offsets: decoded exactly, refused if they are damaged or foreign, and without lost entries in pages."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkit
from streamkit import Entry, Gap, InvalidOffset, LexKey, Record, Store
from streamkit.backend import ABSENT
from streamkit.log.keys import CATALOG, HEAD, partition_key, space_key
from streamkit.log.offsets import Offset, encode_one
from streamkit.log.rows import Head, Settings, encode_row
from streamkit.names import partition_of
from streamkit.testing import ManualClock

U64 = st.integers(0, (1 << 64) - 1)
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
PAIRS = st.tuples(st.integers(1, (1 << 64) - 1), U64)
INCARNATIONS = st.one_of(st.just(b""), st.binary(min_size=8, max_size=8).filter(any))
OFFSETS = st.one_of(
    st.builds(
        Offset, NAMES, U64, st.just(0), st.lists(PAIRS, min_size=1, max_size=5).map(tuple), st.just(True), INCARNATIONS
    ),
    st.builds(
        Offset,
        NAMES,
        U64,
        st.integers(0, (1 << 32) - 1),
        st.lists(PAIRS, min_size=1, max_size=5).map(tuple),
        st.just(False),
        INCARNATIONS,
    ),
    st.builds(Offset.beginning, NAMES),
)
SOME = Offset("space", 1_700_000_000_000, 0, ((7, 3), (9, 0)), True, b"12345678").encode()


@given(OFFSETS)
def test_what_an_offset_holds_comes_back(offset: Offset) -> None:
    encoded = offset.encode()
    assert isinstance(encoded, LexKey)
    assert Offset.decode(encoded, offset.space) == offset
    assert Offset.decode(bytes(encoded), offset.space) == offset
    assert Offset.decode(json.loads(json.dumps(encoded.hex())), offset.space) == offset
    assert Offset.decode(encoded.hex().upper(), offset.space) == offset


@given(NAMES, U64, PAIRS, INCARNATIONS)
def test_the_offset_of_one_partition_is_the_same_by_the_shorter_way(
    space: str, timestamp: int, pair: tuple[int, int], incarnation: bytes
) -> None:
    offset = Offset(space, timestamp, 0, (pair,), True, incarnation)
    assert encode_one(space, timestamp, *pair, incarnation) == offset.encode()


@given(OFFSETS, st.data())
def test_any_flipped_bit_is_refused(offset: Offset, data: st.DataObject) -> None:
    encoded = offset.encode()
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    broken = bytearray(encoded)
    broken[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidOffset):
        Offset.decode(bytes(broken), offset.space)


def test_every_flipped_bit_and_every_cut_of_one_is_refused() -> None:
    for bit in range(len(SOME) * 8):
        broken = bytearray(SOME)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidOffset):
            Offset.decode(bytes(broken), "space")
    for cut in range(len(SOME)):
        for part in (SOME[:cut], SOME[cut + 1 :], SOME[:cut] + SOME[cut + 1 :]):
            with pytest.raises(InvalidOffset):
                Offset.decode(part, "space")
            with pytest.raises(InvalidOffset):
                Offset.decode(part.hex(), "space")


@given(st.binary(max_size=80))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidOffset):
        Offset.decode(data, "space")
    with pytest.raises(InvalidOffset):
        Offset.decode(b"OFS\0\1\0" + data + zlib.crc32(b"OFS\0\1\0" + data).to_bytes(4, "big"), "space")
    with pytest.raises(InvalidOffset):
        Offset.decode(b"OFS\0\2\0" + data + zlib.crc32(b"OFS\0\2\0" + data).to_bytes(4, "big"), "space")


@given(st.text(max_size=40))
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidOffset):
        Offset.decode(text, "space")


@given(OFFSETS, NAMES)
def test_the_offset_of_another_space_is_refused_by_name(offset: Offset, space: str) -> None:
    if space != offset.space:
        with pytest.raises(InvalidOffset, match="is of the space"):
            Offset.decode(offset.encode(), space)


@pytest.mark.parametrize("version", [0, 3, 255])
def test_a_later_format_is_refused_with_the_fix(version: int) -> None:
    body = SOME[:4] + bytes([version]) + SOME[5:-4]
    with pytest.raises(InvalidOffset, match=f"format version {version}, this release reads 2.*newer streamkit"):
        Offset.decode(body + zlib.crc32(body).to_bytes(4, "big"), "space")


@given(st.lists(st.tuples(U64, PAIRS), min_size=2, max_size=6))
def test_offsets_of_one_space_sort_as_what_they_hold(fields: list[tuple[int, tuple[int, int]]]) -> None:
    offsets = [Offset("space", timestamp, 0, (pair,)) for timestamp, pair in fields]
    keys = [offset.encode()[:-4] for offset in offsets]
    for (one, first), (two, second) in pairwise(zip(offsets, keys, strict=True)):
        assert (one < two) == (first < second)


@pytest.mark.parametrize(("made", "read"), [(1, 4), (4, 1), (4, 3)])
def test_an_offset_of_the_same_name_with_other_partitions_is_refused(subject: Subject, made: int, read: int) -> None:
    subject.store.create_space("space", partitions=made)
    subject.store.produce("space", "s", [Record(b"1")])
    offsets = [next(subject.store.consume_space("space")).space_offset]
    subject.client.delete_store(subject.id)
    other = subject.stranger()
    other.create_space("space", partitions=read)
    other.produce("space", "s", [Record(b"1")])
    for offset in offsets:
        with pytest.raises(InvalidOffset, match="another number of partitions"):
            list(other.consume_space("space", offset=offset))


def test_a_wrong_offset_is_refused_at_the_call(subject: Subject) -> None:
    """An offset is checked, also in a space that does not exist, and if nothing follows it."""
    subject.store.produce("space", "s", [Record(b"1")])
    offset = subject.store.peek("space", "s").space_offset
    with pytest.raises(InvalidOffset, match="is of the space 'space', not of 'other'"):
        subject.store.consume_space("other", offset=offset)
    with pytest.raises(InvalidOffset):
        subject.store.consume({"space": offset, "other": offset})
    with pytest.raises(InvalidOffset):
        subject.store.follow_space("space", offset=offset[:-1])
    assert list(subject.store.consume_space("space", offset=offset)) == []


def test_an_offset_leads_on_after_the_index_was_brought_forward(subject: Subject) -> None:
    for number in range(10):
        subject.store.produce("space", f"s{number % 3}", [Record(b"%d" % number)])
    entries = list(subject.store.consume_space("space"))
    subject.store.maintain()
    for at, entry in enumerate(entries):
        assert list(subject.stranger().consume_space("space", offset=entry.space_offset)) == entries[at + 1 :]


@settings(max_examples=60)
@given(st.data(), st.sampled_from(["memory", "remote"]), st.sampled_from([1, 2, 4]))
def test_pages_of_any_size_between_any_writes_hold_every_entry_once(
    data: st.DataObject, kind: str, partitions: int
) -> None:
    with streamkit.connect(f"memory://?remote={int(kind == 'remote')}&page=2") as client:
        store = client.store("7d9f2c1e-0000-4000-8000-000000000000")
        store.create_space("space", partitions=partitions)
        found: list[Entry] = []
        for _ in range(data.draw(st.integers(1, 12))):
            with store.transaction("space") as trx:
                tag = data.draw(st.integers(0, 3))
                for at in range(data.draw(st.integers(1, 3))):
                    trx.produce(f"{{{tag}}}{at}", [Record(b"x")] * data.draw(st.integers(1, 3)))
            if data.draw(st.booleans()):
                offset = found[-1].space_offset if found else None
                found += store.consume_space("space", offset=offset, limit=data.draw(st.integers(1, 5)))
            if data.draw(st.integers(0, 9)) == 0:
                store.maintain()
        found += store.consume_space("space", offset=found[-1].space_offset if found else None)
        wanted = list(store.consume_space("space"))
        assert sorted(map(_place, found)) == sorted(map(_place, wanted))
        assert all(one.space_offset < two.space_offset for one, two in pairwise(found))
        for partition in range(partitions):
            assert _of(partition, found) == _of(partition, wanted)


def _place(entry: Entry) -> tuple[str, int]:
    return entry.segment, entry.sequence


def _of(partition: int, entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.origin.partition == partition]


def test_the_offset_of_a_segments_entry_leads_on_in_a_space_of_many_partitions(subject: Subject) -> None:
    """The others go on by time, as far as they were known."""
    subject.store.create_space("space", partitions=4)
    for number in range(40):
        subject.store.produce("space", f"s{number % 8}", [Record(b"%d" % number)])
    entries = list(subject.store.consume_space("space"))
    for segment in ("s0", "s5"):
        for entry in subject.store.consume_segment("space", segment):
            at = entries.index(entry)
            assert list(subject.store.consume_space("space", offset=entry.space_offset)) == entries[at + 1 :]
            page = list(islice(subject.store.consume_space("space", offset=entry.space_offset), 3))
            if page:
                rest = list(subject.store.consume_space("space", offset=page[-1].space_offset))
                assert page + rest == entries[at + 1 :]


def _later(store: Store, segments: int, tag: bytes) -> None:
    for number in range(segments):
        store.produce("space", f"s{number}", [Record(tag)])


OFFSETS_OF_ONE_PARTITION: dict[str, Callable[[Store], LexKey]] = {
    "a write": lambda store: store.produce("space", "s3", [Record(b"mine")], idempotency_key="key").space_offset,
    "a status": lambda store: store.segment_status("space", "s3").space_offset,
    "a first result": lambda store: store.lookup("space", "first")["s3"].space_offset,  # type: ignore[index]
    "peek": lambda store: store.peek("space", "s3").space_offset,
    "peek again": lambda store: [store.peek("space", "s3") for _ in range(2)][1].space_offset,
    "a segment": lambda store: list(store.consume_segment("space", "s3"))[-1].space_offset,
    "a segment, backwards": lambda store: next(store.consume_segment("space", "s3", reverse=True)).space_offset,
    "a follower": lambda store: list(store.follow_segment("space", "s3", timeout=0))[-1].space_offset,
    "a subscriber": lambda store: next(store.subscribe_to_segment("space", "s3")).space_offset,
}


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("given", OFFSETS_OF_ONE_PARTITION)
@pytest.mark.parametrize("seen", [False, True], ids=["a fresh process", "one that has read the space"])
def test_nothing_that_came_after_an_offset_was_given_is_passed_over(
    make_url: Callable[[str], str], kind: str, given: str, seen: bool
) -> None:
    """The clock of the process that writes to the other partitions is equal, or an hour behind."""
    url, id = make_url(kind), uuid4()
    for behind in (3600.0, 0.0):
        clock, late = ManualClock(10_000.0), ManualClock(10_000.0 - behind)
        with streamkit.connect(url, clock=clock) as one, streamkit.connect(url, clock=late) as two:
            store, other = one.store(id), two.store(id)
            store.create_space("space", partitions=4)
            first = store.produce("space", "s3", [Record(b"first")], idempotency_key="first")
            _later(other, 12, b"before")
            if seen:
                assert len(list(store.consume_space("space"))) == 13
            offset = OFFSETS_OF_ONE_PARTITION[given](store)
            _later(other, 12, b"after")
            for reader in (store, other):
                rest = list(reader.consume_space("space", offset=offset))
                assert {e.segment for e in rest if e.payload == b"after"} == {f"s{number}" for number in range(12)}
                assert rest == list(reader.follow_space("space", offset=offset, timeout=0))
                assert sorted(map(_place, reader.consume_space("space", offset=offset, reverse=True))) == sorted(
                    map(_place, rest)
                )
            assert first.segment == "s3"
            one.delete_store(id)


def test_an_offset_that_names_nothing_for_other_partitions_passes_over_nothing_of_them(subject: Subject) -> None:
    """Earlier releases gave such offsets."""
    subject.store.create_space("space", partitions=4)
    _later(subject.store, 12, b"1")
    entries = list(subject.store.consume_space("space"))
    given = Offset.decode(subject.store.peek("space", "s3").space_offset, "space")
    alone = given._replace(positions=(given.positions[given.partition],)).encode()
    rest = list(subject.store.consume_space("space", offset=alone))
    assert [e for e in rest if e.origin.partition != given.partition] == [
        e for e in entries if e.origin.partition != given.partition
    ]
    assert all(
        e.trx.number >= given.positions[given.partition][0] for e in rest if e.origin.partition == given.partition
    )
    subject.store.produce("lone", "s", [Record(b"1")])
    lone = Offset("lone", 5, 0, ((1, 0), (1, 0)), False, b"12345678").encode()
    with pytest.raises(InvalidOffset, match="another number of partitions"):
        list(subject.store.consume_space("lone", offset=lone))
    ahead = given._replace(
        positions=tuple((99, 0) if at != given.partition else it for at, it in enumerate(given.positions))
    )
    with pytest.raises(InvalidOffset, match="beyond the end"):
        list(subject.store.consume_space("space", offset=ahead.encode()))


def _all_readers(store: Store, space: str, offset: LexKey) -> None:
    """Check that every reader refuses the offset."""
    for read in (
        lambda: store.consume_space(space, offset=offset),
        lambda: store.consume({space: offset}),
        lambda: store.follow_space(space, offset=offset, timeout=0),
    ):
        with pytest.raises(InvalidOffset):
            list(read())


@pytest.mark.parametrize("partitions", [1, 4])
def test_offsets_of_the_first_format_are_good_in_the_spaces_that_gave_them(subject: Subject, partitions: int) -> None:
    """A space of a release that knew no incarnations has none, and goes on to give such offsets."""
    settings = Settings(partitions)
    backend = subject.store._backend
    backend.put(bytes(CATALOG), bytes(space_key("space")), encode_row(space_key("space"), settings), ABSENT)
    backend.put(bytes(partition_key("space", 0)), bytes(HEAD), encode_row(HEAD, Head(settings)), ABSENT)
    for number in range(8):
        subject.store.produce("space", f"s{number % 5}", [Record(b"%d" % number)])
    subject.store.maintain()
    entries = list(subject.stranger().consume_space("space"))
    for at, entry in enumerate(entries):
        assert entry.space_offset[4] == 1
        assert list(subject.store.consume_space("space", offset=entry.space_offset)) == entries[at + 1 :]
    newer = subject.client.store(uuid4())
    newer.create_space("space", partitions=partitions)
    for number in range(8):
        newer.produce("space", f"s{number % 5}", [Record(b"%d" % number)])
    _all_readers(newer, "space", entries[0].space_offset)
    _all_readers(subject.store, "space", next(newer.consume_space("space")).space_offset)


def test_two_that_create_a_space_at_once_agree_on_its_incarnation(make_url: Callable[[str], str]) -> None:
    """The creator that loses at the catalog writes the head, with the settings of the catalog."""
    url = make_url("remote")
    with streamkit.connect(url) as one, streamkit.connect(url) as two:
        id = uuid4()
        backend = one.store(id)._backend
        put = backend.put

        def late(partition: bytes, *row: Any, **options: Any) -> Any:
            """The second creator does all its work between the first one's catalog row and its head."""
            done = put(partition, *row, **options)
            if partition == CATALOG:
                two.store(id).produce("space", "s", [Record(b"2")])
            return done

        backend.put = late  # type: ignore[method-assign]
        one.store(id).produce("space", "s", [Record(b"1")])
        with streamkit.connect(url) as third:
            entries = list(third.store(id).consume_space("space"))
            for store in (one.store(id), two.store(id), third.store(id)):
                assert list(store.consume_space("space")) == entries
                assert list(store.consume_space("space", offset=entries[0].space_offset)) == entries[1:]
                assert store.verify().ok


def test_an_offset_is_after_the_gaps_that_came_before_its_entry(subject: Subject) -> None:
    """Those of other partitions too: otherwise each page tells them again."""
    store = subject.store
    store.create_space("space", partitions=2)
    trimmed, whole = (next(f"s{n}" for n in range(50) if partition_of(f"s{n}", 2) == at) for at in range(2))
    for segment in (trimmed, trimmed, trimmed, whole, whole, whole):
        store.produce("space", segment, [Record(b"x")])
    store.trim("space", trimmed, keep_entries=0)
    found: list[Entry | Gap] = []
    offset = None
    for _ in range(3):
        page = list(store.consume_space("space", offset=offset, limit=1, gaps="yield"))
        found += page
        offset = page[-1].space_offset
    sequences = [item.last_sequence if isinstance(item, Gap) else item.sequence for item in found]
    assert [type(item) for item in found] == [Gap, Gap, Gap, Entry, Entry, Entry]
    assert sequences == [1, 2, 3, 1, 2, 3]


def test_an_offset_that_another_process_was_just_given_is_good(subject: Subject) -> None:
    """The end of the log is the one that is there, not the one that was seen last."""
    subject.store.produce("space", "s", [Record(b"1")])
    reader = subject.stranger()
    assert len(list(reader.consume_space("space"))) == 1
    subject.store.produce("space", "s", [Record(b"2")])
    offset = subject.store.end_offset("space")
    assert list(reader.consume_space("space", offset=offset)) == []


def test_an_offset_beyond_the_end_says_so(subject: Subject) -> None:
    subject.store.produce("space", "s", [Record(b"1")] * 3)
    last = Offset.decode(subject.store.end_offset("space"), "space")
    assert last.positions == ((1, 3),)
    for position in ((2, 1), (3, 0), (1 << 63, 0)):
        offset = last._replace(positions=(position,)).encode()
        with pytest.raises(InvalidOffset, match="beyond the end"):
            list(subject.store.consume_space("space", offset=offset))
    assert list(subject.store.consume_space("space", offset=last._replace(positions=((2, 0),)).encode())) == []
