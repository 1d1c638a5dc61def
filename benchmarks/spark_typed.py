"""Payloads as columns, by `read_space(schema=…)` and by `from_json`: python -m benchmarks.spark_typed [rows]

The archive of one space on a local disk, flights as JSON documents of eight fields. Both ways read the same files, and
aggregate all fields. In each turn every way is run once, so that a busy machine slows down all of them.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import streamkit
from streamkit import Record
from streamkit.spark import parse_payloads, read_space, session

from .busy import busy

_TURNS = 5
_BATCH = 20_000
_AIRPORTS = ("SFO", "LAX", "JFK", "ORD", "ATL")
PLAIN = (
    "date timestamp, day string, delay int, distance int, fare double, origin string, destination string, flight int"
)
STRICT = """date timestamp, day date NOT NULL, delay int NOT NULL, distance int, fare decimal(9,2),
    origin string NOT NULL, destination string, flight int NOT NULL"""


def _fill(url: str, rows: int) -> Any:
    chance = random.Random(1)
    id = uuid4()
    with streamkit.connect(url) as client:
        store = client.store(id)
        for begin in range(0, rows, _BATCH):
            with store.transaction("flights") as transaction:
                flights: dict[str, list[Record]] = {}
                for at in range(begin, min(rows, begin + _BATCH)):
                    flights.setdefault(f"flight-{at // 7 % 20_000}", []).append(Record(_document(chance, at)))
                for segment, records in flights.items():
                    transaction.produce(segment, records)
        store.archive("flights")
    return id


def _document(chance: random.Random, at: int) -> bytes:
    day = f"20{chance.randrange(20):02}-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}"
    return (
        f'{{"date":"{day}T{chance.randrange(24):02}:00:00Z","day":"{day}","delay":{chance.randrange(-20, 200)},'
        f'"distance":{chance.randrange(3000)},"fare":{chance.randrange(999)}.{chance.randrange(100):02},'
        f'"origin":"{chance.choice(_AIRPORTS)}","destination":"{chance.choice(_AIRPORTS)}","flight":{at}}}'
    ).encode()


def main(rows: int = 1_000_000) -> None:
    from pyspark.sql import functions as F

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {"spark__ui__enabled": "false", "spark__ui__showConsoleProgress": "false", "spark__master": "local[2]"}
    with tempfile.TemporaryDirectory() as path:
        url = Path(path).as_uri()
        id = _fill(url, rows)
        spark = session("typed", **settings)
        entries = read_space(spark, url, id, "flights", columns=["segment", "payload"])

        def aggregate(frame: Any) -> Any:
            sums = [F.sum(name) for name in ("delay", "distance", "flight")]
            return frame.groupBy("origin").agg(
                *sums, F.max("fare"), F.max("date"), F.count("day"), F.sum(F.length("destination"))
            )

        def by_hand(schema: str) -> Any:
            document = F.from_json(F.col("payload").cast("string"), schema.replace(" NOT NULL", ""))
            return aggregate(entries.select(document.alias("document")).select("document.*"))

        def typed(schema: str) -> Any:
            return aggregate(parse_payloads(entries, schema).where("bad_payload IS NULL"))

        _compare({"from_json": lambda: by_hand(PLAIN), "typed": lambda: typed(PLAIN)}, "no required fields", rows)
        _compare({"from_json": lambda: by_hand(STRICT), "typed": lambda: typed(STRICT)}, "required, exact fields", rows)
        spark.stop()


def _compare(ways: dict[str, Callable[[], Any]], what: str, rows: int) -> None:
    took: dict[str, list[float]] = {name: [] for name in ways}
    worked: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(_TURNS + 1):
        for name, way in ways.items():
            begin, used = time.perf_counter(), busy()
            found = way().collect()
            assert len(found) == len(_AIRPORTS)
            if turn:  # the first one compiles
                took[name].append(time.perf_counter() - begin)
                worked[name].append(busy() - used)
    print(f"{rows:,} rows, {what}")
    for name in ways:
        seconds, used = statistics.median(took[name]), statistics.median(worked[name])
        print(f"  {name:<10} {seconds:.2f} s, {used:.2f} s of processors")
    for what_of, of in (("time", took), ("processors", worked)):
        ratios = [ours / theirs for theirs, ours in zip(of["from_json"], of["typed"], strict=True)]
        print(f"  ratio of {what_of:<10} {statistics.median(ratios):.2f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
