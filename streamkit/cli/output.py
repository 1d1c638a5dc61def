"""The output of commands: one line for each thing, JSON for machines or text for people.

The JSON fields are stable. An entry's `payload` is what its `encoding` says: "json", the value itself; "text", a string
that is not JSON; "base64", bytes that are not UTF-8.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from streamkit import TRX, Entry, SegmentStatus
from streamkit.terminal import json_escaped, visible

from ..decoders import json_decoder

__all__ = [
    "confirmed",
    "entry_line",
    "entry_text",
    "iso",
    "print_line",
    "print_note",
    "print_result",
    "record_line",
    "status_fields",
    "status_text",
]

_json = msgspec.json.Encoder()
_is_json = json_decoder(msgspec.Raw).decode


def print_line(line: bytes | str) -> None:
    """Write one line to standard output, as UTF-8 in every locale. Control characters of text are escaped; bytes are
    written as they are."""
    sys.stdout.buffer.write((line if isinstance(line, bytes) else visible(line).encode()) + b"\n")


def print_note(text: str) -> None:
    """A line for the person, on standard error, so that it is never taken for data."""
    print(visible(text), file=sys.stderr)


def confirmed(question: str) -> bool:
    """True if the person says yes to a question on standard error. No answer at all is a no, and said to be one."""
    while True:
        print(f"{visible(question)} [y/N]: ", end="", file=sys.stderr, flush=True)
        try:
            answer = input().strip().lower()
        except EOFError:
            print_note("no answer: nothing was changed; --yes does not ask")
            return False
        except KeyboardInterrupt:
            print(file=sys.stderr)
            raise
        if answer in ("", "n", "no", "y", "yes"):
            return answer.startswith("y")


def record_line(fields: object) -> bytes:
    return json_escaped(_json.encode(fields))


def print_result(fields: object, text: bytes | str, json: bool) -> None:
    """Write one line: the fields for a program that has asked with --json, else the text."""
    print_line(record_line(fields) if json else text)


def iso(timestamp: int) -> str:
    """Milliseconds since the epoch as 2026-01-31T08:00:00.000Z; "-" for 0, which means never."""
    if not timestamp:
        return "-"
    moment = datetime.fromtimestamp(timestamp / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _payload(payload: bytes) -> tuple[object, str]:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), "base64"
    try:
        _is_json(payload)
    except (msgspec.DecodeError, RecursionError):
        return text, "text"
    if b"\n" in payload or b"\r" in payload:
        payload = msgspec.json.format(payload, indent=-1)
    return msgspec.Raw(payload), "json"


@lru_cache(64)
def _trx(trx: TRX) -> msgspec.Raw:
    """Entries of one transaction come together."""
    return msgspec.Raw(_json.encode({"id": trx.id, "node": trx.node, "number": trx.number}))


def entry_line(entry: Entry) -> bytes:
    """The entry as one line of JSON. One that stands for an empty segment has sequence 0 and payload null."""
    payload, encoding = _payload(entry.payload) if entry.sequence else (None, "json")
    fields = {
        "space": entry.space,
        "segment": entry.segment,
        "sequence": entry.sequence,
        "timestamp": entry.timestamp,
        "stream_id": entry.stream_id,
        "offset": entry.space_offset.hex() if entry.sequence else None,
        "segment_offset": entry.segment_offset.hex(),
        "tier": entry.tier,
        "trx": _trx(entry.trx),
        "metadata": entry.metadata,
        "encoding": encoding,
        "payload": payload,
    }
    return json_escaped(_json.encode(fields))


def _painter() -> Callable[[str, str], str]:
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        return lambda text, code: f"\x1b[{code}m{text}\x1b[0m"
    return lambda text, code: text


def entry_text(show_space: bool = False) -> Callable[[Entry], bytes]:
    """Make the function that formats an entry for a person: time, segment, sequence, payload. Control characters are
    shown, not sent."""
    paint = _painter()

    def text(entry: Entry) -> bytes:
        try:
            payload = visible(entry.payload.decode())
        except UnicodeDecodeError:
            payload = "base64:" + base64.b64encode(entry.payload).decode()
        where = visible(f"{entry.space}  {entry.segment}" if show_space else entry.segment)
        marks = visible(" ".join(f"{key}={value}" for key, value in entry.metadata.items()))
        head = f"{paint(iso(entry.timestamp), '2')}  {paint(where, '36')}  {paint(str(entry.sequence), '1')}  "
        return (head + payload + (paint(f"  {marks}", "2") if marks else "")).encode()

    return text


def status_fields(status: SegmentStatus) -> dict[str, Any]:
    return {
        "space": status.space,
        "segment": status.segment,
        "first_sequence": status.first_sequence,
        "first_timestamp": status.first_timestamp,
        "last_sequence": status.last_sequence,
        "last_timestamp": status.last_timestamp,
    }


def status_text(status: SegmentStatus) -> str:
    return (
        f"{status.segment}  {status.first_sequence}..{status.last_sequence}  "
        f"{iso(status.first_timestamp)} .. {iso(status.last_timestamp)}"
    )
