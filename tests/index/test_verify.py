"""Every kind of damage is found and named by its key. A damaged index is built again from the log."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

import streamkit
from harness.index_rows import read_rows, write_rows
from harness.log_keys import transaction_keys
from harness.sweep import StillClock
from streamkit import Record, Retention
from streamkit.backend import Backend
from streamkit.client import Client
from streamkit.errors import CorruptData, PermanentError, StreamkitError
from streamkit.log import policy
from streamkit.log.index_rows import decode_index_row, encode_index_row
from streamkit.log.keys import (
    CATALOG,
    DATA,
    FENCES,
    HEAD,
    KEYS,
    RUNS,
    SEGMENTS,
    data_key,
    data_range,
    fence_key,
    partition_key,
    segment_key,
    space_key,
)
from streamkit.log.rows import DataRow, FenceRow, Head, KeyRow, SegmentRow, decode_row, encode_row
from streamkit.store import Store
from streamkit_memory.driver import MemoryDriver

P = bytes(partition_key("s", 0))


class Patient:
    """A store to be damaged: its rows, and a new process that looks at it each time."""

    def __init__(self, kind: str, *, indexed: bool = True) -> None:
        self.clock = StillClock()
        self.id = uuid4()
        self.driver = MemoryDriver(remote=kind == "remote", clock=self.clock, sleep=self.clock.sleep)
        self.backend: Backend = self.driver.open(self.id)
        store = self.open()
        for at in range(3):
            store.produce("s", "a", [Record(b"a %d" % at), Record(b"again")], idempotency_key=f"key {at}")
            store.produce("s", "b", [Record(b"b" * 200)])
            with store.lease("leader") as lease:
                store.produce("s", "c", [Record(b"c")], lease=lease)
        if indexed:
            store.maintain()
        self.entries = list(store.consume_space("s"))

    def open(self) -> Store:
        client = streamkit.Client("memory://", self.driver, 5.0, None, 1 << 26, self.clock)
        return client.store(self.id)

    def _rows(self) -> dict[bytes, bytes]:
        return read_rows(self.backend, P)

    def _write_rows(self, rows: dict[bytes, bytes]) -> None:
        write_rows(self.backend, P, rows)

    def _row(self, key: bytes, partition: bytes) -> bytes:
        value = self.backend.get(partition, [key])[0]
        assert value is not None
        return value.data

    def data(self, key: bytes, partition: bytes = P) -> bytes:
        return self._rows()[bytes(key)] if of_index(key) else self._row(key, partition)

    def put(self, key: bytes, data: bytes, partition: bytes = P) -> None:
        if of_index(key):
            self._write_rows({**self._rows(), bytes(key): data})
        else:
            self.backend.put(partition, bytes(key), data)

    def delete(self, key: bytes, partition: bytes = P) -> None:
        if of_index(key):
            self._write_rows({row: data for row, data in self._rows().items() if row != key})
        else:
            self.backend.delete(partition, [bytes(key)])

    def change(self, kind: type, key: bytes, **fields: object) -> None:
        """Another row with a right checksum."""
        if of_index(key):
            row = decode_index_row(kind, bytes(key), self.data(bytes(key)))
            self.put(key, encode_index_row(msgspec.structs.replace(row, **fields)))
        else:
            row = decode_row(kind, bytes(key), self.data(bytes(key)))
            self.put(key, encode_row(bytes(key), msgspec.structs.replace(row, **fields)))

    def log_key(self, number: int) -> bytes:
        return transaction_keys(self.backend, "s")(number)

    def one(self, prefix: bytes) -> bytes:
        return min(key for key in self._rows() if key.startswith(prefix + b"\x00"))

    def files(self) -> list[bytes]:
        """The keys of the files of index and packs."""
        return [row.key for row in self.backend.scan(P, *RUNS.children(), values=False)]


def of_index(key: bytes) -> bool:
    return bytes(key).startswith((bytes(DATA), bytes(SEGMENTS), bytes(KEYS), bytes(FENCES)))


@pytest.fixture(params=["memory", "remote"])
def patient(request: pytest.FixtureRequest) -> Patient:
    return Patient(request.param)


@pytest.fixture(params=["memory", "remote"])
def unindexed(request: pytest.FixtureRequest) -> Patient:
    """All of it is the tail of the log."""
    return Patient(request.param, indexed=False)


@pytest.fixture(params=["memory", "remote"])
def filed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Patient:
    """Index and log are in a file, and the log is cleared."""
    for name in ("LOCAL", "REMOTE"):
        monkeypatch.setattr(policy, name, getattr(policy, name)._replace(inline=0, clear=0.001))
    patient = Patient(request.param)
    patient.clock.sleep(60)
    patient.open().produce("s", "b", [Record(b"b" * 200)])
    patient.open().maintain()
    patient.entries = list(patient.open().consume_space("s"))
    return patient


def flip(patient: Patient, key: bytes, partition: bytes = P) -> None:
    """A bit of a row; of one of the index, so that it is none any more."""
    if of_index(key):
        patient.put(key, b"\xc1" + patient.data(key)[1:])
        return
    data = bytearray(patient.data(bytes(key), partition))
    data[len(data) // 2] ^= 4
    patient.put(key, bytes(data), partition)


def _stretch_pieces(patient: Patient) -> None:
    key = patient.one(DATA)
    pieces = decode_index_row(DataRow, key, patient.data(key)).pieces
    patient.change(DataRow, key, pieces=[msgspec.structs.replace(pieces[0], start=pieces[0].start + 1), *pieces[1:]])


def _change_copy(patient: Patient) -> None:
    key = patient.one(DATA)
    pieces = decode_index_row(DataRow, key, patient.data(key)).pieces
    frame = b"something else" if pieces[0].frame is None else pieces[0].frame[:-1] + b"?"
    patient.change(DataRow, key, pieces=[msgspec.structs.replace(pieces[0], frame=frame), *pieces[1:]])


def _begin_elsewhere(patient: Patient) -> None:
    key = patient.one(DATA)
    pieces = decode_index_row(DataRow, key, patient.data(key)).pieces
    piece = msgspec.structs.replace(pieces[0], first_sequence=2, count=1)
    patient.put(data_key("a", 2), encode_index_row(DataRow([piece])))


def _hide_the_beginning(patient: Patient) -> None:
    rows = patient._rows()
    start, end = data_range("a", 1)
    mine = [key for key in sorted(rows) if start <= key < end]
    pieces = [piece for key in mine for piece in decode_index_row(DataRow, key, rows.pop(key)).pieces]
    for part in (pieces[1:2], pieces):
        rows[data_key("a", part[-1].last_sequence)] = encode_index_row(DataRow(part))
    patient._write_rows(rows)


INDEX: dict[str, tuple[Callable[[Patient], object], Callable[[Patient], bytes]]] = {
    "a segment row is gone": (lambda p: p.delete(segment_key("b")), lambda p: segment_key("b")),
    "a segment row is damaged": (lambda p: flip(p, segment_key("b")), lambda p: segment_key("b")),
    "a segment ends too early": (
        lambda p: p.change(SegmentRow, segment_key("a"), last_sequence=5),
        lambda p: segment_key("a"),
    ),
    "a segment ends too late": (
        lambda p: p.change(SegmentRow, segment_key("a"), last_sequence=60),
        lambda p: segment_key("a"),
    ),
    "a segment's time is wrong": (
        lambda p: p.change(SegmentRow, segment_key("a"), last_timestamp=1),
        lambda p: segment_key("a"),
    ),
    "a segment begins at another time": (
        lambda p: p.change(SegmentRow, segment_key("a"), first_timestamp=1),
        lambda p: segment_key("a"),
    ),
    "a segment that was never written": (
        lambda p: p.put(segment_key("x"), encode_index_row(SegmentRow(1, 1, 1, 1))),
        lambda p: segment_key("x"),
    ),
    "a data row is gone": (lambda p: p.delete(p.one(DATA)), lambda p: bytes(DATA) + b"\x00a"),
    "a data row is damaged": (lambda p: flip(p, p.one(DATA)), lambda p: p.one(DATA)),
    "a data row points elsewhere": (_stretch_pieces, lambda p: p.one(DATA)),
    "a copy in a data row is another": (_change_copy, lambda p: p.one(DATA)),
    "a data row of what never was": (_begin_elsewhere, lambda p: data_key("a", 2)),
    "a data row hides what comes before it": (_hide_the_beginning, lambda p: data_key("a", 4)),
    "a data row of no segment": (
        lambda p: p.put(data_key("x", 2), b"nonsense"),
        lambda p: data_key("x", 2),
    ),
    "an idempotency key is gone": (lambda p: p.delete(p.one(KEYS)), lambda p: bytes(KEYS)),
    "an idempotency key is damaged": (lambda p: flip(p, p.one(KEYS)), lambda p: p.one(KEYS)),
    "an idempotency key has other content": (
        lambda p: p.change(KeyRow, p.one(KEYS), content=bytes(16)),
        lambda p: p.one(KEYS),
    ),
    "an idempotency key that nobody used": (
        lambda p: p.put(KEYS + b"\x00" + bytes(16), p.data(p.one(KEYS))),
        lambda p: bytes(KEYS) + b"\x00" + bytes(16),
    ),
    "the head is damaged": (lambda p: flip(p, bytes(HEAD)), lambda p: bytes(HEAD)),
    "the head is gone": (lambda p: p.delete(bytes(HEAD)), lambda p: bytes(HEAD)),
    "the head has another position": (lambda p: p.change(Head, bytes(HEAD), position=2), lambda p: bytes(HEAD)),
    "the head has another time": (lambda p: p.change(Head, bytes(HEAD), timestamp=2), lambda p: bytes(HEAD)),
    "a leader is forgotten": (lambda p: p.delete(p.one(FENCES)), lambda p: fence_key("leader")),
    "a leader has another token": (lambda p: p.change(FenceRow, p.one(FENCES), token=0), lambda p: fence_key("leader")),
    "a leader of the future": (
        lambda p: p.change(FenceRow, p.one(FENCES), token=1 << 40),
        lambda p: fence_key("leader"),
    ),
    "a leader that never wrote": (
        lambda p: p.put(fence_key("nobody"), encode_index_row(FenceRow(1))),
        lambda p: fence_key("nobody"),
    ),
    "a leader's row is damaged": (lambda p: p.put(p.one(FENCES), b"nonsense"), lambda p: fence_key("leader")),
    "the catalog row is gone": (lambda p: p.delete(space_key("s"), bytes(CATALOG)), lambda p: bytes(space_key("s"))),
    "the catalog row is damaged": (
        lambda p: flip(p, bytes(space_key("s")), bytes(CATALOG)),
        lambda p: bytes(space_key("s")),
    ),
}


def test_a_sound_store_has_no_findings(patient: Patient) -> None:
    report = patient.open().verify()
    assert (report.findings, report.transactions, report.entries, report.segments) == ((), 9, 12, 3)


@pytest.mark.parametrize("damage", INDEX)
def test_damage_of_the_index_is_found_and_repaired_from_the_log(patient: Patient, damage: str) -> None:
    hurt, key = INDEX[damage]
    wanted = key(patient) if "never" not in damage and "no segment" not in damage else b""
    hurt(patient)
    wanted = wanted or key(patient)
    findings = patient.open().verify("s").findings
    assert any(finding.key.startswith(wanted) for finding in findings), findings
    store = patient.open()
    assert store.repair("s") > 0
    assert store.repair("s") == 0
    report = patient.open().verify()
    assert (report.findings, report.entries) == ((), 12)
    store = patient.open()
    assert list(store.consume_space("s")) == patient.entries
    assert store.produce("s", "a", [Record(b"new")], expected_sequence=6).last_sequence == 7
    assert store.produce("s", "a", [Record(b"a 0"), Record(b"again")], idempotency_key="key 0").last_sequence == 2
    assert patient.open().verify().findings == ()


LOG: dict[str, Callable[[Patient], object]] = {
    "a transaction is gone": lambda p: p.delete(p.log_key(4)),
    "a transaction is damaged": lambda p: flip(p, p.log_key(4)),
    "a transaction is cut short": lambda p: p.put(p.log_key(4), p.data(p.log_key(4))[:-3]),
    "a transaction is another's": lambda p: p.put(p.log_key(4), p.data(p.log_key(5))),
    "the last transaction is damaged": lambda p: flip(p, p.log_key(9)),
    "a transaction is empty": lambda p: p.put(p.log_key(4), b""),
}


@pytest.mark.parametrize("damage", LOG)
def test_damage_of_the_log_is_found_and_never_repaired(unindexed: Patient, damage: str) -> None:
    patient = unindexed
    LOG[damage](patient)
    wanted = patient.log_key(9 if "last" in damage else 4)
    findings = patient.open().verify("s").findings
    assert any(finding.key == wanted for finding in findings), findings
    rows = list(patient.backend.scan(P, b"", b"\xff"))
    with pytest.raises(CorruptData):
        patient.open().repair("s")
    assert list(patient.backend.scan(P, b"", b"\xff")) == rows
    with pytest.raises(StreamkitError):
        list(patient.open().consume_space("s"))


def test_transactions_that_are_gone_from_the_end_are_missed(patient: Patient) -> None:
    patient.change(Head, bytes(HEAD), watermark=11)
    findings = patient.open().verify("s").findings
    assert [finding.key for finding in findings if finding.key.startswith(b"TXN")] == [patient.log_key(10)]
    with pytest.raises(CorruptData, match="missing"):
        patient.open().repair()


def test_a_damaged_file_is_found_and_its_index_is_built_again_from_its_log(filed: Patient) -> None:
    """Flip every seventh bit of the first file. It has two halves, and nothing else holds the log."""
    key = filed.files()[0]
    sound = filed.data(key)
    head = filed._row(bytes(HEAD), P)
    repaired = 0
    for at in range(0, len(sound) * 8, 7):
        damaged = bytearray(sound)
        damaged[at // 8] ^= 1 << at % 8
        filed.put(key, bytes(damaged))
        findings = filed.open().verify().findings
        assert findings, at
        try:
            filed.open().repair()
        except CorruptData:
            filed.put(key, sound)
        else:
            repaired += 1
            assert filed.open().verify().findings == ()
            assert list(filed.open().consume_space("s")) == filed.entries
            for made in filed.files():
                filed.delete(made)
            filed.put(key, sound)
            filed.put(bytes(HEAD), head)
    assert repaired


def test_a_file_that_is_gone_is_missed(filed: Patient) -> None:
    for key in filed.files():
        filed.delete(key)
    assert filed.open().verify().findings
    with pytest.raises(CorruptData):
        list(filed.open().consume_space("s"))
    with pytest.raises(CorruptData):
        filed.open().peek("s", "a")
    with pytest.raises(CorruptData):
        filed.open().repair()


def test_a_log_in_files_is_found_again_without_its_head(filed: Patient) -> None:
    filed.delete(HEAD)
    assert filed.open().repair() > 0
    assert filed.open().verify().findings == ()
    assert list(filed.open().consume_space("s")) == filed.entries


def test_verifying_while_others_write_finds_nothing(patient: Patient) -> None:
    """Another process writes and brings the index forward between any two calls of verify."""
    other = patient.open()
    store = patient.open()
    scan = store._backend.scan

    def busy(*args: object, **more: object) -> object:
        other.produce("s", "a", [Record(b"meanwhile")], idempotency_key=uuid4().hex)
        other.produce("s", uuid4().hex, [Record(b"meanwhile")])
        yield from scan(*args, **more)  # type: ignore[arg-type]
        other.produce("s", "a", [Record(b"meanwhile")])
        other.maintain()

    store._backend.scan = busy  # type: ignore[method-assign, assignment]
    assert store.verify("s").findings == ()
    assert patient.open().verify("s").findings == ()


@pytest.mark.parametrize("retention", [Retention(max_entries=5), Retention(max_bytes=5)])
def test_what_a_retention_of_segments_has_let_go_of_is_no_hole(patient: Patient, retention: Retention) -> None:
    store = patient.open()
    store.set_retention("kept", retention)
    for at in range(40):
        store.produce("kept", f"a{at % 2}", [Record(b"x")] * (1 + at % 4))
        if at % 9 == 8:
            store.maintain("kept")
            assert store.verify("kept").findings == ()
    patient.open().repair("kept")
    assert store.verify("kept").findings == ()


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_a_frame_of_which_a_part_was_trimmed_is_no_finding(kind: str) -> None:
    """Packs are rewritten without that part. The copy in the index stays as it was."""
    driver = MemoryDriver(uuid4().hex, remote=kind == "remote")
    with Client("memory://", driver, 30.0, None, 64 << 20, StillClock()) as client:
        store = client.store(uuid4())
        for at in range(64):
            store.produce("s", "a", [Record(random.Random(at).randbytes(300))])
        store.produce("s", "a", [Record(b"x" * 20)] * 3)
        store.maintain()
        store.trim("s", "a", before=66)
        store.maintain()
        assert [entry.sequence for entry in store.consume_segment("s", "a")] == [66, 67]
        assert store.verify("s").findings == ()
        assert store.repair("s") == 0


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_space_that_does_not_exist_is_refused_and_a_damaged_one_is_not(tmp_path: Path, kind: str) -> None:
    url = "memory://verified" if kind == "memory" else f"file://{tmp_path}"
    with streamkit.connect(url) as client, client.store(uuid4()) as store:
        store.produce("orders", "a", [Record(b"1")])
        store.produce("gone", "a", [Record(b"1")])
        store.delete_space("gone")
        for name in ("order", "gone"):
            for call in (store.verify, store.repair):
                with pytest.raises(PermanentError, match=f"has no space '{name}'"):
                    call(name)
        assert store.verify("orders").transactions == 1
        assert store.repair("orders") == 0
        assert store.verify().ok

    for key, partition in ((HEAD, P), (space_key("s"), bytes(CATALOG))):
        patient = Patient("local")
        patient.delete(key, partition)
        assert not patient.open().verify("s").ok
