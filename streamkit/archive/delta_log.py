"""The log of a Delta table, read once: one pass gives the files, the schema and the mark of every application.

delta-rs replays the log for each question, so that a table of 64 partitions costs 130 replays. Here a replay begins at
the newest checkpoint. A reader that has a state already reads only later versions. delta-rs still writes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import StreamkitError, UnsupportedVersion
from .delta_actions import Action, Add, Metadata, Protocol, Remove, action_of_row, actions_of, column_types
from .errors import UNDECODABLE, Damaged
from .snapshot import is_own_name

if TYPE_CHECKING:
    from .files import TableFiles

__all__ = ["DIRECTORY", "SIDECARS", "AddedFile", "LogState", "advance", "listed", "replay", "sidecars_of"]

DIRECTORY = "_delta_log"
SIDECARS = "_sidecars"
"""The directory in the log with parts of other engines' checkpoints."""
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]+)?\.(parquet|json)")
_WHOLE = 8 << 20
"""Bytes up to which a checkpoint is read with one request."""


class AddedFile(msgspec.Struct, frozen=True, gc=False):
    path: str
    """The path as the log has it, URL-encoded."""
    size: int
    stats: str | None
    marked: bool = False
    """True if a deletion vector marks rows of the file as deleted."""


@dataclass(frozen=True)
class LogState:
    """A table as of one version, by its log alone."""

    version: int
    protocol: Protocol
    metadata: Metadata
    marks: Mapping[str, int]
    """The version of each application's last transaction."""
    added: Mapping[tuple[str, str], AddedFile]
    """The files by path and deletion vector, which together identify a file in Delta."""
    is_foreign: bool
    """True if the log names a file of another engine. The file may be removed."""
    types: Mapping[str, str] = field(init=False)
    """The columns, each with Delta's name for its type."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", column_types(self.metadata.schema_string))

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.metadata.configuration or {}


class _Replay:
    """The result of the actions so far. Later actions win."""

    def __init__(self, before: LogState | None = None) -> None:
        self.protocol = before.protocol if before else None
        self.metadata = before.metadata if before else None
        self.marks: dict[str, int] = dict(before.marks) if before else {}
        self.added: dict[tuple[str, str], AddedFile] = dict(before.added) if before else {}
        self.is_foreign = before.is_foreign if before else False

    def apply(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if (add := action.add) is not None:
                key = _key(add)
                self.added[key] = AddedFile(add.path, add.size, add.stats, bool(key[1]))
            if (remove := action.remove) is not None:
                self.added.pop(_key(remove), None)
            if (file := add or remove) is not None:
                self.is_foreign = self.is_foreign or not is_own_name(file.path)
            if action.txn is not None:
                self.marks[action.txn.app_id] = action.txn.version
            if action.protocol is not None:
                self.protocol = action.protocol
            if action.metadata is not None:
                self.metadata = action.metadata

    def state(self, version: int) -> LogState:
        if self.protocol is None or self.metadata is None:
            raise ValueError("its log names neither its protocol nor its schema")
        return LogState(version, self.protocol, self.metadata, self.marks, self.added, self.is_foreign)


def _key(action: Add | Remove) -> tuple[str, str]:
    vector = action.deletion_vector
    if vector is None or vector.storage_type is None:
        return action.path, ""
    return action.path, f"{vector.storage_type}{vector.path_or_inline_dv}@{vector.offset}"


def replay(table: TableFiles, version: int | None = None, before: LogState | None = None) -> LogState | None:
    """The newest state, or the state at `version`. None if there is no table. Damaged if the log is incomplete.

    The state `before` is not read again if the log still has the versions after it.
    """
    sizes = table.log_sizes()
    commits, checkpoints = listed(sizes)
    last = max([*commits, *checkpoints], default=None) if version is None else version
    if last is None:
        return None
    if before is not None and before.version in commits and before.version <= last:
        if before.version == last:
            return before
        state, begin = _Replay(before), before.version
    else:
        state = _Replay()
        begin = max((found for found in checkpoints if found <= last), default=-1)
        with _decoding(table, begin):
            for name in checkpoints.get(begin, ()):
                state.apply(_checkpoint_actions(table, name, sizes[name]))
    for number in range(begin + 1, last + 1):
        if number not in commits:
            raise Damaged(f"{table.url}: version {number} of its log is missing; restore the table")
        with _decoding(table, number):
            state.apply(_commit_actions(table, number))
    with _decoding(table, last):
        return state.state(last)


def advance(table: TableFiles, state: LogState) -> LogState:
    """The newest state, from an earlier one, by asking for one version after the other."""
    found, version = _Replay(state), state.version
    while (text := table.log_of(version + 1)) is not None:
        version += 1
        with _decoding(table, version):
            found.apply(actions_of(text))
    if version == state.version:
        return state
    with _decoding(table, version):
        return found.state(version)


def listed(names: Iterable[str]) -> tuple[set[int], dict[int, list[str]]]:
    """The versions that have a description, and the files of each checkpoint that is whole."""
    commits: set[int] = set()
    parts: dict[tuple[int, str], list[str]] = {}
    for name in names:
        if found := _COMMIT.fullmatch(name):
            commits.add(int(found[1]))
        elif found := _CHECKPOINT.fullmatch(name):
            parts.setdefault((int(found[1]), found[3] or ""), []).append(name)
    checkpoints: dict[int, list[str]] = {}
    for (version, of), names in sorted(parts.items()):
        if not of:
            checkpoints[version] = [min(names)]  # one is as good as the other
        elif len(names) == int(of):
            checkpoints.setdefault(version, names)
    return commits, checkpoints


@contextlib.contextmanager
def _decoding(table: TableFiles, version: int) -> Iterator[None]:
    """Raise errors of decoding as Damaged, which names the version."""
    try:
        yield
    except StreamkitError:
        raise
    except UNDECODABLE as error:
        raise Damaged(f"{table.url}, version {version}: its log cannot be read: {error}; restore the table") from error


def _commit_actions(table: TableFiles, version: int) -> Iterator[Action]:
    text = table.log_of(version)
    if text is None:
        raise ValueError("the description of the version is gone")
    return actions_of(text)


def _checkpoint_actions(table: TableFiles, name: str, size: int) -> Iterator[Action]:
    sidecars = []
    for action in _own_actions(table, name, size):
        if action.sidecar is not None:
            sidecars.append(action.sidecar.path)
        yield action
    for path in sidecars:
        yield from _rows(table, _sidecar(table, path), _WHOLE + 1)


def _own_actions(table: TableFiles, name: str, size: int) -> Iterator[Action]:
    """The actions of a checkpoint without those of its sidecars."""
    return actions_of(table.log_text(name) or "") if name.endswith(".json") else _rows(table, name, size)


def _sidecar(table: TableFiles, path: str) -> str:
    """The name in the log of a checkpoint's sidecar."""
    if "/" in path or path.startswith("."):
        raise UnsupportedVersion(f"{table.url}: its checkpoint names a file elsewhere, {path!r}; restore the table")
    return f"{SIDECARS}/{path}"


def sidecars_of(table: TableFiles, name: str, size: int) -> set[str]:
    """The names in the log of the files that a checkpoint of another engine refers to."""
    found = (action.sidecar for action in _own_actions(table, name, size))
    return {_sidecar(table, sidecar.path) for sidecar in found if sidecar is not None}


def _rows(table: TableFiles, name: str, size: int) -> Iterator[Action]:
    """The actions of a Parquet file of the log, some at a time."""
    path = f"{DIRECTORY}/{name}"
    source = table.open_parquet(path, whole=size <= _WHOLE)
    with table.reading(path):
        for batch in source.iter_batches(4096, columns=_columns(source.schema_arrow)):
            for row in batch.to_pylist():
                yield action_of_row(row)


def _columns(schema: Any) -> list[str]:
    """The columns of a checkpoint that are read: of the actions that are many, only the fields that count."""
    wanted: list[str] = []
    for column in schema:
        if column.name in _FIELDS:
            inner = {column.type.field(at).name for at in range(column.type.num_fields)}
            wanted += [f"{column.name}.{one}" for one in sorted(inner & _FIELDS[column.name])]
        elif column.name in _WHOLE_ACTIONS:
            wanted.append(column.name)
    return wanted


_FIELDS = {
    "add": {"path", "size", "stats", "deletionVector"},
    "remove": {"path", "deletionVector"},
    "txn": {"appId", "version"},
}
_WHOLE_ACTIONS = {"protocol", "metaData", "sidecar"}
