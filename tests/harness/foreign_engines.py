"""Operations of other engines on an archive's table: some keep every row, others do not."""

from __future__ import annotations

import base64
import json
import random
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

Operation = Callable[[Path], None]

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def table_of(path: Path) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(str(path))


def commit(path: Path, actions: Sequence[dict[str, Any]], operation: str, engine: str = "Apache-Spark/4.1.0") -> int:
    """A version of its own, as an engine without delta-rs would write it; its number."""
    version = int(table_of(path).version()) + 1
    info = {"commitInfo": {"timestamp": time.time_ns() // 1_000_000, "operation": operation, "engineInfo": engine}}
    log = path / "_delta_log" / f"{version:020}.json"
    log.write_text("\n".join(json.dumps(action) for action in (info, *actions)) + "\n")
    return version


def adds(path: Path) -> list[dict[str, Any]]:
    """The present version's files."""
    import pyarrow as pa

    rows = pa.table(table_of(path).get_add_actions()).to_pylist()
    return [{"path": row["path"], "size": row["size_bytes"]} for row in rows]


def rows_of(path: Path) -> Any:
    """All rows of the table, without delta-rs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa.concat_tables([pq.read_table(path / file["path"]) for file in adds(path)], promote_options="permissive")


def replace(path: Path, tables: Sequence[Any], changes: bool = False, operation: str = "OPTIMIZE", **how: Any) -> None:
    """Put files with these rows in the place of all that are there, without any statistics in the log."""
    import pyarrow.parquet as pq

    gone = [
        {"remove": {"path": file["path"], "deletionTimestamp": 1, "dataChange": changes, "size": file["size"]}}
        for file in adds(path)
    ]
    new = []
    for rows in tables:
        name = f"part-{uuid4()}.parquet"
        pq.write_table(rows, path / name, **how)
        size = (path / name).stat().st_size
        action = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": changes}
        new.append({"add": action})
    commit(path, [*gone, *new], operation)


def shuffled(rows: Any, seed: int = 0) -> Any:
    order = list(range(rows.num_rows))
    random.Random(seed).shuffle(order)
    return rows.take(order)


def cast(rows: Any, kinds: dict[Any, Any]) -> Any:
    """`rows` with each type of `kinds` in the place of its key."""
    for at, field in enumerate(rows.schema):
        kind = kinds.get(field.type)
        if kind is not None:
            rows = rows.set_column(at, field.name, rows.column(at).cast(kind))
    return rows


# -- every row is kept -----------------------------------------------------------------------------------------------


def nothing(path: Path) -> None:
    """Change nothing, for comparison."""


def optimize(path: Path) -> None:
    table_of(path).optimize.compact()


def optimize_small(path: Path) -> None:
    from deltalake import WriterProperties

    properties = WriterProperties(compression="SNAPPY", max_row_group_size=7)
    table_of(path).optimize.compact(target_size=4000, writer_properties=properties)


def optimize_and_vacuum(path: Path) -> None:
    optimize(path)
    table_of(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def parted(path: Path) -> None:
    """Rows in their order, so few to a file that a transaction lies in several."""
    rows = rows_of(path).sort_by([("partition", "ascending"), ("position", "ascending")])
    replace(path, [rows.slice(at, 3) for at in range(0, rows.num_rows, 3)])


def z_order_by_transaction(path: Path) -> None:
    table_of(path).optimize.z_order(["trx_id"])


def z_order_and_vacuum(path: Path) -> None:
    table_of(path).optimize.z_order(["sequence", "segment"])
    table_of(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def checkpoint_without_log(path: Path) -> None:
    """OPTIMIZE, then a checkpoint, and the versions before it are cleaned up."""
    optimize(path)
    table = table_of(path)
    table.create_checkpoint()
    for version in range(table.version()):
        (path / "_delta_log" / f"{version:020}.json").unlink(missing_ok=True)


def checkpoint_with_sidecar(path: Path) -> None:
    """A checkpoint as Spark writes it with `delta.checkpointPolicy` = v2: its files are named in a part of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    both = {"readerFeatures": ["v2Checkpoint"], "writerFeatures": ["v2Checkpoint", "appendOnly", "invariants"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **both}}
    version, log = commit(path, [protocol], "UPGRADE PROTOCOL"), path / "_delta_log"
    table_of(path).create_checkpoint()
    (whole,) = log.glob(f"{version:020}.checkpoint.parquet")
    rows = [{kind: body for kind, body in row.items() if body is not None} for row in pq.read_table(whole).to_pylist()]
    for row in rows:
        for body in row.values():
            body.update({name: dict(value) for name, value in body.items() if name in ("configuration", "options")})
        if "metaData" in row:
            row["metaData"]["format"] = {"provider": "parquet", "options": {}}
    files = pa.Table.from_pylist([row for row in rows if "add" in row], pa.schema([pq.read_schema(whole).field("add")]))
    (log / "_sidecars").mkdir(exist_ok=True)
    name = f"{uuid4()}.parquet"
    pq.write_table(files, log / "_sidecars" / name)
    size = (log / "_sidecars" / name).stat().st_size
    sidecar = {"sidecar": {"path": name, "sizeInBytes": size, "modificationTime": 1}}
    others = [row for row in rows if "add" not in row and "remove" not in row and "protocol" not in row]
    lines = [{"checkpointMetadata": {"version": version}}, protocol, *others, sidecar]
    (log / f"{version:020}.checkpoint.{uuid4()}.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    whole.unlink()
    (log / "_last_checkpoint").unlink()


def large_types(path: Path) -> None:
    import pyarrow as pa

    kinds = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary(), pa.int32(): pa.int64()}
    replace(path, [cast(shuffled(rows_of(path)), kinds)], compression="gzip")


def views(path: Path) -> None:
    import pyarrow as pa

    kinds = {
        pa.string(): pa.string_view(),
        pa.binary(): pa.binary_view(),
        pa.map_(pa.string(), pa.string()): pa.map_(pa.string_view(), pa.string_view()),
    }
    replace(path, [cast(shuffled(rows_of(path)), kinds)], compression="lz4", row_group_size=11)


def dictionaries(path: Path) -> None:
    rows = shuffled(rows_of(path), 3)
    for name in ("segment", "trx_id", "trx_node", "payload"):
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].combine_chunks().dictionary_encode())
    replace(path, [rows.slice(0, rows.num_rows // 2), rows.slice(rows.num_rows // 2)], row_group_size=5)


def int96_without_statistics(path: Path) -> None:
    """Write as an old Spark: columns in another order, and no statistics in the table or in the files."""
    rows = shuffled(rows_of(path), 4)
    rows = rows.select(rows.column_names[::-1])
    files = [rows.filter([at % 5 == part for at in range(rows.num_rows)]) for part in range(5)]
    replace(path, files, use_deprecated_int96_timestamps=True, write_statistics=False, compression="none")


def polars_overwrites(path: Path) -> None:
    import polars as pl

    pl.read_delta(str(path)).sample(fraction=1.0, shuffle=True, seed=1).write_delta(str(path), mode="overwrite")


def pyarrow_overwrites(path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(table_of(path), shuffled(table_of(path).to_pyarrow_table(), 2), mode="overwrite")


def duckdb_rewrites(path: Path) -> None:
    import duckdb
    import pyarrow.parquet as pq

    rows = rows_of(path)  # DuckDB finds it by its name
    name = str(path / "duck.parquet")
    with duckdb.connect() as engine:
        engine.register("entries", rows)
        engine.execute(
            f"COPY (SELECT * FROM entries ORDER BY payload) TO '{name}' (FORMAT parquet, ROW_GROUP_SIZE 2048)"
        )
    replace(path, [pq.read_table(name)], changes=True, operation="WRITE")


def column_added(path: Path) -> None:
    from deltalake import Field
    from deltalake.schema import PrimitiveType

    table_of(path).alter.add_columns([Field("note", PrimitiveType("string"))])
    table_of(path).update(updates={"note": "'seen'"}, predicate="sequence < 5")


def add_column(path: Path, name: str, values: Any) -> None:
    """Give the table another column, with a value for each of `rows_of`. delta-rs notes its least and greatest ones."""
    from deltalake import write_deltalake

    rows = rows_of(path).append_column(name, values)
    write_deltalake(table_of(path), rows, mode="overwrite", schema_mode="merge")


def deleted_and_restored(path: Path) -> None:
    table = table_of(path)
    table.optimize.compact()
    before = table.version()
    table.delete("sequence = 2")
    table.optimize.compact()
    table_of(path).restore(before)


def deleted_and_appended(path: Path) -> None:
    """A rewrite in two versions, between which rows are missing."""
    from deltalake import write_deltalake

    rows = table_of(path).to_pyarrow_table()
    table_of(path).delete("sequence > 1")
    write_deltalake(table_of(path), rows.filter([number > 1 for number in rows["sequence"].to_pylist()]), mode="append")


def marked_and_restored(path: Path) -> None:
    before = table_of(path).version()
    mark_as_deleted(path)
    add = adds(path)
    assert add
    versions = [json.loads(line) for line in (path / "_delta_log" / f"{before + 1:020}.json").read_text().splitlines()]
    marked = next(action["add"] for action in versions if "add" in action)
    plain = {name: value for name, value in marked.items() if name != "deletionVector"}
    gone = {"path": marked["path"], "deletionTimestamp": 3, "dataChange": True, "size": marked["size"]}
    gone["deletionVector"] = marked["deletionVector"]
    commit(path, [{"remove": gone}, {"add": plain}], "RESTORE")


KEEPING: list[Operation] = [
    nothing,
    optimize,
    optimize_small,
    optimize_and_vacuum,
    z_order_by_transaction,
    z_order_and_vacuum,
    checkpoint_without_log,
    checkpoint_with_sidecar,
    large_types,
    views,
    dictionaries,
    int96_without_statistics,
    polars_overwrites,
    pyarrow_overwrites,
    duckdb_rewrites,
    column_added,
    parted,
    deleted_and_restored,
    deleted_and_appended,
    marked_and_restored,
]


# -- rows are changed ------------------------------------------------------------------------------------------------


def update_payload(path: Path) -> None:
    table_of(path).update(updates={"payload": "CAST('changed' AS BYTEA)"}, predicate="sequence = 3")


def update_metadata(path: Path) -> None:
    rows = table_of(path).to_pyarrow_table()
    data = [dict(pairs or ()) | {"by": "others"} for pairs in rows["metadata"].to_pylist()]
    import pyarrow as pa

    column = pa.array([list(one.items()) for one in data], rows.schema.field("metadata").type)
    changed = rows.set_column(rows.column_names.index("metadata"), rows.schema.field("metadata"), column)
    replace(path, [changed], changes=True, operation="UPDATE")


def update_and_optimize(path: Path) -> None:
    update_payload(path)
    optimize(path)
    table_of(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def swap_sequences(path: Path) -> None:
    table_of(path).update(updates={"sequence": "3 - sequence"}, predicate="sequence < 3")


def delete_some(path: Path) -> None:
    table_of(path).delete("sequence = 2")


def delete_all(path: Path) -> None:
    table_of(path).delete()


def merge_changes(path: Path) -> None:
    rows = table_of(path).to_pyarrow_table()
    (
        table_of(path)
        .merge(rows.slice(0, 1), "t.position = s.position and t.partition = s.partition", "s", "t")
        .when_matched_update({"payload": "CAST('merged' AS BYTEA)"})
        .execute()
    )


def merge_inserts(path: Path) -> None:
    rows = table_of(path).to_pyarrow_table()
    (
        table_of(path)
        .merge(rows.slice(0, 1), "t.segment = s.segment and t.position = -1", "s", "t")
        .when_not_matched_insert_all()
        .execute()
    )


def append_again(path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(table_of(path), table_of(path).to_pyarrow_table().slice(0, 3), mode="append")


def mark_as_deleted(path: Path) -> None:
    """One row of a file, by a deletion vector, as Spark's DELETE does it."""
    # A bitmap of 64 bits with one container of one value, as the protocol has it, in the log itself.
    bitmap = struct.pack("<IQIIIHHIH", 1681511377, 1, 0, 12346, 1, 0, 0, 16, 1)
    padded = bitmap + bytes(-len(bitmap) % 4)
    text = ""
    for at in range(0, len(padded), 4):
        value, digits = int.from_bytes(padded[at : at + 4], "big"), ""
        for _ in range(5):
            digits, value = _Z85[value % 85] + digits, value // 85
        text += digits
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(bitmap), "cardinality": 1}
    (file, *_) = adds(path)
    statistics = _statistics(path, file["path"])
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "appendOnly", "invariants"],
    }
    add = {**file, "partitionValues": {}, "modificationTime": 1, "dataChange": True, "stats": statistics}
    gone = {"path": file["path"], "deletionTimestamp": 2, "dataChange": True, "size": file["size"]}
    actions = [{"protocol": protocol}, {"remove": gone}, {"add": {**add, "deletionVector": vector}}]
    commit(path, actions, "DELETE")


def _statistics(path: Path, name: str) -> str:
    for log in sorted((path / "_delta_log").glob("*.json")):
        for line in log.read_text().splitlines():
            add = json.loads(line).get("add")
            if add and add["path"] == name and add.get("stats"):
                return str(add["stats"])
    import pyarrow.parquet as pq

    return json.dumps({"numRecords": pq.read_metadata(path / name).num_rows})


def payload_as_text(path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    rows = table_of(path).to_pyarrow_table()
    text = pa.array([base64.b64encode(payload).decode() for payload in rows["payload"].to_pylist()])
    rows = rows.set_column(rows.column_names.index("payload"), "payload", text)
    write_deltalake(table_of(path), rows, mode="overwrite", schema_mode="overwrite")


CHANGING: list[tuple[Operation, str]] = [
    (update_payload, r"version \d+ \(UPDATE by delta-rs"),
    (update_metadata, r"version \d+ \(UPDATE by Apache-Spark/4\.1\.0"),
    (update_and_optimize, r"version \d+ \(UPDATE by delta-rs"),
    (swap_sequences, r"version \d+ \(UPDATE by delta-rs"),
    (delete_some, r"version \d+ \(DELETE by delta-rs"),
    (delete_all, r"version \d+ \(DELETE by delta-rs"),
    (merge_changes, r"version \d+ \(MERGE by delta-rs"),
    (merge_inserts, r"version \d+ \(MERGE by delta-rs"),
    (append_again, r"version \d+ \(WRITE by delta-rs"),
    (mark_as_deleted, r"deletion vectors.*version \d+ \(DELETE by Apache-Spark/4\.1\.0.*PURGE"),
    (payload_as_text, r"payload \(string\)"),
]
"""Changes of a table, each with the text of its error."""
