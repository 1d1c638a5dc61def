"""Reading rows: by key, in parts, and in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from azure.core.exceptions import ResourceNotFoundError
from azure.data.tables import TableEntity

from streamkit.backend import Range, Row, Value
from streamkit.errors import CorruptData, PermanentError

from .blobs import Blobs
from .errors import code_of, foreign
from .keys import decode_key, encode_bound, encode_key, encode_partition
from .rows import Blob, Stored, columns, decode, part
from .service import Clients

__all__ = ["PAGE", "Reader"]

PAGE = 1000
"""Rows that Azure sends at most for one request."""
_AHEAD = 16 << 20
"""Bytes of blobs that a scan fetches before they are asked for."""

T = TypeVar("T")
R = TypeVar("R")


class Reader:
    def __init__(self, clients: Callable[[], Clients], blobs: Blobs, where: str, page: int) -> None:
        self._clients = clients
        self._blobs = blobs
        self._where = where
        self._page = page

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        return self._each(lambda key: self._value(partition, key), keys)

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        """A range whose etag names the blob of the value costs one request; for the others the rows are read."""
        for wanted in ranges:
            if wanted.start < 0 or wanted.length < 0:
                raise ValueError(f"start and length of a range are zero or more: {wanted}")
        found: list[bytes | None] = [None] * len(ranges)
        blobs = {at: blob for at, wanted in enumerate(ranges) if (blob := Blob.of_etag(wanted.etag))}
        of_key: dict[bytes, list[int]] = {}
        for at, wanted in enumerate(ranges):
            if at not in blobs:
                of_key.setdefault(wanted.key, []).append(at)
        select = {key: columns(ranges[at] for at in indexes) for key, indexes in of_key.items()}
        entities = self._each(lambda key: self._entity(partition, key, select[key]), list(of_key))
        for (key, indexes), entity in zip(of_key.items(), entities, strict=True):
            if entity is None:
                continue
            blob = decode(entity, None, key).blob
            for at in indexes:
                if blob is None:
                    found[at] = part(entity, ranges[at])
                else:
                    blobs[at] = blob
        parts = self._each(lambda at: self._blobs.get(blobs[at], ranges[at].start, ranges[at].length), list(blobs))
        for at, data in zip(blobs, parts, strict=True):
            found[at] = self._moved(partition, ranges[at], blobs[at]) if data is None else data
        return found

    def _moved(self, partition: bytes, wanted: Range, missing: Blob) -> bytes | None:
        """A range whose blob is missing. None if the row is missing too, or is another one by now."""
        if self._again(partition, wanted.key, missing) is None or Blob.of_etag(wanted.etag) is not None:
            return None
        return self.read(partition, [wanted])[0]

    def blobs(self, partition: bytes, keys: Sequence[bytes]) -> list[Blob]:
        """The blobs that the rows refer to."""
        rows = {encode_key(key): key for key in keys}
        if len(rows) == 1:
            entity = self._entity(partition, keys[0], ["f", "b"])
            entities = [] if entity is None else [decode(entity, None, keys[0])]
        else:
            condition = (
                f"PartitionKey eq '{encode_partition(partition)}' and RowKey ge '{min(rows)}' "
                f"and RowKey le '{max(rows)}' and b ge '0'"
            )
            pages = self._pages(condition, PAGE, ["RowKey", "f", "b"])
            entities = [
                decode(row, None, rows[row["RowKey"]]) for page in pages for row in page if row["RowKey"] in rows
            ]
        return [entity.blob for entity in entities if entity.blob]

    def all_blobs(self) -> set[str]:
        """The names of the blobs that rows of any partition refer to."""
        pages = self._pages("b ge '0'", PAGE, ["f", "b"])
        blobs = [decode(row, None, b"").blob for page in pages for row in page]
        return {blob.name for blob in blobs if blob}

    def scan(self, partition: bytes, start: bytes, end: bytes, limit: int, values: bool) -> Iterator[Row]:
        condition = (
            f"PartitionKey eq '{encode_partition(partition)}' and RowKey ge '{encode_bound(start)}' "
            f"and RowKey lt '{encode_bound(end)}'"
        )
        left = limit or (1 << 62)
        for page in self._pages(condition, min(left, self._page), None if values else ["RowKey", "f", "b"]):
            found = []
            for entity in page:
                key = decode_key(entity["RowKey"])
                found.append((key, decode(entity, entity.metadata["etag"], key)))
            for row in self._whole(partition, found) if values else (Row(key, b"", row.etag) for key, row in found):
                yield row
                left -= 1
                if not left:
                    return

    def _each(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if len(items) < 2:
            return [function(item) for item in items]
        return self._clients().threads.each(function, items)

    def _entity(self, partition: bytes, key: bytes, select: list[str] | None = None) -> TableEntity | None:
        table = self._clients().table
        with foreign(self._where):
            try:
                return table.get_entity(encode_partition(partition), encode_key(key), select=select)
            except ResourceNotFoundError as error:
                if code_of(error) not in ("ResourceNotFound", "EntityNotFound", "TableNotFound"):
                    raise
        return None

    def _pages(self, condition: str, top: int, select: list[str] | None) -> Iterator[list[TableEntity]]:
        """The pages of a query; one may be empty. None at all where the table is not there."""
        pages = self._clients().table.query_entities(condition, results_per_page=top, select=select).by_page()
        started = False
        while True:
            self._clients()
            with foreign(self._where):
                try:
                    page = list(next(pages))
                except StopIteration:
                    return
                except ResourceNotFoundError as error:
                    if code_of(error) != "TableNotFound":
                        raise
                    if not started:
                        return
                    raise PermanentError("the store was deleted while it was read; open it again") from None
            started = True
            yield page

    def _value(self, partition: bytes, key: bytes) -> Value | None:
        entity = self._entity(partition, key)
        if entity is None:
            return None
        return self._followed(partition, key, decode(entity, entity.metadata["etag"], key))

    def _followed(self, partition: bytes, key: bytes, row: Stored) -> Value | None:
        """The value, from its blob if it is in one. None if the row is gone by then."""
        while row.blob is not None:
            data = self._blobs.get(row.blob, 0, row.blob.size)
            if data is not None:
                return Value(data, row.etag)
            again = self._again(partition, key, row.blob)
            if again is None:
                return None
            row = again
        return Value(row.data, row.etag)

    def _again(self, partition: bytes, key: bytes, missing: Blob) -> Stored | None:
        """The row whose blob is missing: it was replaced or deleted meanwhile, else CorruptData."""
        entity = self._entity(partition, key)
        if entity is None:
            return None
        row = decode(entity, entity.metadata["etag"], key)
        if row.blob == missing:
            raise CorruptData(f"the row {key!r} refers to the blob {missing.name!r}, which is missing")
        return row

    def _whole(self, partition: bytes, found: Sequence[tuple[bytes, Stored]]) -> Iterator[Row]:
        """The rows with their values; the next blobs are fetched while the caller is at work on the rows before."""
        waiting: deque[Callable[[], Value | None]] = deque()
        coming = iter([(key, row) for key, row in found if row.blob])
        ahead = 0
        for key, row in found:
            if row.blob is None:
                yield Row(key, row.data, row.etag)
                continue
            while not waiting or ahead < _AHEAD:
                following = next(coming, None)
                if following is None:
                    break
                waiting.append(self._clients().threads.start(self._followed, partition, *following))
                ahead += following[1].blob.size if following[1].blob else 0
            value = waiting.popleft()()
            ahead -= row.blob.size
            if value is not None:
                yield Row(key, *value)
