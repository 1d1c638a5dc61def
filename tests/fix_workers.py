"""Which of the processes that `make test` starts runs what: the tests of a file together, and what takes longest first.

Fixtures of a module are made once so, and so is the one Spark, whose start and warming up take as long as hundreds of
tests. (xdist's own groups, `--dist loadgroup`, do nothing with pytest 9.2: it takes no other id for a test.)
"""

from __future__ import annotations

import gc

import pytest
from xdist.scheduler import LoadScopeScheduling

ONE_SPARK = "tests/spark/"
ALONE = ("tests/spark/test_repeated.py",)
"""It asks for no Spark."""
FIRST = (
    ONE_SPARK,
    "tests/backends/local/",
    "tests/backends/s3/test_s3.py",
    "tests/store/test_conformance.py",
    "tests/archive/test_cloud.py",
    "tests/archive/test_foreign.py",
    *ALONE,
)
"""What would keep one process busy for long after the others have ended; and before it what forks, while a process is
small: of one that has grown to a gigabyte a fork takes five times as long."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: min(at for at, path in enumerate((*FIRST, "")) if item.nodeid.startswith(path)))


def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of tests and modules, which stay to the end


class ByFile(LoadScopeScheduling):
    """Hands out a file after the other, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return ONE_SPARK if file.startswith(ONE_SPARK) and file not in ALONE else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None
