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
    """Requests of an append, index upkeep included."""
    conflicts: float
    """Commits that met another process's, of those that were tried."""
    throttled: float
    """Requests that were refused, of all."""
    dollars: float
    """Dollars for a million appends."""


def line(result: Result) -> str:
    """A line of progress."""
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
    """Write cost-and-scale.md and cost-and-scale.png. `crowds`: the text about many processes on one partition."""
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
    """The costs of appends to one segment, to a hundred, and to one for each append."""
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

Use this page to choose the number of processes, writers and partitions for a store on S3 or Azure, and to estimate its bill.

![Appends a second, 99th percentile of latency and cost, by partitions](cost-and-scale.png)

The figures come from a **model**, not from a cloud. streamkit's own engine (stores, group commit, conflicts, back-off, index
upkeep) runs against simulated services. A simulated service is a store in memory. It answers as late as the service, throttles
where the service throttles, and counts billed requests. [Assumptions](#assumptions) lists latencies, limits and prices.

## Recommendations

- **Prefer one process with many writers.** It is the cheapest and the fastest. While one commit is in flight, further appends
  wait, and the next commit takes all of them. 256 writers in one process share each request.
- **Give one process one partition.** Writers that are spread over many partitions share fewer commits.
- **Give many processes as many partitions** if their appends must take less than 100 ms on S3. Only processes on the same
  partition compete.
- **Many processes may share one partition.** On S3 an append then takes about 100 ms and four requests, however many processes
  there are, and no process is passed over.
- **On Azure, give 256 processes eight partitions.** A partition of Azure Tables takes 2,000 entities a second. A commit is one
  entity, and so is each look of a waiting process. On one partition, 256 processes throttle each other all the time. If many
  processes wait there, transactions are spaced out.
- **Expect slow first appends if hundreds of processes start at once.** Each process reads about twenty rows before it can
  write, so the first requests are throttled. The first appends of a thousand processes on S3 take seconds. Later appends are not
  slower. A burst of 10,000 requests from 1,000 processes that appear at once is committed in 17 to 24 s, each request once
  (`python -m benchmarks.cost_burst`, nine seeds, of 2026-11-23). A burst of 1,000 requests from 100 processes takes 4 to 6 s.

## How processes share a partition

Only one process can write the next transaction. A process that has lost twice puts its request into the partition's inbox. One
process then commits for all: it writes the requests in the inbox together with its own. Before that, the processes compete for
a few seconds.

- A request of about 200 bytes travels in the name of its inbox row. A larger request costs one more GET and about 30 ms. A
  process with more than 128 KiB asks to commit next instead, so the request is sent once and not twice.
- A process without competitors pays almost nothing for the inbox: if it is busy, it makes at most one list for 64 appends, to
  find processes that wait.

## Many processes, one partition

Each process appends as fast as it can. The first {warm_up:g} seconds, in which the processes still compete, are not counted. Each
shape ran three times:

{crowds}

### The same with processes

Real processes and threads on a machine with 2 processors, against emulators on the same machine (`python -m
benchmarks.cost_processes`, of 2026-11-23). moto answers as late as S3 Standard does in the model. Azurite answers as fast as it
can. So speed and latency are those of the machine. Requests for each append, appends for each transaction and fairness do not
depend on the machine. "the model's" is the number of requests for each append in the model, for the same shape.

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

Each writer appends records of 200 bytes to a segment of its own, one after the other, as fast as it can.

- "conflicts": the share of commits that met a commit of another process.
- "throttled": the share of requests that the service refused because of its limit. They are sent again and are not billed.
- "longest": the longest wait of an append. When the run ends, the writers stop, and waiting appends get through. So a wait of
  about five seconds or more would be longer in a longer run.

{tables}

## How many segments

The number of segments does not change the cost of an append. One process made 10,000 appends of a record of 128 bytes, one
after the other. Every request is counted, also those that merge the index, at the prices below:

{segments}

`maintain` also removes transactions from the log that have been packed for longer than the grace. This takes one delete for each
transaction. Deletes are free on S3. Azure bills a delete like a write, so with `maintain` each append costs twice as much there.

## How many requests

Requests of the engine to a store in memory that behaves like S3: `python -m benchmarks.requests`, of 2026-11-22. A test checks
that an S3 server gets the same requests (`tests/log/test_requests.py`). A fresh process sends one more, beside its first request,
to read the store's mark. A trip is a set of up to 40 requests that are sent together. "Worst" is the worst of 40 processes
with one operation each.

| | wanted | counted |
|---|---|---|
| S3: writes an append, 10,000 appends to 10,000 segments, merging included | at most 1.06 | 1.058; of 100,000 appends to 1,000 segments 1.060 |
| S3: for how many requests, one after the other, an append waits for upkeep | at most 4 | 4 |
| S3: a fresh process appends; 100,000 segments, 1,000,000 entries, 100 a commit | at most 4 trips, 40 requests | worst 4 trips, 36 requests |
| the same, a segment is loaded | at most 5 trips, 45 requests | worst 5 trips, 46 requests |
| S3: a space of 100,000 commits of one record is read, fresh process | at most 600 requests | 63 |
| Azure: entities an append | 1 | 1 |
| Azure: trips in which a fresh process appends, loads; a space that is still in the head | at most 3, 4 | 3, 2 |

Known limits:

- Loading a segment takes one request more than wanted in the worst case.
- In a large space Azure needs as many trips as S3, 4 and 5, because its index is in files too.
- About once in a thousand times, the filters of two runs of the index err together. Both then take one trip more.
- If a fresh process has to update the index, it looks up the segments of all commits that it indexes. That is 5 trips more than an
  append, and 9 trips and 190 requests more if each commit has 100 segments.
- The head of a partition names every pack. It grows by 41 KiB for each GB (compressed, not archived) in the partition, and
  each upkeep writes it. Archive, or use several partitions for data that grows.

## Assumptions

{assumed}

- Latencies are log-normal around the median: with a spread of 0.5 the 99th percentile is 3.2 times as long, with 0.35
  2.3 times. Requests that are sent together take as long as the slowest of them. Medians and spreads are round figures from
  published measurements of callers in the same region. No provider promises them.
- Limits are token buckets that hold the tokens of one second. A store on S3 is one prefix for the whole run, although S3 splits
  a busy prefix with time.
- Prices are public list prices of {priced} (they change: follow the links), for US East (N. Virginia), and for East US with local
  redundancy. S3 bills lists as writes. Deletes are free. A refused condition (412, 409) is billed like a success. Storage and
  reading the data are not included.
- The index is updated after every {upkeep} transactions of a partition, during the run. The rest is done at the end, and all
  commits share its cost.
- S3 Express stands for a service with such latencies. Its directory buckets list in no order, and `s3://` does not accept them.
- Time is virtual, and the processors of the clients take none of it. A Python process makes some ten thousand appends a
  second at best. So a larger figure for one process is the limit of the service and not of the process.
- {cases} runs of {seconds:g} virtual seconds after {warm_up:g} seconds of warming up, or as long as 4,500 requests take. All
  random choices have a seed, except the names of processes and requests. Two runs of one seed differed by up to 13 %.

`python -m benchmarks.cost_model --publish` makes this page again, in some minutes. `make bench` does not include it.
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
