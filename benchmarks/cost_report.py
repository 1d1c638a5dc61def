"""The cost model's results as tables and as a picture."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from streamkit import Record
from streamkit.log.policy import REMOTE

from .cost_services import PRICED, Service
from .requests import appends, fresh

__all__ = ["Result", "line", "publish", "tables"]


@dataclass
class Result:
    service: str
    processes: int
    writers: int
    partitions: int
    rate: float
    """Appends a second."""
    p50: float
    p99: float
    longest: float
    """Milliseconds."""
    requests: float
    """Of an append, index upkeep included."""
    conflicts: float
    """Commits that met another process's, of those that were tried."""
    throttled: float
    """Requests that were refused, of all."""
    dollars: float
    """Of a million appends."""


def line(result: Result) -> str:
    """For who watches."""
    return (
        f"{result.service:20} {result.processes:3} processes {result.writers:4} writers {result.partitions:3} parts "
        f"{result.rate:8.0f}/s {result.p50:7.1f} {result.p99:8.1f} {result.longest:8.1f} ms {result.requests:7.2f} req "
        f"{result.conflicts:4.0%} conflicts {result.throttled:4.0%} throttled {result.dollars:8.3f} US$"
    )


_HEAD = (
    "| processes | writers | partitions | appends/s | p50 ms | p99 ms | longest ms | requests/append | conflicts | "
    "throttled | US$/million |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def tables(results: Sequence[Result]) -> str:
    """One for each service."""
    parts = []
    for service in dict.fromkeys(result.service for result in results):
        rows = [_row(result) for result in results if result.service == service]
        parts.append("\n".join((f"### {service}\n", _HEAD, *rows)))
    return "\n\n".join(parts)


def _row(result: Result) -> str:
    cells = (
        f"{result.processes}",
        f"{result.writers}",
        f"{result.partitions}",
        f"{result.rate:,.0f}",
        f"{result.p50:,.0f}",
        f"{result.p99:,.0f}",
        f"{result.longest:,.0f}",
        f"{result.requests:.2f}",
        f"{result.conflicts:.0%}",
        f"{result.throttled:.0%}",
        f"{result.dollars:.3f}",
    )
    return f"| {' | '.join(cells)} |"


def publish(
    results: Sequence[Result], crowds: str, services: Sequence[Service], seconds: float, warm_up: float, directory: Path
) -> None:
    """Write cost-and-scale.md and cost-and-scale.png. `crowds`: what is said of many processes on one partition."""
    draw(results, directory / "cost-and-scale.png")
    text = _document(results, crowds, services, seconds, warm_up)
    (directory / "cost-and-scale.md").write_text(text, encoding="utf-8")


def _document(
    results: Sequence[Result], crowds: str, services: Sequence[Service], seconds: float, warm_up: float
) -> str:
    rows = (
        f"| {service.name} | {service.write * 1000:g} / {service.read * 1000:g} | {service.spread:g} | "
        f"{service.writes_per_second:,.0f} / {service.reads_per_second:,.0f} {service.unit} a {service.each} | "
        f"{service.write_price:g} / {service.read_price:g} | "
        f"{service.upload_price:g} / {service.download_price:g} | [{service.priced_by}](https://{service.priced_by}) |"
        for service in services
    )
    assumed = "\n".join((_ASSUMED, *rows))
    return _TEXT.format(
        tables=tables(results),
        crowds=crowds,
        assumed=assumed,
        priced=PRICED,
        cases=len(results),
        seconds=seconds,
        warm_up=warm_up,
        upkeep=REMOTE.upkeep,
        segments=_segments(services),
    )


def _segments(services: Sequence[Service]) -> str:
    """What appends to one segment, to a hundred and to one each cost."""
    count = 10_000
    lines = [
        "| segments | writes an append | reads an append | longest wait for upkeep, requests |"
        + "".join(f" {service.name}, US$/million |" for service in services),
        "|--:|--:|--:|--:|" + "--:|" * len(services),
    ]
    for segments in (1, 100, count):
        random.seed(segments)
        store, driver = fresh(f"cost-{uuid4()}", uuid4())
        store.produce("space", "first", [Record(b"")])
        total, longest = appends(store, driver, count, segments)
        reads = total.requests - total.writes - total["delete"]
        prices = "".join(
            f" {(total.writes * service.write_price + reads * service.read_price) / count:.3f} |"
            for service in services
        )
        lines.append(
            f"| {segments:,} | {total.writes / count:.4f} | {reads / count:.4f} | {longest['trips'] - 1} |{prices}"
        )
    return "\n".join(lines)


_ASSUMED = (
    "| service | median write / read, ms | spread (sigma) | limit, write / read | US$ a million, write / read | "
    "US$ a GB, up / down | prices from |\n|---|--:|--:|---|--:|--:|---|"
)
_TEXT = """# Cost and scale in the cloud

What appends cost and how far they scale, from streamkit's own engine (stores, group commit, conflicts, back-off, index
upkeep) against **simulated services**: a store in memory that answers as late as the service does, throttles where it
does, and counts what it would bill. It is a model, not a measurement of a cloud.

![Appends a second, 99th percentile of latency and cost, by partitions](cost-and-scale.png)

How to read it:

- **One process with many writers is what is cheap and fast.** While one commit is in flight further appends queue up,
  and the next commit takes them all: 256 writers in one process share each request.
- **Processes that write to one partition have one of them commit for all.** Only one can write the next number, so who
  has lost twice leaves its request in the partition's inbox, and whoever leads takes all that is there along. On S3 an
  append among many then takes some 100 ms and four requests, however many processes there are, and nobody is passed by.
  It begins with a few seconds in which they compete. A request of about 200 bytes travels in the name of its letter; a
  larger one costs a GET more and some 30 ms; one beyond 128 KiB asks for the lead instead of being sent twice.
- **A process without company pays nothing for that**, but for one list at most in 64 appends of a busy one, by which it
  finds those that cannot get in.
- **Partitions help processes and hurt group commit**: writers that are spread over many partitions share fewer
  commits, so one process is cheapest with one partition.
- **Where hundreds of processes open one partition at the same moment**, their first requests are throttled: each reads
  some twenty rows before it can write, so the first appends of a thousand processes on S3 take seconds, not fractions.
  What they go on to append is not slower for that. A burst of 10,000 requests from 1,000 processes that appear at once is
  committed in 17 to 24 s, each once (`python -m benchmarks.cost_burst`, nine seeds, of 2026-11-23); one of 1,000 requests
  from 100 processes in 4 to 6 s. Azure's limit is lower: 256 processes on one partition of a table throttle each other
  all the time, give them eight.
- **A partition of Azure Tables takes 2,000 entities a second**, and a commit is one; so is each look of a process that
  waits, so there transactions are held apart where many wait.

## Many processes, one partition

Each process appends as fast as it can, after {warm_up:g} seconds of warming up in which they still compete; three runs of each
shape:

{crowds}

### The same with processes

Processes and threads of a machine with 2 processors, against emulators that share it (`python -m
benchmarks.cost_processes`, of 2026-11-23): moto, which answers as late as S3 Standard does in the model, and Azurite, as fast
as it can. So how fast they are is the machine's; what an append costs in requests, how many are committed at once and
how evenly is not. "the model's": its requests for an append in the same shape.

| emulator | processes | writers | appends/s | p50 ms | p99 ms | requests/append | the model's | appends/transaction | conflicts | slowest / median process |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
| moto | 1 | 1 | 23 | 36 | 141 | 1.08 | 1.07 | 1.0 | 0% | 1.00 |
| moto | 1 | 16 | 262 | 58 | 150 | 0.12 | 0.12 | 10.4 | 0% | 1.00 |
| moto | 4 | 4 | 23 | 165 | 387 | 3.11 | 3.64 | 2.5 | 0% | 0.96 |
| moto | 8 | 8 | 38 | 207 | 447 | 3.47 | 3.64 | 4.3 | 0% | 0.93 |
| moto | 16 | 16 | 57 | 273 | 515 | 3.95 | 4.10 | 7.7 | 0% | 0.91 |
| moto | 4 | 64 | 271 | 224 | 533 | 0.31 | 0.26 | 38.1 | 1% | 0.94 |
| Azurite | 1 | 1 | 264 | 3 | 12 | 1.11 | 1.06 | 1.0 | 0% | 1.00 |
| Azurite | 1 | 16 | 1,643 | 8 | 29 | 0.14 | 0.13 | 9.8 | 0% | 1.00 |
| Azurite | 4 | 4 | 70 | 51 | 174 | 3.48 | 4.06 | 2.3 | 0% | 0.73 |
| Azurite | 8 | 8 | 81 | 83 | 385 | 5.21 | 5.50 | 3.5 | 8% | 0.72 |
| Azurite | 16 | 16 | 72 | 184 | 1,393 | 5.97 | 6.38 | 6.2 | 13% | 0.88 |
| Azurite | 4 | 64 | 752 | 51 | 600 | 0.46 | 0.28 | 29.0 | 9% | 0.72 |

## Figures

Each writer appends one record of 200 bytes after the other to a segment of its own, as fast as it can. "conflicts":
commits that met another process's, of those tried. "throttled": requests refused, of all; they are made again and are
not billed. "longest" is the longest wait of an append; the writers stop when the run ends and those that still wait
then win, so where it comes near five seconds or more, it would be longer in a longer run.

{tables}

## How many segments

The index does not make an append dear, however many segments there are. 10,000 appends of a record of 128 bytes, one
after the other by one process, every request counted, merging included, at the
prices of requests below:

{segments}

Beside that, `maintain` removes from the log what has been packed for longer than the grace, a row a transaction.
Deletes are free on S3. On Azure each is billed like a write, so who runs it pays for an append twice.

## How many requests

Counted where the engine asks a store in memory, as S3 is asked: `python -m benchmarks.requests`, of 2026-11-22. That the
same goes over the wire is tested against an S3 server (`tests/log/test_requests.py`), but for one request more of a
fresh process, beside its first one, for the store's mark. A trip is what is sent together, up to 40 requests. "Worst": of 40
processes, each of which did one thing.

| | wanted | counted |
|---|---|---|
| S3: writes an append, 10,000 appends to 10,000 segments, merging included | at most 1.06 | 1.058; of 100,000 appends to 1,000 segments 1.060 |
| S3: for how many requests, one after the other, an append waits for upkeep | at most 4 | 4 |
| S3: a fresh process appends; 100,000 segments, 1,000,000 entries, 100 a commit | at most 4 trips, 40 requests | worst 4 trips, 36 requests |
| the same, a segment is loaded | at most 5 trips, 45 requests | worst 5 trips, 46 requests |
| S3: a space of 100,000 commits of one record is read, fresh process | at most 600 requests | 63 |
| Azure: entities an append | 1 | 1 |
| Azure: trips in which a fresh process appends, loads; a space that is still in the head | at most 3, 4 | 3, 2 |

What is not so good: loading a segment takes a request more than wanted in the worst case. In a large space Azure takes
the trips of S3, 4 and 5, as its index is in files too. About once in a thousand times the filters of two runs err at the
same time, and both take a trip more. A fresh process that is the one to bring the index forward looks up the segments of
all commits that it is to index: 5 trips more than an append, and where each commit has 100 segments 9 trips and 190
requests more. A partition's head names every pack: it is 41 KiB larger for each GB (compressed, not archived) that the
partition holds, and is written at each upkeep; archive, or spread what grows over partitions.

## What is assumed

{assumed}

- Latencies are log-normal around the median: with a spread of 0.5 the 99th percentile is 3.2 times as long, with 0.35
  2.3 times. Requests that go out together take as long as the slowest of them. Medians and spreads are round figures of
  what is commonly published for callers in the same region, not a promise of the provider.
- Limits are token buckets that hold a second's worth. A store on S3 is taken to be a single prefix for good, though S3
  splits a busy one with time.
- Public list prices as known on {priced} (they change, follow the links), US East (N. Virginia) and East US with local
  redundancy. Lists are billed as writes on S3, deletes are free, and refused conditions (412, 409) are billed like
  successes. Storage is not included, nor is reading the data.
- The index follows the log every {upkeep} transactions of a partition, while the run goes on; what it has not done yet
  at the end is done then, and shared by all commits.
- S3 Express is what a service with such latencies would give. Its directory buckets list in no order, and
  `s3://` does not take them.
- Time is virtual: the processors of the clients take none of it. A Python process manages some ten thousand appends a
  second at best, so larger figures for one process are the service's ceiling and not the process's.
- {cases} runs of {seconds:g} virtual seconds after {warm_up:g} seconds of warming up, or as long as 4,500 requests take. What
  is random has a seed, but for the names of processes and requests: two runs of one seed differed by up to 13 %.

`make bench` does not include it: `python -m benchmarks.cost_model --publish` makes this page again, in some minutes.
"""  # noqa: E501  (rows of tables)

_LINES = (
    ((1, 256), "256 writers in 1 process", "#0b6e4f", "o"),
    ((4, 256), "256 in 4 processes", "#3f88c5", "s"),
    ((16, 256), "256 in 16 processes", "#d8a657", "^"),
    ((64, 256), "256 in 64 processes", "#c8553d", "D"),
    ((1, 1), "1 writer", "#9aa1ab", "."),
)
_INK, _FAINT = "#1f2430", "#6b7280"
_ROWS = (("rate", "appends a second"), ("p99", "p99 latency, ms"), ("dollars", "US$ a million appends"))


def draw(results: Sequence[Result], path: Path) -> None:
    """A column a service, a row a figure; each against the number of partitions, on logarithmic scales."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    names = list(dict.fromkeys(result.service for result in results))
    pyplot.rcParams.update({"font.family": "DejaVu Sans", "text.color": _INK, "axes.edgecolor": "#d6d9de"})
    figure, axes = pyplot.subplots(len(_ROWS), len(names), figsize=(10.5, 9), sharex=True, sharey="row", squeeze=False)
    for column, name in enumerate(names):
        for (value, label), axis in zip(_ROWS, axes[:, column], strict=True):
            for shape, _, colour, marker in _LINES:
                found = [r for r in results if r.service == name and (r.processes, r.writers) == shape]
                axis.plot(
                    [r.partitions for r in found],
                    [getattr(r, value) for r in found],
                    color=colour,
                    marker=marker,
                    markersize=5.5,
                    linewidth=1.3 if shape == (1, 1) else 2,
                    linestyle="--" if shape == (1, 1) else "-",
                    zorder=2 if shape == (1, 1) else 3,
                )
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks([1, 8, 64], ["1", "8", "64"])
            axis.yaxis.set_major_formatter(FuncFormatter(_plain))
            axis.grid(axis="y", color="#e8eaee", zorder=0)
            axis.tick_params(which="both", length=0, labelcolor=_FAINT, labelsize=9)
            axis.spines[["top", "right"]].set_visible(False)
            if column == 0:
                axis.set_ylabel(label, fontsize=10, fontweight="bold")
        axes[0, column].set_title(name, fontsize=11.5, fontweight="bold", pad=8)
        axes[-1, column].set_xlabel("partitions", fontsize=9.5, color=_FAINT)
    handles = [
        pyplot.Line2D([], [], color=colour, marker=marker, linestyle="--" if shape == (1, 1) else "-", label=label)
        for shape, label, colour, marker in _LINES
    ]
    figure.legend(handles=handles, loc="upper center", ncols=len(handles), frameon=False, fontsize=9)
    figure.align_ylabels()
    figure.tight_layout(rect=(0, 0, 1, 0.965), h_pad=1.6)
    figure.savefig(path, dpi=150, facecolor="white")
    pyplot.close(figure)


def _plain(value: float, _: object) -> str:
    if value >= 1000:
        return f"{value / 1000:,.0f} k"
    return f"{value:g}"
