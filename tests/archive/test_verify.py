"""`verify` and `repair` over both tiers: all damage of an archive is found, and the index is restored."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fix_covered import EXHAUSTIVE
from typer.testing import CliRunner

import streamkit
from harness.archived_world import SPACE, World
from harness.index_rows import read_rows, write_rows
from streamkit import Record, Store
from streamkit.archive.compact import compact_space
from streamkit.archive.file_reader import FileReader
from streamkit.archive.location import path_name
from streamkit.cli.app import app
from streamkit.errors import CorruptData
from streamkit.log.keys import ARCHIVE, DATA, GRACE, HEAD, KEYS, SEGMENTS

pytest.importorskip("deltalake")

PARTITIONS = 3


class Tiers(World):
    """Three partitions: transactions of the first archive run have left the log, those of the second have not, and
    there is a tail."""

    def __init__(self, archive: Path, kind: str = "remote", rounds: int = 30, tail: bool = True) -> None:
        super().__init__(kind, archive)
        self.at = 0
        with self.process() as client:
            client.store(self.id).create_space(SPACE, PARTITIONS)
            self.write(rounds)
            self.run(client)
            self.clock.sleep(120)
            self.run(client)
            if tail:
                self.write(rounds)
                client.store(self.id).archive(SPACE)
                self.write(rounds)
        self.before = self.look()
        self.table = archive / str(self.id) / path_name(SPACE)

    def write(self, rounds: int) -> None:
        with self.process() as client:
            store = client.store(self.id)
            for _ in range(rounds):
                self.at += 1
                store.produce(
                    SPACE,
                    f"s{self.at % 7}",
                    [Record(b"%d" % self.at, {"k": "v"} if self.at % 3 else None)] * (self.at % 3 + 1),
                    idempotency_key=f"key {self.at}",
                )

    def store(self) -> Store:
        return self.process().store(self.id)

    def findings(self) -> list[str]:
        return [f"{one.key!r} {one.problem}" for one in self.store().verify().findings]

    def same(self) -> bool:
        """True if everything is read as before. An error must say that it is not."""
        try:
            return bool(self.look() == self.before)
        except CorruptData:
            return True

    def files(self) -> list[Path]:
        return sorted(self.table.glob("*.parquet"))

    def commits(self) -> list[Path]:
        return sorted((self.table / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_a_whole_store_is_whole_in_both_tiers(tmp_path: Path, kind: str) -> None:
    world = Tiers(tmp_path / "archive", kind)
    report = world.store().verify()
    assert report.findings == ()
    assert (report.transactions, report.entries, report.segments) == (world.at, len(world.before[0]), 7)
    compact_space(world.store()._archive(SPACE), 64 << 20, 0.0)
    assert world.store().verify().ok


def test_a_table_that_another_engine_has_compacted_is_whole(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    world = Tiers(tmp_path / "archive")
    DeltaTable(str(world.table)).optimize.compact()
    assert world.store().verify().findings == ()
    assert world.look() == world.before


HARMS: dict[str, Callable[[Tiers], Any]] = {
    "no table": lambda world: shutil.rmtree(world.table),
    "no file": lambda world: world.files()[0].unlink(),
    "an empty file": lambda world: world.files()[-1].write_bytes(b""),
    "another file": lambda world: shutil.copy(world.files()[0], world.files()[1]),
    "no commit": lambda world: world.commits()[-1].unlink(),
    "an empty commit": lambda world: world.commits()[-1].write_bytes(b""),
    "the log before": lambda world: [path.unlink() for path in world.commits()[2:]],
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_damaged_or_missing_is_found(tmp_path: Path, harm: str) -> None:
    world = Tiers(tmp_path / "archive")
    HARMS[harm](world)
    assert world.findings()


def test_the_command_line_says_so(tmp_path: Path) -> None:
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store("7d9f2c1e-0000-4000-8000-000000000001")
        store.produce(SPACE, "segment", [Record(b"x" * 100)] * 9)
        store.archive(SPACE)
        table = tmp_path / "archive" / str(store.id) / path_name(SPACE)
    arguments = ["verify", "--url", tmp_path.as_uri(), "--store", str(store.id)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    (path,) = table.glob("*.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert path.name in result.output
    shutil.rmtree(table)
    assert CliRunner().invoke(app, arguments).exit_code == 1


def flips(path: Path, step: int) -> Any:
    """One bit of every `step`th byte, flipped, and back."""
    whole = path.read_bytes()
    for at in range(len(whole) % step, len(whole), step):
        harmed = bytearray(whole)
        harmed[at] ^= 1 << at % 8
        path.write_bytes(harmed)
        yield at
    path.write_bytes(whole)


def test_a_file_with_a_wrong_checksum_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow ends the process where the statistics of a row group are damaged."""
    world = Tiers(tmp_path / "archive", rounds=9, tail=False)
    opened: list[str] = []
    inner = FileReader.open
    monkeypatch.setattr(FileReader, "open", lambda self, file: (opened.append(file.path), inner(self, file))[1])
    harmed = world.files()[0]
    data = bytearray(harmed.read_bytes())
    data[-100] ^= 1
    harmed.write_bytes(data)
    assert any(harmed.name in finding and "checksum" in finding for finding in world.findings())
    assert harmed.name not in opened


@pytest.mark.parametrize("of", ["data", "log", "checkpoint"])
def test_a_flipped_bit_that_changes_or_hides_anything_is_found(
    tmp_path: Path, of: str, covered: Callable[[str, int], None]
) -> None:
    """Everything is in the archive alone. Where verify finds nothing, everything is read as it was."""
    world = Tiers(tmp_path / "archive", rounds=9, tail=False)
    if of == "checkpoint":
        from deltalake import DeltaTable

        DeltaTable(str(world.table)).create_checkpoint()
        paths = list((world.table / "_delta_log").glob("*.parquet"))
    else:
        paths = world.files()[:1] if of == "data" else world.commits()
    assert world.findings() == []
    silent = []
    count = 0
    for path in paths:
        for at in flips(path, 1 if EXHAUSTIVE else 331 if of == "checkpoint" else 71):
            count += 1
            if not world.findings() and world.look() != world.before:
                silent.append((path.name, at))
    covered(f"flipped bits of an archive's {of}", count)
    assert count > 20
    assert silent == []


def test_a_number_of_partitions_that_is_none_is_found(tmp_path: Path) -> None:
    world = Tiers(tmp_path / "archive", rounds=9, tail=False)
    first = world.commits()[0]
    text = first.read_text()
    said = f'"streamkit.partitions":"{PARTITIONS}"'
    assert said in text
    first.write_text(text.replace(said, '"streamkit.partitions":"s"'))
    assert any("streamkit.partitions" in finding for finding in world.findings())
    with world.process() as client, pytest.raises(CorruptData, match=r"streamkit\.partitions"):
        list(client.store(world.id).consume_space(SPACE))


# -- repair -----------------------------------------------------------------------------------------------------------


def forget(world: Tiers, *, head: bool = False, note: bool = False) -> None:
    """Damage the index: rows of every kind are gone, or wrong."""
    with world.process() as client:
        backend = client.store(world.id)._backend
        for partition in client.store(world.id)._shared.look_up(SPACE)[0].partitions:  # type: ignore[union-attr]
            rows = read_rows(backend, partition.key)
            for prefix in (SEGMENTS, DATA):
                for at, key in enumerate([key for key in sorted(rows) if key.startswith(prefix)]):
                    if at % 2:
                        del rows[key]
                    else:
                        rows[key] = b"\xc1"
            for key in [key for key in sorted(rows) if key.startswith(KEYS)][-1:]:
                del rows[key]
            write_rows(backend, partition.key, rows)
            if head:
                backend.put(partition.key, bytes(HEAD), b"damaged")
            if note:
                backend.put(partition.key, bytes(ARCHIVE), b"damaged")
                backend.put(partition.key, bytes(GRACE), b"damaged")


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("kind", ["memory", "remote"])
@pytest.mark.parametrize(("head", "note"), [(False, False), (True, False), (False, True), (True, True)])
def test_the_index_is_built_from_log_and_archive(tmp_path: Path, kind: str, head: bool, note: bool) -> None:
    world = Tiers(tmp_path / "archive", kind)
    forget(world, head=head, note=note)
    assert world.findings()
    assert world.store().repair() > 0
    assert world.look() == world.before
    assert world.findings() == []
    assert world.store().repair() == 0
    # And it goes on.
    world.write(5)
    world.clock.sleep(120)
    world.run(world.process())
    entries = world.look()[0]
    assert entries[: len(world.before[0])] == world.before[0] or len(entries) > len(world.before[0])
    assert world.findings() == []


def test_idempotency_keys_of_archived_transactions_outlive_a_repair(tmp_path: Path) -> None:
    world = Tiers(tmp_path / "archive", tail=False)
    first = world.store().produce(SPACE, "s1", [Record(b"1", {"k": "v"})] * 2, idempotency_key="key 1")
    world.store().repair()
    again = world.store().produce(SPACE, "s1", [Record(b"1", {"k": "v"})] * 2, idempotency_key="key 1")
    assert again == first
    assert again.first_sequence == 1


@pytest.mark.parametrize("harm", ["an empty file", "no commit", "no table"])
def test_repair_needs_no_archive_for_what_the_log_still_holds(tmp_path: Path, harm: str) -> None:
    world = World("remote", tmp_path / "archive")
    store = world.process().store(world.id)
    for at in range(20):
        store.produce(SPACE, f"s{at % 3}", [Record(b"%d" % at)] * 2)
    store.archive(SPACE)
    world.table = tmp_path / "archive" / str(world.id) / path_name(SPACE)  # type: ignore[attr-defined]
    before = world.look()
    {
        "an empty file": lambda: next(world.table.glob("*.parquet")).write_bytes(b""),  # type: ignore[attr-defined]
        "no commit": lambda: max((world.table / "_delta_log").glob("*.json")).unlink(),  # type: ignore[attr-defined]
        "no table": lambda: shutil.rmtree(world.table),  # type: ignore[attr-defined]
    }[harm]()
    world.process().store(world.id).repair()
    assert world.look() == before
    if harm == "no commit":
        # The lost transactions are archived again.
        world.clock.sleep(3601)
        report = world.process().store(world.id).archive(SPACE)
        # As for the first time: the log lets go of it a grace later.
        assert (report.entries, report.removed) == (len(before[0]), 0)
        world.clock.sleep(3601)
        assert world.process().store(world.id).archive(SPACE).removed == 20
        assert world.process().store(world.id).verify().ok
        assert world.look()[2] == before[2] or {entry.tier for entry in world.look()[0]} == {"cold"}


def test_repair_refuses_where_only_a_damaged_archive_knows(tmp_path: Path) -> None:
    world = Tiers(tmp_path / "archive")
    forget(world)
    world.files()[0].write_bytes(b"")
    for path in world.files():
        path.write_bytes(b"")
    with pytest.raises(CorruptData, match="in the archive only"):
        world.store().repair()
