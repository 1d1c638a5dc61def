"""The server: `python -m benchmarks.serve [--quick] [--publish]` measures it over loopback, beside two other servers.

The load generator is a process of its own. All servers run at the same time. In each round each of them has its turn,
in rotating order, so that a disturbance meets all of them. A figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from .groups_page import publish
from .machine import describe
from .serve_beside import ROOT, Server, bare, reference, streamkit
from .serve_load import MARK, Sample, asked, request, stalling, watched

JSON = "Content-Type: application/json\r\n"
RECORD = {"json": {"n": 1, "text": MARK.decode() + "x" * 78}}
MESSAGE = json.dumps(RECORD["json"]).encode()
SPACES = "/v1/stores/_/spaces"
EVENTS = "Accept: text/event-stream\r\n"
PAGE_MESSAGES = 5_000


class Goal(NamedTuple):
    """A goal of the server, as a row of the table."""

    work: str
    figure: float
    unit: str
    limit: float
    at_least: bool = False
    bare: float | None = None
    """The figure of the bare application, where it does the same work over HTTP."""

    def cells(self) -> tuple[str, ...]:
        reached = self.figure >= self.limit if self.at_least else self.figure <= self.limit
        sign = "≥" if self.at_least else "≤"
        wanted = f"{sign} {self.limit:,.10g} {self.unit}"
        bare = "" if self.bare is None else f"{_number(self.bare)} {self.unit}"
        return self.work, f"{_number(self.figure)} {self.unit}", bare, wanted, "yes" if reached else "**no**"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


class Bench:
    """Runs loads in a process beside the servers."""

    def __init__(self, pool: Any, rounds: int, seconds: float, watchers: int) -> None:
        self._pool = pool
        self._rounds = rounds
        self.seconds = seconds
        """Seconds of one turn."""
        self.watchers = watchers
        """The most."""

    def apply(self, load: Callable[..., Any], *arguments: Any) -> Any:
        return self._pool.apply(load, arguments)

    def run(self, server: Server, load: Callable[..., Sample], *arguments: Any) -> Sample:
        before = server.cpu()
        found: Sample = self.apply(load, server.port, *arguments)
        return found._replace(cpu=server.cpu() - before)

    def rounds(self, turns: Mapping[str, Callable[[], Any]], times: int = 1) -> dict[str, list[Any]]:
        """The results of each turn, round by round. `times`: a factor for the number of rounds."""
        names = list(turns)
        found: dict[str, list[Any]] = {name: [] for name in names}
        for number in range(self._rounds * times):
            at = number % len(names)
            for name in names[at:] + names[:at]:
                found[name].append(turns[name]())
        return found


def _rate(samples: Sequence[Sample], each: int = 1) -> float:
    return median([len(sample.seconds) * each / sample.took for sample in samples])


def _p50(samples: Sequence[Sample]) -> float:
    return median([sample.at(0.5) for sample in samples])


def _cpu(samples: Sequence[Sample]) -> float:
    """Microseconds of the server's CPU for each operation."""
    return median([sample.cpu / len(sample.seconds) for sample in samples]) * 1e6


# -- Durable Streams, beside the others ------------------------------------------------------------------------------


def beside(bench: Bench, servers: Mapping[str, Server]) -> list[tuple[str, ...]]:
    """Rows: the work, a figure of each server, how many times ours is the reference server's, and the CPU of each."""
    rows: list[tuple[str, ...]] = []
    names = [f"/v1/stream/{number}" for number in range(64)]

    def row(work: str, unit: str, figure: Callable[[Sequence[Sample]], float], load: Any, *arguments: Any) -> None:
        found = bench.rounds(
            {name: lambda server=server: bench.run(server, load, *arguments) for name, server in servers.items()}
        )
        figures = {name: figure(samples) for name, samples in found.items()}
        ratio = figures["streamkit"] / figures["reference server"]
        if unit == "ms":
            ratio = 1 / ratio
        # A watcher's connection costs more than a delivery.
        cpu = "" if load is watched else " · ".join([_number(_cpu(samples)) for samples in found.values()])
        rows.append((work, *[f"{_number(value)} {unit}" for value in figures.values()], _number(ratio), cpu))

    for server in servers.values():
        for name in (*names, "/v1/stream/live"):
            bench.run(server, asked, [request("PUT", name, headers=JSON)], 0)
        page = [request("PUT", "/v1/stream/page", headers=JSON)]
        bench.run(server, asked, page, 0)
        body = b"[" + b",".join([MESSAGE] * 100) + b"]"
        bench.run(server, asked, [request("POST", "/v1/stream/page", body, JSON)], 0, PAGE_MESSAGES // 100)
    appends = [request("POST", name, MESSAGE, JSON) for name in names]
    seconds = bench.seconds
    row("append, 1 connection", "/s", _rate, asked, appends[:1], seconds)
    row("append, 1 connection", "ms", _p50, asked, appends[:1], seconds)
    row("append, 64 connections and streams", "/s", _rate, asked, appends, seconds)
    row("append, 64 connections, 1 stream", "/s", _rate, asked, appends[:1] * 64, seconds)

    def messages(samples: Sequence[Sample]) -> float:
        return _rate(samples, PAGE_MESSAGES)

    read = request("GET", "/v1/stream/page?offset=-1")
    row(f"catch-up read of {PAGE_MESSAGES:,} messages", "messages/s", messages, asked, [read], seconds)
    watch = request("GET", "/v1/stream/live?offset=now&live=sse", headers=EVENTS)
    post = request("POST", "/v1/stream/live", MESSAGE, JSON)
    row("live events, 1 watcher", "ms", _p50, watched, watch, b"upToDate", post, 1, seconds)
    row("live events, 100 watchers", "ms", _p50, watched, watch, b"upToDate", post, 100, seconds)
    row("live events, 100 watchers", "deliveries/s", _rate, watched, watch, b"upToDate", post, 100, seconds)
    return rows


# -- /v1, and what it is to reach ------------------------------------------------------------------------------------


def _appends(space: str, connections: int, records: int, headers: str = "") -> list[bytes]:
    body = json.dumps({"records": [RECORD] * records}).encode()
    return [
        request("POST", f"{SPACES}/{space}/segments/s{number}/entries", body, JSON + headers)
        for number in range(connections)
    ]


def native(bench: Bench, server: Server, plain: Server) -> list[Goal]:
    """Rows of appends and reads. `plain`: the bare application."""

    def turns(requests: list[bytes]) -> tuple[list[Sample], list[Sample]]:
        def turn(server: Server) -> Callable[[], Sample]:
            return lambda: bench.run(server, asked, requests, bench.seconds)

        found = bench.rounds({"ours": turn(server), "bare": turn(plain)})
        return found["ours"], found["bare"]

    one, bare_one = turns(_appends("s", 1, 1))
    many, bare_many = turns(_appends("s", 64, 1))
    batches, _ = turns(_appends("batches", 16, 100))
    found = [
        Goal("POST of a record, 1 connection, p50", _p50(one), "ms", 0.5, bare=_p50(bare_one)),
        Goal("POST of a record, 64 connections", _rate(many), "/s", 10_000, True, _rate(bare_many)),
        Goal("POST of 100 records, 16 connections", _rate(batches, 100), "records/s", 300_000, True),
    ]
    for space, work in (("s", "written one by one"), ("batches", "written 100 a POST")):
        read = request("GET", f"{SPACES}/{space}/entries?limit=1000&max_bytes=8000000")
        rate = _rate(turns([read])[0], 1_000)
        found.append(Goal(f"pages of 1,000 entries, {work}", rate, "entries/s", 150_000, True))
    return found


def watching(bench: Bench, server: Server) -> list[Goal]:
    """Rows of live events. The server is fresh: its memory is that of its watchers."""
    watch = request("GET", f"{SPACES}/live/entries?from=end", headers=EVENTS)
    (post,) = _appends("live", 1, 1)
    found: list[Goal] = []
    for watchers, limit in ((1, 2), (100, 4), (1_000, 20)):
        load = (server, watched, watch, b"event: caught-up", post, min(watchers, bench.watchers), bench.seconds)
        samples = bench.rounds({"": lambda load=load: bench.run(*load)})[""]
        found.append(Goal(f"events, {watchers:,} watching, p50", _p50(samples), "ms", limit))
    found.append(Goal("events, 1,000 watching", _rate(samples), "deliveries/s", 40_000, True))
    found.append(Goal("memory with 1,000 watchers, at most", server.memory(), "MB", 150))
    return found


def stalled(bench: Bench, server: Server) -> list[Goal]:
    """The p99 of 100 watchers beside one that reads nothing, against the p99 without it. The same of two turns without
    it says how far such a figure can be relied on. The space is buffered: the disk would hide the watcher."""
    space = request("PUT", f"{SPACES}/stalled", b'{"durability":"buffered"}', JSON)
    bench.run(server, asked, [space], 0)
    watch = request("GET", f"{SPACES}/stalled/entries?from=end", headers=EVENTS)
    (post,) = _appends("stalled", 1, 1)
    body = json.dumps({"text": MARK.decode() + "x" * (1 << 20)}).encode()
    bench.run(server, asked, [request("POST", f"{SPACES}/stalled/segments/fill/entries", body, JSON)], 0, 12)
    history = request("GET", f"{SPACES}/stalled/entries", headers=EVENTS)
    watchers, rounds = (100, 30) if bench.watchers > 100 else (10, 2)
    alone, beside, again = bench.apply(
        stalling, server.port, watch, b"event: caught-up", post, watchers, history, rounds
    )
    return [
        Goal(
            f"100 watchers beside a stalled one, against without it, {work}",
            other.at(share) / alone.at(share),
            "times",
            1.2,
        )
        for work, other, share in (
            ("p50", beside, 0.5),
            ("p99", beside, 0.99),
            ("p99 of two turns without it", again, 0.99),
        )
    ]


def guarded(bench: Bench, server: Server, key: str, unguarded: Server) -> list[Goal]:
    """The price of keys, limits and metrics."""

    def turn(server: Server, headers: str) -> Callable[[], Sample]:
        return lambda: bench.run(server, asked, _appends("s", 64, 1, headers), bench.seconds)

    turns = {"with": turn(server, f"Authorization: Bearer {key}\r\n"), "without": turn(unguarded, "")}
    found = bench.rounds(turns, times=2)
    cpu, rate = ([figure(found[name]) for name in ("with", "without")] for figure in (_cpu, _rate))
    work = "keys, limits and metrics, {} of a POST at 64 connections"
    return [
        Goal(work.format("CPU"), (cpu[0] / cpu[1] - 1) * 100, "% more", 25),
        Goal(work.format("time"), (rate[1] / rate[0] - 1) * 100, "% more", 25),
    ]


def measure(bench: Bench, work: Path) -> list[str]:
    """The lines of the page."""
    with ExitStack() as stack:

        def opened(server: Server) -> Server:
            return stack.enter_context(closing(server))

        ours = opened(streamkit(work / "streams"))
        plain = opened(bare((len(MESSAGE) + 1) * PAGE_MESSAGES + 1))
        servers = {"streamkit": ours, "reference server": opened(reference(work / "reference")), "bare uvicorn": plain}
        compared = beside(bench, servers)
        servers["reference server"].close()
        goals = native(bench, ours, plain)
    with closing(streamkit(work / "watched")) as server:
        goals += watching(bench, server)
    with closing(streamkit(work / "stalled")) as server:
        goals += stalled(bench, server)
    keys = str(work / "keys.json")
    create = [sys.executable, "-m", "streamkit.cli", "keys", "create", keys, "--scope", "write"]
    key = subprocess.run(create, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout.strip()
    limits = ("--limit", "requests_per_second=1000000", "--limit", "requests_per_key=1000")
    with (
        closing(streamkit(work / "with", "--keys", keys, *limits)) as server,
        closing(streamkit(work / "without", metrics=False)) as unguarded,
    ):
        goals += guarded(bench, server, key, unguarded)
    return [
        *_table(("Durable Streams", *servers, "times the reference server", "µs of CPU each"), compared),
        "",
        *_table(("/v1", "streamkit", "bare uvicorn", "to reach", "reached"), [goal.cells() for goal in goals]),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short: does it run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--publish", action="store_true", help="also write the tables to docs/benchmarks.md")
    parser.add_argument("--dir", type=Path, default=None, help="where the stores are; it decides which disk")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.dir) as folder,
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        machine = describe(Path(folder))
        when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        bench = Bench(pool, 1, 0.1, 10) if options.quick else Bench(pool, options.rounds, 1.0, 1_000)
        lines = measure(bench, Path(folder))
    rounds = f"Measured {when}, {'quick' if options.quick else f'{options.rounds} rounds'}, on:"
    lines = [rounds, "", *[f"- {name}: {value}" for name, value in machine.items()], "", *lines]
    print("\n".join(lines))
    if options.publish:
        publish("benchmarks.serve", lines, ROOT / "docs" / "benchmarks.md")


if __name__ == "__main__":
    main()
