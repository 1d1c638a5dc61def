"""The cost of the comparison that `save` makes before it writes events: `python -m benchmarks.exact_events [saves]`.

CPU time of one save with the comparison and without it, in memory and on a local disk. Each figure is the median of
nine rounds, and the two kinds of round alternate, so that a busy machine slows down both.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import streamkit
from streamkit.eventsourcing import Aggregate, JsonCodec, MsgpackCodec, Repository, event
from streamkit.eventsourcing.events import EventFormat

ROUNDS = 9


@dataclass
class Line:
    item: str
    count: int
    price: Decimal


class Order(Aggregate):
    @event
    def pay(self, cents: int, by: str | None) -> None: ...

    @event
    def add(self, line: Line, at: datetime) -> None: ...

    @event
    def add_all(self, lines: list[Line]) -> None: ...


LINE = Line("tea", 2, Decimal("2.50"))
NOW = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
EVENTS: dict[str, Callable[[Order], Any]] = {
    "an int and a text": lambda order: order.pay(450, "card"),
    "a dataclass of three fields and a datetime": lambda order: order.add(LINE, NOW),
    "a list of 100 such dataclasses": lambda order: order.add_all([LINE] * 100),
}


def round_of(url: str, codec: Any, call: Callable[[Order], Any], saves: int) -> float:
    """Microseconds of CPU time for one save."""
    with streamkit.connect(url) as client:
        orders = Repository(client.store(uuid4()), "orders", Order, codec=codec)
        order = orders.load("1")
        spent = 0.0
        for _ in range(saves):
            call(order)
            begun = time.process_time()
            orders.save(order)
            spent += time.process_time() - begun
    return spent / saves * 1e6


def main(saves: int) -> None:
    compare, unchecked = EventFormat._check, lambda *arguments: None
    with tempfile.TemporaryDirectory() as folder:
        for place, url in (("memory", "memory://exact-events"), ("local disk", f"file://{folder}")):
            for codec in (JsonCodec(), MsgpackCodec()):
                for what, call in EVENTS.items():
                    figures: dict[bool, list[float]] = {True: [], False: []}
                    for number in range(2 * ROUNDS):
                        checked = number % 2 == 0
                        EventFormat._check = compare if checked else unchecked  # type: ignore[method-assign]
                        figures[checked].append(round_of(url, codec, call, saves))
                    with_it, without = statistics.median(figures[True]), statistics.median(figures[False])
                    print(
                        f"{place}, {type(codec).__name__}, {what}: {with_it:.0f} µs a save, {without:.0f} µs without "
                        f"the comparison (+{with_it - without:.0f} µs, {(with_it / without - 1) * 100:.0f} %)",
                        flush=True,
                    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
