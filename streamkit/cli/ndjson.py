"""NDJSON in: lines of files to batches of records, by segment."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from streamkit import Record
from streamkit.errors import InvalidName, InvalidRecord
from streamkit.names import check_name

from ..decoders import json_decoder

__all__ = ["BATCH_BYTES", "RecordBatch", "SegmentOf", "read_batches", "segment_from", "segment_named"]

BATCH_BYTES = 16 << 20
"""A batch ends here even if it has fewer lines: well below the limit of a transaction."""

_LINE_BYTES = 64 << 20
"""The largest record, so that a file without line ends is not read to its end."""

SegmentOf = Callable[[bytes], str]
"""The segment of a line. msgspec.MsgspecError or ValueError if the line is malformed."""


class RecordBatch(NamedTuple):
    """Records that are committed together. `number` counts from 1 over all the files of one run."""

    number: int
    segments: dict[str, list[Record]]
    lines: int
    bytes: int


def segment_from(field: str) -> SegmentOf:
    """Take the segment from the top-level field `field` of each line, text or an integer."""
    line_type = msgspec.defstruct("Line", [("segment", str | int)], rename={"segment": field})
    decode = json_decoder(line_type).decode

    def segment(line: bytes) -> str:
        return str(decode(line).segment)  # type: ignore[attr-defined]

    return segment


def segment_named(name: str) -> SegmentOf:
    """Return a function that gives every line, any JSON value, to the segment `name`."""
    decode = json_decoder(msgspec.Raw).decode

    def segment(line: bytes) -> str:
        decode(line)
        return name

    return segment


def read_batches(
    paths: Sequence[str], segment_of: SegmentOf, size: int, metadata: Mapping[str, str] | None = None
) -> Iterator[RecordBatch]:
    """Batches of `size` lines from the files, one after the other; `-` is standard input. Empty lines are skipped.
    Each record gets `metadata`.

    The payload of a record is its line, without the white space around it. InvalidRecord names file and line; of the
    batch that the line would be in, nothing is yielded. OSError if a file cannot be read.
    """
    number, lines, held = 1, 0, 0
    segments: dict[str, list[Record]] = {}
    for path in paths:
        with _opened(path) as source:
            for count, raw in enumerate(iter(partial(source.readline, _LINE_BYTES + 1), b""), 1):
                if len(raw) > _LINE_BYTES:
                    raise InvalidRecord(f"{_shown(path)}, line {count}: it is longer than {_LINE_BYTES} bytes")
                line = (raw.removeprefix(codecs.BOM_UTF8) if count == 1 else raw).strip()
                if not line:
                    continue
                segment = _segment(line, segment_of, path, count)
                segments.setdefault(segment, []).append(Record(line, metadata))
                lines += 1
                held += len(raw)
                if lines >= size or held >= BATCH_BYTES:
                    yield RecordBatch(number, segments, lines, held)
                    number, lines, held, segments = number + 1, 0, 0, {}
    if lines:
        yield RecordBatch(number, segments, lines, held)


def _opened(path: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb")


def _segment(line: bytes, segment_of: SegmentOf, path: str, count: int) -> str:
    try:
        line.decode()
        return check_name(segment_of(line), "segment")
    except UnicodeDecodeError as error:
        fault = f"it is not UTF-8 ({error.reason} at byte {error.start + 1})"
    except RecursionError:
        fault = "it is nested too deeply"
    except InvalidName as error:
        fault = str(error)
    except (msgspec.MsgspecError, ValueError) as error:
        fault = str(error)
    raise InvalidRecord(f"{_shown(path)}, line {count}: {fault}")


def _shown(path: str) -> str:
    return "standard input" if path == "-" else path
