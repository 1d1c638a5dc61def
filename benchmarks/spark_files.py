"""Many small files, by `read_space` and by `spark.read.parquet`: python -m benchmarks.spark_files [files] [--s3]

On local disk, or against a moto server with the jars of infra/spark/connectors.py; there requests are counted as well.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import streamkit
from streamkit import Record
from streamkit.spark import read_space, session

from .busy import busy

_TIMES = 5
_SERVER = """
import json, sys
from werkzeug.serving import make_server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
moto, seen = DomainDispatcherApplication(create_backend_app), [0]
def serve(environ, start_response):
    if environ["PATH_INFO"] == "/requests-seen":
        start_response("200 OK", [])
        return [json.dumps(seen[0]).encode()]
    seen[0] += 1
    return moto(environ, start_response)
server = make_server("127.0.0.1", 0, serve, threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""


def _measure(spark: Any, url: str, files: int, endpoint: str) -> None:
    from pyspark.sql import functions as F

    id = uuid4()
    with streamkit.connect(url) as client:
        store = client.store(id)
        for at in range(files):
            store.produce("s", f"segment {at % 20}", [Record(b'{"at":%d}' % n) for n in range(100)])
        report = store.archive("s", target_file_bytes=600)
        table = store._archive("s").table
    from streamkit.spark.native import _hadoop

    snapshot = table.snapshot()
    assert snapshot is not None
    paths = [f"{_hadoop(table)}/{file.path}" for file in snapshot.files]
    print(f"{len(paths)} files, {report.entries:,} entries")

    def aggregate(frame: Any) -> int:
        rows = frame.groupBy((F.col("sequence") % 10).alias("g")).agg(
            F.sum(F.length("payload")), F.count("*").alias("n")
        )
        return sum(row.n for row in rows.collect())

    ways = {
        "spark.read.parquet": lambda: aggregate(spark.read.parquet(*paths)),
        "read_space": lambda: aggregate(read_space(spark, url, id, "s", columns=["sequence", "payload"])),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    worked: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(_TIMES + 1):
        for name, way in ways.items():
            before, begin, used = _requests(endpoint), time.perf_counter(), busy()
            assert way() == report.entries
            seconds, used = time.perf_counter() - begin, busy() - used
            if turn:
                took[name].append(seconds)
                worked[name].append(used)
            if turn == _TIMES:
                told = f", {_requests(endpoint) - before} requests" if endpoint else ""
                used = statistics.median(worked[name])
                print(
                    f"{name:<20} {statistics.median(took[name]):7.2f} s, {used:.2f} s of processors{told}", flush=True
                )
    used = {name: statistics.median(seconds) for name, seconds in worked.items()}
    print(f"{'ratio, processors':<20} {used['read_space'] / used['spark.read.parquet']:7.2f}")
    ratios = [ours / theirs for ours, theirs in zip(took["read_space"], took["spark.read.parquet"], strict=True)]
    print(f"{'ratio':<20} {statistics.median(ratios):7.2f}, of each turn {', '.join(f'{r:.2f}' for r in ratios)}")


def _requests(endpoint: str) -> int:
    if not endpoint:
        return 0
    with urlopen(f"{endpoint}/requests-seen") as answer:
        return int(json.load(answer))


def main(files: int = 240, s3: bool = False) -> None:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {"spark__ui__enabled": "false", "spark__ui__showConsoleProgress": "false", "spark__master": "local[2]"}
    if not s3:
        with tempfile.TemporaryDirectory() as path:
            spark = session("small files", **settings)
            _measure(spark, Path(path).as_uri(), files, "")
            spark.stop()
        return
    import boto3

    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    server = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert server.stdout is not None
        endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="files")
        settings |= {
            "spark__driver__extraClassPath": f"{sys.prefix}/connectors/*",
            "spark__hadoop__fs__s3a__endpoint": endpoint,
            "spark__hadoop__fs__s3a__path__style__access": "true",
        }
        spark = session("small files", **settings)
        _measure(spark, f"s3://files/stores?endpoint_url={endpoint}&region=us-east-1", files, endpoint)
        spark.stop()
    finally:
        server.kill()


if __name__ == "__main__":
    main(*map(int, (text for text in sys.argv[1:] if text.isdecimal())), s3="--s3" in sys.argv)
