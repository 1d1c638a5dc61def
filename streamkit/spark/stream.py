"""`spark.readStream.format("streamkit")`: a batch is a range of transactions of each partition.

A batch that Spark has recorded is read the same after a restart, even if entries were archived meanwhile: its tasks are
ranges of transactions that are noted in its offset, and each task yields its rows in commit order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..client import Client
from ..errors import CorruptData, StoreClosed
from ..log.partition import Partition
from ..log.visible import floor_of, number_gap, stops_readers
from ..warn import warn
from .filters import tests_of
from .options import Options
from .plan import TaskShare, begin_of, entries_until, partitions_of, reaching
from .rows import loss, loss_error, read_pieces, removed
from .source import Task
from .stream_offset import SpaceOffset, StreamOffset, decode, encode
from .versions import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamReader"]

_KEPT = 4096
"""Transactions whose place is remembered."""

Json = dict[str, Any]
Key = tuple[UUID, str]


class _Waiting(NamedTuple):
    """A partition with transactions that were not read: those after `begin`, up to `end`."""

    key: Key
    partition: Partition
    begin: int
    skip: int
    end: int


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream. Spark calls it on the driver, in one long-lived process, and `read` on the executors."""

    def __init__(self, options: Options) -> None:
        if options.last:
            raise ValueError("a stream has no end: leave the option 'until' out")
        if options.tier != "all":
            raise ValueError(
                f"a stream reads both tiers, as entries move from one to the other meanwhile: leave the option 'tier' "
                f"out, it is {options.tier!r}"
            )
        self.options = options
        self._client: Client | None = None
        self._spaces: dict[Key, list[Partition]] = {}
        """The partitions of the last look."""
        self._target: StreamOffset | None = None
        self._latest: StreamOffset | None = None
        self._reached: Json | None = None
        """The start of the next batch that this process knows of: Spark before 4.2 does not pass it."""
        self._positions: OrderedDict[tuple[Partition, int], int] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    # -- offsets ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Json:
        first: dict[Key, list[tuple[int, int]]] = {}
        for key, partitions in self._look().items():
            for partition in partitions:
                number, skip = begin_of(self.options.first, partition, partition.refresh())
                if isinstance(self.options.first, int):
                    # Behind a time nothing is missing, nor behind the beginning; behind an offset it is.
                    number, skip = max((number, skip), (partition.ask(floor_of).number, 0))
                first.setdefault(key, []).append((number - 1, skip))
        spaces = {key: SpaceOffset(self._incarnation(key), tuple(read)) for key, read in first.items()}
        self._reached = encode(StreamOffset(spaces, self.options.split, named=True))
        return self._reached

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_rows) if self.options.max_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._end()

    def latestOffset(self, start: Json | None = None, limit: ReadLimit | None = None) -> Json:
        if start is None:
            start, limit = self._reached, self.getDefaultReadLimit()
            if start is None:
                # The first batch of a start takes all waiting entries, because it is unknown whether there is a
                # checkpoint.
                return encode(self._end()._replace(named=True))
        first = decode(start)
        if self._target is None:
            end = self._end()
        else:
            end = self._target
            self._spaces = self._spaces or self._look()
        self._latest = end._replace(named=first.named)
        begin = self._continued(first, end)
        reached = {key: list(place.read) for key, place in begin.items()}
        waiting = []
        for key, place in end.spaces.items():
            for at, (last, _) in enumerate(place.read):
                number, skip = begin[key].of(at)
                if last > number:
                    waiting.append(_Waiting(key, self._spaces[key][at], number, skip, last))
        limited = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        tasks: dict[Key, list[tuple[int, ...]]] = {key: [()] * len(read) for key, read in reached.items()}
        split = self.options.split
        for each, number in self._admitted(waiting, limited) if limited else [(each, each.end) for each in waiting]:
            reached[each.key][each.partition.partition] = (number, 0)
            ends = tuple(self._task_ends(each.partition, each.begin, each.skip, number, split))
            tasks[each.key][each.partition.partition] = ends
        spaces = {key: SpaceOffset(begin[key].incarnation, tuple(reached[key]), tuple(tasks[key])) for key in reached}
        if not waiting:
            # Spark takes any other offset than the start for a batch.
            for key in spaces.keys() & first.spaces.keys():
                spaces[key] = spaces[key]._replace(tasks=first.spaces[key].tasks)
            self._latest = StreamOffset(spaces, split, first.named)
        return encode(StreamOffset(spaces, split, first.named))

    def reportLatestOffset(self) -> Json | None:
        """Return the end of the look that the last batch was planned with."""
        return None if self._latest is None else encode(self._latest)

    def _admitted(self, waiting: list[_Waiting], rows: int) -> Iterator[tuple[_Waiting, int]]:
        """Choose the end of each partition's part of a batch: at most `rows` in all, and whole transactions only. A
        larger transaction is read alone. The partition that has waited longest comes first, so that each gets its
        turn."""
        if len(waiting) > 1:
            waiting = sorted(waiting, key=lambda each: self._time(each.partition, each.begin + 1))
        for at, each in enumerate(waiting):
            before = self._position(each.partition, each.begin) + each.skip
            share = rows // (len(waiting) - at)
            number = self._reaching(each.partition, each.begin, each.end, before + share)
            if number == each.begin and at == 0:
                number += 1
            if number > each.begin:
                yield each, number
                rows -= self._position(each.partition, number) - before
            if rows <= 0:
                return

    # -- batches ------------------------------------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        first, last = decode(start), decode(end)
        self._reached = end
        if not self._spaces.keys() >= last.spaces.keys():
            self._look()
        begin = self._continued(first, last)
        tasks: list[InputPartition] = []
        for key, place in sorted(last.spaces.items()):
            noted = place.tasks or ((),) * len(place.read)
            if key not in self._spaces or place.incarnation not in (None, self._incarnation(key)):
                self._lost(key, "it was deleted, or another space of its name was made in its place")
                tasks += [InputPartition(None) for ends in noted for _ in ends]
                continue
            for partition in self._spaces[key]:
                number, skip = begin[key].of(partition.partition)
                until = place.of(partition.partition)[0]
                if number < until and partition.number < until and partition.refresh() < until:
                    self._lost(
                        key,
                        f"partition {partition.partition} ends at transaction {partition.number}, and the batch at "
                        f"{until}",
                    )
                    until = partition.number
                before = first.spaces.get(key)
                same = before is not None and before.incarnation in (None, place.incarnation)
                named = bool(number or skip) or (first.named and same)
                ends = noted[partition.partition]
                if place.tasks is None:
                    ends = tuple(self._task_ends(partition, number, skip, until, last.rows))
                tasks += self._tasks(key, partition, number, skip, until, ends, named)
        return tasks

    def _tasks(
        self, key: Key, partition: Partition, begin: int, skip: int, end: int, ends: Sequence[int], named: bool
    ) -> Iterator[InputPartition]:
        """A task for each of `ends`, with the transactions of begin+1..end up to it. `named`: none may be missing.

        A task whose transactions are gone is empty, and stays in its place: a sink knows a task by its number.
        """
        store, space = key
        low = self.options.first if isinstance(self.options.first, int) else 0
        incarnation = partition.settings.incarnation.hex()
        floor = partition.ask(floor_of)
        if begin < end and begin + 1 < floor.number:
            # Trim also took entries that were read, and transactions without entries. Only unread entries are a loss.
            gap = number_gap(partition.space, (begin + 1, skip), floor)
            if named and gap is not None and stops_readers(gap):
                self._lost(key, removed(gap.last_sequence, partition.partition))
            begin, skip = min(floor.number - 1, end), 0
        for number in ends:
            number = min(number, end)
            if number <= begin:
                yield InputPartition(None)
                continue
            piece = TaskShare(
                store,
                space,
                partition.partition,
                incarnation,
                begin + 1,
                number,
                None,
                skip,
                0,
                low,
                tier="",
                named=named,
            )
            yield Task(piece)
            begin, skip = number, 0

    def _task_ends(self, partition: Partition, begin: int, skip: int, end: int, rows: int) -> Iterator[int]:
        """The last transactions of tasks of about `rows` entries each, which share begin+1..end."""
        parts, before, count = 1, 0, 0
        if end - begin > 1:
            before = self._position(partition, begin) + skip
            count = self._position(partition, end) - before
            parts = max(1, -(-count // rows))
        for part in range(1, parts + 1):
            number = end
            if part < parts:
                number = self._reaching(partition, begin, end, before + count * part // parts)
            if number > begin:
                yield number
                begin = number

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        pieces = (partition.piece,) if isinstance(partition, Task) else ()
        return read_pieces(pieces, self.options, tests_of(self.options))

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
            self._spaces.clear()
            self._positions.clear()

    # -- the stores ---------------------------------------------------------------------------------------------

    def _look(self) -> dict[Key, list[Partition]]:
        """The spaces that are read, as of now. If the options name them, they are looked up once."""
        named = self.options.stores is not None and self.options.space is not None
        if self._client is None:
            self._client = self.options.client()
        if not (named and self._spaces):
            spaces: dict[Key, list[Partition]] = {}
            for store, space, partition in partitions_of(self._client, self.options):
                spaces.setdefault((store.id, space), []).append(partition)
            self._spaces = spaces
        return self._spaces

    def _incarnation(self, key: Key) -> str:
        return self._spaces[key][0].settings.incarnation.hex()

    def _end(self) -> StreamOffset:
        """Return the committed end. One request for each partition, and one for each name that the options leave
        open."""
        try:
            ends = self._ends()
        except (StoreClosed, CorruptData):
            if not any(partition.lost for partitions in self._spaces.values() for partition in partitions):
                raise
            # A space was deleted. If another one has its name now, the offsets tell the two apart.
            self.stop()
            ends = self._ends()
        return StreamOffset(ends, self.options.split)

    def _ends(self) -> dict[Key, SpaceOffset]:
        found = {}
        for key, partitions in self._look().items():
            read = tuple((partition.refresh(), 0) for partition in partitions)
            found[key] = SpaceOffset(self._incarnation(key), read)
        return found

    def _continued(self, start: StreamOffset, end: StreamOffset) -> dict[Key, SpaceOffset]:
        """Return the start of each space of `end`. Raises PermanentError if entries are gone that were to be read."""
        for key in start.spaces.keys() - end.spaces.keys():
            self._lost(key, "it does not exist any more")
        begin = {}
        for key, place in end.spaces.items():
            before = start.spaces.get(key)
            if before is not None and before.incarnation is not None and before.incarnation != place.incarnation:
                self._lost(key, "another space of its name was made in its place")
                before = None
            if before is not None:
                read = [before.of(at) for at in range(len(place.read))]
            else:
                # It came later, and is read from its beginning: nothing is missing behind that, then or later.
                floors = [partition.ask(floor_of).number - 1 for partition in self._spaces.get(key, ())]
                read = [(min(floor, end), 0) for floor, (end, _) in zip(floors, place.read, strict=False)]
                read += [(0, 0)] * (len(place.read) - len(read))
            for at, (number, _) in enumerate(read):
                if number > place.read[at][0]:
                    self._lost(
                        key,
                        f"partition {at} ends at transaction {place.read[at][0]}, and the checkpoint is at {number}",
                    )
                    read[at] = place.read[at]
            begin[key] = SpaceOffset(place.incarnation, tuple(read))
        return begin

    def _lost(self, key: Key, what: str) -> None:
        message = loss(*key, what)
        if self.options.fail_on_loss:
            raise loss_error(message)
        warn("%s; the stream continues with the remaining entries", message)

    # -- places in a partition ----------------------------------------------------------------------------------

    def _position(self, partition: Partition, number: int) -> int:
        """Entries of the partition up to transaction `number`. They never change."""
        if number == 0:
            return 0
        key = (partition, number)
        position = self._positions.get(key)
        if position is None:
            position = self._positions[key] = entries_until(partition, number)
            if len(self._positions) > _KEPT:
                self._positions.popitem(last=False)
        return position

    def _reaching(self, partition: Partition, begin: int, end: int, entries: int) -> int:
        """The last transaction of begin..end with at most `entries` up to it."""
        return reaching(begin, end, entries, lambda number: self._position(partition, number))

    def _time(self, partition: Partition, number: int) -> int:
        """The time at which a transaction was committed; 0 for an old one that the log no longer holds."""
        header = partition.header(number) if number > partition.head.archived else None
        return header.timestamp if header is not None else 0
