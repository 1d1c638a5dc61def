"""Writing rows: each is one entity and one request, after that of its blob if the value is too large for an entity."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.data.tables import UpdateMode

from streamkit.backend import ANY, Ambiguous, Conflict, Etag, Expect
from streamkit.errors import Unavailable

from .blobs import Blobs
from .errors import code_of, foreign
from .keys import encode_key, encode_partition
from .leftovers import WRITING
from .read import Reader
from .rows import MOST, Blob, encode
from .service import Clients

__all__ = ["Writer"]

_ROUNDS = 3
_GONE = ("TableNotFound", "ResourceNotFound", "EntityNotFound")
_REFUSED = ("EntityAlreadyExists", "UpdateConditionNotSatisfied", "ConditionNotMet")
_ETAG = re.compile(r"""W/"datetime'[\w%:.+-]+'\"""")


class Writer:
    def __init__(self, clients: Callable[[], Clients], reader: Reader, blobs: Blobs, where: str) -> None:
        self._clients = clients
        self._reader = reader
        self._blobs = blobs
        self._where = where

    def put(self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag) -> Etag:
        """See `Backend.put`. Of NEXT, Azure enforces that the key is new, not that it is the greatest."""
        address = encode_partition(partition), encode_key(key)
        etag = "" if isinstance(expect, Expect) else expect.partition(" ")[0]
        if etag and not _ETAG.fullmatch(etag):
            raise Conflict(key)
        clients = self._clients()
        blob = self._blobs.put(value) if len(value) > MOST else None
        begun = _time(clients)
        entity = encode(*address, value, blob)
        for _ in range(_ROUNDS):
            with foreign(self._where, writing=True):
                try:
                    answer = _send(clients, entity, expect, etag)
                except HttpResponseError as error:
                    self._refused(key, etag, error)
                    continue
            if not answer.get("etag"):
                raise Ambiguous(f"{self._where} answered a write without an etag; it may have been applied")
            if blob is not None and _time(clients) - begun > WRITING / 2:
                # It could be removed as a leftover before its row existed.
                with foreign(self._where, writing=True):
                    self._blobs.put(value, blob)
            if etag and (replaced := Blob.of_etag(expect)):
                self._blobs.discard([replaced])
            return f"{answer['etag']} {blob}" if blob else str(answer["etag"])
        raise Unavailable("the table came and went while it was written to; try again")

    def _refused(self, key: bytes, etag: str, error: HttpResponseError) -> None:
        """Make the missing table, after which the write can be sent again; otherwise raise Conflict, or the error."""
        code = code_of(error)
        if code == "TableNotFound" and not etag:
            self._make_table()
        elif code in (_GONE if etag else ()) or code in _REFUSED:
            raise Conflict(key) from None
        else:
            raise error

    def _make_table(self) -> None:
        with foreign(self._where):
            try:
                self._clients().table.create_table()
            except ResourceExistsError as error:
                if code_of(error) != "TableAlreadyExists":
                    raise

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        """Rows first, several at once, and then their blobs: a blob that a crash leaves is unreferenced."""
        keys = list(dict.fromkeys(keys))
        if not keys:
            return
        blobs = self._reader.blobs(partition, keys)
        rows = [(encode_partition(partition), encode_key(key)) for key in keys]
        clients = self._clients()

        def remove(row: tuple[str, str]) -> None:
            with foreign(self._where, writing=True):
                clients.table.delete_entity(*row)

        if len(rows) == 1:
            remove(rows[0])
        else:
            clients.threads.each(remove, rows)
        self._blobs.discard(blobs)

    def delete_if(self, partition: bytes, key: bytes, etag: Etag) -> None:
        """See `DeletesIf`. The row's etag names its blob."""
        row = encode_partition(partition), encode_key(key)
        entity, condition = etag.partition(" ")[0], MatchConditions.IfNotModified
        if not _ETAG.fullmatch(entity):
            raise Conflict(key)
        with foreign(self._where, writing=True):
            try:
                self._clients().table.delete_entity(*row, etag=entity, match_condition=condition)
            except HttpResponseError as error:
                if code_of(error) not in _REFUSED:
                    raise
                raise Conflict(key) from None
        if removed := Blob.of_etag(etag):
            self._blobs.discard([removed])


def _time(clients: Clients) -> float:
    """Seconds of the service's clock, as of its latest answer."""
    told = clients.clock.time
    return 0.0 if told is None else told.latest


def _send(clients: Clients, entity: dict[str, Any], expect: Expect | Etag, etag: str) -> dict[str, Any]:
    table = clients.table
    if etag:
        condition = MatchConditions.IfNotModified
        return table.update_entity(entity, mode=UpdateMode.REPLACE, etag=etag, match_condition=condition)
    if expect is ANY:
        return table.upsert_entity(entity, mode=UpdateMode.REPLACE)
    return table.create_entity(entity, response_preference="return-no-content")
