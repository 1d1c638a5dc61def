"""Writing: append to a segment, to segments of a space, and in transactions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec

from ...aio import AsyncStore
from ...aio.transaction import is_much
from ...decoders import json_decoder
from ...errors import OutcomeUnknown
from ...leases import LeaseGrant
from ...model import Record
from ...store import writer_of
from ...transaction import Draft
from ..encoding import TransactionName, name_of_transaction
from ..names import encode_name
from ..problems import Problem, problem_of
from ..request import Request
from ..responses import Answer, json_answer
from .conditions import expected_sequence, idempotency_key, lease_grant, refuse_conditions
from .records import body_of, check_count, check_length, list_of, records_of, segment_records_of
from .values import RecordIn, StatusOut, status_out

__all__ = ["REPLAYED", "append", "append_to_space", "commit", "find_result", "outcome", "write"]

_EACH = "give each part of a transaction its expected_sequence"
Part = tuple[str, Sequence[Record], int | None]
"""(segment, records, expected sequence)"""


class PartIn(msgspec.Struct, forbid_unknown_fields=True):
    """The records of a transaction for one segment."""

    segment: str
    records: list[RecordIn] = msgspec.field(default_factory=list)
    expected_sequence: int | None = None


class TransactionIn(msgspec.Struct, forbid_unknown_fields=True):
    """A transaction: all of its parts are written, or nothing is."""

    parts: list[PartIn]


class TransactionOut(msgspec.Struct):
    """The result of a transaction."""

    segments: list[StatusOut]
    trx: TransactionName | None
    offset: str | None
    """The offset in the space after the write."""


class OutcomeOut(msgspec.Struct):
    """The outcome of a transaction: "committed", "absent" or "unknown"."""

    id: str
    outcome: str


class ResultOut(msgspec.Struct):
    """The result of the first write with an idempotency key."""

    segments: list[StatusOut]


def base_of(store: AsyncStore, space: str) -> str:
    """The path of a space."""
    return _base(store.id, space)


@lru_cache(maxsize=4096)
def _base(store: UUID, space: str) -> str:
    return f"/v1/stores/{store}/spaces/{encode_name(space)}"


async def write(
    request: Request, store: AsyncStore, space: str, parts: Sequence[Part], key: str | None, grant: LeaseGrant | None
) -> Any:
    """The transaction that wrote the parts, or its draft. An unknown outcome is raised with the address to ask for
    it."""
    try:
        if len(parts) == 1 and parts[0][1] and not is_much(parts[0][1]):
            # The same as below, without the steps for several parts or large ones.
            draft = Draft(writer_of(store.sync), space, key, grant)
            draft.entered = True
            draft.add(*parts[0])
            draft.ended = True
            await store.commit(draft)
            return draft
        transaction = store.transaction(space, key, grant)
        async with transaction:
            for segment, records, expected in parts:
                transaction.produce(segment, records, expected_sequence=expected)
    except OutcomeUnknown as error:
        problem = problem_of(error)
        path = f"{base_of(store, space)}/transactions/{error.transaction_id}"
        problem.headers = ((b"location", path.encode()),)
        raise problem from error
    return transaction


REPLAYED = (b"idempotent-replayed", b"true")


async def append(request: Request) -> Answer:
    """Append the records of the body to a segment, as one transaction."""
    if request.scope["query_string"]:
        request.query(())
    store, space, segment = request.store(), request.name(1), request.name(2)
    expected, key, grant = expected_sequence(request), idempotency_key(request), await lease_grant(request, store)
    records = await records_of(request)
    transaction = await write(request, store, space, ((segment, records, expected),), key, grant)
    status = transaction.statuses.get(segment)
    if status is None:
        status = await store.segment_status(space, segment)
    headers = [(b"etag", b'"%d"' % status.last_sequence)]
    if transaction.replayed:
        headers.append(REPLAYED)
    return json_answer(status_out(status, base_of(store, space)), 201 if records else 200, headers)


def _answer(store: AsyncStore, space: str, transaction: Any) -> Answer:
    base = base_of(store, space)
    statuses = [status_out(status, base) for status in transaction.statuses.values()]
    headers = [REPLAYED] if transaction.replayed else []
    trx = transaction.trx
    if trx is not None:
        headers.append((b"location", f"{base}/transactions/{trx.id}".encode()))
    out = TransactionOut(
        statuses,
        None if trx is None else name_of_transaction(trx),
        statuses[0].offset if statuses else None,
    )
    return json_answer(out, 200 if trx is None else 201, headers)


async def append_to_space(request: Request) -> Answer:
    """Append records to segments of a space, as one transaction; each record names its segment."""
    key_field = request.query(("segment_key",)).get("segment_key")
    refuse_conditions(request, _EACH)
    store, space = request.store(), request.name(1)
    key, grant = idempotency_key(request), await lease_grant(request, store)
    by_segment = await segment_records_of(request, key_field)
    for segment in by_segment:
        request.access.check_segment(segment)
    parts = [(segment, records, None) for segment, records in by_segment.items()]
    return _answer(store, space, await write(request, store, space, parts, key, grant))


class _Parts(msgspec.Struct, forbid_unknown_fields=True):
    """A TransactionIn before its parts are made."""

    parts: msgspec.Raw


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    """A PartIn before its records are made."""

    segment: str
    records: msgspec.Raw = msgspec.Raw(b"[]")
    expected_sequence: int | None = None


_decode_parts = json_decoder(list[_Part]).decode


async def commit(request: Request) -> Answer:
    """Commit parts of several segments, each with its expectation."""
    request.query(())
    refuse_conditions(request, _EACH)
    store, space = request.store(), request.name(1)
    key, grant = idempotency_key(request), await lease_grant(request, store)
    array = (await body_of(request, _Parts, most=request.service.limits.body_bytes or sys.maxsize)).parts
    check_length(request, array)
    parts: list[Part] = []
    count = 0
    try:
        for part in _decode_parts(array):
            request.access.check_segment(part.segment)
            records = list_of(request, part.records)
            count += len(records)
            check_count(request, count)
            parts.append((part.segment, [record.record() for record in records], part.expected_sequence))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem("invalid-body", f"the body is not valid: {error}") from None
    return _answer(store, space, await write(request, store, space, parts, key, grant))


async def outcome(request: Request) -> Answer:
    """The outcome of a transaction."""
    request.query(())
    store, text = request.store(), request.name(2)
    try:
        found = await store.outcome(text)
    except ValueError:
        raise Problem("not-found", "a transaction is named by its UUID") from None
    return json_answer(OutcomeOut(text, found))


async def find_result(request: Request) -> Answer:
    """The result of the first write with an idempotency key."""
    segment = request.query(("segment",)).get("segment")
    store, space, key = request.store(), request.name(1), request.name(2)
    if segment is not None:
        request.access.check_segment(segment)
    found = await store.lookup(space, key, segment)
    if found is None:
        raise Problem("not-found", "no write used this idempotency key, as far as the space remembers")
    for name in found:
        request.access.check_segment(name)
    base = base_of(store, space)
    return json_answer(ResultOut([status_out(status, base) for status in found.values()]))
