"""A checkpointer for LangGraph: `async with StreamkitSaver.from_url(url, store) as saver: …`.

A thread is one segment. A checkpoint is one entry of it, with the values that changed since the checkpoint before, and
now and then with all of them. The writes of a task are one entry as well. A read goes back from the newest entry until
it has all values and comes to entries that are older than the checkpoint: one page, for most threads.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from contextvars import ContextVar
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

import msgspec

from ..decoders import msgpack_decoder
from ..errors import MissingDependency

try:
    import_module("langgraph.checkpoint.base")
except ImportError as error:
    raise MissingDependency(
        f"{__name__} needs langgraph: pip install 'streamkit-store[langgraph]' langgraph"
    ) from error

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from ..aio.leases import until_granted
from ..arguments import check_type
from ..client import connect
from ..errors import SequenceMismatch
from ..leases import Lease
from ..model import Record
from ..store import Store

__all__ = ["StreamkitSaver"]

_WHOLE_EVERY = 50
"""Steps after which a checkpoint is stored with all its values."""
_RUN = "run_id"
_MOST = 16 << 20
"""Bytes in one entry. A larger value is stored in several entries and commits."""
_REWRITE = "langgraph:rewrite"
"""Metadata of entries that are written in several commits: "end" of the last ones, "part" of the others, and an id.

Readers skip the parts until the end with their id exists, so all of them appear at once.
"""

_RANDOM = random.SystemRandom()

_GREGORIAN = 0x01B21DD213814000
"""The epoch in the time of a UUID: in steps of 100 ns since 1582."""
_SPREAD = 1_000
"""Milliseconds by which a clock may be set back while a checkpoint is made."""

Typed = tuple[str, bytes]
"""A value as the serializer gives it: the name of its type, and its bytes."""


class _Checkpoint(msgspec.Struct, frozen=True, tag="checkpoint"):
    namespace: str
    id: str
    parent: str | None
    checkpoint: Typed
    """The checkpoint without its values."""
    metadata: Typed
    versions: dict[str, Any]
    values: list[tuple[str, Any, Typed | None]]
    """(channel, version, value); no value for a channel that is empty."""
    run: str | None = None


class _Writes(msgspec.Struct, frozen=True, tag="writes"):
    namespace: str
    checkpoint: str
    task: str
    path: str
    writes: list[tuple[int, str, Typed]]
    """(index, channel, value)."""


_Part = TypeVar("_Part", _Checkpoint | _Writes, tuple[str, Any, Typed | None])
_DECODER = msgpack_decoder(_Checkpoint | _Writes)
_encode = msgspec.msgpack.Encoder().encode


class _Thread:
    """The state of a thread, from entries that are added from the newest to the oldest."""

    def __init__(self) -> None:
        self.checkpoints: dict[tuple[str, str], _Checkpoint] = {}
        """Checkpoints by namespace and id, the newest first."""
        self._values: dict[tuple[str, str, Any], Typed | None] = {}
        self._writes: dict[tuple[str, str], dict[tuple[str, int], tuple[str, str, Typed]]] = {}

    def add(self, part: _Checkpoint | _Writes) -> None:
        if isinstance(part, _Checkpoint):
            self.checkpoints.setdefault((part.namespace, part.id), part)
            for channel, version, value in part.values:
                self._values.setdefault((part.namespace, channel, version), value)
            return
        writes = self._writes.setdefault((part.namespace, part.checkpoint), {})
        for index, channel, value in reversed(part.writes):
            # The first write of a task counts; of errors, interrupts and the like it is the last one.
            if index >= 0 or (part.task, index) not in writes:
                writes[part.task, index] = (part.path, channel, value)

    def is_whole(self, checkpoint: _Checkpoint) -> bool:
        return all((checkpoint.namespace, *version) in self._values for version in checkpoint.versions.items())

    def values(self, checkpoint: _Checkpoint) -> dict[str, Typed]:
        found = {
            channel: self._values.get((checkpoint.namespace, channel, version))
            for channel, version in checkpoint.versions.items()
        }
        return {channel: value for channel, value in found.items() if value is not None}

    def writes(self, checkpoint: _Checkpoint) -> list[tuple[str, int, str, str, Typed]]:
        """Return (task, index, path, channel, value), in the order in which they take effect."""
        writes = self._writes.get((checkpoint.namespace, checkpoint.id), {})
        ordered = sorted(writes, key=lambda key: writes_sort_key(writes[key][0], *key))
        return [(*key, *writes[key]) for key in ordered]

    def early(self) -> list[_Writes]:
        """The writes of checkpoints that are later than all known ones of their namespace: those are being stored."""
        newest: dict[str, str] = {}
        for namespace, id in self.checkpoints:
            newest[namespace] = max(id, newest.get(namespace, ""))
        return [
            _Writes(namespace, id, task, path, [(index, channel, value)])
            for (namespace, id), writes in self._writes.items()
            if id > newest.get(namespace, "")
            for (task, index), (path, channel, value) in writes.items()
        ]


_held: ContextVar[tuple[tuple[dict[str, Lease], str, Lease], ...]] = ContextVar("held", default=())
"""The sessions of this context: (leases of the saver, thread, lease), the newest first.

The tasks of a run copy the context. A cancelled run may end before its tasks, and they write with the lease of its
session even after the session.
"""


class Session:
    """A thread that is held alone, from `StreamkitSaver.session`. `async with` takes the lease without blocking the
    event loop; `with` blocks. The block gets the Lease. Not re-entrant."""

    def __init__(
        self,
        leases: dict[str, Lease],
        thread_id: str,
        make: Callable[[float | None], Lease],
        ttl: float,
        wait: float | None,
    ) -> None:
        self._leases = leases
        self._thread = thread_id
        self._make = make
        self._ttl = ttl
        self._wait = wait
        self._lease: Lease | None = None
        make(wait)  # wrong arguments are refused now

    def __enter__(self) -> Lease:
        return self._begin(self._make(self._wait).__enter__())

    def __exit__(self, *exception: object) -> None:
        self._end().__exit__(None, None, None)

    async def __aenter__(self) -> Lease:
        # Waiting sessions keep no thread, so the holder's writes find one.
        return self._begin(await until_granted(self._ask, self._ttl, self._wait or 0.0))

    async def _ask(self) -> Lease:
        entering = asyncio.ensure_future(asyncio.to_thread(self._make(None).__enter__))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(_give_back)  # it may be granted yet
            raise

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.shield(asyncio.to_thread(self._end().__exit__, None, None, None))

    def _begin(self, lease: Lease) -> Lease:
        self._lease = self._leases[self._thread] = lease
        _held.set(((self._leases, self._thread, lease), *_held.get()))
        return lease

    def _end(self) -> Lease:
        lease = self._lease
        assert lease is not None
        self._lease = None
        _held.set(tuple(held for held in _held.get() if held[2] is not lease))
        if self._leases.get(self._thread) is lease:  # not if it was lost, and this saver has a later session
            del self._leases[self._thread]
        return lease


def _give_back(entering: asyncio.Future[Lease]) -> None:
    """Release the lease of a session whose coroutine was cancelled."""
    if not entering.cancelled() and entering.exception() is None:
        _releasing.add(task := asyncio.ensure_future(asyncio.to_thread(entering.result().__exit__, None, None, None)))
        task.add_done_callback(_releasing.discard)


_releasing: set[asyncio.Future[None]] = set()
"""Leases that are being given back. The event loop itself keeps no reference to its tasks."""


class StreamkitSaver(BaseCheckpointSaver[str]):
    """Keeps the threads of graphs in one space of a store. Safe to share between threads and tasks.

    Each coroutine runs its method in a thread of the event loop's executor.
    """

    def __init__(self, store: Store, *, space: str = "langgraph", serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        check_type(
            store,
            Store,
            "StreamkitSaver takes a Store, or the `sync` of an AsyncStore; StreamkitSaver.from_url takes a URL",
        )
        self._store = store
        self._space = space
        self._leases: dict[str, Lease] = {}

    @classmethod
    @asynccontextmanager
    async def from_url(
        cls, url: str, store: UUID | str, *, space: str = "langgraph", serde: SerializerProtocol | None = None
    ) -> AsyncIterator[StreamkitSaver]:
        """A saver over a store, which is closed at the end of the block."""
        with ExitStack() as opened:
            client = opened.enter_context(connect(url))
            saver = cls(opened.enter_context(client.store(store)), space=space, serde=serde)
            closing = opened.pop_all()
        try:
            yield saver
        finally:
            await asyncio.shield(asyncio.to_thread(closing.close))

    def session(self, thread_id: str | int | UUID, *, ttl: float = 30.0, wait: float | None = None) -> Session:
        """Hold the thread alone within the block: `async with saver.session(id):`, or `with` without an event loop.

        LeaseNotAcquired if another session still holds it after `wait` seconds. Once a later session has begun to
        write, writes of this saver to the thread raise Fenced.
        """
        thread = _name(thread_id)
        name = f"{self._space}/{thread}"
        return Session(self._leases, thread, lambda wait: self._store.lease(name, ttl=ttl, wait=wait), ttl, wait)

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, in one commit."""
        thread, namespace = _place(config)
        rest: dict[str, Any] = {**checkpoint}
        values = rest.pop("channel_values")
        kept = get_checkpoint_metadata(config, metadata)
        versions = {**checkpoint["channel_versions"], **new_versions}
        dumps = self.serde.dumps_typed

        def typed(channels: Iterable[str]) -> list[tuple[str, Any, Typed | None]]:
            return [(name, versions[name], dumps(values[name]) if name in values else None) for name in channels]

        changed = typed(new_versions)
        if kept.get("step", 1) % _WHOLE_EVERY == 0:
            same = versions.keys() - new_versions.keys()
            unchanged = typed(same & values.keys())
            if (left_out := same - values.keys()) and (parent := get_checkpoint_id(config)):
                unchanged += self._stored(thread, namespace, parent, {name: versions[name] for name in left_out})
            if sum(map(_size, (*changed, *unchanged))) <= _MOST:
                changed += unchanged
        part = _Checkpoint(
            namespace,
            checkpoint["id"],
            get_checkpoint_id(config),
            dumps(rest),
            dumps(kept),
            dict(checkpoint["channel_versions"]),
            changed,
            cast(str | None, kept.get(_RUN)),
        )
        self._append(thread, [part])
        return _config(thread, namespace, checkpoint["id"])

    def _stored(
        self, thread: str, namespace: str, id: str, versions: Mapping[str, Any]
    ) -> list[tuple[str, Any, Typed | None]]:
        """The values of a checkpoint's channels that have these versions.

        A checkpoint leaves out a channel that is empty, and a DeltaChannel whose snapshot an earlier one has.
        """
        known, found = self._find(thread, namespace, id)
        if found is None:
            return []
        values = known.values(found)
        same = versions.items() & found.versions.items()
        return [(name, version, values.get(name)) for name, version in same]

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task after a checkpoint, in one commit."""
        thread, namespace = _place(config)
        indexed = [
            (WRITES_IDX_MAP.get(channel, index), channel, self.serde.dumps_typed(value))
            for index, (channel, value) in enumerate(writes)
        ]
        self._append(thread, [_Writes(namespace, config["configurable"]["checkpoint_id"], task_id, task_path, indexed)])

    def delete_thread(self, thread_id: str) -> None:
        """Delete all of a thread. Its bytes go with the next upkeep; `store.erase` removes them at once."""
        self._store.delete_segment(self._space, _name(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of some runs, and the writes after them. Looks at every thread."""
        runs = set(run_ids)
        for thread in list(self._store.get_segments(self._space)):
            self._keep(thread, lambda known: [part for part in known.checkpoints.values() if part.run not in runs])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Append all of a thread to another one. Its readers see all of it at once."""
        target = _name(target_thread_id)
        parts = [part for _, part in self._newest(_name(source_thread_id))][::-1]
        while parts:
            last = self._store.segment_status(self._space, target).last_sequence
            try:
                self._rewrite(target, parts, last)
            except SequenceMismatch:
                continue  # another writer was faster
            return

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove old checkpoints: all but the newest of each namespace, or with the strategy "delete" all of them.

        Ancestors of a checkpoint stay if one of its values is kept only as writes on the way from them.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"a strategy is 'keep_latest' or 'delete', not {strategy!r}")
        for thread in map(_name, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread)
            else:
                self._keep(thread, _needed)

    def _append(
        self,
        thread: str,
        parts: Sequence[_Checkpoint | _Writes],
        expected: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """The sequence of the last entry."""
        status = self._store.produce(
            self._space,
            thread,
            [Record(_encode(part), metadata) for part in parts],
            expected_sequence=expected,
            lease=self._lease(thread),
        )
        return status.last_sequence

    def _lease(self, thread: str) -> Lease | None:
        """The lease of the session in which the caller was started, or else of the saver's present session."""
        for leases, held, lease in _held.get():
            if leases is self._leases and held == thread:
                return lease
        return self._leases.get(thread)

    def _rewrite(self, thread: str, parts: Sequence[_Checkpoint | _Writes], last: int) -> None:
        """Append to a thread that ends with the sequence `last`, in as many commits as it takes."""
        pages, id = list(_pages(parts)), uuid4().hex
        for number, page in enumerate(pages, start=1):
            mark = {_REWRITE: f"{'end' if number == len(pages) else 'part'} {id}"} if len(pages) > 1 else None
            last = self._append(thread, page, last, mark)

    def _keep(self, thread: str, chosen: Callable[[_Thread], list[_Checkpoint]]) -> None:
        """Remove the other checkpoints. The remaining ones are written again with their values, and the rest is
        trimmed."""
        while True:
            # The last entries may be erased: their sequences are not used again.
            last = self._store.segment_status(self._space, thread).last_sequence
            known = self._known(thread)
            kept = chosen(known)
            if len(kept) == len(known.checkpoints):
                return
            parts: list[_Checkpoint | _Writes] = []
            for checkpoint in reversed(kept):
                values = known.values(checkpoint)
                whole = [(name, version, values.get(name)) for name, version in checkpoint.versions.items()]
                # Entries with the same id count as one checkpoint with the values of all.
                for page in _pages(whole) if whole else [[]]:
                    parts.append(msgspec.structs.replace(checkpoint, values=page))
                for task, index, path, channel, value in known.writes(checkpoint):
                    parts.append(_Writes(checkpoint.namespace, checkpoint.id, task, path, [(index, channel, value)]))
            parts += known.early()
            try:
                self._rewrite(thread, parts, last)
            except SequenceMismatch:
                continue  # another writer was faster
            self._store.trim(self._space, thread, before=last + 1)  # later checkpoints stay
            return

    # -- reading ------------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or else the one of its thread and namespace that was written last."""
        thread, namespace = _place(config)
        known, found = self._find(thread, namespace, get_checkpoint_id(config) or None)
        return None if found is None else self._tuple(thread, known, found)

    def _find(self, thread: str, namespace: str, wanted: str | None) -> tuple[_Thread, _Checkpoint | None]:
        """The checkpoint with the id `wanted`, or else the last one, with all its values and writes."""
        known, found, begin = _Thread(), None, 0
        for timestamp, part in self._newest(thread):
            if found is not None and timestamp < begin and known.is_whole(found):
                break
            if part.namespace != namespace:
                continue
            known.add(part)
            if found is None and isinstance(part, _Checkpoint) and wanted in (None, part.id):
                found, begin = part, _begin(part)
                if timestamp < begin:  # its id is of another clock, which tells nothing of the entries before it
                    begin = 0
        return known, found

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The checkpoints of a thread, or of all, newest first. `filter` compares their metadata for equality."""
        if limit is not None and limit < 0:
            raise ValueError(f"a limit is 0 or more checkpoints, or None for all of them, not {limit}")
        return islice(self._all(config, filter or {}, before), limit)

    def _all(
        self, config: RunnableConfig | None, filter: Mapping[str, Any], before: RunnableConfig | None
    ) -> Iterator[CheckpointTuple]:
        configured = config["configurable"] if config else {}
        namespace, wanted = configured.get("checkpoint_ns"), configured.get("checkpoint_id") or None
        end = (get_checkpoint_id(before) if before else None) or None
        threads = [_name(configured["thread_id"])] if config else self._store.get_segments(self._space)
        for thread in threads:
            known = self._known(thread)
            for part in sorted(known.checkpoints.values(), key=lambda part: part.id, reverse=True):
                if namespace not in (None, part.namespace) or wanted not in (None, part.id):
                    continue
                if end is not None and part.id >= end:
                    continue
                found = self._tuple(thread, known, part)
                if all(found.metadata.get(key) == value for key, value in filter.items()):
                    yield found

    def _newest(self, thread: str) -> Iterator[tuple[int, _Checkpoint | _Writes]]:
        """The parts with their timestamps, from the newest on."""
        ended = None
        for entry in self._store.consume_segment(self._space, thread, reverse=True, gaps="skip"):
            if mark := entry.metadata.get(_REWRITE):
                kind, _, id = mark.partition(" ")
                if kind == "end":
                    ended = id
                elif id != ended:
                    continue
            yield entry.timestamp, _DECODER.decode(entry.payload)

    def _known(self, thread: str) -> _Thread:
        """All of a thread."""
        known = _Thread()
        for _, part in self._newest(thread):
            known.add(part)
        return known

    def _tuple(self, thread: str, known: _Thread, part: _Checkpoint) -> CheckpointTuple:
        loads = self.serde.loads_typed
        values = {channel: loads(value) for channel, value in known.values(part).items()}
        return CheckpointTuple(
            config=_config(thread, part.namespace, part.id),
            checkpoint=cast(Checkpoint, {**loads(part.checkpoint), "channel_values": values}),
            metadata=loads(part.metadata),
            parent_config=_config(thread, part.namespace, part.parent) if part.parent else None,
            pending_writes=[(task, channel, loads(value)) for task, _, _, channel, value in known.writes(part)],
        )

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """A later version of a channel. Its second half is random, so that those of two forks differ.

        It does not depend on `random.seed`: two forks that begin with the same seed differ as well.
        """
        number = int(str(current).partition(".")[0]) if current is not None else 0
        return f"{number + 1:032}.{_RANDOM.random():016}"

    # -- coroutines ---------------------------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Call `put` in a thread."""
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Call `put_writes` in a thread."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Call `get_tuple` in a thread."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Call `list` in a thread, a hundred checkpoints at a time."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while page := await asyncio.to_thread(lambda: [*islice(found, 100)]):
            for one in page:
                yield one

    async def adelete_thread(self, thread_id: str) -> None:
        """Call `delete_thread` in a thread."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Call `delete_for_runs` in a thread."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Call `copy_thread` in a thread."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Call `prune` in a thread."""
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy))


def _place(config: RunnableConfig) -> tuple[str, str]:
    configured = config["configurable"]
    return _name(configured["thread_id"]), configured.get("checkpoint_ns", "")


def _name(thread_id: Any) -> str:
    """The name of a thread's segment: the id as text, as LangGraph makes it."""
    if thread_id is None:
        raise TypeError("the thread_id is None: give the config a text, an int or a UUID")
    return str(thread_id)


def _config(thread: str, namespace: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": id}}


def _begin(checkpoint: _Checkpoint) -> int:
    """The time before which no entry has writes of a checkpoint, in milliseconds since the epoch.

    LangGraph stores a checkpoint and the writes of its tasks at the same time, so writes may come before their
    checkpoint. They come after the time that is in its id.
    """
    try:
        id = UUID(checkpoint.id)
    except ValueError:
        return 0
    if id.version != 6:
        return 0
    return ((id.int >> 80 << 12 | id.int >> 64 & 0xFFF) - _GREGORIAN) // 10_000 - _SPREAD


def _size(part: _Checkpoint | _Writes | tuple[str, Any, Typed | None]) -> int:
    """About how many bytes a part or a value takes."""
    if isinstance(part, tuple):
        return 0 if part[2] is None else len(part[2][1])
    if isinstance(part, _Writes):
        return sum(len(value) for _, _, (_, value) in part.writes)
    return len(part.checkpoint[1]) + len(part.metadata[1]) + sum(map(_size, part.values))


def _pages(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    """The parts in order, in lists of at most _MOST bytes, or of one part."""
    page: list[_Part] = []
    size = 0
    for part in parts:
        if page and size + _size(part) > _MOST:
            yield page
            page, size = [], 0
        page.append(part)
        size += _size(part)
    if page:
        yield page


def _needed(known: _Thread) -> list[_Checkpoint]:
    """The newest checkpoint of each namespace, and its ancestors until all of its values are found."""
    newest: dict[str, _Checkpoint] = {}
    for part in known.checkpoints.values():
        newest.setdefault(part.namespace, part)
    needed = {(part.namespace, part.id) for part in newest.values()}
    for latest in newest.values():
        missing = latest.versions.keys() - known.values(latest).keys()
        part = latest
        while missing and part.parent is not None:
            ancestor = known.checkpoints.get((part.namespace, part.parent))
            if ancestor is None:
                break
            part = ancestor
            needed.add((part.namespace, part.id))
            missing -= known.values(part).keys()
    return [part for key, part in known.checkpoints.items() if key in needed]
