"""Progress on standard error, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]

Advance = Callable[[int], None]


@contextmanager
def progress(what: str, total: int | None, *, unit: str = "") -> Iterator[Advance]:
    """Give a function that moves the bar on by n. `total` None: only a count. Bytes are shown as such (unit "B")."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    done: ProgressColumn = DownloadColumn() if unit == "B" else MofNCompleteColumn()
    columns: tuple[ProgressColumn, ...] = (TextColumn("{task.description}"), done, TextColumn(unit.strip("B")))
    columns = (
        (SpinnerColumn(), *columns) if total is None else (columns[0], BarColumn(), *columns[1:], TimeRemainingColumn())
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda n: bar.advance(task, n)
