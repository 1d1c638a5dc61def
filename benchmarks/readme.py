"""The figures in the README, which stand between two marks there."""

from __future__ import annotations

from .measure import PYTHON
from .report import Run, number

__all__ = ["BEGIN", "END", "ROWS", "with_figures"]

BEGIN, END = "<!-- figures: python -m benchmarks --publish -->", "<!-- end of figures -->"
ROWS = {
    "append, 1000 a commit": "append, committed (synced), 1,000 a commit",
    "append, 1 a commit": "append, committed, 1 a commit",
    "append, 1 a commit, 16 threads": "append, committed, 1 a commit, 16 threads",
    "append buffered, 1 a commit": "append, buffered, 1 a commit (eventsourcing: synced)",
    "append buffered, 1000 a commit": "append, buffered, 1,000 a commit (eventsourcing: synced)",
    "consume_space, written 1000 a commit": "read a space, written 1,000 a commit",
    "consume_space, written 1 a commit": "read a space, written 1 a commit",
    "load a segment of 20 entries": "load one of 100,000 segments: 20 entries, written in 20 commits",
}
_CONTENDERS = ("streamkit", "SQLite", "eventsourcing", "bare file")


def with_figures(text: str, run: Run) -> str:
    """`text` with the figures of `run`. ValueError if it has no place for them, or the run not all of them."""
    results = {result.work: result for result in run.results}
    missing = [work for work in ROWS if work not in results]
    if missing:
        raise ValueError(f"the run has no row {missing[0]!r}")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"there is no {BEGIN} with {END} after it")
    judged = [(result, target) for result in run.results for target in result.targets]
    reached = sum(result.reached(target) for result, target in judged)
    rounds = max(len(found) for result in run.results for found in result.rounds.values())
    twin = ", with the [compiled twin](docs/speed.md)" if any(PYTHON in result.rounds for result in run.results) else ""
    lines = [
        "Entries a second, and segments a second in the last row, with random payloads of 128 bytes. A committed "
        f"append is synced to the disk, and a buffered one is not. Medians of {rounds} rounds{twin}, on "
        f"{run.machine['processor']}, {run.machine['disk']}, Python {run.machine['python']}, {run.when}:",
        "",
        "| | streamkit | SQLite | eventsourcing on SQLite | bare file |",
        "|---|---|---|---|---|",
    ]
    for work, name in ROWS.items():
        result = results[work]
        figures = {contender.split(",")[0]: result.median(contender) for contender in reversed(result.rounds)}
        cells = [number(figures[contender]) if contender in figures else "" for contender in _CONTENDERS]
        lines.append("| " + " | ".join((name, *cells)) + " |")
    lines += [
        "",
        f"{reached} of the {len(judged)} targets were reached. [docs/benchmarks.md](docs/benchmarks.md) has all rows,",
        "and the reasons for the missed targets. `python -m benchmarks --publish` makes it.",
    ]
    return "\n".join((before + begin, "", *lines, "", end + after))
