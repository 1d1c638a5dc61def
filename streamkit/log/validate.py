"""Checks of the records that callers pass in, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from ..errors import InvalidRecord, RecordTooLarge, SequenceMismatch
from ..model import Record

__all__ = ["Prepared", "listed", "prepare"]

_METADATA_BYTES = 64 << 10


Prepared = tuple[list[bytes], list[dict[str, str] | None] | None, int | None, int]
"""Payloads; metadata, or None if no record has any; the segment's last sequence, if the caller insists; bytes."""


def prepare(records: Iterable[Record], expected_sequence: int | None, most_bytes: int) -> Prepared:
    """Read `records` to their end and check them all.

    TypeError for a value of the wrong type; InvalidRecord, RecordTooLarge (ValueErrors) for wrong values;
    SequenceMismatch if their sequences do not follow on each other or on `expected_sequence`.
    """
    if expected_sequence is not None:
        if type(expected_sequence) is not int:
            raise TypeError(f"expected_sequence is an int or None, not {type(expected_sequence).__name__}")
        if expected_sequence < 0:
            raise ValueError(f"expected_sequence is a segment's last sequence, from 0, not {expected_sequence}")
    batch = listed(records)
    if len(batch) == 1 and type(record := batch[0]) is Record and record.metadata is None and record.sequence is None:
        payload = record.payload
        if type(payload) is bytes and len(payload) <= most_bytes:  # the parts of small commits, checked together
            return [payload], None, expected_sequence, len(payload)
    if list(map(type, batch)).count(Record) < len(batch):
        wrong = next(kind for kind in map(type, batch) if kind is not Record)
        raise TypeError(f"records must be streamkit.Record, not {wrong.__name__}: write Record(payload), with bytes")
    payloads = [record.payload for record in batch if record.metadata is None and record.sequence is None]
    plain = len(payloads) == len(batch)
    if not plain:
        payloads = [record.payload for record in batch]
    if list(map(type, payloads)).count(bytes) < len(payloads):
        payloads = [_payload(payload) for payload in payloads]
    size = sum(map(len, payloads))
    if size > most_bytes and (largest := max(map(len, payloads))) > most_bytes:
        raise RecordTooLarge(
            f"a record of {largest} bytes; one record holds at most {most_bytes}. Store large objects elsewhere and "
            "a reference here, or raise max_transaction_bytes of connect()"
        )
    metadata = None
    if not plain:
        if any(record.metadata is not None for record in batch):
            given = [record.metadata for record in batch]
            metadata = _all_metadata(given) if len(given) > 4 else list(map(_metadata, given))
        if any(record.sequence is not None for record in batch):
            expected_sequence = _sequences(batch, expected_sequence)
    return payloads, metadata, expected_sequence, size


def listed(records: Iterable[Record]) -> list[Record]:
    """Read `records` to their end. TypeError if they are one record, or one of its values."""
    if type(records) is not list and isinstance(records, (Record, bytes, str, Mapping)):
        raise TypeError(f"records is an iterable of Record, not one {type(records).__name__}: put it into a list")
    return list(records)


def _payload(payload: Any) -> bytes:
    if not isinstance(payload, bytes):
        raise TypeError(f"a payload is bytes, not {type(payload).__name__}; {_remedy(payload)}")
    return bytes(payload)  # a subclass of bytes, such as LexKey


def _remedy(payload: Any) -> str:
    if isinstance(payload, (bytearray, memoryview)):
        return "copy it with bytes(…)"
    if isinstance(payload, Record):
        return "pass its .payload"
    return "encode text with .encode()" if isinstance(payload, str) else "encode it, as json.dumps(…).encode() does"


_TEXT = {str}
_DICTS = {dict}
_FEW = 64


def _all_metadata(given: list[Mapping[str, str] | None]) -> list[dict[str, str] | None]:
    """Check the metadata of many records, short ASCII all at once, as nearly all of it is."""
    checked: list[dict[str, str] | None] = []
    for at in range(0, len(given), _FEW):
        some: Any = given[at : at + _FEW]
        if {*map(type, some)} == _DICTS and all(some):
            texts = [*chain.from_iterable(some), *chain.from_iterable(map(dict.values, some))]
            if {*map(type, texts)} == _TEXT:
                text = "".join(texts)
                if text.isascii() and len(text) <= _METADATA_BYTES:
                    checked += map(dict.copy, some)
                    continue
        checked += map(_metadata, some)
    return checked


def _metadata(metadata: Mapping[str, str] | None) -> dict[str, str] | None:
    if type(metadata) is dict and {*map(type, metadata), *map(type, metadata.values())} == _TEXT:
        text = "".join([*metadata, *metadata.values()])
        if text.isascii() and len(text) <= _METADATA_BYTES:  # as nearly all of it is: looked at once
            return metadata.copy()
    if not metadata:
        if metadata is not None and not isinstance(metadata, Mapping):
            raise TypeError(f"metadata is a mapping of str to str, not {type(metadata).__name__}")
        return None
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata is a mapping of str to str, not {type(metadata).__name__}")
    copy = {}
    size = 0
    for name, value in metadata.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"metadata maps str to str; {name!r} has a value of type {type(value).__name__}")
        copy[str.__str__(name)] = str.__str__(value)  # plain, also of a StrEnum
        try:
            size += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"metadata {name[:40]!r} has a lone surrogate, which is not text") from error
    if size > _METADATA_BYTES:
        raise InvalidRecord(f"metadata of {size} bytes; a record has at most {_METADATA_BYTES}: use the payload")
    return copy


def _sequences(batch: Sequence[Record], expected: int | None) -> int:
    """The last sequence that the segment must have for every record to get its own."""
    for index, record in enumerate(batch):
        sequence = record.sequence
        if sequence is None:
            continue
        if type(sequence) is not int:
            raise TypeError(f"a record's sequence is an int or None, not {type(sequence).__name__}")
        if sequence < 1:
            raise InvalidRecord(f"a record's sequence counts from 1; it cannot be {sequence}")
        if expected is None:
            expected = sequence - index - 1
        if expected < 0 or sequence != expected + index + 1:
            following = max(expected, 0) + index + 1
            raise SequenceMismatch(
                f"the record at index {index} has sequence {sequence} where {following} must follow; nothing was "
                "written: give every record the next sequence, or none",
                following,
                sequence,
            )
    assert expected is not None
    return expected
