"""Progress on standard error, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamkit.terminal import visible

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

__all__ = ["Bar", "progress"]

_EVERY = 0.05


class Bar:
    """Holds how far the work is, and shows it twenty times a second at most: work is many small steps."""

    def __init__(self, shown: Progress | None = None, task: TaskID | None = None) -> None:
        self._shown = shown
        self._task = task
        self._done = 0
        self._next = 0.0

    def advance(self, steps: int) -> None:
        self.at(self._done + steps)

    def at(self, done: int, total: int | None = None) -> None:
        """Show that `done` of `total` steps are done. None keeps the former total."""
        self._done = done
        if self._shown is None or self._task is None or (time.monotonic() < self._next and done != total):
            return
        self._next = time.monotonic() + _EVERY
        self._shown.update(self._task, completed=done, total=total)


@contextmanager
def progress(what: str, total: int | None = None, *, unit: str = "") -> Iterator[Bar]:
    """A bar, which is gone at the end; without a total, a count. The unit "B" is for bytes."""
    if not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [DownloadColumn()] if unit == "B" else [MofNCompleteColumn(), TextColumn(unit)]
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as shown:
        yield Bar(shown, shown.add_task(visible(what), total=total))
