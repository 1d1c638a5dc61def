"""The example of late data: entries that a watermark drops are in the space, and the lag counts the unread ones."""

from __future__ import annotations

import tempfile
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from fix_spark import patiently

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

pytestmark = pytest.mark.spark
EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "late.py"


def test_a_stream_leaves_out_what_is_later_than_its_watermark_and_a_batch_counts_it(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        run = run_path(str(EXAMPLE))["run"]
        streamed, batch, behind = patiently(lambda: run(spark, tempfile.mkdtemp(dir=tmp_path)))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert streamed == {"12:00": 2, "12:05": 1, "12:10": 1, "12:20": 1}
    assert batch == {"12:00": 3, "12:05": 1, "12:10": 1, "12:20": 1, "12:40": 1}
    assert behind == [3, 0]
    assert "1 came too late for it" in capsys.readouterr().out
