"""Parquet exports: the rows are the entries, and an import of them gives the same space."""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import uuid4

import pytest

import streamkit
from streamkit import CorruptData, Record, Store
from streamkit.errors import MissingDependency
from streamkit.export import export_store, import_store, lines

pq = pytest.importorskip("pyarrow.parquet")

PAYLOADS = [b'{"a": 1}', b' {"a": 1}', b"\xff\x00", b"text \n", b"", b"null", b'"\\u00e9"']


def new_store() -> Store:
    return streamkit.connect(f"memory://{uuid4().hex}").store(uuid4())


@pytest.fixture
def filled() -> Store:
    store = new_store()
    for at in range(20):
        records = [Record(payload, {"b": "x", "a": "é"} if at % 2 else {}) for payload in PAYLOADS]
        store.produce("plain", f"s-{at % 3}", records, idempotency_key=f"k{at}")
    store.create_space("parts", partitions=3)
    for at in range(9):
        store.produce("parts", f"p-{at}", [Record(b"%d" % at)])
    store.erase("plain", "s-1", first=2, last=5)
    store.trim("plain", "s-2", before=4)
    return store


def test_a_parquet_export_imports_to_a_store_with_equal_exports(filled: Store, tmp_path: Path) -> None:
    plain = export_store(filled, tmp_path / "a.ndjson")
    report = export_store(filled, tmp_path / "a.parquet")
    assert (report.entries, report.sha256) == (plain.entries, plain.sha256)
    assert report.bytes == (tmp_path / "a.parquet").stat().st_size
    other = new_store()
    assert import_store(other, tmp_path / "a.parquet").entries == plain.entries
    export_store(other, tmp_path / "b.ndjson")
    export_store(other, tmp_path / "b.parquet")
    assert (tmp_path / "b.ndjson").read_bytes() == (tmp_path / "a.ndjson").read_bytes()
    assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "a.parquet").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ndjson", "a.parquet", "b.ndjson", "b.parquet"]


def test_the_rows_with_a_segment_are_the_entries(filled: Store, tmp_path: Path) -> None:
    export_store(filled, tmp_path / "a.parquet", spaces=["plain"])
    table = pq.read_table(tmp_path / "a.parquet").drop_columns(
        ["space", "partition", "index", "transaction_node", "line"]
    )
    at = table.schema.get_field_index("timestamp")
    table = table.set_column(at, "timestamp", table["timestamp"].cast("int64"))
    rows = [{**row, "metadata": dict(row["metadata"])} for row in table.to_pylist() if row["segment"] is not None]
    assert rows == [
        {
            "segment": entry.segment,
            "sequence": entry.sequence,
            "timestamp": entry.timestamp,
            "transaction_id": str(entry.trx.id),
            "transaction_number": entry.trx.number,
            "metadata": dict(entry.metadata),
            "payload": bytes(entry.payload),
        }
        for entry in filled.consume_space("plain", gaps="skip")
    ]


def test_a_stopped_export_goes_on(filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHECKPOINT_LINES", 10)
    export_store(filled, tmp_path / "whole.parquet")

    def stop(entries: int) -> None:
        if entries > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_store(filled, tmp_path / "a.parquet", progress=stop)
    assert not (tmp_path / "a.parquet").exists()
    assert export_store(filled, tmp_path / "a.parquet").resumed > 0
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_a_damaged_file_is_refused_before_anything_is_written(filled: Store, tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    export_store(filled, file)
    whole, group = file.read_bytes(), pq.ParquetFile(file).metadata.row_group(0)
    damaged = [whole[: len(whole) * part // 7] for part in range(7)]
    for number in range(group.num_columns):
        column = group.column(number)
        start = column.dictionary_page_offset or column.data_page_offset
        at = start + column.total_compressed_size - 2
        damaged.append(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
    store = new_store()
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(CorruptData, match="fetch the whole file"):
            import_store(store, file)
    assert list(store.get_spaces()) == []


def test_a_table_with_removed_rows_or_other_columns_is_refused(filled: Store, tmp_path: Path) -> None:
    export_store(filled, tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    pq.write_table(table.filter([at != 30 for at in range(table.num_rows)]), tmp_path / "b.parquet")
    pq.write_table(table.drop_columns(["index"]), tmp_path / "c.parquet")
    store = new_store()
    with pytest.raises(CorruptData, match="lines before it were changed"):
        import_store(store, tmp_path / "b.parquet")
    with pytest.raises(CorruptData, match="other columns"):
        import_store(store, tmp_path / "c.parquet")
    assert list(store.get_spaces()) == []


def test_parquet_without_the_extra_is_refused(filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_store(filled, tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependency, match=r"streamkit-store\[archive\]"):
        export_store(filled, tmp_path / "b.parquet")
    with pytest.raises(MissingDependency, match=r"streamkit-store\[archive\]"):
        import_store(new_store(), tmp_path / "a.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]
