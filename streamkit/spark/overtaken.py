"""Queries that an erasure overtakes: read_space has named files, and the erasure has replaced them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..errors import PermanentError, StreamkitError

__all__ = ["FilesReplaced", "naming_replaced_files", "planned_again", "replaced"]

T = TypeVar("T")
_SINCE = "were replaced since this frame was planned"
_SIGNS = ("FAILED_READ_FILE.FILE_NOT_EXIST", _SINCE)
"""Spark's name for a missing file, and the source's text for it: the source's errors reach the driver as text."""
_ATTEMPTS = 5


class FilesReplaced(PermanentError):
    """Files of the archive were replaced since the frame was made."""


def replaced(where: str) -> str:
    """The message for files of `where` that are gone."""
    return (
        f"files of the archive {where} {_SINCE}: entries were erased, trimmed or "
        "compacted. Make the frame again, with read_space() or load(), and repeat the query"
    )


def planned_again(query: Callable[[], T]) -> T:
    """The result of `query`, which makes its frames with read_space() and evaluates them.

    `query` is called again if files of the archive were replaced before it ended, up to five times. FilesReplaced if
    that happened each time. Other errors are Spark's own.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            with naming_replaced_files():
                return query()
        except FilesReplaced:
            continue
    with naming_replaced_files():
        return query()


@contextmanager
def naming_replaced_files() -> Iterator[None]:
    """FilesReplaced in the place of Spark's error about a file that does not exist."""
    try:
        yield
    except StreamkitError:
        raise
    except Exception as error:
        # PySpark has no class for it: an error of Py4J, or of Spark Connect, holds the condition in its text.
        text = str(error)
        if not any(sign in text for sign in _SIGNS):
            raise
        raise FilesReplaced(replaced("that Spark was to read")) from error
