"""Trims and retentions on archived entries: they keep as much as in a store of the same content without an archive."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from harness.foreign_engines import optimize_small, parted, replace, rows_of, shuffled
from harness.processes import Service
from streamkit import Gap, Record, Retention, SpaceFull, Store
from streamkit.archive.location import path_name
from streamkit.log.records import all_records

pytest.importorskip("deltalake")

SPACE = "a"
SEGMENTS = ("s0", "s1", "s2")


def mixed(path: Path) -> None:
    """Rewrite the table as another engine may: files overlap, have rows of all partitions, and share a transaction."""
    rows = shuffled(rows_of(path))
    replace(path, [rows.slice(0, rows.num_rows // 2), rows.slice(rows.num_rows // 2)])


def binary_views(path: Path) -> None:
    """Rewrite the table as another engine may, in files that overlap."""
    import pyarrow as pa

    rows = shuffled(rows_of(path))
    rows = rows.set_column(rows.schema.get_field_index("payload"), "payload", rows["payload"].cast(pa.binary_view()))
    replace(path, [rows.slice(0, 20), rows.slice(20)])


def kept_metadata(path: Path) -> None:
    """Rewrite a file as another engine may that copies the file's metadata, but not all of its rows."""
    import pyarrow.parquet as pq

    parts = []
    for file in sorted(path.glob("*.parquet")):
        rows = pq.read_table(file).sort_by("position")
        assert rows.schema.metadata
        cut = rows["number"].to_pylist().index(rows["number"][rows.num_rows // 2].as_py())
        parts += [part for part in (rows.slice(0, cut), rows.slice(cut)) if part.num_rows]
    replace(path, parts)


class Pair:
    """A store of which most or all is in the archive alone, and its twin, which has no archive."""

    def __init__(
        self,
        kind: str,
        partitions: int,
        hot: int,
        layout: Callable[[Path], None] | None = None,
        *,
        grace: bool = False,
        trimmed: int = 0,
    ) -> None:
        self._service = Service(kind)
        self.clock = self._service.clock
        self.clients: list[streamkit.Client] = []
        self.ids = ids = uuid4(), uuid4()
        self.stores = self.opened()
        self._at = 0
        for store in self.stores:
            store.create_space(SPACE, partitions)
        for part in range(3):
            self.write(8)
            self.stores[0].archive(SPACE, target_file_bytes=100 if part == 1 else 1 << 20)
        root = unquote(self.clients[0]._archive_root()[0].removeprefix("file://"))
        self.path = Path(root, str(ids[0]), path_name(SPACE))
        files = len(list(self.path.glob("*.parquet")))
        if layout is not None:
            layout(self.path)
        if grace:
            return
        self.clock.sleep(2 * 3600)
        self.stores[0].maintain()
        known = self.stores[0]._known(SPACE)
        assert known is not None
        for partition in known.partitions:
            partition.read_head()
            assert not list(all_records(partition, partition.packs, 1))
        if trimmed:
            for store in self.stores:
                store.trim(SPACE, keep_entries=trimmed)
                store.maintain()
            assert len(list(self.path.glob("*.parquet"))) < files
        self.write(hot)

    def opened(self) -> tuple[Store, Store]:
        client = self._service.process()[1]
        self.clients.append(client)
        return client.store(self.ids[0]), client.store(self.ids[1])

    def write(self, transactions: int) -> None:
        """Write transactions of one or several entries, of one or two segments, sometimes in the same millisecond."""
        for at in range(self._at, self._at + transactions):
            self.clock.sleep(10.0 * (at % 4 > 0))
            for store in self.stores:
                with store.transaction(SPACE) as trx:
                    records = [Record(b"%d" % at * (at % 5 + n)) for n in range(at % 3 + 1)]
                    trx.produce(SEGMENTS[at % 2], records)
                    if at % 6 == 5:
                        trx.produce(SEGMENTS[2], records)
                        trx.produce(SEGMENTS[1], records)
                    if at % 7 == 0:
                        trx.produce(SEGMENTS[2], records)
        self._at += transactions


def offset(store: Store, at: int) -> str:
    return list(store.consume_space(SPACE, limit=at + 1))[-1].space_offset


def seen(store: Store) -> dict[str, Any]:
    segments = [name for name in SEGMENTS if store.segment_status(SPACE, name).last_sequence]
    status = {name: store.segment_status(SPACE, name) for name in segments}
    size = store.size(SPACE)
    return {
        "space": [(entry.segment, entry.sequence, entry.payload) for entry in store.consume_space(SPACE)],
        "gaps": {
            name: [one for one in store.consume_segment(SPACE, name, min_sequence=2, gaps="yield") if type(one) is Gap]
            for name in segments
        },
        "segments": {name: [one.sequence for one in store.consume_segment(SPACE, name)] for name in segments},
        "status": {name: (one.first_sequence, one.last_sequence) for name, one in status.items()},
        "listed": list(store.get_segments(SPACE)),
        "size": (size.entries, size.segments, size.bytes),
    }


def trims() -> Iterator[Any]:
    for keep in (0, 1, 6, 17, 30, 47, 1000):
        yield pytest.param(lambda store, keep=keep: store.trim(SPACE, keep_entries=keep), id=f"{keep} entries")
    for keep in (0, 1, 20, 77, 150, 100_000):
        yield pytest.param(lambda store, keep=keep: store.trim(SPACE, keep_bytes=keep), id=f"{keep} bytes")
    for keep in (0, 1, 9, 1000):
        yield pytest.param(lambda store, keep=keep: store.trim(SPACE, "s0", keep_entries=keep), id=f"s0 {keep} entries")
    for keep in (0, 5, 40, 10_000):
        yield pytest.param(lambda store, keep=keep: store.trim(SPACE, "s1", keep_bytes=keep), id=f"s1 {keep} bytes")
    yield pytest.param(lambda store: store.trim(SPACE, "s0", before=11), id="s0 before")
    for at in (0, 20, 40):
        yield pytest.param(lambda store, at=at: store.trim(SPACE, before=offset(store, at)), id=f"before {at}")
    yield pytest.param(lambda store: store.trim(SPACE, max_age=7200 + 60), id="age")


def retentions() -> Iterator[Any]:
    for per in ("space", "segment"):
        least = 3 if per == "space" else 1  # a space's bound leaves each of three partitions a share
        bounds: list[dict[str, Any]] = [{"max_entries": most} for most in (least, 4, 18, 1000)]
        bounds += [{"max_bytes": most} for most in (least, 12, 50, 150, 100_000)]
        bounds += [{"max_entries": 12, "max_bytes": 60, "max_age": 7200 + 120.0}]
        for bound in bounds:
            name = " ".join(f"{key[4:]} {value}" for key, value in bound.items())
            yield pytest.param(Retention(**bound, per=per), id=f"{per} {name}")


LAYOUTS = [
    pytest.param(("memory", 1, 0), {}, id="one partition"),
    pytest.param(("remote", 1, 3), {}, id="some of it hot"),
    pytest.param(("remote", 3, 0), {}, id="three partitions"),
    pytest.param(("memory", 3, 3, mixed), {}, id="files that overlap"),
    pytest.param(("remote", 1, 3), {"trimmed": 36}, id="the first files are gone"),
    pytest.param(("memory", 1, 0, parted), {}, id="transactions in several files"),
    pytest.param(("memory", 1, 0, mixed), {}, id="files that overlap, one partition"),
    pytest.param(("memory", 1, 0, binary_views), {}, id="payloads of another type"),
    pytest.param(("remote", 3, 0, optimize_small), {}, id="another engine's files"),
    pytest.param(("remote", 3, 3, kept_metadata), {}, id="files that say what others held"),
]


@pytest.fixture
def pair(layout: tuple[Any, ...], further: dict[str, Any]) -> Iterator[Pair]:
    pair = Pair(*layout, **further)
    yield pair
    for client in pair.clients:
        client.close()


def over_layouts(names: str, values: Iterable[Any], start: int = 0) -> pytest.MarkDecorator:
    """Cases of (layout, value): every pair in an exhaustive run, else each value with one layout."""
    found = []
    for at, value in enumerate(values if EXHAUSTIVE else [*values][::2]):
        for number, layout in enumerate(LAYOUTS):
            if EXHAUSTIVE or (at + number + start) % len(LAYOUTS) == 0:
                id = f"{layout.id}-{value.id}"
                found.append(pytest.param(*layout.values, *value.values, id=id))
    return pytest.mark.parametrize(f"layout,further,{names}", found)


@over_layouts("trim", trims())
def test_a_trim_keeps_what_was_asked_for(pair: Pair, trim: Callable[[Store], Any]) -> None:
    there = seen(pair.stores[0])
    assert there == seen(pair.stores[1])
    reports = [trim(store) for store in pair.stores]
    assert reports[0] == reports[1]
    for stores in (pair.stores, pair.opened()):
        found, wanted = map(seen, stores)
        assert found == wanted
    for store in pair.stores:
        store.maintain()
    pair.write(3)
    found, wanted = map(seen, pair.opened())
    assert found == wanted


@over_layouts("retention", retentions(), 1)
def test_a_retention_keeps_what_it_says(pair: Pair, retention: Retention) -> None:
    for store in pair.stores:
        store.set_retention(SPACE, retention)
    for stores in (pair.stores, pair.opened()):
        found, wanted = map(seen, stores)
        assert found == wanted
    pair.write(2)
    found, wanted = map(seen, pair.stores)
    assert found == wanted
    for store in pair.stores:
        store.maintain()
    found, wanted = map(seen, pair.opened())
    *found_counts, found_bytes = found.pop("size")
    *counts, most = wanted.pop("size")
    assert (found_counts, found) == (counts, wanted)
    # In the log a frame counts as a whole, also if its first entries are gone.
    assert sum(len(payload) for *_, payload in found["space"]) <= found_bytes <= most


@over_layouts(
    "full",
    [
        pytest.param(Retention(**bounds, per=per, when_full="reject"), id=f"{per} {bounds}")
        for bounds in ({"max_entries": 7}, {"max_bytes": 60}, {"max_entries": 40, "max_bytes": 120})
        for per in ("space", "segment")
    ],
    2,
)
def test_there_is_as_much_room_after_a_trim(pair: Pair, full: Retention) -> None:
    rooms = []
    for store in pair.stores:
        store.trim(SPACE, keep_entries=6)
        store.trim(SPACE, "s1", keep_entries=1)
        store.set_retention(SPACE, full)
    for store in pair.opened():
        rooms.append([0, 0])
        for at, name in enumerate(SEGMENTS[:2]):
            with contextlib.suppress(SpaceFull):
                while rooms[-1][at] < 100:
                    store.produce(SPACE, name, [Record(b"12345")])
                    rooms[-1][at] += 1
    assert rooms[0] == rooms[1]
    assert max(rooms[0]) < 100


@over_layouts(
    "per,most",
    [pytest.param(per, most, id=f"{per} {most}") for per in ("space", "segment") for most in (20, 60, 120, 170)],
    3,
)
def test_what_was_erased_makes_a_retention_keep_no_less(pair: Pair, per: Any, most: int) -> None:
    """The archive does not know how many bytes it had."""
    for store in pair.stores:
        store.erase(SPACE, "s1", first=6, last=14)
        store.set_retention(SPACE, Retention(max_bytes=most, per=per))
    for _ in range(2):
        for stores in (pair.stores, pair.opened()):
            found, wanted = map(seen, stores)
            assert {*wanted["space"]} <= {*found["space"]}
            assert sum(len(payload) for *_, payload in found["space"]) <= most * (
                1 if per == "space" else len(SEGMENTS)
            )
        for store in pair.stores:
            store.maintain()


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize(
    "retention", [Retention(max_entries=17, per="space"), Retention(max_bytes=70, per="space"), Retention(max_bytes=30)]
)
def test_within_the_grace_the_log_tells_what_is_kept_where_the_archive_is_damaged(
    partitions: int, retention: Retention
) -> None:
    pair = Pair("remote", partitions, 0, grace=True)
    for path in pair.path.glob("*.parquet"):
        path.unlink()
    for store in pair.stores:
        store.set_retention(SPACE, retention)
    found, wanted = map(seen, pair.opened())
    assert found == wanted
    for client in pair.clients:
        client.close()


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_a_damaged_archive_is_read_as_far_back_as_the_log_has_let_go(kind: str, partitions: int) -> None:
    """The first files are whole, and only they hold their transactions. The later ones are gone."""
    pair = Pair(kind, partitions, 0)
    whole = set(pair.path.glob("*.parquet"))
    pair.write(30)
    pair.stores[0].archive(SPACE)
    for path in set(pair.path.glob("*.parquet")) - whole:
        path.unlink()
    early = [offset(store, 20) for store in pair.stores]
    entries, sizes = [{"max_entries": most} for most in (75, 40, 9)], [{"max_bytes": most} for most in (400, 90)]
    for bound in [{}, *entries, *sizes, {"max_age": 300}]:
        for per in ("space", "segment"):
            for store in pair.stores:
                store.set_retention(SPACE, Retention(**bound, per=per))  # type: ignore[arg-type]
            found, wanted = map(seen, pair.opened())
            assert found == wanted
    for store in pair.stores:
        store.set_retention(SPACE, Retention())
    for limit in ({"keep_entries": 80}, {"keep_bytes": 300}, {"max_age": 250}):
        reports, rest = [], []
        for store, at in zip(pair.stores, early, strict=True):
            reports.append(store.trim(SPACE, **limit))  # type: ignore[arg-type]
            rest.append([entry.payload for entry in store.consume_space(SPACE, offset=at, gaps="skip")])
        assert reports[0] == reports[1]
        assert rest[0] == rest[1]
        found, wanted = map(seen, pair.opened())
        assert found == wanted
    for client in pair.clients:
        client.close()


@pytest.mark.parametrize("bound", [{"max_entries": 7}, {"max_bytes": 60}], ids=str)
def test_what_leaves_the_log_while_it_is_looked_for_is_kept(
    bound: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkit.log import segment_view

    pair = Pair("remote", 1, 12)
    (store, twin), (other, _) = pair.opened(), pair.opened()
    for one in (other, twin):
        one.set_retention(SPACE, Retention(**bound))
    store.segment_status(SPACE, "s2")
    known = store._known(SPACE)
    assert known is not None
    pieces = segment_view._pieces_after
    moved = []

    def overtaken(*arguments: Any) -> Any:
        if not moved:
            moved.append(other.archive(SPACE).transactions)
            pair.clock.sleep(2 * 3600)
            other.maintain()
            known.partitions[0].read_head()
        return pieces(*arguments)

    monkeypatch.setattr(segment_view, "_pieces_after", overtaken)
    found = [entry.sequence for entry in store.consume_segment(SPACE, "s0")]
    assert moved[0] > 0
    assert found == [entry.sequence for entry in twin.consume_segment(SPACE, "s0")]
    for client in pair.clients:
        client.close()


@pytest.mark.parametrize("digit", [b"0", b"9"])
def test_a_number_of_bytes_in_a_file_that_is_damaged_is_not_believed(digit: bytes) -> None:
    pair = Pair("memory", 1, 0)
    for path in pair.path.glob("*.parquet"):
        data = path.read_bytes()
        at = re.search(rb"\b\d+ [0-9a-f]{8}\b", data[-4000:])
        assert at is not None
        begin = len(data) - min(len(data), 4000) + at.start()
        path.write_bytes(data[:begin] + digit + data[begin + 1 :])
    for keep in (200, 150, 77, 10):
        reports = [store.trim(SPACE, keep_bytes=keep) for store in pair.stores]
        assert reports[0] == reports[1]
    for client in pair.clients:
        client.close()


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("kind", ["memory", "remote"])
@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize(
    "trim",
    [
        lambda store: store.trim(SPACE, "s0", keep_entries=20),
        lambda store: store.trim(SPACE, "s0", keep_bytes=70),
        lambda store: store.trim(SPACE, keep_entries=40),
        lambda store: store.trim(SPACE, keep_bytes=160),
        lambda store: store.trim(SPACE, max_age=7200 + 100),
    ],
    ids=["s0 entries", "s0 bytes", "entries", "bytes", "age"],
)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_trim_that_another_one_overtakes_takes_nothing_back(
    kind: str, archived: bool, trim: Callable[[Store], Any], partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one removes more, and upkeep follows it, while this one has looked at so many headers and statuses."""
    from streamkit.log.view import LogView
    from streamkit.removing import trim as trimming

    for at in (1, 2, 3, 4, 6, 8) if EXHAUSTIVE else (2 * partitions,):
        pair = Pair(kind, partitions, 6)
        which = 0 if archived else 1
        store, other = pair.opened()[which], pair.opened()[which]
        list(store.get_segments(SPACE))
        known = store._known(SPACE)
        assert known is not None
        looks = 0

        def overtaken(
            place: Any, name: str, at: int = at, other: Store = other, known: Any = known, pair: Pair = pair
        ) -> None:
            real = getattr(place, name)

            def look(partition: Any, *arguments: Any) -> Any:
                nonlocal looks
                live = partition.log if isinstance(partition, LogView) else partition
                if live in known.partitions:
                    looks += 1
                    if looks == at:
                        other.trim(SPACE, keep_entries=7)
                        for _ in range(2):
                            pair.clock.sleep(2 * 3600)
                            other.maintain()
                        live.refresh()
                        live.read_head()
                return real(partition, *arguments)

            monkeypatch.setattr(place, name, look)

        overtaken(LogView, "header")
        overtaken(LogView, "known")
        overtaken(trimming, "first_where")
        trim(store)
        monkeypatch.undo()
        if looks < at:
            other.trim(SPACE, keep_entries=7)
        for one in (store, other, pair.opened()[which]):
            left = [(entry.segment, entry.sequence) for entry in one.consume_space(SPACE)]
            assert len(left) <= 7
            by_segment = [(name, entry.sequence) for name in SEGMENTS for entry in one.consume_segment(SPACE, name)]
            assert sorted(left) == sorted(by_segment)
            assert one.verify().ok
            one.maintain()
        for client in pair.clients:
            client.close()


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_a_trim_before_a_place_that_is_gone_has_nothing_to_do(kind: str) -> None:
    pair = Pair(kind, 1, 6)
    for store in pair.stores:
        early = offset(store, 3)
        store.trim(SPACE, keep_entries=5)
        for _ in range(2):
            pair.clock.sleep(2 * 3600)
            store.maintain()
        assert store.trim(SPACE, before=early).entries == 0
    assert seen(pair.stores[0]) == seen(pair.stores[1])
    for client in pair.clients:
        client.close()


def test_a_store_without_an_archive_needs_none_to_trim_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamkit.log.partition import Partition

    monkeypatch.setattr(Partition, "archive", lambda partition: pytest.fail("the archive was asked"))
    with streamkit.connect("memory://") as client:
        store = client.store(uuid4())
        store.produce(SPACE, "s", [Record(b"1")])
        bounds: list[dict[str, Any]] = [{"keep_entries": 10}, {"keep_bytes": 10}, {"max_age": 100}]
        for bound in bounds:
            assert store.trim(SPACE, **bound).entries == 0
        store.set_retention(SPACE, Retention(max_entries=10, max_bytes=10, max_age=10, per="space"))
        assert len(list(store.consume_space(SPACE))) == 1
        assert store.size(SPACE).entries == 1


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_what_leaves_the_archive_while_it_is_looked_for_is_not_taken_for_all(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkit.archive.read import Archive

    def overtaken(pair: Pair, store: Store, other: Store) -> None:
        known, real, done = store._known(SPACE), Archive.first_of, list[bool]()

        def first_of(archive: Any, view: Any, *arguments: Any) -> Any:
            found = real(archive, view, *arguments)
            if not done and known is not None and view.log in known.partitions:
                done.append(True)
                other.trim(SPACE, keep_entries=30)
                other.maintain()
            return found

        monkeypatch.setattr(Archive, "first_of", first_of)

    for trims in (True, False):
        pair = Pair(kind, 1, 5)
        (store, twin), (other, _) = pair.opened(), pair.opened()
        for one in (twin, other):
            one.trim(SPACE, keep_entries=48)
        list(store.consume_space(SPACE, limit=1))
        overtaken(pair, store, other)
        if trims:
            store.trim(SPACE, "s0", max_age=7200 + 160)
            twin.trim(SPACE, "s0", max_age=7200 + 160)
        else:
            store.segment_status(SPACE, "s0")
        monkeypatch.undo()
        twin.trim(SPACE, keep_entries=30)
        for one in (store, pair.opened()[0]):
            assert seen(one) == seen(twin)
        other.trim(SPACE, keep_entries=22)
        twin.trim(SPACE, keep_entries=22)
        for one in (store, pair.opened()[0]):
            assert seen(one) == seen(twin)
        for client in pair.clients:
            client.close()


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_a_wider_retention_of_which_the_head_tells_keeps_more(kind: str) -> None:
    service = Service(kind)
    with service.process()[1] as one, service.process()[1] as other:
        store = one.store(uuid4())
        behind = other.store(store.id)
        for at in range(50):
            store.produce(SPACE, "s", [Record(b"%d" % at)])
        store.set_retention(SPACE, Retention(max_entries=5, per="space"))
        assert len(list(behind.consume_space(SPACE))) == 5
        store.set_retention(SPACE, Retention(max_entries=40, per="space"))
        store.maintain()
        known = behind._known(SPACE)
        assert known is not None
        known.partitions[0].read_head()
        assert len(list(behind.consume_space(SPACE))) == 40
        behind.maintain()
        assert len(list(store.consume_space(SPACE))) == 40


@pytest.mark.parametrize("bound", [{"max_age": 7200 + 150.0}, {"max_entries": 20}], ids=str)
def test_there_is_as_much_room_after_a_trim_behind_a_retention(bound: dict[str, Any]) -> None:
    pair = Pair("remote", 1, 0)
    for store in pair.stores:
        store.set_retention(SPACE, Retention(**bound))
        first, last = (getattr(store.segment_status(SPACE, "s0"), name) for name in ("first_sequence", "last_sequence"))
        assert first > 1
        store.trim(SPACE, "s0", before=(first + last) // 2)
        store.set_retention(SPACE, Retention())
    assert seen(pair.stores[0]) == seen(pair.stores[1])
    for client in pair.clients:
        client.close()


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("kind", ["memory", "remote"])
@pytest.mark.parametrize("archived", [False, True])
def test_a_segment_trim_that_another_one_overtakes_gives_nothing_back(
    kind: str, archived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkit.removing import trim as trimming

    service = Service(kind)
    with service.process()[1] as one, service.process()[1] as two:
        other = one.store(uuid4())
        for _ in range(12):
            service.clock.sleep(10)
            other.produce(SPACE, "s", [Record(b"x")] * 2)
        if archived:
            other.archive(SPACE)
        service.clock.sleep(3 * 3600)
        other.maintain()
        real = trimming.first_where

        def overtaken(partition: Any, *arguments: Any) -> Any:
            monkeypatch.undo()
            other.trim(SPACE, keep_entries=6)
            for _ in range(2):
                service.clock.sleep(3 * 3600)
                other.maintain()
            partition.log.refresh()
            return real(partition, *arguments)

        monkeypatch.setattr(trimming, "first_where", overtaken)
        two.store(other.id).trim(SPACE, "s", keep_entries=12)
        for store in (two.store(other.id), other):
            assert [entry.sequence for entry in store.consume_segment(SPACE, "s")] == list(range(19, 25))
            assert [entry.sequence for entry in store.consume_space(SPACE)] == list(range(19, 25))
