"""The lag of a stream, from its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_spark import SPACE, fill

import streamkit
from streamkit import Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from streamkit.errors import PermanentError
from streamkit.spark import stream_lag
from streamkit.spark.jobs import lag
from streamkit.spark.options import parse
from streamkit.spark.stream import StreamReader

pytestmark = pytest.mark.spark


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "stores").as_uri()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        store.create_space(SPACE, 3)
        fill(store, 40)
        yield store


def run(url: str, store: Store, checkpoint: Path, rows: int | None) -> list[bytes]:
    """A batch from the beginning, noted as Spark notes it: the payloads that are read."""
    reader = StreamReader(parse({"url": url, "store": str(store.id), "space": SPACE}))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(rows) if rows else ReadAllAvailable())
    for name, text in (("offsets", f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(end)}'), ("commits", "v1\n{}")):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
        (checkpoint / name / "7").write_text(text)
    found: list[Any] = []
    for task in reader.partitions(start, end):
        found += [row["payload"] for batch in reader.read(task) for row in batch.to_pylist()]
    reader.stop()
    return found


@pytest.mark.parametrize("archived", [False, True])
def test_the_lag_is_what_the_stream_has_not_read(url: str, store: Store, tmp_path: Path, archived: bool) -> None:
    checkpoint = tmp_path / "checkpoint"
    if archived:
        store.archive(SPACE)
        fill(store, 10, start=40)
    entries = list(store.consume_space(SPACE))
    read = run(url, store, checkpoint, 30)
    (behind,) = stream_lag(str(checkpoint), url).values()
    assert 0 < len(read) <= 30
    assert behind.entries == len(entries) - len(read)
    assert behind.bytes == sum(len(entry.payload) for entry in entries) - sum(map(len, read))
    assert 0 <= behind.seconds < 600
    run(url, store, checkpoint, None)
    assert stream_lag(checkpoint.as_uri(), url) == {(store.id, SPACE): (0, 0, 0.0)}
    store.produce(SPACE, "s", [streamkit.Record(b"12345")])
    assert stream_lag(str(checkpoint), url)[store.id, SPACE][:2] == (1, 5)


def test_trimmed_entries_are_no_lag(url: str, store: Store, tmp_path: Path) -> None:
    run(url, store, tmp_path / "checkpoint", 30)
    store.trim(SPACE, keep_entries=6)
    assert stream_lag(str(tmp_path / "checkpoint"), url)[store.id, SPACE].entries == len(
        list(store.consume_space(SPACE))
    )


def test_a_command_tells_the_lag(url: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(url, store, tmp_path / "checkpoint", None)
    store.produce(SPACE, "s", [streamkit.Record(b"12345")])
    assert lag.job(["--url", url, "--checkpoint", str(tmp_path / "checkpoint")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["store"], told["space"], told["entries"], told["bytes"]) == (str(store.id), SPACE, 1, 5)


def test_what_is_no_checkpoint_is_said(url: str, store: Store, tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="is no checkpoint of a stream"):
        stream_lag(str(tmp_path / "nothing"), url)
    run(url, store, tmp_path / "checkpoint", None)
    store.delete_space(SPACE)
    with pytest.raises(PermanentError, match="does not exist"):
        stream_lag(str(tmp_path / "checkpoint"), url)
    store.create_space(SPACE, 1)
    with pytest.raises(PermanentError, match="another space"):
        stream_lag(str(tmp_path / "checkpoint"), url)
    (tmp_path / "checkpoint" / "offsets" / "7").write_text("v1\n{}\nnonsense")
    with pytest.raises(PermanentError, match="batch 7 cannot be read"):
        stream_lag(str(tmp_path / "checkpoint"), url)


@pytest.mark.parametrize(
    "harm",
    [
        {"rows": None},
        {"rows": "many"},
        {"spaces": []},
        {"spaces": {"name": {}}},
        {"spaces": {"[1, 2]": {"incarnation": "", "read": [1]}}},
        {"read": None},
        {"read": [[1]]},
        {"read": ["1"]},
        {"version": 1, "[]": 3},
        {"version": 1, "spaces": {}},
    ],
)
def test_a_damaged_offset_is_said(url: str, store: Store, tmp_path: Path, harm: dict[str, Any]) -> None:
    run(url, store, tmp_path / "checkpoint", None)
    file = tmp_path / "checkpoint" / "offsets" / "7"
    *lines, last = file.read_text().splitlines()
    offset = json.loads(last)
    if "read" in harm:
        next(iter(offset["spaces"].values()))["read"] = harm["read"]
    else:
        offset |= harm
    file.write_text("\n".join([*lines, json.dumps(offset)]))
    with pytest.raises(PermanentError, match="the offset of batch 7 cannot be read"):
        stream_lag(str(tmp_path / "checkpoint"), url)


def test_a_checkpoint_at_an_unknown_place_is_said(url: str, tmp_path: Path) -> None:
    (tmp_path / "commits").touch()
    for place in ("nowhere://x/checkpoint", str(tmp_path)):
        with pytest.raises(PermanentError, match="the checkpoint cannot be read"):
            stream_lag(place, url)
