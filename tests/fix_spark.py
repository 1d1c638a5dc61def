"""A real Spark, one session a run; and processes of their own that run jobs until they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import streamkit
from harness.spark_session import CONNECTORS, JVM_FLAGS, small_session
from streamkit import Client, Record, Store

SPACE = "orders/ü"
_PATIENCE = 240.0
CLASSES = Path(sys.prefix) / "spark-classes.jsa"
JVM = JVM_FLAGS + f' "-XX:SharedArchiveFile={CLASSES}"' * CLASSES.exists()
"""`make` keeps the classes that Spark loads (infra/spark)."""
_SHORT_LEASES = str(Path(__file__).parent / "short_leases")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, s3_credentials: None) -> Iterator[Any]:
    """The credentials first: Spark's processes have the environment that its JVM was started with."""
    pytest.importorskip("pyspark")
    from streamkit.errors import MissingDependency
    from streamkit.spark.session import check_java

    try:
        check_java()
    except MissingDependency as error:
        pytest.skip(str(error))
    found = small_session(JVM, spark__sql__warehouse__dir=str(tmp_path_factory.mktemp("warehouse")))
    yield found
    found.stop()


def fill(store: Store, transactions: int, start: int = 0, space: str = SPACE) -> None:
    for at in range(start, start + transactions):
        records = [Record(b'{"at":%d,"n":%d}' % (at, n), {"n": str(n)} if n % 2 else None) for n in range(at % 6 + 1)]
        store.produce(space, f"s{at % 7}", records)


@contextmanager
def both_tiers(url: str, transactions: int, size: int) -> Iterator[Store]:
    """A store of two partitions: so many transactions archived in files of `size` bytes, and half as many more."""
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        store.create_space(SPACE, 2)
        fill(store, transactions)
        store.archive(SPACE, target_file_bytes=size)
        fill(store, transactions // 2, start=transactions)
        yield store


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    rows = frame.select("segment", "sequence", "payload", "metadata", "trx_id", "number", "partition", "tier").collect()
    return sorted((r[0], r[1], bytes(r[2]), r[3] or {}, *r[4:]) for r in rows)


def entries_of(store: Store, space: str = SPACE) -> list[tuple[Any, ...]]:
    return sorted(
        (e.segment, e.sequence, e.payload, e.metadata, str(e.trx.id), e.trx.number, e.origin.partition, e.tier)
        for e in store.consume_space(space)
    )


def restore_beside_damaged(
    client: Client, root: str, capsys: pytest.CaptureFixture[str], harm: Callable[[Store, str], None]
) -> None:
    """Restore three archived spaces. `harm(store, space)` has damaged two of them. The third one is restored, and an
    error names the others."""
    from streamkit.spark.jobs import restore

    into, long = uuid4(), "l" * 200
    store = client.store(uuid4())
    for space in (SPACE, "damaged", long):
        fill(store, 5, space=space)
        store.archive(space)
    for space in ("damaged", long):
        harm(store, space)
    before = entries_of(store)
    job = ["--url", root, "--store", str(store.id), "--into", str(into), "--cold"]
    assert restore.job(job) == 1
    said = capsys.readouterr().out
    assert "'damaged': Damaged" in said
    assert long[:100] in said
    assert restore.job([*job, "--space", SPACE]) == 0
    assert [row[:4] for row in entries_of(client.store(into))] == [row[:4] for row in before]


def load(spark: Any, url: str, store: Store, **options: str) -> Any:
    given = {"url": url, "store": str(store.id), "space": SPACE, **options}
    return spark.read.format("streamkit").options(**given).load()


def stream(spark: Any, url: str, source: UUID, into: UUID, checkpoint: Path, **options: str) -> Any:
    """A query from the space of one store to the space `out` of another, run until it has what is there now."""
    given = {"url": url, "store": str(source), "space": SPACE, **options}
    out = {"url": url, "store": str(into), "space": "out", "order": "sequence", "checkpointLocation": str(checkpoint)}

    def run() -> Any:
        frame = spark.readStream.format("streamkit").options(**given).load().select("segment", "payload", "sequence")
        query = frame.writeStream.format("streamkit").options(**out).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    return patiently(run)


def patiently(run: Callable[[], Any]) -> Any:
    """run(), which runs a stream to its end.

    Spark waits ten seconds for the Python process of a stream to come up, which a busy machine may not give it: then it
    is run again.
    """
    from pyspark.errors import StreamingQueryException

    ends = time.monotonic() + _PATIENCE
    while True:
        try:
            return run()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error) or time.monotonic() > ends:
                raise


class Doomed:
    """A Python program in a session of its own, with all that it starts: JVM, workers."""

    def __init__(self, arguments: Sequence[str], output: Path) -> None:
        self.output = output
        environment = dict(
            os.environ,
            PYTHONPATH=os.pathsep.join([_SHORT_LEASES, *filter(None, [os.environ.get("PYTHONPATH")])]),
            SPARK_LOCAL_IP="127.0.0.1",
            JDK_JAVA_OPTIONS=JVM,
            PYSPARK_SUBMIT_ARGS="--master local[2] --conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1 "
            "--conf spark.driver.bindAddress=127.0.0.1 --conf spark.sql.shuffle.partitions=2 "
            f"--conf spark.ui.showConsoleProgress=false --driver-class-path '{CONNECTORS}/*' pyspark-shell",
            PYTHONUNBUFFERED="1",
        )
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_until(self, holds: Callable[[], bool], patience: float = _PATIENCE) -> bool:
        """False if it ended before. AssertionError if neither comes for so many seconds."""
        ends = time.monotonic() + patience
        while not holds():
            if self.process.poll() is not None:
                return holds()
            assert time.monotonic() < ends, self.said()
            time.sleep(0.02)
        return True

    def kill_workers(self) -> int:
        """SIGKILL to the Python processes that read and write for it, so that its query fails; how many there were."""
        killed = 0
        for process in _members(self.process.pid):
            try:
                command = Path(f"/proc/{process}/cmdline").read_bytes()
                if process != self.process.pid and b"pyspark." in command and b"java" not in command:
                    os.kill(process, signal.SIGKILL)
                    killed += 1
            except (FileNotFoundError, ProcessLookupError):
                continue
        return killed

    def kill(self) -> bool:
        """SIGKILL to all of the session at once. False if it had ended by itself; then it must have ended well."""
        running = self.process.poll() is None
        while members := _members(self.process.pid):
            for process in members:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.poll()
        self.process.wait()
        assert running or self.process.returncode == 0, self.said()
        return running


def _members(session: int) -> list[int]:
    """The processes of a session that are alive. A worker has a group of its own, but not a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = path.read_text().rpartition(") ")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Callable[..., Doomed]]:
    """A function that starts programs: doomed("-m", "streamkit.spark.jobs.archive", …). Running programs are killed at
    the end."""
    started: list[Doomed] = []

    def start(*arguments: str) -> Doomed:
        started.append(Doomed(arguments, tmp_path / f"output-{len(started)}"))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()
