"""Changes of the table by other programs: the versions that neither archiving nor compaction made.

An OPTIMIZE declares that it changes no data, and is believed. Any other change (UPDATE, MERGE, DELETE, an overwritten
table) is checked: the rows that left the table must equal those that came. Otherwise CorruptData is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import CorruptData
from .columns import as_ours
from .delta_actions import Action, actions_of
from .errors import UNDECODABLE, Damaged
from .schema import schema
from .snapshot import Gone

if TYPE_CHECKING:
    from .table import Table

__all__ = ["Commit", "blame", "check", "commits"]

_OURS = "streamkit/"
_ROWS = 4096
_NAMED = 3


class Commit(NamedTuple):
    """One version of the table."""

    version: int
    operation: str
    """The operation and the program that made the version, according to the log."""
    ours: bool
    changes: bool
    """True if the commit declares that it changed data."""
    added: frozenset[str]
    removed: frozenset[str]

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation})"


def commits(table: Table, first: int, last: int) -> list[Commit]:
    """Versions first..last, oldest first. Versions whose description Delta has cleaned up are left out."""
    found: list[Commit] = []
    for version in range(last, first - 1, -1):
        text = table.log_of(version)
        if text is None:
            break
        try:
            found.append(_commit(table, version, list(actions_of(text))))
        except UNDECODABLE as error:
            raise Damaged(f"{table.url}: the description of version {version} cannot be read: {error}") from error
    return found[::-1]


def _commit(table: Table, version: int, actions: Sequence[Action]) -> Commit:
    added = [action.add for action in actions if action.add is not None]
    removed = [action.remove for action in actions if action.remove is not None]
    info = next((action.info for action in actions if isinstance(action.info, dict)), {})
    words = [info.get("operation"), info.get("engineInfo") or info.get("clientVersion")]
    return Commit(
        version,
        " by ".join(_plain(word) for word in words if word) or "without a description",
        any(action.txn is not None and action.txn.app_id.startswith(_OURS) for action in actions),
        any(file.data_change for file in added) or any(file.data_change for file in removed),
        frozenset(table.path_of(file.path) for file in added),
        frozenset(table.path_of(file.path) for file in removed),
    )


def _plain(word: Any) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in str(word)[:60])


def blame(table: Table, first: int, last: int) -> str:
    """A text to append to an error: the foreign versions of first..last that changed the table, and advice."""
    suspects = [commit for commit in commits(table, first, last) if not commit.ours and commit.changes]
    return _advice(table, suspects)


def _advice(table: Table, suspects: Sequence[Commit]) -> str:
    if not suspects:
        return "the table was changed by something else; restore a version"
    shown = ", ".join(map(str, suspects[:_NAMED])) + (
        f" and {len(suspects) - _NAMED} more" if len(suspects) > _NAMED else ""
    )
    before = suspects[0].version - 1
    return (
        f"the table was changed by something else: {shown}. Restore the version before, with "
        f"DeltaTable({table.url!r}).restore({before}) or RESTORE TABLE … TO VERSION AS OF {before}"
    )


def check(table: Table, first: int, last: int, now: Iterable[str]) -> None:
    """Raise CorruptData if others changed rows in versions first..last of the table, whose files are `now`."""
    listed = commits(table, first, last)
    suspects = [commit for commit in listed if not commit.ours and commit.changes]
    if not suspects:
        return
    names_now, base, born, archived = set(now), set[str](), set[str](), set[str]()
    for commit in listed:
        if commit.ours:
            # It builds on a checked version: its removals and rewritten files are right.
            archived |= commit.added
            continue
        base |= commit.removed - born
        born |= commit.added - base
    left = (base | archived) - names_now
    came = (born & names_now) - archived
    if not left and not came:
        return
    try:
        same = _digest(table, left) == _digest(table, came)
    except _Unknown as error:
        raise CorruptData(
            f"{table.url}, version {last}: changes of streamkit's rows cannot be excluded, because {error}; "
            f"{_advice(table, suspects)}"
        ) from None
    if not same:
        raise CorruptData(f"{table.url}, version {last}: rows that streamkit wrote differ; {_advice(table, suspects)}")


class _Unknown(Exception):
    """The earlier content of the table can no longer be read."""


def _digest(table: Table, paths: Iterable[str]) -> dict[int, tuple[int, int]]:
    """The number of rows of each partition and the sum of their hashes, which do not depend on files and order."""
    import pyarrow as pa

    names = schema().names
    digests: dict[int, tuple[int, int]] = {}
    for path in sorted(paths):
        try:
            source = table.open(path, buffer_size=8 << 20, pre_buffer=False)
            with table.reading(path):
                for batch in source.iter_batches(_ROWS, columns=names):
                    rows = as_ours(pa.Table.from_batches([batch])).select(names)
                    rows = rows.set_column(6, "timestamp", rows["timestamp"].cast("int64"))
                    columns = [column.to_pylist() for column in rows.columns]
                    for row in zip(*columns, strict=True):
                        count, total = digests.get(row[0], (0, 0))
                        whole = hash((*row[:-1], tuple(sorted(row[-1] or ()))))
                        digests[row[0]] = (count + 1, (total + whole) & (1 << 64) - 1)
        except Gone:
            raise _Unknown(f"the file {path} that held them is gone") from None
    return digests
