"""One space is archived, and compacted, by several processes at once, exactly once, also where they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from streamkit import Record, Store
from streamkit.archive import Processes, spread
from streamkit.errors import PermanentError, Unavailable

pytest.importorskip("deltalake")

import pyarrow.parquet as pq
from deltalake import DeltaTable

SPACE = "orders/ü"
PARTITIONS = 8


def filled(store: Store, transactions: int = 60, rest: bytes = b"") -> None:
    store.create_space(SPACE, PARTITIONS)
    for at in range(transactions):
        store.produce(SPACE, f"s{at % 40}", [Record(b"%d/%d" % (at, n) + rest) for n in range(3)])


def filled_with_small_files(store: Store) -> None:
    """A space whose partitions have several files each. Compaction makes one file of them, because TARGET is large."""
    filled(store, rest=200 * b"-")
    store.archive(SPACE, target_file_bytes=1000)


TARGET = 6000


def table_rows(store: Store) -> list[tuple[str, int, bytes]]:
    table = DeltaTable(store._archive(SPACE).table.url).to_pyarrow_table(columns=["segment", "sequence", "payload"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


def readers(store: Store) -> list[tuple[str, int, bytes]]:
    return sorted((entry.segment, entry.sequence, entry.payload) for entry in store.consume_space(SPACE))


def test_several_processes_archive_one_space_together(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        filled(store)
        before = readers(store)
        report = store.archive(SPACE, spread=Processes(url, 2))
        assert report.entries == 180
        assert report.commits == 1
        assert table_rows(store) == before == readers(store)
        assert all(entry.tier == "cold" for entry in store.consume_space(SPACE))
        assert store.archive(SPACE, spread=Processes(url, 2)).entries == 0
        store.produce(SPACE, "s0", [Record(b"more")])
        assert store.archive(SPACE, spread=Processes(url, 2)).entries == 1
        assert table_rows(store) == readers(store)
        assert not store.verify(SPACE).findings


def test_a_process_that_ends_is_an_error_and_the_next_run_archives_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = tmp_path.as_uri()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        filled(store)
        before = readers(store)
        with monkeypatch.context() as patch:
            patch.setattr(spread.sys, "executable", "/bin/true")
            with pytest.raises(Unavailable, match="ended: run it again"):
                store.archive(SPACE, spread=Processes(url, 2))
        assert readers(store) == before
        store.archive(SPACE, spread=Processes(url, 2))
        assert table_rows(store) == before == readers(store)


@pytest.mark.parametrize(("url", "count", "error"), [("memory://", 2, "in memory"), ("file:///x", 0, "one process or")])
def test_processes_that_cannot_be_are_refused(url: str, count: int, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Processes(url, count)


def test_several_processes_compact_one_space_together(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        filled_with_small_files(store)
        before = readers(store)
        done: list[tuple[int, int]] = []
        report = store.compact(
            SPACE,
            target_file_bytes=TARGET,
            spread=Processes(url, 2),
            progress=lambda some, of: done.append((some, of)),
        )
        assert report.before > 3 * report.after > 3
        assert len(done) > 2, "several tasks"
        assert done[-1][0] == done[-1][1]
        assert table_rows(store) == before == readers(store)
        assert not store.verify(SPACE).findings
        assert store.compact(SPACE, spread=Processes(url, 2)).after == 1
        assert table_rows(store) == before == readers(store)


def test_entries_that_are_erased_while_other_processes_compact_stay_erased(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        filled_with_small_files(store)
        processes = Processes(url, 2)

        def beside(tasks: Sequence[spread.Task]) -> Iterator[spread.Wrote | spread.Rewritten]:
            """The erasure comes when the new files are written, and no version names them."""
            done = list(processes(tasks))
            client.store(store.id).erase(SPACE, "s1")
            yield from done

        store.compact(SPACE, target_file_bytes=TARGET, spread=beside)
        wanted = readers(store)
        assert not [entry for entry in store.consume_space(SPACE) if entry.segment == "s1"]
        assert [row for row in table_rows(store) if row[2] is not None] == wanted
        stored = {path.name for path in Path(store._archive(SPACE).table.directory).glob("*.parquet")}
        stored -= {Path(uri).name for uri in DeltaTable(store._archive(SPACE).table.url).file_uris()}
        for name in stored:
            rows = pq.read_table(Path(store._archive(SPACE).table.directory) / name).to_pylist()
            assert not [row for row in rows if row["segment"] == "s1" and row["payload"]]
        assert store.compact(SPACE, spread=processes).after == 1
        assert readers(store) == wanted
        assert not store.verify(SPACE).findings


def test_processes_that_know_another_place_of_the_archives_are_refused(tmp_path: Path) -> None:
    url, place = (tmp_path / "stores").as_uri(), (tmp_path / "cold").as_uri()
    with streamkit.connect(url, archive=place) as client:
        store = client.store(uuid4())
        filled(store)
        before = readers(store)
        with pytest.raises(PermanentError, match=r"Processes\(url, count, archive=URL\)"):
            store.archive(SPACE, spread=Processes(url, 2))
        assert not list(tmp_path.rglob("*.parquet"))
        report = store.archive(SPACE, target_file_bytes=1000, spread=Processes(url, 2, archive=place))
        with pytest.raises(PermanentError, match=r"Processes\(url, count, archive=URL\)"):
            store.compact(SPACE, spread=Processes(url, 2))
        assert report.entries == len(table_rows(store)) == len(before)
        assert readers(store) == before
        assert not store.verify(SPACE).findings


ARCHIVER = """
import sys
import streamkit
from streamkit.archive import Processes
url, store = sys.argv[1:]
with streamkit.connect(url) as client:
    print(client.store(store).archive("orders/ü", target_file_bytes=100, spread=Processes(url, 2)).entries)
"""


COMPACTER = """
import sys
import streamkit
from streamkit.archive import Processes
url, store = sys.argv[1:]
with streamkit.connect(url) as client:
    print(client.store(store).compact("orders/ü", target_file_bytes=6000, spread=Processes(url, 2)).after)
"""


def archiver(url: str, store: UUID, program: str = ARCHIVER) -> subprocess.Popen[bytes]:
    paths = [str(Path(__file__).parents[1] / "short_leases"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(paths))
    return subprocess.Popen(
        [sys.executable, "-c", program, url, str(store)], env=environment, start_new_session=True, stderr=-3
    )


def kill_sometime(process: subprocess.Popen[bytes], chance: Random, whom: str) -> None:
    """Kill the process at a random moment of its life; `whom` is "all" for its children too."""
    time.sleep(chance.uniform(0.5, 4.0))
    if whom == "all":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.exhaustive_only(whom="all")  # as for compactions below
@pytest.mark.parametrize("whom", ["all", "the holder of the lease"])
def test_archivers_that_are_killed_at_random_lose_and_double_nothing(tmp_path: Path, whom: str) -> None:
    chance = Random(whom)
    url = tmp_path.as_uri()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        filled(store)
        before = readers(store)
        for _ in range(25 if EXHAUSTIVE else 2):
            kill_sometime(archiver(url, store.id), chance, whom)
            assert readers(store) == before
        ends = time.monotonic() + 120
        while archiver(url, store.id).wait() and time.monotonic() < ends:
            pass  # the lease of the one that was killed ends after 8 s
        assert table_rows(store) == before == readers(store)
        assert not store.verify(SPACE).findings


@pytest.mark.slow
@pytest.mark.exhaustive_only(whom="the process that commits")
@pytest.mark.parametrize("whom", ["all", "the process that commits"])
def test_compactions_that_are_killed_at_random_lose_and_double_nothing(tmp_path: Path, whom: str) -> None:
    chance = Random(whom)
    url = tmp_path.as_uri()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        filled_with_small_files(store)
        before = readers(store)
        for _ in range(25 if EXHAUSTIVE else 2):
            kill_sometime(archiver(url, store.id, COMPACTER), chance, whom)
            assert table_rows(store) == before == readers(store)
        assert archiver(url, store.id, COMPACTER).wait() == 0
        assert store.compact(SPACE).after == 1
        assert table_rows(store) == before == readers(store)
        assert not store.verify(SPACE).findings
