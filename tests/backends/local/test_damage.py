"""Power cuts and damage: what was acknowledged is there, what is damaged is an error, nothing is made up."""

from __future__ import annotations

import os
import random

import pytest
from fix_local import LocalStore, P, flip, in_child

from streamkit.backend import Append, Put
from streamkit.errors import CorruptData
from streamkit_local import log
from streamkit_local.head import seal

HEADER = 28


def size_of(key: bytes, value: bytes) -> int:
    return HEADER + len(key) + len(value)


def fill(local: LocalStore, count: int, *, durable: bool = False) -> dict[bytes, bytes]:
    rows = {b"%04d" % number: b"<%d>" % number * 5 for number in range(count)}
    for key, value in rows.items():
        local.backend.write(P, [Append(key, value)], durable=durable)
    return rows


def end_of(rows: dict[bytes, bytes]) -> int:
    return sum(size_of(key, value) for key, value in rows.items())


# After a power cut


@pytest.mark.parametrize("durable", [True, False])
def test_all_that_reached_the_disk_is_there_after_a_power_cut(local: LocalStore, durable: bool) -> None:
    rows = fill(local, 30, durable=durable)
    local.cut_power(synced=0)
    local.open()
    assert local.rows() == rows
    local.backend.write(P, [Append(b"1", b"next")])
    assert local.rows() == rows | {b"1": b"next"}


def test_a_record_torn_at_any_byte_by_a_power_cut_is_dropped_whole(local: LocalStore) -> None:
    rows = fill(local, 5)
    last = max(rows)
    start = end_of(rows) - size_of(last, rows[last])
    local.cut_power(synced=start)
    before, whole = local.root, local.logs()[0].read_bytes()[: end_of(rows)]
    for cut in range(start, len(whole) + 1):
        for tail in (b"", bytes(len(whole) - cut), b"\xff" * (len(whole) - cut)):
            local.root = before
            local.crash()
            local.logs()[0].write_bytes(whole[:cut] + tail)
            expected = {key: rows[key] for key in rows if key != last or whole[:cut] + tail == whole}
            local.open()
            assert local.rows() == expected
            local.backend.write(P, [Append(b"9", b"next"), Put(b"row", b"x")])
            local.open()
            assert local.rows() == expected | {b"9": b"next", b"row": b"x"}


def test_rows_after_a_torn_file_go_with_it(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "ROLL", 200)
    rows = fill(local, 30)
    local.cut_power(synced=0)
    second = local.logs()[1]
    kept = int(second.name[:16], 16)
    os.truncate(second, 10)
    local.open()
    found = local.rows()
    assert found == dict(list(rows.items())[: len(found)])
    assert end_of(found) == kept
    local.backend.write(P, [Append(b"9", b"next")])
    assert local.rows_anew() == found | {b"9": b"next"}


def test_what_was_synced_and_is_gone_after_a_power_cut_is_damage(local: LocalStore) -> None:
    rows = fill(local, 10, durable=True)
    local.cut_power()
    (path,) = local.logs()
    os.truncate(path, end_of(rows) - 1)
    with pytest.raises(CorruptData, match="cut or is missing"):
        local.open().get(P, [b"0001"])


def test_what_the_index_has_is_never_cut(local: LocalStore) -> None:
    rows = fill(local, 10)
    local.backend.write(P, [Put(b"row", b"x")])
    local.cut_power(synced=0)
    (path,) = local.logs()
    os.truncate(path, end_of(rows) - 1)
    with pytest.raises(CorruptData):
        local.open().get(P, [b"0001"])


def test_a_power_cut_during_recovery_changes_nothing(local: LocalStore) -> None:
    rows = fill(local, 10)
    for _ in range(3):
        local.cut_power(synced=end_of(rows) // 2)
        local.open()
        assert local.rows() == rows


# Damage


def damaged(local: LocalStore, rows: dict[bytes, bytes]) -> bool:
    """Reading everything in every way either fails with CorruptData, which is True, or gives what was written."""
    try:
        found = local.rows_anew()
        values = local.backend.get(P, list(rows))
        local.backend.write(P, [Append(b"\xff", b"next")])
    except CorruptData as error:
        return str(local.root) in str(error) or "the index is damaged" in str(error)
    assert found == rows
    assert [value and value.data for value in values] == list(rows.values())
    return False


@pytest.mark.parametrize("indexed", [False, True])
def test_a_flipped_bit_in_a_log_is_found(local: LocalStore, indexed: bool) -> None:
    rows = fill(local, 3)
    end, found = end_of(rows), 0
    if indexed:
        rows[b"row"] = b"x"
        local.backend.write(P, [Put(b"row", b"x")])
    local.crash()
    before = local.root
    for at in range(end):
        local.root = before
        local.crash()
        flip(local.logs()[0], at, at % 8)
        found += damaged(local, rows)
    # once the index knows where a record is, its magic, header checksum, key length and padding do not matter
    assert found == (end - 3 * 12 if indexed else end)


def test_a_flipped_bit_in_a_head_is_found_or_harmless(local: LocalStore) -> None:
    rows = fill(local, 3)
    local.crash()
    before = local.root
    for at in [*range(20 + len(P)), *range(512, 560)]:
        local.root = before
        local.crash()
        flip(local.head(), at, at % 8)
        found = damaged(local, rows)
        if (at < 20 + len(P) and at not in (14, 15)) or 512 <= at < 520:
            assert found, f"byte {at}"


def test_any_flipped_bit_of_a_position_is_found() -> None:
    for position in (0, 1, 65535, 1 << 40, (1 << 48) - 1):
        word = seal(position)
        assert word >> 16 == position
        assert all(seal((word ^ 1 << bit) >> 16) != word ^ 1 << bit for bit in range(64))


def test_a_damaged_index_is_found_and_ends_no_process(local: LocalStore) -> None:
    rows = {b"%05d" % number: b"%05d" % number * 20 for number in range(300)}
    local.backend.write(P, [Put(key, value) for key, value in rows.items()])
    for number in range(100):
        local.backend.write(P, [Append(b"z%05d" % number, b"%d" % number * 20)], durable=False)
        rows[b"z%05d" % number] = b"%d" % number * 20
    local.backend.write(P, [Put(b"row", b"x")])
    rows[b"row"] = b"x"
    local.crash()
    before, size = local.root, local.index.stat().st_size
    chance = random.Random(1)

    def read() -> None:
        try:
            assert local.rows_anew() == rows
            assert [value and value.data for value in local.backend.get(P, list(rows))] == list(rows.values())
        except CorruptData:
            os._exit(1)

    cuts = [0, 1, 4096, 8192, size // 2]
    answers = []
    for number in range(60):
        local.root = before
        local.crash()
        if number < len(cuts):
            os.truncate(local.index, cuts[number])
        else:
            flip(local.index, chance.randrange(size), number % 8)
        answers.append(in_child(read))
    assert answers[: len(cuts)] == [1] * len(cuts)
    assert set(answers) == {0, 1}
    assert answers.count(1) > 30


def test_an_older_state_of_the_index_is_found(local: LocalStore) -> None:
    for number in range(5):
        local.backend.write(P, [Put(b"row", b"%d" % number)])
    local.close()
    data = bytearray(local.index.read_bytes())
    numbers = [int.from_bytes(data[at + 128 + 16 : at + 128 + 24], "little") for at in (0, 4096)]
    newest = 0 if numbers[0] > numbers[1] else 4096
    data[newest + 144 : newest + 152] = (0).to_bytes(8, "little")
    local.index.write_bytes(data)
    with pytest.raises(CorruptData):
        local.open().get(P, [b"row"])


@pytest.mark.parametrize("what", ["head", "log", "index", "format", "first log"])
@pytest.mark.parametrize("indexed", [False, True])
def test_a_missing_file_is_damage_and_not_an_empty_store(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, what: str, indexed: bool
) -> None:
    monkeypatch.setattr(log, "ROLL", 200)
    fill(local, 10)
    if indexed:
        local.backend.write(P, [Put(b"row", b"x")])
    local.crash()
    paths = {
        "head": local.head(),
        "log": local.logs()[-1],
        "index": local.index,
        "format": local.path / "format",
        "first log": local.logs()[0],
    }
    paths[what].unlink()
    for call in (local.rows, lambda: local.backend.write(P, [Append(b"9", b"x")])):
        local.open()
        with pytest.raises(CorruptData):
            call()


@pytest.mark.parametrize("cut", [1, 10, 30, 1000])
def test_a_log_that_was_cut_is_damage(local: LocalStore, cut: int) -> None:
    rows = fill(local, 50)
    local.crash()
    os.truncate(local.logs()[0], end_of(rows) - cut)
    for call in (local.rows, lambda: local.backend.write(P, [Append(b"9", b"x")])):
        local.open()
        with pytest.raises(CorruptData):
            call()


def test_a_log_that_is_cut_while_it_is_read_is_damage(local: LocalStore) -> None:
    rows = fill(local, 2000)
    scan = local.backend.scan(P, b"", b"\xff")
    next(scan)
    os.truncate(local.logs()[0], end_of(rows) // 2 + 100)
    with pytest.raises(CorruptData, match="is missing or damaged at position"):
        list(scan)


def test_files_of_two_partitions_cannot_be_exchanged(local: LocalStore) -> None:
    fill(local, 3)
    for key, value in local.rows().items():
        local.backend.write(b"other", [Append(key, value[::-1])])
    local.close()
    one, other = local.logs()[0], local.logs(b"other")[0]
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    with pytest.raises(CorruptData):
        local.rows_anew()
