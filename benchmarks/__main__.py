"""`python -m benchmarks`: measures, prints the table, keeps JSON and plot in benchmarks/results."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import msgspec

from . import appends, coroutines, disk, growth, lookups, queues, reads, startup
from .machine import describe, filesystem
from .measure import Bench
from .plot import draw
from .readme import with_figures
from .report import Run, markdown, table

SUBJECTS = {
    "appends": appends.run,
    "reads": reads.run,
    "lookups": lookups.run,
    "queues": queues.run,
    "coroutines": coroutines.run,
    "growth": growth.run,
    "disk": disk.run,
    "startup": startup.run,
}
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("subjects", nargs="*", help=f"some of: {', '.join(SUBJECTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="tiny and short, some seconds, keeps nothing: does it run")
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where to write; it decides which disk")
    parser.add_argument("--publish", action="store_true", help="also write docs/benchmarks.md and .png, and README.md")
    parser.add_argument(
        "--again",
        type=Path,
        nargs="+",
        metavar="JSON",
        help="measure nothing, show the results of that run, or of one that was made in parts",
    )
    options = parser.parse_args()
    unknown = [name for name in options.subjects if name not in SUBJECTS]
    if unknown:
        parser.error(f"no subject {unknown[0]!r}; there are: {', '.join(SUBJECTS)}")
    missing = [name for name in ("eventsourcing", "matplotlib") if find_spec(name) is None]
    if missing:
        parser.error(f"{' and '.join(missing)} missing: pip install -r benchmarks/requirements.txt")
    if options.again is not None:
        parts = [msgspec.json.decode(path.read_bytes(), type=Run) for path in options.again]
        run = msgspec.structs.replace(parts[0], results=[result for part in parts for result in part.results])
        print(table(run))
    else:
        run = measure(options.subjects or list(SUBJECTS), options.dir, quick=options.quick)
    if options.publish:
        publish(run, ROOT)


def publish(run: Run, root: Path) -> None:
    readme = root / "README.md"
    text = with_figures(readme.read_text(encoding="utf-8"), run)
    draw(run, root / "docs" / "benchmarks.png")
    page = root / "docs" / "benchmarks.md"
    page.write_text(markdown(run, "benchmarks.png", page.read_text(encoding="utf-8")), encoding="utf-8")
    readme.write_text(text, encoding="utf-8")
    print("written: docs/benchmarks.md, docs/benchmarks.png, the figures in README.md")


def measure(subjects: list[str], directory: Path, *, quick: bool) -> Run:
    directory.mkdir(parents=True, exist_ok=True)
    if filesystem(directory)[0] in ("tmpfs", "ramfs"):
        print(f"{directory} is in memory: syncing is free there, and ratios to it mean nothing", file=sys.stderr)
    when = datetime.now(UTC)
    stamp = when.strftime("%Y%m%d-%H%M%S")
    started = time.monotonic()
    terminal = sys.stderr.isatty()

    def say(text: str) -> None:
        if terminal:
            print(f"\r\033[K[{time.monotonic() - started:5.0f} s] {text}", end="", file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended early"))
    work = Path(tempfile.mkdtemp(prefix="benchmarks-", dir=directory))
    run = Run(when.strftime("%Y-%m-%d %H:%M UTC"), quick, describe(work), [])
    print(*(f"{name}: {value}" for name, value in run.machine.items()), sep="\n", end="\n\n")
    try:
        for name in subjects:
            for result in SUBJECTS[name](Bench(work, quick=quick, say=say)):
                run.results.append(result)
                if not quick:
                    keep(run, stamp)
                say("")
                print(table(Run(run.when, quick, {}, [result])).split("\n", 2)[2], flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if run.results and not quick:
            draw(run, RESULTS / f"{stamp}.png")
    print(f"\n{table(run)}\n\n{time.monotonic() - started:.0f} s")
    return run


def keep(run: Run, stamp: str) -> None:
    """Store the results after every row, so that a run that is ended early keeps its rows."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{stamp}.json").write_bytes(msgspec.json.format(msgspec.json.encode(run)))


if __name__ == "__main__":
    main()
