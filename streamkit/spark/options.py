"""The options of the source and the sink, checked on the driver before anything runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from ..arguments import check_choice
from ..client import Client, connect
from ..names import check_name
from .predicates import AnyOf, parse_filters

__all__ = ["COLUMNS", "LATEST", "Options", "bound", "milliseconds", "parse", "schema", "table_options"]

COLUMNS: dict[str, str] = {
    "store": "string",
    "space": "string",
    "partition": "int",
    "number": "bigint",
    "index": "bigint",
    "position": "bigint",
    "segment": "string",
    "sequence": "bigint",
    "timestamp": "timestamp",
    "trx_id": "string",
    "trx_node": "string",
    "payload": "binary",
    "metadata": "map<string,string>",
    "tier": "string",
}
"""The columns of a read, and the Spark type of each."""

_READ = {
    "url": "where the stores are, as for streamkit.connect",
    "archive": "where the archives are, if not beside the stores",
    "store": "a store's UUID, several with commas between them, or * for all under the URL",
    "space": "a space's name, or * for all",
    "tier": "all, cold or hot",
    "columns": "the columns to read, with commas between them",
    "segment": "the only segment to read",
    "segments": 'the segments to read, as a JSON array of their names: ["order-1", "order-2"]',
    "minsequence": "the first sequence to read of each segment",
    "maxsequence": "the last sequence to read of each segment",
    "filters": 'tests of columns and metadata, as a JSON array: [["metadata.type", "=", "paid"]]',
    "from": "earliest, latest, the first timestamp to read (milliseconds, or ISO 8601 with a zone; a date alone begins "
    "at midnight UTC), or an offset to go on after",
    "until": "the last timestamp to read (milliseconds, or ISO 8601 with a zone), or the offset to stop at",
    "maxrowspertrigger": "how many rows a trigger of a stream takes at most",
    "failondataloss": "true (the default): fail where entries are gone behind a checkpoint, or an offset; false: not",
    "segmentsplit": "about how many rows a task reads from the log",
    "snapshot": "made by read_space",
    "path": "Spark's own",
}
_WRITE = {
    "url": _READ["url"],
    "store": "a store's UUID; with a column `store` it may be left out",
    "space": "a space's name; with a column `space` it may be left out",
    "idempotencykey": "names this write: the same again, after a failure, writes nothing twice",
    "order": "the column that orders the rows of a segment",
    "partitions": "for a space that does not exist yet",
    "checkpointlocation": "Spark's own",
    "path": "Spark's own",
}
_TABLE = "option."
"""Spark gives the options of a table with this before their names, and again without it, beside its properties."""
_UNSAID = ("snapshot", "path", "checkpointlocation")
"""Options that no user gives."""
_SECONDS = 100_000_000_000
"""A smaller number is a time in seconds, not in milliseconds: in milliseconds it would be before March 1973."""
LATEST = "latest"
_MOST = (1 << 63) - 1
"""No sequence is more."""


class Options(NamedTuple):
    url: str
    stores: tuple[UUID, ...] | None = None
    """None: all."""
    space: str | None = None
    """None: all."""
    archive: str | None = None
    tier: str = "all"
    columns: tuple[str, ...] = tuple(COLUMNS)
    first: int | str = 0
    """A timestamp in ms, or an offset's hex text."""
    """LATEST: entries that are committed from now on."""
    last: int | str = 0
    segments: tuple[str, ...] | None = None
    """None: all."""
    sequences: tuple[int, int] = (0, 0)
    """The first and the last; 0: no bound."""
    filters: AnyOf | None = None
    max_rows: int = 0
    fail_on_loss: bool = True
    split: int = 100_000
    snapshot: str = ""
    key: str = ""
    order: str = ""
    partitions: int = 1

    def __repr__(self) -> str:
        return f"Options(url={self.url.partition('?')[0]!r}, space={self.space!r})"

    def client(self) -> Client:
        return connect(self.url, archive=self.archive)


def parse(options: Mapping[str, str], *, writing: bool = False) -> Options:
    """Checked options. ValueError for an unknown, missing or wrong option; it names the known ones."""
    known = _WRITE if writing else _READ
    given: dict[str, str] = {}
    for name, value in _of_table(options, known).items():
        if name.lower() not in known:
            lines = "; ".join(f"{name}: {means}" for name, means in known.items() if name not in _UNSAID)
            raise ValueError(f"unknown option {name!r} of format('streamkit'); known: {lines}")
        given[name.lower()] = value
    needed = ("url",) if writing else ("url", "store", "space")
    for name in needed:
        if not given.get(name):
            raise ValueError(f"format('streamkit') needs the option {name!r}: {known[name]}")
    return Options(
        url=given["url"],
        stores=_stores(given.get("store", "*")),
        space=None if given.get("space", "*") == "*" else check_name(given["space"], "space"),
        archive=given.get("archive"),
        tier=check_choice("the option 'tier'", given.get("tier", "all"), "all", "cold", "hot"),
        columns=_columns(given.get("columns", "")),
        first=bound("from", given.get("from", "")),
        last=bound("until", given.get("until", "")),
        segments=_segments(given.get("segment"), given.get("segments")),
        sequences=(
            min(_count("minSequence", given.get("minsequence", "0"), 0), _MOST),
            min(_count("maxSequence", given.get("maxsequence", "0"), 0), _MOST),
        ),
        filters=parse_filters(given.get("filters", ""), _moment),
        max_rows=_count("maxRowsPerTrigger", given.get("maxrowspertrigger", "0"), 0),
        fail_on_loss=check_choice(
            "the option 'failOnDataLoss'", given.get("failondataloss", "true").lower(), "true", "false"
        )
        == "true",
        split=_count("segmentSplit", given.get("segmentsplit", "100000"), 1),
        snapshot=given.get("snapshot", ""),
        key=given.get("idempotencykey", ""),
        order=given.get("order", ""),
        partitions=_count("partitions", given.get("partitions", "1"), 1),
    )


def table_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that a table was created with, without its properties; none where it is no table."""
    return {name[len(_TABLE) :]: value for name, value in options.items() if name.lower().startswith(_TABLE)}


def _of_table(options: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """The options of a table, or of a query over it; all options where it is no table.

    A property of a table may have any name: one that is no option is none of ours.
    """
    found = table_options(options)
    if not found:
        return dict(options)
    return found | {name: value for name, value in options.items() if name.lower() in known}


def _stores(text: str) -> tuple[UUID, ...] | None:
    if text.strip() == "*":
        return None
    try:
        return tuple(dict.fromkeys(UUID(part.strip()) for part in text.split(",")))
    except ValueError:
        raise ValueError(f"the option 'store' is {_READ['store']}, not {text[:100]!r}") from None


def _segments(one: str | None, several: str | None) -> tuple[str, ...] | None:
    if one is not None and several is not None:
        raise ValueError("a read takes the option 'segment' or 'segments', not both: name all segments in 'segments'")
    if one is not None:
        return (check_name(one, "segment"),)
    if several is None:
        return None
    try:
        names = json.loads(several)
    except ValueError:
        names = None
    if not isinstance(names, list):
        raise ValueError(f"the option 'segments' is {_READ['segments']}; not {several[:100]!r}")
    return tuple(dict.fromkeys(check_name(name, "segment") for name in names))


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip())) or tuple(COLUMNS)
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"the option 'columns' names {name!r}; there are {', '.join(COLUMNS)}")
    return names


def _count(name: str, text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueError(f"the option {name!r} is a whole number from {least}, not {text[:100]!r}")
    return number


def bound(name: str, text: str) -> int | str:
    """A timestamp in ms, 0 for none, an offset's hex text, or LATEST. ValueError for any other value."""
    text = text.strip()
    if not text or (name == "from" and text.lower() == "earliest"):
        return 0
    if name == "from" and text.lower() == LATEST:
        return LATEST
    if text.isdecimal() and len(text) < 16:
        if 0 < int(text) < _SECONDS:
            raise ValueError(
                f"the option {name!r} is in milliseconds, and {text} of them are {_day(int(text))}. If these are "
                f"seconds ({_day(int(text) * 1000)}), write {text}000, or give the time as ISO 8601"
            )
        return int(text)
    if len(text) > 30 and all(char in "0123456789abcdef" for char in text.lower()):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"the option {name!r} is {_READ[name]}; not {text[:100]!r}") from None
    if moment.tzinfo is None and _has_time(text):
        raise ValueError(
            f"the option {name!r} is {text!r}, a time without a zone, and Spark shows times in the zone of its "
            f"process: write {text}Z for UTC, or {text}+09:00, or milliseconds; or give read_space() the datetime"
        )
    return max(milliseconds(moment), 1)


def _moment(text: str) -> int:
    """The timestamp of a filter, in ms."""
    found = bound("filters", text)
    if not isinstance(found, int):
        raise ValueError(f"a filter on timestamp takes milliseconds, or ISO 8601 text with a zone; not {text[:100]!r}")
    return found


def _has_time(text: str) -> bool:
    """True if the text is more than a date."""
    return len(text) > len("2026-01-31")


def _day(timestamp: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return "no date"


def milliseconds(moment: datetime) -> int:
    """Convert a datetime; one without a zone is in UTC."""
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def schema(columns: tuple[str, ...]) -> str:
    """Return the columns as Spark's DDL."""
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in columns)
