"""A view's SQLite connection that stops its process at one of its steps. Only the files of that moment remain."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from streamkit.testing import Crash
from streamkit.views import database

__all__ = ["Steps", "stopping"]


class Steps:
    """Counts the statements and commits of writers; before or after step `stop` the directory is kept and all ends."""

    def __init__(self, directory: Path, stop: int | None, *, after: bool = False) -> None:
        self.taken = 0
        self.left: Path | None = None
        self._directory = directory
        self._stop = stop
        self._after = after
        self._dead = False

    def step(self, act: Callable[[], Any]) -> Any:
        if self._dead:
            raise Crash("this process has stopped")
        here = self.taken == self._stop
        self.taken += 1
        if here and not self._after:
            self._die()
        result = act()
        if here:
            self._die()
        return result

    def _die(self) -> None:
        self._dead = True
        self.left = self._directory.with_name(f"{self._directory.name}-left")
        shutil.copytree(self._directory, self.left, symlinks=True, ignore=shutil.ignore_patterns("*-shm"))
        raise Crash("this process has stopped")


@contextmanager
def stopping(steps: Steps) -> Iterator[None]:
    class Connection(database.ViewConnection):
        def execute(self, *arguments: Any) -> Any:
            return steps.step(lambda: super(Connection, self).execute(*arguments))

        def executemany(self, *arguments: Any) -> Any:
            return steps.step(lambda: super(Connection, self).executemany(*arguments))

        def commit(self) -> None:
            steps.step(lambda: super(Connection, self).commit())

        def rollback(self) -> None:
            if not steps._dead:
                super().rollback()

    with patch.object(database, "ViewConnection", Connection):
        yield
