"""`python -m benchmarks.eventsourcing_library`: our persistence module beside the library's own for SQLite.

Both sync each save. The rounds alternate, and medians are printed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

ROUNDS = 7
SAVES = 500


class Dog(Aggregate):
    """An aggregate with one event that repeats."""

    def __init__(self) -> None:
        self.tricks: list[str] = []

    @event("TrickAdded")
    def add_trick(self, trick: str) -> None:
        """The event."""
        self.tricks.append(trick)


def application(module: str, folder: Path) -> Application[UUID]:
    """A new application that keeps its events with a persistence module, below a folder."""
    return Application(
        env={
            "PERSISTENCE_MODULE": module,
            "SQLITE_DBNAME": str(folder / f"{uuid4()}.sqlite"),
            "STREAMKIT_URL": (folder / "streamkit").as_uri(),
            "STREAMKIT_STORE": str(uuid4()),
        }
    )


def one_round(app: Application[UUID]) -> dict[str, float]:
    """Operations a second."""
    dogs = [Dog() for _ in range(SAVES)]
    for dog in dogs[1:]:
        dog.add_trick("roll over")
    recorder: Any = app.recorder

    def seconds(work: Callable[[], object]) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    def read() -> None:
        last = 0
        while page := recorder.select_notifications(start=last + 1, limit=100):
            last = page[-1].id
        assert last == 2 * SAVES - 1

    return {
        "save a new aggregate": SAVES / seconds(lambda: [app.save(dog) for dog in dogs]),
        "get an aggregate": SAVES / seconds(lambda: [app.repository.get(dog.id) for dog in dogs]),
        "read notifications, pages of 100": (2 * SAVES - 1) / seconds(read),
    }


def main() -> None:
    """Print a table."""
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for name in ("eventsourcing.sqlite", "streamkit.adapters.eventsourcing"):
                app = application(name, Path(folder))
                for work, rate in one_round(app).items():
                    figures.setdefault(work, {}).setdefault(name, []).append(rate)
                app.close()
    print("| a second | eventsourcing.sqlite | streamkit | ratio |\n|---|---|---|---|")
    for work, rates in figures.items():
        theirs, ours = (statistics.median(rates[name]) for name in rates)
        print(f"| {work} | {theirs:,.0f} | {ours:,.0f} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
