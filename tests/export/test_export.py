"""Exports: the content of a file. An import of it gives the same space, however often it was stopped."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID, uuid4

import pytest
from fix_covered import sample
from fix_places import url_in

import streamkit
from streamkit import (
    Client,
    CorruptData,
    PermanentError,
    Record,
    Retention,
    SpaceExists,
    Store,
    Unavailable,
    UnsupportedVersion,
)
from streamkit.backend import Driver
from streamkit.export import ExportReport, export_store, import_store, lines, target, target_partition
from streamkit.testing import Crash, Fault, FaultyDriver, ManualClock, Plan
from streamkit_memory import MemoryDriver


def open_store(url: str, id: UUID | None = None) -> Store:
    return streamkit.connect(url).store(id or uuid4())


def client_of(driver: Driver, clock: ManualClock | None = None) -> Client:
    return Client("memory://", driver, 30.0, None, 64 << 20, clock or ManualClock(time.time()))


def new_store(*, remote: bool = False) -> Store:
    return open_store(f"memory://{uuid4().hex}" + ("?remote=1" if remote else ""))


def fill(store: Store) -> None:
    """Spaces with all that an export has to carry."""
    for at in range(40):
        records = [Record(b'{"a": %d}' % at, {"b": "x", "a": "é"}), Record(b"\xff\x00"), Record(b"text \n %d" % at)]
        store.produce("plain", f"s-{at % 7}", records, idempotency_key=f"k{at}" if at % 10 == 0 else None)
    store.create_space("parts", partitions=3, idempotency_window=float("inf"))
    for at in range(30):
        store.produce("parts", f"segment {at % 11}", [Record(b"" if at % 2 else b' {"spaces": 1} ')])
    store.produce("large", "b", [Record(os.urandom(30_000))])
    for at in range(20):
        with store.transaction("removed") as trx:
            trx.produce(f"x{at % 3}", [Record(b"%d-%d" % (at, number)) for number in range(3)])
            trx.produce(f"y{at % 2}", [Record(b"%d" % at)])
    store.trim("removed", "x1", before=4)
    store.erase("removed", "x0", first=5, last=9)
    store.erase("removed", "y1", first=8)
    store.delete_segment("removed", "x2")
    store.trim("removed", keep_entries=50)
    store.set_retention("removed", Retention(max_entries=10_000))
    store.produce("removed", "z", [Record(b"a")])
    store.erase("removed", "z")
    store.produce("gone", "z", [Record(b"a")])
    store.delete_segment("gone", "z")
    store.trim("gone", keep_entries=0)


def reads(store: Store) -> dict[str, list[object]]:
    """All that a reader sees of a store."""
    found: dict[str, list[object]] = {}
    for space in store.get_spaces():
        entries = list(store.consume_space(space, gaps="skip"))
        found[space] = [store.space_settings(space), *entries, *(entry.space_offset for entry in entries)]
        for name in store.get_segments(space):
            found[f"{space}/{name}"] = list(store.consume_segment(space, name, gaps="skip"))
    return found


def exported(store: Store, folder: Path) -> bytes:
    path = folder / uuid4().hex
    export_store(store, path)
    return path.read_bytes()


@pytest.mark.parametrize("remote", [False, True])
def test_an_imported_space_reads_like_the_exported_one_and_exports_the_same_bytes(tmp_path: Path, remote: bool) -> None:
    source, target = new_store(), new_store(remote=remote)
    fill(source)
    report = export_store(source, tmp_path / "one")
    assert import_store(target, tmp_path / "one").entries == report.entries > 100
    assert exported(target, tmp_path) == (tmp_path / "one").read_bytes()
    assert reads(target) == reads(source)
    assert target.verify().ok
    for space in source.get_spaces():
        assert not list(target.consume_space(space, offset=source.end_offset(space)))
    assert target.lookup("plain", "k10") == source.lookup("plain", "k10") != None  # noqa: E711
    for store in (source, target):
        assert store.produce("removed", "x2", [Record(b"next")]).last_sequence == 19
        assert store.produce("gone", "z", [Record(b"next")]).last_sequence == 2
    target.maintain()
    assert target.verify().ok


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_a_large_record_after_small_ones_can_be_imported(tmp_path: Path, remote: bool) -> None:
    """The large record goes to storage before the small ones, which are collected."""
    store, other = new_store(), new_store(remote=remote)
    for size in 10, 5 << 20, 10, 20_000, 10:
        store.produce("a", "s", [Record(os.urandom(size))])
    export_store(store, tmp_path / "export")
    import_store(other, tmp_path / "export")
    assert reads(other) == reads(store)
    assert other.verify().ok
    assert other.produce("a", "s", [Record(b"more")]).last_sequence == 6


def test_an_export_of_an_archived_space_is_that_of_the_log(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    store = open_store((tmp_path / "root").as_uri())
    fill(store)
    before = exported(store, tmp_path)
    for space in ("plain", "removed"):
        store.archive(space)
    assert exported(store, tmp_path) == before


def test_a_file_is_json_lines_that_say_what_was_written(tmp_path: Path) -> None:
    store = new_store()
    payload = b'{"total" : 10, "nested": {"a": [1, 2]}}'
    store.produce("orders", "o", [Record(payload, {"type": "Placed"}), Record(b"caf\xc3\xa9"), Record(b"\xff")])
    rows = [json.loads(line) for line in exported(store, tmp_path).splitlines()]
    assert [row["type"] for row in rows] == ["export", "space", "partition", "entry", "entry", "entry", "end"]
    first, second, third = rows[3:6]
    entry = store.peek("orders", "o")
    assert (first["sequence"], first["timestamp"], first["metadata"]) == (1, entry.timestamp, {"type": "Placed"})
    assert first["trx"] == {"id": str(entry.trx.id), "node": str(entry.trx.node), "number": 1}
    assert (first["encoding"], first["payload"]) == ("json", json.loads(payload))
    assert (second["encoding"], second["payload"]) == ("text", "café")
    assert (third["encoding"], third["payload"]) == ("base64", "/w==")


@pytest.mark.parametrize("partitions", [1, 4])
def test_until_leaves_partitions_empty_that_were_written_later(tmp_path: Path, partitions: int) -> None:
    clock = ManualClock(time.time())
    source, target = client_of(MemoryDriver(uuid4().hex), clock).store(uuid4()), new_store()
    for space in ("early", "late"):
        source.create_space(space, partitions)
    moment = source.produce("early", "a", [Record(b"1")]).last_timestamp
    clock.sleep(1)
    for segment in "abcdefgh":
        source.produce("early", segment, [Record(b"2")])
        source.produce("late", segment, [Record(b"2")])
    assert export_store(source, tmp_path / "one", until=moment).entries == 1
    assert import_store(target, tmp_path / "one").entries == 1
    assert [entry.payload for entry in target.consume_space("early")] == [b"1"]
    assert list(target.consume_space("late")) == []
    assert target.produce("late", "a", [Record(b"3")], expected_sequence=0).last_sequence == 1
    assert target.verify().ok


@pytest.mark.parametrize("until", [-1, True, 1.5, "1", 1 << 63, 10**400])
def test_a_time_that_is_none_is_refused(tmp_path: Path, until: Any) -> None:
    with streamkit.connect("memory://") as client, pytest.raises(ValueError, match="until is a time in ms"):
        export_store(client.store(uuid4()), tmp_path / "one", until=until)
    assert not list(tmp_path.iterdir())


def test_until_leaves_out_what_came_later(tmp_path: Path) -> None:
    clock = ManualClock(time.time())
    store = client_of(MemoryDriver(uuid4().hex), clock).store(uuid4())
    for at in range(10):
        store.produce("s", "a", [Record(b"%d" % at)])
        clock.sleep(1)
    middle = next(entry for entry in store.consume_space("s") if entry.sequence == 5)
    store.erase("s", "a", first=2, last=2)
    export_store(store, tmp_path / "one", until=middle.timestamp)
    target = new_store()
    import_store(target, tmp_path / "one")
    assert [entry.sequence for entry in target.consume_space("s")] == [1, 3, 4, 5]
    assert target.produce("s", "a", [Record(b"again")]).last_sequence == 6
    store.trim("s", keep_entries=1)
    with pytest.raises(PermanentError, match="trimmed or have expired"):
        export_store(store, tmp_path / "two", until=middle.timestamp)


# -- stopped --------------------------------------------------------------------------------------------------------


class Stop(Exception):
    pass


@pytest.mark.parametrize("stops", range(4))
def test_an_export_that_is_stopped_goes_on_and_has_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: int
) -> None:
    monkeypatch.setattr(lines, "CHECKPOINT_LINES", 25)
    store = new_store()
    fill(store)
    whole, target = exported(store, tmp_path), tmp_path / "two"

    def stopped(after: int) -> None:
        calls = itertools.count()

        def stop(entries: int) -> None:
            if next(calls) == after:
                raise Stop

        with suppress(Stop):
            export_store(store, target, progress=stop)

    for _ in range(stops):
        stopped(1)
        part = tmp_path / "two.part"
        with part.open("ab") as file:
            file.write(b'{"type":"entry","segm')  # a line that was not written to its end
    store.produce("plain", "later", [Record(b"x")])
    if stops:
        # Writers went on: a space whose export begins later has later entries, and an earlier one has not.
        report = export_store(store, target)
        assert report.resumed > 0
        assert not part.exists()
    else:
        export_store(store, target)
    assert len(target.read_bytes()) >= len(whole)
    other = new_store()
    import_store(other, target)
    assert list(other.consume_space("parts")) == list(store.consume_space("parts"))


def test_an_export_does_not_go_on_after_a_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHECKPOINT_LINES", 25)
    store = new_store()
    fill(store)

    def stop(entries: int) -> None:
        if entries > 50:
            raise Stop

    with suppress(Stop):
        export_store(store, tmp_path / "one", spaces=["plain"], progress=stop)
    with pytest.raises(PermanentError, match="other spaces"):
        export_store(store, tmp_path / "one")
    store.erase("plain", "s-1", first=1, last=1)
    with pytest.raises(PermanentError, match="has changed since"):
        export_store(store, tmp_path / "one", spaces=["plain"])


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_an_export_does_not_go_on_after_an_erasure_in_what_it_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool, partitions: int
) -> None:
    """The erasure is in another space or partition than the one where the export was stopped."""
    monkeypatch.setattr(lines, "CHECKPOINT_LINES", 5)
    store = new_store(remote=remote)
    store.create_space("one", partitions)
    for at in range(30):
        store.produce("one", f"s-{at}", [Record(b"x")])
    store.produce("two", "s", [Record(b"x")] * 20)
    store.erase("one", "s-1")  # before the export: no reason to refuse it

    def stop(entries: int) -> None:
        if entries > 35:
            raise Stop

    def export() -> ExportReport:
        return export_store(store, tmp_path / "one", spaces=["one", "two"])

    with suppress(Stop):
        export_store(store, tmp_path / "one", spaces=["one", "two"], progress=stop)
    store.trim("one", "s-2", keep_entries=0)  # it was exported as of a moment before
    (tmp_path / "one.part").rename(tmp_path / "kept")
    (tmp_path / "one.part").write_bytes((tmp_path / "kept").read_bytes())
    assert export().resumed
    (tmp_path / "one").unlink()
    (tmp_path / "kept").rename(tmp_path / "one.part")
    store.erase("one", "s-3")
    with pytest.raises(PermanentError, match="'one' has changed since"):
        export()
    store.delete_space("one")
    with pytest.raises(PermanentError, match="no space 'one'"):
        export()
    store.produce("one", "s-4", [Record(b"new")])
    with pytest.raises(PermanentError, match="'one' has changed since"):
        export()


@pytest.mark.parametrize("name", ["one", "one.parquet"])
def test_two_exports_to_one_path_do_not_share_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(lines, "CHECKPOINT_LINES", 25)
    store, target = new_store(), tmp_path / name
    fill(store)
    refused = []

    def beside(entries: int) -> None:
        with pytest.raises(PermanentError, match="another export writes"):
            export_store(store, target)
        refused.append(entries)

    report = export_store(store, target, progress=beside)
    assert refused
    assert [path.name for path in tmp_path.iterdir()] == [name]
    other = new_store()
    assert import_store(other, target).entries == report.entries


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_ANSWER])
@pytest.mark.parametrize("remote", [False, True])
def test_an_import_that_is_stopped_anywhere_shows_nothing_and_is_completed_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool, fault: Fault, covered: Callable[[str, int], None]
) -> None:
    monkeypatch.setattr(target_partition, "_TRANSACTIONS", 15)
    source = new_store()
    fill(source)
    whole = exported(source, tmp_path)
    path = tmp_path / "file"
    path.write_bytes(whole)

    def run(root: str, id: UUID, plan: Plan) -> int:
        driver = FaultyDriver(MemoryDriver(root, remote=remote), plan)
        with suppress(Crash):
            import_store(client_of(driver).store(id), path)
        return sum(call.kind in ("put", "delete") for call in driver.faults.trace)

    def seen(root: str, id: UUID) -> dict[str, list[object]]:
        return reads(client_of(MemoryDriver(root, remote=remote)).store(id))

    expected = reads(source)
    calls = run(uuid4().hex, uuid4(), Plan())
    points = list(sample(range(calls), 9))
    for kind, at in [("put", at) for at in points]:
        root, id = uuid4().hex, uuid4()
        run(root, id, Plan.at(at, fault, kind=kind))
        there = seen(root, id)
        assert all(there[name] == expected[name] for name in there)
        run(root, id, Plan())
        store = client_of(MemoryDriver(root, remote=remote)).store(id)
        assert exported(store, tmp_path) == whole, at
    covered("points at which an import was stopped", len(points))


# -- refused --------------------------------------------------------------------------------------------------------


def damaged(data: bytes, how: str) -> bytes:
    rows = data.splitlines(keepends=True)
    middle = next(at for at, row in enumerate(rows) if b'"entry"' in row)
    match how:
        case "cut":
            return data[:-30]
        case "no end":
            return b"".join(rows[:-1])
        case "line":
            return data.replace(b'"sequence":2', b'"sequence":3', 1)
        case "order":
            rows[middle], rows[middle + 1] = rows[middle + 1], rows[middle]
            return b"".join(rows)
        case "missing":
            return b"".join(rows[:middle] + rows[middle + 1 :])
        case "more":
            return data + rows[middle]
        case "version":
            return data.replace(b'"format":1', b'"format":2', 1)
        case "space":
            return data.replace(b'"partitions":1', b'"partitions":0', 1)
    return b"hello\n"


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("cut", CorruptData),
        ("no end", CorruptData),
        ("line", CorruptData),
        ("order", CorruptData),
        ("missing", CorruptData),
        ("more", CorruptData),
        ("space", CorruptData),
        ("other", CorruptData),
        ("version", UnsupportedVersion),
    ],
)
def test_a_file_that_is_not_whole_is_refused_before_anything_is_written(
    tmp_path: Path, how: str, error: type[Exception]
) -> None:
    source, target = new_store(), new_store()
    fill(source)
    path = tmp_path / "file"
    path.write_bytes(damaged(exported(source, tmp_path), how))
    with pytest.raises(error):
        import_store(target, path)
    assert not list(target.get_spaces())
    assert target.id not in streamkit.connect("memory://").stores()


def forged(data: bytes, change: Callable[[list[dict[str, object]]], object]) -> bytes:
    """The file with other lines and a right digest, as only a person could make it."""
    rows = [json.loads(row) for row in data.splitlines()]
    change(rows)
    digest = lines.Digest()
    found = []
    for row in rows[:-1]:
        row_data = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        digest.add(row_data, entry=row["type"] == "entry")
        found.append(row_data)
    return b"".join([*found, digest.mark(lines.End)])


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.pop(4),
        lambda rows: rows.insert(5, rows.pop(6)),
        lambda rows: rows[4].update(sequence=9),
        lambda rows: rows[4]["trx"].update(number=99),
        lambda rows: rows[4].update(index=-1),
        lambda rows: rows[4].update(segment="\x00"),
        lambda rows: rows[4].update(encoding="base64", payload="?"),
        lambda rows: rows.pop(2),
        lambda rows: rows[2].update(partition=1),
    ],
)
def test_lines_that_do_not_fit_are_refused_and_nothing_stays(
    tmp_path: Path, change: Callable[[list[dict[str, object]]], object]
) -> None:
    source, target = new_store(), new_store()
    for at in range(5):
        source.produce("s", "a", [Record(b"%d" % at)])
    data = exported(source, tmp_path)
    path = tmp_path / "file"
    path.write_bytes(forged(data, change))
    with pytest.raises(CorruptData, match="line"):
        import_store(target, path)
    assert not list(target.get_spaces())
    path.write_bytes(data)
    import_store(target, path)
    assert [entry.payload for entry in target.consume_space("s")] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_space_that_exists_and_differs_is_refused_and_an_equal_one_is_left(tmp_path: Path) -> None:
    source, target = new_store(), new_store()
    fill(source)
    export_store(source, tmp_path / "one")
    target.produce("plain", "s-1", [Record(b"mine")])
    before = reads(target)
    with pytest.raises(SpaceExists, match="another one"):
        import_store(target, tmp_path / "one")
    assert reads(target) == before
    report = import_store(source, tmp_path / "one")
    assert report.present == report.entries
    source.produce("plain", "s-1", [Record(b"later")])
    with pytest.raises(SpaceExists, match="has changed"):
        import_store(source, tmp_path / "one")


def test_a_space_that_was_deleted_comes_back_and_can_be_written_to(tmp_path: Path) -> None:
    for store in (open_store((tmp_path / "root").as_uri()), new_store(remote=True)):
        fill(store)
        path = tmp_path / uuid4().hex
        export_store(store, path, spaces=["plain"])
        before = [entry.payload for entry in store.consume_space("plain")]
        store.delete_space("plain")
        assert import_store(store, path).renewed == ("plain",)
        assert [entry.payload for entry in store.consume_space("plain")] == before
        assert store.produce("plain", "s-0", [Record(b"x")]).last_sequence == 19


def test_another_import_that_was_stopped_is_named_and_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CHECKPOINT_LINES", 25)
    source, target = new_store(), new_store()
    fill(source)
    export_store(source, tmp_path / "one", spaces=["plain"])
    source.produce("plain", "more", [Record(b"x")])
    export_store(source, tmp_path / "two", spaces=["plain"])

    def stop(entries: int) -> None:
        raise Stop

    with suppress(Stop):
        import_store(target, tmp_path / "one", progress=stop)
    assert not list(target.get_spaces())
    with pytest.raises(PermanentError, match="restart"):
        import_store(target, tmp_path / "two")
    import_store(target, tmp_path / "two", restart=True)
    assert target.peek("plain", "more").payload == b"x"


def test_names_and_places_are_checked(tmp_path: Path) -> None:
    store = new_store()
    with pytest.raises(PermanentError, match="no space 'nothing'"):
        export_store(store, tmp_path / "one", spaces=["nothing"])
    with pytest.raises(TypeError, match="several names"):
        export_store(store, tmp_path / "two", spaces="orders")
    (tmp_path / "there").write_bytes(b"")
    with pytest.raises(FileExistsError, match="exists"):
        export_store(store, tmp_path / "there")
    with pytest.raises(FileNotFoundError):
        import_store(store, tmp_path / "absent")


def test_the_command_line_exports_imports_and_lists_stores_with_their_sizes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from streamkit.cli.app import run

    url, id, file = (tmp_path / "root").as_uri(), str(uuid4()), str(tmp_path / "file.ndjson")
    open_store(url, UUID(id)).produce("orders", "o", [Record(b"abc")])
    there = ["--url", url, "--store", id]
    assert run(["export", file, "--space", "orders", "--json", *there]) == 0
    assert json.loads(capfd.readouterr().out)["entries"] == 1
    other = ["--url", (tmp_path / "other").as_uri(), "--store", id]
    assert run(["import", file, *other]) == 0
    assert run(["stores", "--long", "--json", *other[:2]]) == 0
    listed = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (listed["store"], listed["spaces"], listed["entries"], listed["payload_bytes"]) == (id, 1, 1, 3)
    assert run(["export", file, *there]) == 1
    assert "exists" in capfd.readouterr().err
    assert run(["import", str(tmp_path / "absent"), *other]) == 2


# -- places ---------------------------------------------------------------------------------------------------------

PLACES = ["memory", "local", "s3", "azure"]


@pytest.mark.exhaustive_only
@pytest.mark.parametrize("second", PLACES)
@pytest.mark.parametrize("first", PLACES)
def test_every_pair_of_backends_gives_equal_bytes(
    request: pytest.FixtureRequest, tmp_path: Path, first: str, second: str
) -> None:
    source, target = open_store(url_in(first, request)), open_store(url_in(second, request))
    fill(source)
    report = export_store(source, tmp_path / "one")
    import_store(target, tmp_path / "one")
    assert export_store(target, tmp_path / "two") == report
    assert target.verify().ok


@pytest.mark.exhaustive_only
def test_a_million_entries_through_every_backend(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source = new_store()
    for at in range(1000):
        source.produce("many", f"s{at % 50}", [Record(b'{"n": %d}' % (at * 1000 + n)) for n in range(1000)])
    report: ExportReport = export_store(source, tmp_path / "first")
    assert report.entries == 1_000_000
    for place in ("memory", "local", "s3", "azure"):
        target = open_store(url_in(place, request))
        assert import_store(target, tmp_path / "first").entries == 1_000_000
        again = export_store(target, tmp_path / place)
        assert (again.sha256, again.bytes) == (report.sha256, report.bytes)
        (tmp_path / place).unlink()


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("edit", ["cut", "changed"])
def test_a_file_that_changes_after_its_check_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str, remote: bool
) -> None:
    source, other = new_store(), new_store(remote=remote)
    source.produce("s", "a", [Record(b"abc"), Record(b"ghi")])
    export_store(source, tmp_path / "one")
    whole = (tmp_path / "one").read_bytes()
    check = target._checked

    def checked(file: BinaryIO) -> object:
        found = check(file)
        lines = whole.splitlines(keepends=True)
        (tmp_path / "one").write_bytes(b"".join(lines[:-1]) if edit == "cut" else whole.replace(b"ghi", b"xyz"))
        return found

    monkeypatch.setattr(target, "_checked", checked)
    with pytest.raises(CorruptData, match="was changed while the file was imported"):
        import_store(other, tmp_path / "one")
    assert list(other.get_spaces()) == []
    monkeypatch.undo()
    (tmp_path / "one").write_bytes(whole)
    import_store(other, tmp_path / "one")
    assert [entry.payload for entry in other.consume_space("s")] == [b"abc", b"ghi"]


def test_a_space_that_changes_after_the_check_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, other = new_store(), new_store()
    source.produce("s", "a", [Record(b"abc")])
    export_store(source, tmp_path / "one")
    whole = (tmp_path / "one").read_bytes()
    check = target._checked

    def checked(file: BinaryIO) -> object:
        found = check(file)
        (tmp_path / "one").write_bytes(whole.replace(b'"incarnation":"', b'"incarnation":"no'))
        return found

    monkeypatch.setattr(target, "_checked", checked)
    with pytest.raises(CorruptData, match="line 2 of the export: non-hexadecimal"):
        import_store(other, tmp_path / "one")
    assert list(other.get_spaces()) == []


@pytest.mark.parametrize("first", ["removal", "completion"])
@pytest.mark.parametrize("remote", [False, True])
def test_an_import_that_removes_its_space_and_one_that_completes_it_exclude_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool, first: str
) -> None:
    """The failing import has looked, and has not removed anything yet."""
    source = new_store()
    source.produce("s", "a", [Record(b"abc")])
    export_store(source, tmp_path / "one")
    url, id = f"memory://{uuid4().hex}" + ("?remote=1" if remote else ""), uuid4()
    set_state = target._Importer._set_state
    outcomes: list[str] = []

    def complete() -> None:
        try:
            outcomes.append(str(import_store(open_store(url, id), tmp_path / "one").entries))
        except PermanentError as error:
            outcomes.append(str(error))

    def published(self: target._Importer) -> None:
        raise CorruptData("the file is damaged")

    def state(self: target._Importer, state: str) -> bool:
        monkeypatch.undo()
        if first == "completion":
            complete()
        done = set_state(self, state)
        if first == "removal":
            complete()
        return done

    monkeypatch.setattr(target._Importer, "_publish", published)
    monkeypatch.setattr(target._Importer, "_set_state", state)
    with pytest.raises(Unavailable if first == "completion" else CorruptData):
        import_store(open_store(url, id), tmp_path / "one")
    other = open_store(url, id)
    if first == "completion":
        assert outcomes == ["1"]
    else:
        assert "has not removed its rows of space 's' yet" in outcomes[0]
        import_store(other, tmp_path / "one")
    assert [entry.payload for entry in other.consume_space("s")] == [b"abc"]
    assert other.verify().ok


@pytest.mark.parametrize("remote", [False, True])
def test_an_import_that_was_killed_while_it_removed_its_rows_names_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    """Another process may still remove rows, so the same call does not go on by itself."""
    source = new_store()
    source.produce("s", "a", [Record(b"abc"), Record(b"def")])
    export_store(source, tmp_path / "one")
    url, id = f"memory://{uuid4().hex}" + ("?remote=1" if remote else ""), uuid4()

    def published(self: target._Importer) -> None:
        raise CorruptData("the file is damaged")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(target._Importer, "_publish", published)
        patch.setattr(target, "remove_import", killed)
        with pytest.raises(KeyboardInterrupt):
            import_store(open_store(url, id), tmp_path / "one")
    other = open_store(url, id)
    for _ in range(2):
        with pytest.raises(PermanentError, match=r"has failed, and has not removed .*--restart"):
            import_store(other, tmp_path / "one")
        assert list(other.get_spaces()) == []
    import_store(other, tmp_path / "one", restart=True)
    assert [entry.payload for entry in other.consume_space("s")] == [b"abc", b"def"]
    assert other.verify().ok


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("by", ["import", "writer"])
def test_an_import_that_fails_removes_nothing_of_a_space_that_is_there_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, remote: bool
) -> None:
    source = new_store()
    source.produce("s", "a", [Record(b"abc")])
    export_store(source, tmp_path / "one")
    url, id = f"memory://{uuid4().hex}" + ("?remote=1" if remote else ""), uuid4()
    other = open_store(url, id)
    begin = target._Importer._begin_partition

    def begun(self: target._Importer, line: lines.Partition, number: int) -> None:
        begin(self, line, number)
        monkeypatch.undo()
        if by == "import":
            import_store(other, tmp_path / "one")
        else:
            other.produce("s", "a", [Record(b"abc")])
            raise CorruptData("the file is damaged")

    monkeypatch.setattr(target._Importer, "_begin_partition", begun)
    with pytest.raises(Unavailable, match="import again"):
        import_store(open_store(url, id), tmp_path / "one")
    assert [entry.payload for entry in open_store(url, id).consume_space("s")] == [b"abc"]
    assert open_store(url, id).verify().ok
