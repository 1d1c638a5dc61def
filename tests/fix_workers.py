"""The order of the files, and the worker of each: a file's tests share a worker, and the longest files begin first.

So a module's fixtures are made once, and Spark starts twice: its start and first queries take as long as hundreds of
tests. (xdist's own groups, `--dist loadgroup`, do nothing with pytest 9.2: it takes no other id for a test.)
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Generator

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"
SECOND_SPARK = (
    "test_frames.py",
    "test_rollups.py",
    "test_s3a.py",
    "test_spark.py",
    "test_stores.py",
    "test_streams.py",
    "test_typed.py",
)
"""Half of the work of Spark: it has a session of its own, on another worker."""
WITHOUT_SPARK = ("test_lag.py", "test_repeated.py", "test_requests.py", "test_rounds.py", "test_versions.py")
LONGEST = (
    f"{SPARK} ",
    "tests/backends/local/",
    "tests/log/test_sweep.py",
    "tests/archive/test_archive.py",
    "tests/archive/test_crashes.py",
    "tests/archive/test_foreign.py",
    "tests/store/test_conformance.py",
    "tests/cli/test_documentation.py",
    "tests/archive/test_archived_retention.py",
    "tests/project/test_site.py",
    "tests/cli/test_cli.py",
    "tests/serve/test_console.py",
    "tests/backends/azure/",
    "tests/backends/s3/",
    "tests/routes/test_kills.py",
    "tests/project/test_tutorial.py",
    "tests/archive/test_parallel_archivers.py",
    "tests/log/test_damage.py",
    "tests/serve/test_durable_conformance.py",
    "tests/archive/test_trimmed_rows.py",
    "tests/archive/test_requests.py",
    "tests/backup/test_whole_store.py",
    "tests/adapters/",
    "tests/store/test_erasure_property.py",
    "tests/store/test_leases.py",
    "tests/project/test_benchmarks.py",
    "tests/archive/test_memory.py",
    "tests/testing/test_program_kit.py",
    "tests/store/test_erasures_meanwhile.py",
    "tests/store/test_salvage.py",
    "tests/archive/test_few_files.py",
    "tests/log/test_requests.py",
    "tests/archive/test_cloud.py",
    "tests/log/test_races.py",
    "tests/groups/test_poisoned_processes.py",
    "tests/project/test_cost_model.py",
    "tests/groups/test_killed_consumers.py",
    "tests/store/test_erased_bytes.py",
    "tests/log/test_unreliable_network.py",
    "tests/serve/test_killed_servers.py",
    "tests/serve/test_deployments.py",
    "tests/project/test_functions.py",
    "tests/project/test_extras.py",
    "tests/project/test_wheel.py",
    "tests/project/test_platforms.py",
    "tests/log/test_inbox.py",
    "tests/types/test_checkers.py",
    "tests/serve/test_clients.py",
    "tests/spark/test_repeated.py",
    "tests/project/test_roles.py",
    "tests/log/test_lost_answers.py",
    "tests/log/test_killed_writers.py",
    "tests/views/test_erased_bytes.py",
    "tests/log/test_service_errors.py",
    "tests/log/test_crash.py",
    "tests/backup/test_archived.py",
    "tests/archive/test_log_cleanup.py",
    "tests/cli/test_lease.py",
    "tests/groups/test_crash_points.py",
    "tests/views/test_full_disk.py",
    "tests/store/test_state_machine.py",
    "tests/store/test_reading_during_removal.py",
    "tests/project/test_groups_model.py",
    "tests/routes/test_interrupts.py",
    "tests/serve/test_many_streams.py",
    "tests/log/test_reading_backwards.py",
)
"""Files and folders that take long, the longest first; also those of a few long tests, which would begin last. Forks
come early, while a process is small: the fork of a process of a gigabyte takes five times as long. The other files
follow by their number of tests."""


def unit_of(nodeid: str) -> str:
    """Return the unit that one worker runs: a file, or all tests of one Spark session."""
    file = nodeid.partition("::")[0]
    if not file.startswith(SPARK) or file.endswith(WITHOUT_SPARK):
        return file
    return f"{SPARK} {1 + file.endswith(SECOND_SPARK)}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    counts = Counter(unit_of(item.nodeid) for item in items)

    def rank(item: pytest.Item) -> tuple[int, int, str]:
        unit = unit_of(item.nodeid)
        place = next((at for at, path in enumerate(LONGEST) if unit.startswith(path)), len(LONGEST))
        return place, -counts[unit], unit

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collected tests are no garbage, but a garbage collection that visits them takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of tests and modules, which stay to the end
    gc.set_threshold(10_000)  # a look for cycles after each 700 new objects takes a tenth of the time of a test


class ByFile(LoadScopeScheduling):
    """Hands out one unit after the other, in the order of collection."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None
