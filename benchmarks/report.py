"""A run as a table for people, and as JSON with every round."""

from __future__ import annotations

import msgspec

from .measure import PYTHON, Result, Target

__all__ = ["Run", "markdown", "number", "table"]


class Run(msgspec.Struct, frozen=True):
    when: str
    quick: bool
    machine: dict[str, str]
    results: list[Result]


_APPEND = (
    "A commit of one record makes 14 Python calls. With the twin, the commit takes about 7 µs of CPU: 5.5 in the "
    "interpreter and the twin, and 1.5 in the kernel. Upkeep takes 3 more. SQLite is written in C, and takes 13 in all."
)
_READ_ONES = (
    "Without the twin, a record takes about 2 µs of CPU. To find it and to hand it out takes 0.4. Python calls C "
    "functions one by one, to check the record, to decode it and to make its objects. These calls take 1.4, and "
    "comparisons take 0.2. The target allows 1.5 for all of this."
)
_BLOCKS = (
    "The index consists of sorted files, the runs. A segment that was written at different times has entries in one "
    "to six runs, until `maintain` merges them. In each run, a load reads a block of 4 KB, checks it, decompresses it "
    "and searches it, if the block is not in the cache of 4 MB. "
    "Without the twin, Python's interpreter takes two thirds of the time. It calls about 15 functions for each block."
)
_ENTRIES = "To make an entry takes 0.13 µs of CPU. The target allows 0.14 µs for everything."
_START = "The target was set on a processor that starts Python in 3/4 of the time, and imports modules twice as fast."
_WHY = {
    "group: claim and acknowledge 1": "streamkit syncs each claim before it returns. Redis syncs once a second. "
    "The two differ by less than two rounds of one of them.",
    "import streamkit": _START,
    "import streamkit with its client": "The import loads about 200 modules. Those of Python's standard library "
    "take more than half of the time.",
    "open a store and peek": _START,
    "append, 1000 a commit": "A thousand records take 0.2 ms of CPU before the disk gets them. A quarter of it makes "
    "the objects. Another quarter is the kernel's copy of their bytes. The bare file only joins bytes that are ready.",
    "peek": "During a round, most of ten thousand segments are peeked at for the first time. A first peek reads a "
    "block of entries. A later peek reads memory.",
    "peek of any segment": "Almost every peek reads a block of 4 KB that is not in the cache. With the twin, a peek "
    "takes 8 µs of CPU. To find the block, to read, check and decompress it, and to make the entry takes 4.5 of them. "
    "A dozen Python calls take the others. SQLite finds the row in pages that are not compressed.",
    "append, 1 a commit": _APPEND,
    "append, 1 a commit, 16 threads": "The threads share commits, but Python's interpreter runs one thread at a "
    "time. The work for a record takes about 10 µs, and a switch to another thread takes longer. One thread alone "
    "mostly waits for the disk. So a faster disk makes one thread faster, but not sixteen threads.",
    "aio: append, 1 a commit, p50": "The append takes what it takes from a thread, mostly for the disk's sync. The "
    "hand-over from the event loop to a thread, and back, takes the rest. Each of the two wakes a thread that sleeps.",
    "append buffered, 1 a commit": _APPEND,
    "append buffered, 1000 a commit": "A thousand records need four steps at least. Python makes and frees the records "
    "in 60 µs. The codec checks, encodes and tries to compress them in 40. The commit makes a transaction of them in "
    "20. The kernel copies the bytes in 50. With these four steps alone the rate is 6 M/s. The other steps of the "
    "commit take 40 µs, and upkeep and new files take 40. A file of 8 MB is also synced when it is full.",
    "consume_space, written 1000 a commit": _ENTRIES,
    "consume_segment, written 1000 a commit": _ENTRIES,
    "consume_space, written 1 a commit": _READ_ONES,
    "consume_segment, written 1 a commit": _READ_ONES,
    "load a segment of 20 entries": _BLOCKS,
    "load a segment of 20 entries of one commit": "A load takes 19 µs of CPU. To read, check and decompress one or two "
    "blocks of 4 KB takes 6 of them, and to make the entries takes 4. Python calls take the others.",
    "growth: peek": "Each of a thousand segments is peeked at hundreds of times. The first peek at each reads a "
    "block, and in the large store often the index of its file too. The later ones are answered from memory.",
    "growth: append buffered, 1000 a commit": "A round has 500 batches, and lasts a third of a second. Most batches go "
    "to a segment that the process has not used before, so it reads the segment's status from one or two blocks. With "
    "records that are ready, such a batch takes 0.26 ms, and a batch to a known segment takes 0.15 ms.",
    "bytes on disk / payload, 1 a commit": "Each entry is stored twice: in a pack of the log, and beside the index. "
    "The newest entries are not merged yet.",
    "memory, writing and merging": "The process keeps the statuses of up to 40,960 segments (20 MB), up to 16,384 of "
    "the log's latest records, and the output of upkeep.",
}
"""Reasons for a missed target: where the time or the space goes. Check them again after an optimisation."""
_SERVER = "\n## The server\n"
_HEADS = ("work", "streamkit", "compared with", "to reach", "is", "reached")


def number(value: float) -> str:
    """Three digits that matter: 1.23 M, 45.6 k, 789, 1.23."""
    scale, unit = (1e6, " M") if value >= 1e6 else (1e3, " k") if value >= 1e3 else (1, "")
    value /= scale
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}{unit}"


def _figure(result: Result, name: str) -> str:
    unit = result.unit if result.unit in ("ms", "MB") else result.unit.replace("entries", "").strip()
    return f"{number(result.median(name))}{'' if unit.startswith('/') or not unit else ' '}{unit}"


def _wanted(result: Result, target: Target) -> str:
    sign = "≥" if target.at_least else "≤"
    whose = f" ({target.subject})" if target.subject else ""
    if target.of is not None:
        return f"{sign} {target.limit:g} × {target.of}{whose}"
    if target.above is not None:
        return f"{sign} {target.limit:g} {result.unit} above {target.above}"
    return f"{sign} {target.limit:,.10g} {result.unit}".strip()


def _is(result: Result, target: Target) -> str:
    if target.of is not None:
        return f"{result.value(target):.2f} ×"
    return f"{number(result.value(target))}"


def _rows(run: Run) -> list[tuple[str, ...]]:
    """Cells in the order of _HEADS: one row for each target, or for a result without targets."""
    rows: list[tuple[str, ...]] = []
    for result in run.results:
        others = [name for name in result.rounds if name != result.subject]
        compared = " · ".join(f"{name} {number(result.median(name))}" for name in others)
        first = (result.work, _figure(result, result.subject), compared)
        for target in result.targets:
            reached = "yes" if result.reached(target) else "**no**"
            rows.append((*first, _wanted(result, target), _is(result, target), reached))
            first = ("", "", "")
        if not result.targets:
            rows.append((*first, "", "", ""))
    return rows


def _misses(run: Run) -> list[str]:
    lines = []
    for result in run.results:
        missed = [target for target in result.targets if not result.reached(target)]
        if missed:
            figures = "; ".join(
                f"measured {_is(result, target)}, target {_wanted(result, target)}" for target in missed
            )
            lines.append(f"- **{result.work}**: {figures}. {_WHY.get(result.work, 'Not explained yet.')}")
    return ["## Missed targets, and why", "", *lines, ""] if lines else []


def table(run: Run) -> str:
    """The report for a terminal."""
    rows = [_HEADS, *_rows(run)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]]).replace("**no**", "NO")


def markdown(run: Run, plot: str, present: str = "") -> str:
    """The page. `present`: as it is now; its part about the server, which another run measures, stays."""
    lines = [
        "# Benchmarks",
        "",
        "Run `make bench` (`python -m benchmarks --publish`) to make this page on your machine. Between "
        "machines, compare ratios and not figures. Each figure is the median of "
        f"{max(len(found) for result in run.results for found in result.rounds.values())} rounds. In every round each "
        "contender runs once on the same disk, in rotating order, so that a disturbance affects all of them.",
        "",
        f"![Appends and reads a second, against a bare file, SQLite and eventsourcing]({plot})",
        "",
        f"Measured {run.when}{' in quick mode: too short to be relied on' if run.quick else ''}, on:",
        "",
        *(f"- {name}: {value}" for name, value in run.machine.items()),
        "",
        "| " + " | ".join(_HEADS) + " |",
        "|" + "---|" * len(_HEADS),
        *("| " + " | ".join(row) + " |" for row in _rows(run)),
        "",
        *_misses(run),
        "## Contenders",
        "",
        "All contenders get the same payloads in memory, and an append is timed until it returns. All return their "
        "entries to the same loop.",
        "",
        f"- **{PYTHON}**: the same with `STREAMKIT_PURE=1`, in a process of its own each time. The twin is "
        "the extension `streamkit-speed`.",
        "- **bare file**: `os.write` to one file, and `fdatasync` for committed rows. It has no segments, no lookups "
        "and no checks: the limit of the disk.",
        "- **SQLite**: one table with a position and a unique (segment, sequence), WAL; `synchronous=FULL` for "
        "committed rows, `NORMAL` for buffered rows.",
        "- **eventsourcing**: `SQLiteApplicationRecorder` with its defaults. It syncs every commit, also in the "
        "rows for buffered appends.",
        "- **streamkit, maintained**: the same store after `store.maintain()`.",
        "- **small store**: a store with 1,000 segments. A row `growth` does the same work in it and in a large store.",
        "",
        "## How each row was measured",
        "",
        "| work | setting | slowest to fastest round |",
        "|---|---|---|",
        *(
            f"| {result.work} | {result.setting} | "
            f"{number(min(result.rounds[result.subject]))} to {number(max(result.rounds[result.subject]))} |"
            for result in run.results
        ),
        "",
    ]
    return "\n".join(lines) + "".join(present.partition(_SERVER)[1:])
