"""The demo: append the 336,776 departures from New York in 2013 to a store, then query them.

make demo, or: streamkit demo --url URL, or: python examples/demo [URL]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

import msgspec
from flights import DEPARTURES, UNASSIGNED, Departure, aircraft, data_folder, departures
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from streamkit import CorruptData, Record, SegmentStatus, Store
from streamkit.cli.look import space_summary
from streamkit.cli.options import open_client, resolved_url
from streamkit.cli.output import iso
from streamkit.cli.progress import progress
from streamkit.terminal import visible

_STORE = uuid5(NAMESPACE_URL, "streamkit:demo")
_BATCH = 1000
_AIRPORTS = {"EWR": "Newark", "JFK": "John F. Kennedy", "LGA": "LaGuardia"}
_SHARED = "JFK"


class Rate(NamedTuple):
    work: str
    amount: int
    unit: str
    seconds: float


def show(url: str | None, most: int = DEPARTURES) -> None:
    """Append `most` departures, look around, and read in two processes. Raises ValueError for a memory:// URL."""
    url = resolved_url(url)
    if url.startswith("memory:"):
        raise ValueError(
            f"the demo reads from a second process, so {url} will not do: give a file://, s3:// or azure:// URL"
        )
    folder = data_folder()
    with open_client(url) as client:
        client.delete_store(_STORE)
        with client.store(_STORE) as store:
            _Demo(store, url, most).run(folder)


class _Demo:
    """One run of the demo. Holds the measured rates, and the number of commits and segments."""

    def __init__(self, store: Store, url: str, most: int) -> None:
        self.store = store
        self.url = url
        self.most = most
        self.console = Console(highlight=False)
        self.rates: list[Rate] = []
        self.commits = self.segments = 0

    def run(self, folder: Path) -> None:
        self.console.print(
            f"[bold]streamkit[/]: the {self.most:,} departures from New York in 2013, "
            f"appended to a store at [cyan]{escape(visible(self.url))}[/]\n"
            "A space for each airport, a segment in it for each aircraft, a record for each departure."
        )
        self.append(self.read(folder))
        self.show_spaces()
        busiest = self.show_busiest(aircraft(folder))
        self.show_history(busiest)
        self.resume_elsewhere()
        self.show_rates()
        program = "streamkit" if shutil.which("streamkit") else Path(sys.executable).with_name("streamkit")
        url = escape(visible(self.url))
        self.console.print(
            f"\nLook around:  [cyan]export STREAMKIT_URL='{url}' STREAMKIT_STORE={self.store.id}[/]\n"
            f"              [cyan]{program} consume {busiest.space} --segment {busiest.segment} --limit 5[/]",
            soft_wrap=True,
        )

    def title(self, text: str) -> None:
        self.console.print(f"\n[bold]{text}[/]")

    def table(self, *columns: str) -> Table:
        """Columns that begin with > are aligned to the right."""
        table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
        for name in columns:
            table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
        return table

    def show(self, table: Table) -> None:
        self.console.print(Padding(table, (0, 0, 0, 2)))

    def read(self, folder: Path) -> list[Departure]:
        """Read the departures and sort them by schedule; the file has another order."""
        found = []
        with progress("reading", self.most, unit="departures") as bar:
            for departure in islice(departures(folder), self.most):
                found.append(departure)
                bar.advance(1)
        return sorted(found, key=lambda departure: departure.scheduled)

    def append(self, data: list[Departure]) -> None:
        waiting: defaultdict[str, list[Departure]] = defaultdict(list)
        started = time.perf_counter()
        with progress("appending", len(data), unit="departures") as bar:
            for departure in data:
                batch = waiting[departure.origin]
                batch.append(departure)
                if len(batch) == _BATCH:
                    self.commit(waiting.pop(departure.origin))
                    bar.advance(_BATCH)
            for batch in waiting.values():
                self.commit(batch)
                bar.advance(len(batch))
        self.rate(f"append, {_BATCH:,} a commit", len(data), "entries", started)

    def commit(self, batch: list[Departure]) -> None:
        segments: defaultdict[str, list[Record]] = defaultdict(list)
        for departure in batch:
            segments[departure.tail_number].append(Record(departure.payload))
        with self.store.transaction(batch[0].origin) as trx:
            for segment, records in segments.items():
                trx.produce(segment, records)
        self.commits += 1
        self.segments += len(segments)

    def show_spaces(self) -> None:
        self.title("The spaces")
        table = self.table("space", "airport", ">segments", ">entries", "last commit")
        for space in self.store.get_spaces():
            found = space_summary(self.store, space)
            counts = (f"{found['segments']:,}", f"{found['entries']:,}")
            table.add_row(f"[cyan]{space}[/]", _AIRPORTS.get(space, ""), *counts, iso(found["last_timestamp"]))
        self.show(table)

    def show_busiest(self, models: dict[str, str]) -> SegmentStatus:
        """Rank aircraft by their segments' statuses alone: the last sequence is the number of departures."""
        started = time.perf_counter()
        statuses = [
            self.store.segment_status(space, segment)
            for space in self.store.get_spaces()
            for segment in self.store.get_segments(space)
            if segment != UNASSIGNED
        ]
        self.rate("status of a segment", len(statuses), "segments", started)
        statuses.sort(key=lambda status: -status.last_sequence)
        self.title("The busiest aircraft, told by their last sequence")
        table = self.table("space", "segment", "aircraft", ">departures")
        for status in statuses[:5]:
            model = models.get(status.segment, "[dim]not in the registry[/]")
            table.add_row(f"[cyan]{status.space}[/]", status.segment, model, f"{status.last_sequence:,}")
        self.show(table)
        return statuses[0]

    def show_history(self, status: SegmentStatus) -> None:
        space, segment = status.space, status.segment
        self.title(f"One aircraft's history, in order: {segment} from {space}")
        table = self.table(">sequence", "day", "scheduled", "flight", "to", ">minutes late")
        started = time.perf_counter()
        entries = list(self.store.consume_segment(space, segment))
        self.rate("load one segment", len(entries), "entries", started)
        for entry in (*entries[:4], None, *entries[-3:]):
            if entry is None:
                table.add_row("[dim]…[/]")
                continue
            flight = msgspec.json.decode(entry.payload)
            day = "{year}-{month:02}-{day:02}".format_map(flight)
            delay = flight["dep_delay"]
            late = "[red]cancelled[/]" if delay is None else f"{delay:+}"
            table.add_row(
                str(entry.sequence),
                day,
                "{hour:02}:{minute:02}".format_map(flight),
                "{carrier} {flight}".format_map(flight),
                flight["dest"],
                late,
            )
        self.show(table)

    def resume_elsewhere(self) -> None:
        """Read half of a space here and the other half in a second process, which knows only an offset."""
        total = space_summary(self.store, _SHARED)["entries"]
        self.title(f"{_SHARED} in the order of its commits, by two processes")
        seen = [
            (entry.segment, entry.sequence, entry.space_offset)
            for entry in islice(self.store.consume_space(_SHARED), total // 2)
        ]
        offset = seen[-1][2].hex()
        here, there = [place[:2] for place in seen], self.read_in_second_process(offset)
        started = time.perf_counter()
        whole = [(entry.segment, entry.sequence) for entry in self.store.consume_space(_SHARED)]
        self.rate("read a space", len(whole), "entries", started)
        table = self.table("process", ">entries", "from", "to")
        for name, part in (("this one", here), ("the second", there)):
            first, last = (f"{segment} #{sequence}" for segment, sequence in (part[0], part[-1]))
            table.add_row(name, f"{len(part):,}", first, last)
        self.show(table)
        if here + there != whole:
            raise CorruptData(f"read in two parts {_SHARED} is not what it is when read at once; this is a bug")
        verdict = f"all {len(whole):,} entries, [green]nothing twice, nothing missing[/]"
        self.console.print(f"  Together: {verdict}. Handed over:", soft_wrap=True)
        self.console.print(f"  [dim]--offset {offset}[/]", soft_wrap=True)

    def read_in_second_process(self, offset: str) -> list[tuple[str, int]]:
        command = [sys.executable, "-m", "streamkit.cli", "consume", _SHARED, "--json"]
        command += ["--url", self.url, "--store", str(self.store.id), "--offset", offset]
        lines = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()
        found: list[dict[str, Any]] = [msgspec.json.decode(line) for line in lines]
        return [(entry["segment"], entry["sequence"]) for entry in found]

    def rate(self, work: str, count: int, unit: str, started: float) -> None:
        self.rates.append(Rate(work, count, unit, time.perf_counter() - started))

    def show_rates(self) -> None:
        self.title("The rates, on this machine and from Python")
        table = self.table("work", ">count", ">time", ">rate")
        for rate in self.rates:
            per_second = f"{rate.amount / rate.seconds:,.0f} {rate.unit}/s"
            table.add_row(rate.work, f"{rate.amount:,}", f"{rate.seconds:.3f} s", per_second)
        self.show(table)
        self.console.print(
            f"  [dim]A commit's {_BATCH:,} entries were for {self.segments // self.commits} segments.[/]"
        )


if __name__ == "__main__":
    show(*sys.argv[1:2] or [None])
