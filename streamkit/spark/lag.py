"""The lag of a stream behind its spaces, from the checkpoint that Spark keeps. No Spark is started."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from uuid import UUID

from ..client import Client, connect
from ..errors import PermanentError
from ..log.partition import Partition
from ..log.visible import floor_of, place_of, size_before
from ..store import inner
from .stream_offset import StreamOffset, decode

__all__ = ["StreamLag", "stream_lag"]


class StreamLag(NamedTuple):
    """The entries of a space that a stream has not read."""

    entries: int
    bytes: int
    """Bytes of payload. A transaction that was read in part counts in full."""
    seconds: float
    """Seconds since the oldest of these entries was committed; 0 if there is none."""


def stream_lag(checkpoint: str, url: str, *, archive: str | None = None) -> dict[tuple[UUID, str], StreamLag]:
    """The lag of a stream by store and space, as of the last batch that Spark noted as done.

    `checkpoint`: the query's checkpointLocation, a path or a URL that pyarrow opens. Entries that were trimmed, or have
    expired, are not counted. PermanentError if the directory is no checkpoint of a stream of streamkit, or if a space
    is gone, or another one has its name.
    """
    found: dict[tuple[UUID, str], StreamLag] = {}
    with connect(url, archive=archive) as client:
        for offset in _offsets(checkpoint):
            for (store, space), place in offset.spaces.items():
                partitions = _partitions(client, store, space, place.incarnation)
                lags = [_lag(partition, *place.of(partition.partition)) for partition in partitions]
                found[store, space] = StreamLag(
                    sum(lag.entries for lag in lags),
                    sum(lag.bytes for lag in lags),
                    max(lag.seconds for lag in lags),
                )
    return found


def _lag(partition: Partition, number: int, skip: int) -> StreamLag:
    """The entries after transaction `number`, and after `skip` entries of the next one."""
    partition.refresh()
    floor = partition.ask(floor_of)
    if number + 1 < floor.number:
        number, skip = floor.number - 1, 0
    if number >= partition.number:
        return StreamLag(0, 0, 0.0)
    position, _, timestamp = partition.ask(place_of, number + 1)
    size = partition.ask(size_before, number + 1)
    waiting = max(0.0, (partition.clock.now() - timestamp) / 1000) if timestamp else 0.0
    return StreamLag(max(0, partition.position - position - skip), max(0, partition.size - size), waiting)


def _partitions(client: Client, store: UUID, space: str, incarnation: str | None) -> list[Partition]:
    known = inner(client.store(store)).look_up(space)[0]
    if known is None:
        raise PermanentError(f"the space {space!r} of the store {store}, which the checkpoint names, does not exist")
    if incarnation and known.settings.incarnation.hex() != incarnation:
        raise PermanentError(
            f"the checkpoint is of another space {space!r} of the store {store}, which was deleted since: begin with a "
            "new checkpoint"
        )
    return known.partitions


def _offsets(checkpoint: str) -> list[StreamOffset]:
    """The end offset of the last finished batch, for each source of streamkit."""
    try:
        filesystem, path = _directory(checkpoint)
        done = max(_numbers(filesystem, f"{path}/commits"), default=None)
    except (OSError, ValueError) as error:
        raise PermanentError(f"{checkpoint}: the checkpoint cannot be read: {error}") from error
    if done is None:
        raise PermanentError(f"{checkpoint} is no checkpoint of a stream, or no batch of the stream is done yet")
    try:
        with filesystem.open_input_stream(f"{path}/offsets/{done}") as source:
            lines = bytes(source.read()).decode().splitlines()
        read = [decode(offset) for line in lines[2:] if _is_ours(offset := json.loads(line))]
    except (OSError, ValueError) as error:
        raise PermanentError(f"{checkpoint}: the offset of batch {done} cannot be read: {error}") from error
    if not read:
        raise PermanentError(f"{checkpoint} is the checkpoint of a stream that reads no space of streamkit")
    return read


def _directory(checkpoint: str) -> tuple[Any, str]:
    import pyarrow.fs as fs

    if "://" not in checkpoint:
        return fs.LocalFileSystem(), checkpoint
    filesystem, path = fs.FileSystem.from_uri(checkpoint)
    return filesystem, path


def _numbers(filesystem: Any, directory: str) -> list[int]:
    """The batches that Spark has noted in the directory."""
    import pyarrow.fs as fs

    listed = filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True))
    return [int(info.base_name) for info in listed if info.base_name.isdecimal()]


def _is_ours(offset: Any) -> bool:
    return isinstance(offset, dict) and "version" in offset and ("spaces" in offset or offset["version"] == 1)
