"""A write as one entity-group transaction, which Azure applies as a whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.data.tables import UpdateMode

from streamkit.backend import Append, Conflict, Delete, Etag, Expect, Op
from streamkit.errors import Unavailable

from .bodies import Bodies
from .errors import code_of, foreign
from .keys import encode_key, encode_partition
from .read import Reader
from .rows import OPS, Body, encode, spilled
from .service import Clients

__all__ = ["Writer"]

_ROUNDS = 5
_ETAG = re.compile(r"""(W/"datetime'[\w%:.+-]+'")(?: (\w+:\d+))?""")
_INDEX = re.compile(r"(\d+):")


class _Planned(NamedTuple):
    """An operation as the SDK takes it, and the blob that nothing refers to once it is applied."""

    sent: tuple[Any, ...]
    body: Body | None
    replaced: Body | None


class Writer:
    def __init__(self, clients: Callable[[], Clients], reader: Reader, bodies: Bodies, where: str) -> None:
        self._clients = clients
        self._reader = reader
        self._bodies = bodies
        self._where = where

    def write(self, partition: bytes, ops: Sequence[Op]) -> list[Etag | None]:
        """See `Backend.write`. A lone Append is like every other: Azure enforces only that its key is new.

        That it is greater than those before is for the caller to guard, with a row whose etag is in each batch.
        """
        if not 1 <= len(ops) <= OPS:
            raise ValueError(f"one write has 1 to {OPS} operations, not {len(ops)}")
        if len({op.key for op in ops}) != len(ops):
            raise ValueError("one write names each key once")
        expected = [_expected(op) for op in ops]
        clients = self._clients()
        bodies = self._put_bodies(clients, partition, ops)
        name = encode_partition(partition)
        plan = [
            _Planned(_operation(name, op, etag, bodies.get(at)), bodies.get(at), replaced)
            for at, (op, (etag, replaced)) in enumerate(zip(ops, expected, strict=True))
        ]
        discarded = [planned.replaced for planned in plan if planned.replaced is not None]
        deletes = [op for op in ops if isinstance(op, Delete)]
        if len(deletes) == len(ops):
            # Not in a mixed batch: a commit stays one request, and what it replaces is small.
            discarded += self._reader.bodies(partition, [op.key for op in deletes if op.expect is Expect.ANY])
        etags = self._apply(clients, partition, ops, plan)
        self._bodies.discard(discarded)
        return etags

    def _put_bodies(self, clients: Clients, partition: bytes, ops: Sequence[Op]) -> dict[int, Body]:
        large = sorted(spilled(partition, ops, self._where))
        values = [op.value for op in (ops[at] for at in large) if not isinstance(op, Delete)]
        put = self._bodies.put
        bodies = clients.threads.each(put, values) if len(values) > 1 else [put(value) for value in values]
        return dict(zip(large, bodies, strict=True))

    def _apply(
        self, clients: Clients, partition: bytes, ops: Sequence[Op], plan: Sequence[_Planned]
    ) -> list[Etag | None]:
        etags: list[Etag | None] = [None] * len(ops)
        live = list(range(len(ops)))
        for _ in range(_ROUNDS):
            if not live:
                return etags
            with foreign(self._where, writing=True):
                try:
                    answers = clients.table.submit_transaction([plan[at].sent for at in live])
                except HttpResponseError as error:
                    live = self._refused(clients, partition, ops, live, error)
                    continue
                for at, answer in zip(live, answers, strict=True):
                    body = plan[at].body
                    if not isinstance(ops[at], Delete):
                        etags[at] = f"{answer['etag']} {body}" if body else answer["etag"]
                return etags
        raise Unavailable("rows to delete, or their table, came and went while they were written; try again")

    def _refused(
        self, clients: Clients, partition: bytes, ops: Sequence[Op], live: list[int], error: HttpResponseError
    ) -> list[int]:
        """The operations to send again after a refusal that can be mended; nothing of the batch was applied."""
        code = code_of(error)
        found = _INDEX.match(error.message or "")
        op = ops[live[int(found[1])]] if found and int(found[1]) < len(live) else None
        key = op.key if op is not None else None
        if code == "TableNotFound":
            return self._without_table(clients, ops, live)
        if code in ("ResourceNotFound", "EntityNotFound"):
            if op is None or not _deletes_anyway(op):
                raise Conflict(key) from None
            unsure = [at for at in live if _deletes_anyway(ops[at])]
            there = self._reader.exist(partition, [ops[at].key for at in unsure])
            gone = {at for at, exists in zip(unsure, there, strict=True) if not exists}
            return [at for at in live if at not in gone]
        if code in ("EntityAlreadyExists", "UpdateConditionNotSatisfied", "ConditionNotMet"):
            raise Conflict(key) from None
        raise error

    def _without_table(self, clients: Clients, ops: Sequence[Op], live: list[int]) -> list[int]:
        """The store is new: nothing in it can be deleted or have an etag, and the first row makes its table."""
        for at in live:
            op = ops[at]
            if not isinstance(op, Append) and not isinstance(op.expect, Expect):
                raise Conflict(op.key) from None
        rows = [at for at in live if not isinstance(ops[at], Delete)]
        if rows:
            with foreign(self._where):
                try:
                    clients.table.create_table()
                except ResourceExistsError as error:
                    if code_of(error) != "TableAlreadyExists":
                        raise
        return rows


def _deletes_anyway(op: Op) -> bool:
    """A row that is not there is as good."""
    return isinstance(op, Delete) and op.expect is Expect.ANY


def _expected(op: Op) -> tuple[str, Body | None]:
    """Azure's etag that the row must have, and the blob that this row refers to. Conflict for an etag never given."""
    if isinstance(op, Append) or isinstance(op.expect, Expect):
        return "", None
    found = _ETAG.fullmatch(op.expect) if isinstance(op.expect, str) else None
    if found is None:
        raise Conflict(op.key)
    return found[1], Body.of(found[2]) if found[2] else None


def _operation(partition: str, op: Op, etag: str, body: Body | None) -> tuple[Any, ...]:
    if isinstance(op, Delete):
        entity: dict[str, Any] = {"PartitionKey": partition, "RowKey": encode_key(op.key)}
        kind = "delete"
    else:
        entity = encode(partition, encode_key(op.key), op.value, body)
        kind = "update" if etag else "upsert"
        if isinstance(op, Append) or op.expect is Expect.ABSENT:
            return "create", entity, {"response_preference": "return-no-content"}
    options: dict[str, Any] = {} if kind == "delete" else {"mode": UpdateMode.REPLACE}
    if etag:
        options |= {"etag": etag, "match_condition": MatchConditions.IfNotModified}
    return kind, entity, options
