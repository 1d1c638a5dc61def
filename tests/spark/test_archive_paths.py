"""Archives in directories whose names look like URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from streamkit import Record
from streamkit.spark import read_space

SAMPLE = ["a%20b", "50% ü", "[x]*{y}#b?c"]
OTHERS = ["50%", "a%zz", "a\\b", "a b", "a#b?c", "[x]*{y}", "%2E%2E", "ü"]


@pytest.mark.parametrize("name", SAMPLE + OTHERS if EXHAUSTIVE else SAMPLE)
def test_spark_reads_an_archive_under_a_directory_of_any_name(
    spark: Any, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = (tmp_path / name).as_uri()
    with streamkit.connect(url) as client, client.store(uuid4()) as store:
        for number in range(6):
            store.produce("orders", f"s{number % 2}", [Record(b"%d" % number)])
            if number < 5:
                store.archive("orders")
    rows = read_space(spark, url, store.id, "orders").orderBy("position").collect()
    assert [(bytes(row.payload), row.tier) for row in rows] == [
        *((b"%d" % number, "cold") for number in range(5)),
        (b"5", "hot"),
    ]
    loaded = spark.read.format("streamkit").options(url=url, store=str(store.id), space="orders").load()
    assert loaded.count() == 6
    assert "slower" not in caplog.text, "Spark's own reader reads it"
