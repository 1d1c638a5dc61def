"""The log of a Delta table, read once: one pass over it tells the files, the schema and every application's mark.

delta-rs replays the log for each question, so that a table of 64 partitions costs 130 replays. Here a replay begins at
the newest checkpoint, and who has a state already reads only the versions after it. delta-rs still writes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import StreamkitError, UnsupportedVersion
from .errors import UNDECODABLE, Damaged

if TYPE_CHECKING:
    from .files import TableFiles

__all__ = ["DIRECTORY", "AddedFile", "LogState", "advance", "listed", "replay"]

DIRECTORY = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]+)?\.(parquet|json)")
_KINDS = ("protocol", "metaData", "txn", "add", "remove", "sidecar")
_WHOLE = 8 << 20
"""Bytes up to which a checkpoint is read with one request."""
_json = msgspec.json.Decoder()


class AddedFile(msgspec.Struct, frozen=True, gc=False):
    path: str
    """As the log has it, in URL encoding."""
    size: int
    stats: str | None
    marked: bool = False
    """Whether a deletion vector marks rows of it as deleted."""


@dataclass(frozen=True)
class LogState:
    """A table as of one version, by its log alone."""

    version: int
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    marks: Mapping[str, int]
    """For each application the version of its last transaction."""
    added: Mapping[tuple[str, str], AddedFile]
    """By path and deletion vector: that is how Delta tells files apart."""
    configuration: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "configuration", dict(self.metadata.get("configuration") or {}))

    @property
    def types(self) -> dict[str, str]:
        """Each column and what Delta calls its type."""
        fields = _json.decode(self.metadata["schemaString"])["fields"]
        found = {}
        for column in fields:
            kind = column["type"]
            found[column["name"]] = kind if isinstance(kind, str) else str(kind.get("type"))
        return found


class _Replay:
    """What the actions so far say. Later ones win."""

    def __init__(self, before: LogState | None = None) -> None:
        self.protocol: Mapping[str, Any] | None = before.protocol if before else None
        self.metadata: Mapping[str, Any] | None = before.metadata if before else None
        self.marks: dict[str, int] = dict(before.marks) if before else {}
        self.added: dict[tuple[str, str], AddedFile] = dict(before.added) if before else {}

    def apply(self, actions: Iterable[Mapping[str, Any]]) -> None:
        for action in actions:
            for kind, body in action.items():
                if body is None or kind not in _KINDS:
                    continue
                if kind == "add":
                    key = _key(body)
                    self.added[key] = AddedFile(body["path"], body["size"], body.get("stats"), bool(key[1]))
                elif kind == "remove":
                    self.added.pop(_key(body), None)
                elif kind == "txn":
                    self.marks[body["appId"]] = body["version"]
                elif kind == "protocol":
                    self.protocol = body
                elif kind == "metaData":
                    self.metadata = body

    def state(self, version: int) -> LogState:
        if self.protocol is None or self.metadata is None:
            raise ValueError("its log does not say of what protocol and schema it is")
        return LogState(version, self.protocol, self.metadata, self.marks, self.added)


def _key(action: Mapping[str, Any]) -> tuple[str, str]:
    vector = action.get("deletionVector")
    if not vector or vector.get("storageType") is None:
        return action["path"], ""
    return action["path"], f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def replay(table: TableFiles, version: int | None = None, before: LogState | None = None) -> LogState | None:
    """The newest state, or that of `version`. None if there is no table. Damaged where the log is not whole.

    What is known `before` is not read again, if the log still has what follows on it.
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
            found.apply(_actions_of(text))
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
    """What decoding raises is Damaged, and names the version."""
    try:
        yield
    except StreamkitError:
        raise
    except (*UNDECODABLE, AttributeError, msgspec.MsgspecError) as error:
        raise Damaged(f"{table.url}, version {version}: its log cannot be read: {error}; restore the table") from error


def _commit_actions(table: TableFiles, version: int) -> list[Mapping[str, Any]]:
    text = table.log_of(version)
    if text is None:
        raise ValueError("the description of the version is gone")
    return _actions_of(text)


def _actions_of(text: str) -> list[Mapping[str, Any]]:
    # Names may hold what else separates lines. An empty log changes nothing; what it should have told is missed where
    # the marks are compared with the store.
    return [_json.decode(line) for line in text.split("\n") if line.strip()]


def _checkpoint_actions(table: TableFiles, name: str, size: int) -> Iterator[Mapping[str, Any]]:
    if name.endswith(".json"):
        actions: Iterable[Mapping[str, Any]] = _actions_of(table.log_text(name) or "")
    else:
        actions = _rows(table, name, size)
    sidecars = []
    for action in actions:
        if action.get("sidecar"):
            sidecars.append(action["sidecar"]["path"])
        yield action
    for path in sidecars:
        if "/" in path or path.startswith("."):
            raise UnsupportedVersion(f"{table.url}: its checkpoint names a file elsewhere, {path!r}; restore the table")
        yield from _rows(table, f"_sidecars/{path}", _WHOLE + 1)


def _rows(table: TableFiles, name: str, size: int) -> Iterator[Mapping[str, Any]]:
    """The actions of a Parquet file of the log, a part at a time."""
    path = f"{DIRECTORY}/{name}"
    source = table.open(path, whole=size <= _WHOLE)
    with table.reading(path):
        known = set(source.schema_arrow.names)
        wanted = []
        for kind in _KINDS:
            if kind in known:
                fields = source.schema_arrow.field(kind).type
                inner = {fields.field(at).name for at in range(fields.num_fields)}
                wanted += [f"{kind}.{one}" for one in sorted(inner & _FIELDS[kind])] if kind in _FIELDS else [kind]
        for batch in source.iter_batches(4096, columns=wanted):
            for row in batch.to_pylist():
                yield {
                    kind: _plain(body) if kind == "metaData" else body for kind, body in row.items() if _is_there(body)
                }


_FIELDS = {
    "add": {"path", "size", "stats", "deletionVector"},
    "remove": {"path", "deletionVector"},
    "txn": {"appId", "version"},
}
"""Of the actions that there may be many of: what is read."""


def _is_there(body: Any) -> bool:
    """Where another action stands, each field of this one is null."""
    return body is not None and any(value is not None for value in body.values())


def _plain(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Maps as dictionaries: Arrow has them as lists of pairs."""
    configuration = body.get("configuration")
    if isinstance(configuration, list):
        return {**body, "configuration": dict(configuration)}
    return body
