"""Planning and counting many tiny spaces with Spark: python -m benchmarks.many_spaces [spaces]"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import streamkit
from streamkit import Record
from streamkit.spark import read_space, session

from .busy import busy


def main(spaces: int = 300) -> None:
    settings = {"spark__ui__enabled": "false", "spark__ui__showConsoleProgress": "false", "spark__master": "local[2]"}
    spark = session("many spaces", **settings)
    with tempfile.TemporaryDirectory() as path:
        url = Path(path).as_uri()
        id = uuid4()
        with streamkit.connect(url) as client:
            store = client.store(id)
            for at in range(spaces):
                store.produce(f"space {at}", "s", [Record(b"%d" % at)] * 3)
                store.archive(f"space {at}")
                store.produce(f"space {at}", "s", [Record(b"tail")])
        read_space(spark, url, id, "space 0").count()  # a first query loads half of Spark
        start, used = time.perf_counter(), busy()
        frame = read_space(spark, url, id, "*")
        told = f"{time.perf_counter() - start:6.2f} s, {busy() - used:.2f} s of processors"
        print(f"planning {spaces} spaces  {told}", flush=True)
        start, used = time.perf_counter(), busy()
        assert frame.count() == 4 * spaces
        print(
            f"counting them       {time.perf_counter() - start:6.2f} s, {busy() - used:.2f} s of processors", flush=True
        )
    spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
