"""Reading the archive: the readers' batches from Parquet files, found by the statistics of files and row groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from ..errors import CorruptData, StreamkitError
from ..log.archive_reader import Amount, ArchiveUnreadable, Contents
from ..log.batches import Batch, Bounds, RequiredText
from ..warn import warn
from . import scattered
from .amounts import Amounts
from .batches import batches, batches_backwards, have_texts
from .errors import UNDECODABLE, Damaged, Elsewhere
from .file_reader import FileReader
from .location import ArchiveLocation
from .scattered import Wanted, windows
from .schema import COLUMNS
from .snapshot import File, Gone, Snapshot
from .table import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from ..log.view import LogView

__all__ = ["Archive"]

_LEAST = 16 << 20
_TOGETHER = 512 << 20
"""Bytes of rows that the readers of all partitions hold together, if each has no less than _LEAST."""
_PART = 500_000
"""Rows of other engines' files that a backward reader holds at a time."""
_T = TypeVar("_T")


class Archive:
    """A space's archive as `streamkit.log.archive_reader.ArchiveReader`. Safe to share between threads."""

    def __init__(self, location: ArchiveLocation, store: UUID, space: str) -> None:
        self.space = space
        self._location = location
        self._store = store
        self.table = Table(location, store, space)
        self.files = FileReader(self.table)
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._amounts = Amounts(self.files)
        self._warned = False

    # -- versions -----------------------------------------------------------------------------------------------

    def snapshot(self, partition: int, archived: int) -> Snapshot:
        """A version that holds `partition` up to `archived`."""
        snapshot = self._snapshot
        for fresh in (False, True):
            if snapshot is None or snapshot.archived.get(partition, 0) < archived:
                snapshot = self._load(fresh)
        if snapshot is None:
            raise self.missing(archived)
        if snapshot.archived.get(partition, 0) < archived:
            raise Damaged(
                f"{self.table.url} ends at transaction {snapshot.archived.get(partition, 0)}, but the log says that "
                f"transactions up to {archived} of partition {partition} are archived; restore the table"
            )
        return snapshot

    def missing(self, archived: int) -> Damaged | Elsewhere:
        """The error to raise if transactions up to `archived` are archived and there is no table."""
        with self.table.mapped():
            return self._location.missing(self._store, self.space, archived)

    def _load(self, fresh: bool) -> Snapshot | None:
        """The newest version, from those that follow on the one that is known; or, `fresh`, from the whole log."""
        with self._lock:
            before = None
            while True:
                try:
                    if fresh:
                        self.table.forget()
                    self._snapshot = self.table.snapshot(following=True)
                    return self._snapshot
                except Gone as error:
                    # Replaced by others between the look at the table and that at the file; or really missing.
                    fresh, state = True, self.table.state()
                    version = None if state is None else state.version
                    if version == before:
                        raise self._missing(error, version) from None
                    before = version

    def warn_unreadable(self, where: str, error: ArchiveUnreadable) -> None:
        if not self._warned:
            self._warned = True
            warn(
                "%s: the archive is damaged or not at this place. Reads use the log instead, until the grace removes "
                "these transactions from it: restore the table before that, or name its place with "
                "connect(archive=…): %s",
                where,
                error,
            )

    def _missing(self, error: Gone, version: int | None) -> Damaged:
        return Damaged(
            f"{self.table.url}, version {version}: the file {error} is missing; restore it, or an earlier version of "
            "the table"
        )

    def _unreadable(self, error: Exception) -> StreamkitError:
        """The error for a damaged page that was decoded into values that cannot be, as an id that is no UUID."""
        if isinstance(error, StreamkitError):
            return error
        return Damaged(f"{self.table.url}: a file of the table is damaged: {error}")

    def newer(self, snapshot: Snapshot, error: Gone) -> Snapshot:
        """The version to go on with where a file of `snapshot` is gone, because others compacted the table."""
        newer = self._load(False)
        if newer is None or newer.version == snapshot.version:
            newer = self._load(True)
        if newer is None or newer.version == snapshot.version:
            raise self._missing(error, snapshot.version) from None
        return newer

    def _retry(self, view: LogView, last: int, walk: Callable[[Snapshot], Iterator[_T]]) -> Iterator[_T]:
        """Yield from walk(a version that holds transaction `last`), and from a newer version if a file is gone.

        `walk` continues where it was.
        """
        snapshot = self.snapshot(view.log.partition, last)
        while True:
            try:
                yield from walk(snapshot)
                return
            except Gone as error:
                snapshot = self.newer(snapshot, error)
            except UNDECODABLE as error:
                raise self._unreadable(error) from error

    def _asked(self, partition: int, last: int, ask: Callable[[Snapshot], _T]) -> _T:
        """ask(a version that holds transaction `last`); again with a newer one if one of the files is gone."""
        snapshot = self.snapshot(partition, last)
        while True:
            try:
                return ask(snapshot)
            except Gone as error:
                snapshot = self.newer(snapshot, error)
            except UNDECODABLE as error:
                raise self._unreadable(error) from error

    # -- the log ------------------------------------------------------------------------------------------------

    def transactions(
        self, view: LogView, start: tuple[int, int], last: int, bounds: Bounds, required: RequiredText | None = None
    ) -> Iterator[Batch]:
        here, partition = start, view.log.partition

        def walk(snapshot: Snapshot) -> Iterator[Batch]:
            nonlocal here
            _check_trimmed(snapshot, view, here)
            pieces = (
                self._pieces(snapshot, partition, here[0], last, bounds, COLUMNS)
                if required is None
                else self._pieces_with(required, snapshot, partition, here[0], last, bounds)
            )
            for rows, reached in pieces:
                for batch in batches(view.log, rows, here, bounds):
                    yield batch
                    here = batch.after
                here = max(here, (reached + 1, 0))
                del rows  # before the next ones are read

        return self._retry(view, last, walk)

    def tables(self, view: LogView, start: tuple[int, int], last: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read as `transactions` does, but as tables of `columns` and the ordering columns. Segments and ids are
        dictionaries."""
        import pyarrow.compute as pc

        here = start
        wanted = [name for name in COLUMNS if name in {*columns, "number", "position", "index"}]

        def walk(snapshot: Snapshot) -> Iterator[pa.Table]:
            nonlocal here
            _check_trimmed(snapshot, view, here)
            for rows in self.in_order(snapshot, view.log.partition, here[0], last, Bounds(), wanted):
                number, index = here
                if index:
                    rows = rows.filter((pc.field("number") > number) | (pc.field("index") >= index))
                if rows.num_rows:
                    end = rows["number"][-1].as_py()
                    yield rows
                    here = (end + 1, 0)
                del rows

        return self._retry(view, last, walk)

    def in_order(
        self,
        snapshot: Snapshot,
        partition: int,
        first: int,
        last: int,
        bounds: Bounds,
        columns: Sequence[str] = COLUMNS,
    ) -> Iterator[pa.Table]:
        """The rows of transactions first..last in commit order, whole transactions, in pieces that fit in memory."""
        for rows, _ in self._pieces(snapshot, partition, first, last, bounds, columns):
            yield rows
            del rows  # before the next ones are read

    def _pieces(
        self,
        snapshot: Snapshot,
        partition: int,
        first: int,
        last: int,
        bounds: Bounds,
        columns: Sequence[str],
    ) -> Iterator[tuple[pa.Table, int]]:
        """Read as `in_order` does. Each table comes with the transaction up to which the rows are then complete."""
        for files, low, high in _windows(snapshot, partition, first, last, bounds):
            yield from self._window(snapshot, partition, files, low, high, columns)

    def _pieces_with(
        self, required: RequiredText, snapshot: Snapshot, partition: int, first: int, last: int, bounds: Bounds
    ) -> Iterator[tuple[pa.Table, int]]:
        """Read as `_pieces` does, but leave out some of the rows that lack the required text."""
        for files, low, high in _windows(snapshot, partition, first, last, bounds):
            if _alone(files):
                yield self._found(snapshot, partition, files[0], low, high, required), high
                continue
            for rows, reached in self._window(snapshot, partition, files, low, high, COLUMNS):
                yield _with_text(rows, required), reached
                del rows

    def _window(
        self, snapshot: Snapshot, partition: int, files: Sequence[File], low: int, high: int, columns: Sequence[str]
    ) -> Iterator[tuple[pa.Table, int]]:
        """The rows of transactions low..high, which `files` hold, as `_pieces` gives them."""
        # Several partitions are read beside each other.
        most = min(scattered.WINDOW, max(_LEAST, _TOGETHER // max(1, len(snapshot.archived))))
        if _alone(files):
            rows = self.files.rows(files[0], low, high, columns, most)
            if rows is not None:
                rows = self._in_order(snapshot, partition, rows)
                yield rows, high
                return
        for rows in windows(self.table, files, Wanted(partition, "number", low, high), columns, most):
            rows = self._in_order(snapshot, partition, rows)
            yield rows, rows["number"][-1].as_py()
            del rows  # before the next ones are read

    def _found(
        self,
        snapshot: Snapshot,
        partition: int,
        file: File,
        low: int,
        high: int,
        required: RequiredText,
    ) -> pa.Table:
        """The rows with the required text, in commit order; the file is not in memory as a whole."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        places, parts = [], []
        for places_read, rows in self.files.rows_with(file, low, high, COLUMNS, required.texts):
            places.append(places_read)
            required.passed += len(places_read[0]) - (0 if rows is None else rows.num_rows)
            if rows is not None:
                parts.append(rows)
        if places:
            numbers, positions = (np.concatenate(column) for column in zip(*places, strict=True))
            if _order(numbers, positions, snapshot.trimmed[partition].until) is None:
                raise self._not_once(snapshot, low, high)
        if not parts:
            return self.files.empty(file, COLUMNS)
        with self.table.mapped():
            rows = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
            return rows.take(pc.sort_indices(rows["position"]))

    def _in_order(self, snapshot: Snapshot, partition: int, rows: pa.Table) -> pa.Table:
        """`rows` in commit order. CorruptData if they are not all those of their transactions, once each, as far as
        they were not trimmed."""
        import numpy as np
        import pyarrow as pa

        numbers = rows["number"].to_numpy()
        order = _order(numbers, rows["position"].to_numpy(), snapshot.trimmed[partition].until)
        if order is None:
            raise self._not_once(snapshot, numbers.min(), numbers.max())
        with self.table.mapped():
            return rows if (order == np.arange(len(order))).all() else rows.take(pa.array(order))

    def _not_once(self, snapshot: Snapshot, first: int, last: int) -> CorruptData:
        return CorruptData(
            f"{self.table.url}, version {snapshot.version}: transactions {first} to {last} are not there once each"
        )

    def first_at(self, view: LogView, timestamp: int, first: int, last: int) -> int:
        import pyarrow.compute as pc

        moment = _moment(timestamp)

        def ask(snapshot: Snapshot) -> int:
            for cluster in snapshot.clusters(view.log.partition):
                numbers: list[int] = []
                for file in cluster:
                    if file.numbers[0] <= last and file.numbers[1] >= first and file.timestamps[1] >= timestamp:
                        for rows in self.files.narrow(file, ["number", "timestamp"]):
                            rows = rows.filter((pc.field("timestamp") >= moment) & (pc.field("number") >= first))
                            if rows.num_rows:
                                numbers.append(pc.min(rows["number"]).as_py())
                if numbers:
                    return min(min(numbers), last + 1)
            return last + 1

        return self._asked(view.log.partition, last, ask)

    # -- how much there is ----------------------------------------------------------------------------------------

    def entries_until(self, view: LogView, number: int) -> int:
        return self._asked(
            view.log.partition,
            number,
            lambda found: self._amounts.entries_until(
                found.clusters(view.log.partition), number, found.trimmed[view.log.partition]
            ),
        )

    def place(self, view: LogView, number: int) -> tuple[int, int, int]:
        return self._asked(
            view.log.partition,
            view.cold_until,
            lambda found: self._amounts.place(
                found.clusters(view.log.partition), number, found.trimmed[view.log.partition]
            ),
        )

    def number_of(self, view: LogView, position: int) -> int | None:
        def ask(snapshot: Snapshot) -> int | None:
            trimmed = snapshot.trimmed[view.log.partition]
            found = self._amounts.number_of(snapshot.clusters(view.log.partition), position, trimmed)
            return view.cold_until if found is None and trimmed.until else found

        return self._asked(view.log.partition, view.cold_until, ask)

    def bytes_between(self, view: LogView, first: int, last: int) -> int:
        return self._asked(
            view.log.partition,
            last,
            lambda found: self._amounts.bytes_between(found.clusters(view.log.partition), first, last),
        )

    def first_within(self, view: LogView, first: int, last: int, most: int) -> int:
        return self._asked(
            view.log.partition,
            last,
            lambda found: self._amounts.first_within(found.clusters(view.log.partition), first, last, most),
        )

    def amounts_backwards(self, view: LogView, first: int, last: int, sized: bool) -> Iterator[Amount]:
        end = last

        def walk(snapshot: Snapshot) -> Iterator[Amount]:
            nonlocal end
            for amount in self._amounts.backwards(snapshot.clusters(view.log.partition), first, end, sized):
                yield amount
                end = amount.number - 1

        return self._retry(view, last, walk)

    def segment_bytes(self, view: LogView, segment: str, first: int, last: int) -> tuple[int, int]:
        import pyarrow.compute as pc

        def ask(snapshot: Snapshot) -> tuple[int, int]:
            entries = size = 0
            for cluster in snapshot.clusters(view.log.partition):
                files = _holding(cluster, view, segment, first, last)
                for rows in self._of_segment(files, view.log.partition, segment, first, last):
                    entries += rows.num_rows
                    size += pc.sum(pc.binary_length(rows["payload"])).as_py() or 0
            return entries, size

        return self._asked(view.log.partition, view.cold_until, ask)

    # -- places ---------------------------------------------------------------------------------------------------

    def touched(self, view: LogView, first: int, last: int) -> Iterator[str]:
        def ask(snapshot: Snapshot) -> dict[str, int]:
            latest: dict[str, int] = {}
            for rows in self._between(snapshot, view.log.partition, first, last, ["segment", "position"]):
                for row in rows.group_by("segment").aggregate([("position", "max")]).to_pylist():
                    latest[row["segment"]] = max(row["position_max"], latest.get(row["segment"], -1))
            return latest

        latest = self._asked(view.log.partition, last, ask)
        yield from sorted(latest, key=lambda segment: latest[segment])

    def _between(
        self, snapshot: Snapshot, partition: int, first: int, last: int, columns: list[str]
    ) -> Iterator[pa.Table]:
        """Read `columns` of transactions first..last, in no order."""
        import pyarrow.compute as pc

        for files, low, high in _windows(snapshot, partition, first, last, Bounds()):
            for file in files:
                for rows in self.files.narrow(file, [*columns, "number"]):
                    rows = rows.filter((pc.field("number") >= low) & (pc.field("number") <= high))
                    if rows.num_rows:
                        yield rows

    def has(self, view: LogView, id: bytes, number: int | None, made: int) -> bool:
        import pyarrow.compute as pc

        name = str(UUID(bytes=id))

        def ask(snapshot: Snapshot) -> bool:
            for cluster in snapshot.clusters(view.log.partition):
                for file in cluster:
                    if number is None and file.timestamps[1] < made - 3_600_000:
                        continue
                    if number is not None and not file.numbers[0] <= number <= file.numbers[1]:
                        continue
                    for rows in self.files.narrow(file, ["trx_id"]):
                        if pc.index(rows["trx_id"].cast("string"), name).as_py() >= 0:
                            return True
            return False

        return self._asked(view.log.partition, max(view.cold_until, number or 0), ask)

    def check(self, partition: int, first: int, last: int) -> None:
        """Sync the files of transactions first..last, and read every byte. CorruptData if they are not there, whole."""

        def ask(snapshot: Snapshot) -> None:
            # They may be another engine's by now, which syncs nothing.
            files = (file for file in snapshot.files if file.partition == partition)
            self.table.sync(file.path for file in files if file.numbers[0] <= last and file.numbers[1] >= first)
            for _ in self.in_order(snapshot, partition, first, last, Bounds()):
                pass

        self._load(False)  # other processes may have rewritten files
        self._asked(partition, last, ask)

    def examine(self, partition: int, last: int) -> Contents:
        from .examine import examine

        return examine(self, partition, last)

    # -- backwards ----------------------------------------------------------------------------------------------

    def transactions_backwards(self, view: LogView, start: tuple[int, int], last: int) -> Iterator[Batch]:
        end = last

        def walk(snapshot: Snapshot) -> Iterator[Batch]:
            nonlocal end
            for files, least, most in reversed(list(_windows(snapshot, view.log.partition, start[0], end, Bounds()))):
                parts = 1 if _alone(files) else -(-sum(file.rows for file in files) // _PART)
                for low, high in _downwards(least, most, -(-(most - least + 1) // parts)):
                    for rows in reversed(list(self.in_order(snapshot, view.log.partition, low, high, Bounds()))):
                        yield from batches_backwards(view.log, rows, start)
                    end = low - 1

        return self._retry(view, last, walk)

    def segment_backwards(self, view: LogView, segment: str, first: int, last: int) -> Iterator[Batch]:
        end = last

        def walk(snapshot: Snapshot) -> Iterator[Batch]:
            nonlocal end
            for cluster in reversed(list(snapshot.clusters(view.log.partition))):
                files = _holding(cluster, view, segment, first, end)
                least = max(first, min((file.sequences[0] for file in files), default=end + 1))
                for low, high in _downwards(least, end, end if _alone(files) else _PART):
                    for rows in reversed(list(self._of_segment(files, view.log.partition, segment, low, high))):
                        for batch in batches_backwards(view.log, rows, (0, 0)):
                            if batch.entries[-1].sequence != end:
                                raise self._not_there(view, snapshot, segment, end)
                            yield batch
                            end = batch.entries[0].sequence - 1
                if end < first:
                    return

        return self._retry(view, view.cold_until, walk)

    # -- one segment --------------------------------------------------------------------------------------------

    def segment(self, view: LogView, segment: str, first: int, last: int) -> Iterator[Batch]:
        expected = first

        def walk(snapshot: Snapshot) -> Iterator[Batch]:
            nonlocal expected
            for cluster in snapshot.clusters(view.log.partition):
                files = _holding(cluster, view, segment, expected, last)
                for rows in self._of_segment(files, view.log.partition, segment, expected, last):
                    for batch in batches(view.log, rows, (0, 0), Bounds()):
                        if batch.number > view.cold_until:
                            return
                        if batch.entries[0].sequence != expected:
                            raise self._not_there(view, snapshot, segment, expected)
                        yield batch
                        expected = batch.entries[-1].sequence + 1
                if expected > last:
                    return

        return self._retry(view, view.cold_until, walk)

    def first_of(self, view: LogView, segment: str, least: int) -> int | None:
        import pyarrow.compute as pc

        def ask(snapshot: Snapshot) -> int | None:
            for cluster in snapshot.clusters(view.log.partition):
                files = [file for file in _holding(cluster, view, segment, 1, 1 << 62) if file.numbers[1] >= least]
                for rows in self._of_segment(files, view.log.partition, segment, 1, 1 << 62):
                    some = rows.filter(pc.field("number") >= least)
                    if some.num_rows:
                        found: int = some["sequence"][0].as_py()
                        return found
            return None

        return self._asked(view.log.partition, view.cold_until, ask)

    def _not_there(self, view: LogView, snapshot: Snapshot, segment: str, sequence: int) -> CorruptData:
        """The error for an archived entry that is not at its place. Moved if it may have been trimmed meanwhile."""
        view.look_again()
        return CorruptData(
            f"{self.table.url}, version {snapshot.version}: sequence {sequence} of segment {segment!r} is not where it "
            "must be; check the store with `streamkit verify`"
        )

    def _of_segment(
        self, files: Sequence[File], partition: int, segment: str, first: int, last: int
    ) -> Iterator[pa.Table]:
        """The rows first..last of a segment, in order."""
        if _alone(files):
            rows = self.files.segment_rows(files[0], segment, first, last)
            if rows is not None:
                yield rows
        elif files:
            low = max(first, min(file.sequences[0] for file in files))
            high = min(last, max(file.sequences[1] for file in files))
            yield from windows(self.table, files, Wanted(partition, "sequence", low, high, segment), COLUMNS)


def _check_trimmed(snapshot: Snapshot, view: LogView, here: tuple[int, int]) -> None:
    """Raise Moved if a trim has removed files after the position `here` since the view was taken."""
    files = next(iter(snapshot.clusters(view.log.partition)), [])
    if here > (1, 0) and not any(file.numbers[0] <= here[0] for file in files):
        view.look_again()


def _with_text(rows: pa.Table, required: RequiredText) -> pa.Table:
    import pyarrow as pa

    found = rows.filter(pa.array(have_texts(rows["metadata"], required.texts)))
    required.passed += rows.num_rows - found.num_rows
    return found


def _order(numbers: Any, positions: Any, trimmed: int) -> Any:
    """The row at each place in commit order.

    None if a position occurs twice, or is missing after transaction `trimmed`. Up to that transaction, rows of trimmed
    entries are gone.
    """
    import numpy as np

    if not len(positions) or numbers.min() > trimmed:
        # Positions are dense: nothing has to be sorted.
        where = positions - (positions.min() if len(positions) else 0)
        order = np.full(len(where), -1)
        order[where[where < len(order)]] = np.flatnonzero(where < len(order))
        return order if order.min(initial=0) >= 0 else None
    order = np.argsort(positions, kind="stable")
    steps = np.diff(positions[order])
    wrong = np.where(numbers[order][:-1] > trimmed, steps != 1, steps < 1)
    return None if wrong.any() else order


def _alone(files: Sequence[File]) -> bool:
    """True for one file that streamkit wrote: its rows are sorted, do not overlap, and belong to one partition."""
    return len(files) == 1 and files[0].ours


def _moment(timestamp: int) -> pa.Scalar:
    import pyarrow as pa

    return pa.scalar(timestamp * 1000, pa.timestamp("us", "UTC"))


def _overlaps(file: File, bounds: Bounds) -> bool:
    low, high = bounds.min_timestamp, bounds.max_timestamp
    return file.timestamps[1] >= low and not (high and file.timestamps[0] > high)


def _holding(files: Sequence[File], view: LogView, segment: str, first: int, last: int) -> list[File]:
    """The files that may hold archived entries first..last of a segment."""
    return [
        file
        for file in files
        if file.segments[0] <= segment <= file.segments[1]
        and file.sequences[0] <= last
        and file.sequences[1] >= first
        and file.numbers[0] <= view.cold_until
    ]


def _downwards(first: int, last: int, step: int) -> Iterator[tuple[int, int]]:
    """first..last in parts of `step`, the last one first."""
    while last >= first:
        yield max(first, last - step + 1), last
        last -= step


def _windows(
    snapshot: Snapshot, partition: int, first: int, last: int, bounds: Bounds
) -> Iterator[tuple[list[File], int, int]]:
    """Yield (files, low number, high number): pieces of the log, in order."""
    for cluster in snapshot.clusters(partition):
        low = max(first, min(file.numbers[0] for file in cluster))
        high = min(last, max(file.numbers[1] for file in cluster))
        files = [file for file in cluster if file.numbers[0] <= high and file.numbers[1] >= low]
        if files and any(_overlaps(file, bounds) for file in files):
            yield files, low, high
