"""Types in events and states: each comes back exactly as it was, or is refused before anything is written.

These tests make the table in docs/eventsourcing.md. STREAMKIT_WRITE_TABLE=1 writes it.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pytest

import streamkit
from streamkit import Record, Store
from streamkit.eventsourcing import Aggregate, JsonCodec, MsgpackCodec, PydanticCodec, Repository, event
from streamkit.exact import difference
from streamkit.views import Reduce

PAGE = Path(__file__).parents[2] / "docs" / "eventsourcing.md"
BEGIN, END = "<!-- the table of types: STREAMKIT_WRITE_TABLE=1 writes it -->", "<!-- end of the table -->"


class Color(Enum):
    RED = "red"


class Kind(StrEnum):
    NEW = "new"


class Size(IntEnum):
    SMALL = 1


class Rights(Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: int
    right: Decimal


class Movie(TypedDict):
    title: str
    year: int


class Money(msgspec.Struct):
    amount: Decimal


class Price(Money):
    currency: str = "EUR"


class Card(msgspec.Struct, tag=True):
    digits: str


class Cash(msgspec.Struct, tag=True):
    pass


class Row(msgspec.Struct, array_like=True, frozen=True):
    number: int


@dataclass
class Line:
    item: str
    count: int = 1


@dataclass
class Gift(Line):
    wrapped: bool = True


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float


@dataclass
class Cached:
    number: int
    double: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.double = self.number * 2


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)


@attrs.define
class Box:
    width: int


class Plain:
    def __init__(self) -> None:
        self.number = 1


class Text(str):
    pass


class Items(list):  # type: ignore[type-arg]
    pass


class Unannotated:
    """The mark of an argument without an annotation."""


class Case(NamedTuple):
    shown: str
    """The annotation, as the page shows it."""
    hint: Any
    value: Any
    note: str = ""


BERLIN = ZoneInfo("Europe/Berlin")
NONE = Unannotated
CASES = (
    Case("`str`", str, "text"),
    Case("`str`, a lone surrogate", str, "\ud800", "no encoding has it"),
    Case("`bool`", bool, True),
    Case("`None`", None, None),
    Case("`int`", int, -7),
    Case("`int` of 64 bits", int, 2**63 - 1),
    Case("`int` of more bits", int, 2**70),
    Case("`float`", float, 0.1),
    Case("`float`, -0.0", float, -0.0),
    Case("`float`, a whole number given as int", float, 3, "comes back as 3.0"),
    Case("`float`, NaN", float, math.nan),
    Case("`float`, infinity", float, -math.inf),
    Case("`complex`", complex, 1 + 2j, "two floats"),
    Case("`bytes`", bytes, b"\x00\xff"),
    Case("`bytes` that are UTF-8", bytes, b"text"),
    Case("`bytearray`", bytearray, bytearray(b"\x00\xff")),
    Case("`Decimal`", Decimal, Decimal("2.50")),
    Case("`Fraction`", Fraction, Fraction(1, 3), "two ints"),
    Case("`UUID`", UUID, UUID(int=7)),
    Case("`datetime`, naive", datetime, datetime(2026, 1, 2, 3, 4, 5, 6)),
    Case("`datetime`, UTC", datetime, datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
    Case("`datetime`, an offset", datetime, datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=2)))),
    Case("`datetime`, `ZoneInfo`", datetime, datetime(2026, 1, 2, tzinfo=BERLIN), "UTC, and the zone's name as text"),
    Case("`datetime`, `fold=1`", datetime, datetime(2026, 10, 25, 2, 30, fold=1), "UTC"),
    Case("`date`", date, date(2026, 1, 2)),
    Case("`time`", time, time(3, 4, 5, 6)),
    Case("`time`, `fold=1`", time, time(3, 4, fold=1)),
    Case("`timedelta`", timedelta, timedelta(days=-1, microseconds=5)),
    Case("`Enum`", Color, Color.RED),
    Case("`StrEnum`", Kind, Kind.NEW),
    Case("`IntEnum`", Size, Size.SMALL),
    Case("`Flag`, a combination", Rights, Rights.READ | Rights.WRITE, "an int"),
    Case("`Literal['a', 1]`", Literal["a", 1], 1),
    Case("`int | None`", int | None, None),
    Case("`int | str`", int | str, "7"),
    Case("`list[int]`", list[int], [1, 2]),
    Case("`list[float]`, with NaN", list[float], [0.5, math.nan]),
    Case("`list[tuple[int, str]]`", list[tuple[int, str]], [(1, "a")]),
    Case("`list` of plain values", list, [1, "a", None, [True]]),
    Case("`list` of tuples", list, [(1, 2)], "`list[tuple[int, int]]`"),
    Case("`list` of Decimals", list, [Decimal("1.5")], "`list[Decimal]`"),
    Case("`tuple[int, ...]`", tuple[int, ...], (1, 2)),
    Case("`tuple[int, str]`", tuple[int, str], (1, "a")),
    Case("`tuple` of plain values", tuple, (1, "a")),
    Case("`tuple` of bytes", tuple, (b"a",), "`tuple[bytes, ...]`"),
    Case("`set[int]`", set[int], {8, 0}),
    Case("`frozenset[str]`", frozenset[str], frozenset({"a", "b"})),
    Case("`set[Kind]`, a StrEnum", set[Kind], {Kind.NEW}),
    Case("`set` of StrEnum members", set, {Kind.NEW}, "`set[Kind]`"),
    Case("`dict[str, int]`", dict[str, int], {"b": 1, "a": 2}),
    Case("`dict[int, str]`", dict[int, str], {1: "a"}),
    Case("`dict[UUID, Decimal]`", dict[UUID, Decimal], {UUID(int=7): Decimal("1.10")}),
    Case("`dict[date, int]`", dict[date, int], {date(2026, 1, 2): 1}),
    Case("`dict[tuple[int, int], int]`", dict[tuple[int, int], int], {(1, 2): 3}, "a list of pairs"),
    Case("`dict` of plain values", dict, {"a": [1, None]}),
    Case("`dict` with int keys", dict, {1: 2}, "`dict[int, int]`"),
    Case("`OrderedDict[str, int]`", OrderedDict[str, int], OrderedDict(b=1, a=2), "`dict` keeps its order"),
    Case("`defaultdict`", defaultdict[str, int], defaultdict(int, a=1), "`dict`"),
    Case("`Counter`", Counter[str], Counter("aab"), "`dict[str, int]`"),
    Case("`deque[int]`", deque[int], deque([1, 2]), "`list[int]`"),
    Case("`NamedTuple`", Pair, Pair(1, Decimal("2.0"))),
    Case("`TypedDict`", Movie, {"title": "M", "year": 1931}),
    Case("dataclass", Line, Line("tea", 2)),
    Case("dataclass, frozen, with slots", Point, Point(1.5, -0.0)),
    Case("dataclass, `init=False` field", Cached, Cached(3)),
    Case("dataclass, recursive", Node, Node("a", [Node("b")])),
    Case("dataclass, a subclass of the annotated one", Line, Gift("tea"), "annotate the subclass"),
    Case("`Struct`", Money, Money(Decimal("1.50"))),
    Case("`Struct`, `array_like`", Row, Row(1)),
    Case("`Struct`, a subclass of the annotated one", Money, Price(Decimal(1)), "a union of tagged Structs"),
    Case("union of tagged `Struct`s", Card | Cash, Cash()),
    Case("`list` of a union of tagged `Struct`s", list[Card | Cash], [Cash(), Card("1")]),
    Case("attrs class", Box, Box(3)),
    Case("class of your own", Plain, Plain(), "a dataclass"),
    Case("subclass of `str`", str, Text("a"), "`str`"),
    Case("subclass of `list`", list, Items([1]), "`list`"),
    Case("`IPv4Address`", IPv4Address, IPv4Address("127.0.0.1"), "`str`"),
    Case("`PurePosixPath`", PurePosixPath, PurePosixPath("/a"), "`str`"),
    Case("function", Any, len),
    Case("no annotation: plain values", NONE, {"a": [1, 0.5, None, True, "x"]}),
    Case("no annotation: `tuple`", NONE, (1, 2), "annotate it"),
    Case("no annotation: `bytes`", NONE, b"\x00", "annotate it"),
    Case("no annotation: `Decimal`", NONE, Decimal("1.5"), "annotate it"),
    Case("no annotation: `datetime`", NONE, datetime(2026, 1, 2), "annotate it"),
    Case("no annotation: `StrEnum`", NONE, Kind.NEW, "annotate it"),
    Case("no annotation: `set`", NONE, {1}, "annotate it"),
    Case("no annotation: NaN", NONE, math.nan),
    Case("`Any`: nested lists and dicts", Any, [{"a": [1]}]),
    Case("`object`: `tuple`", object, (1,), "annotate it"),
)  # fmt: skip
CODECS: dict[str, Callable[[], Any]] = {codec.__name__: codec for codec in (JsonCodec, MsgpackCodec, PydanticCodec)}
EXACT, REFUSED, CHANGED = "yes", "–", "CHANGED"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        yield client.store(uuid4())


def holder(hint: Any) -> type[Any]:
    """An aggregate with one event, whose argument and state have the annotation."""

    def hold(self: Any, value: Any) -> None:
        self.value = value

    def init(self: Any) -> None:
        Aggregate.__init__(self)
        self.value = None

    annotations = {} if hint is NONE else {"value": hint}
    hold.__annotations__ = annotations
    body = {"__init__": init, "hold": event("hold")(hold), "__annotations__": annotations, "__module__": __name__}
    return type("Holder", (Aggregate,), body)


def outcome(recorded: Any, read: Callable[[], Any]) -> str:
    return EXACT if difference(recorded, read(), equivalent=True) is None else CHANGED


def check_message(error: Exception, wanted: str) -> None:
    assert re.search(wanted, str(error)), error


def as_an_event(store: Store, case: Case, codec: Any) -> str:
    """A refusal is a TypeError of ours, and leaves nothing behind."""
    space = f"events-{uuid4().hex}"
    repository = Repository(store, space, holder(case.hint), codec=codec, cache=0)
    try:
        repository.execute("1", lambda held: held.hold(case.value))
    except TypeError as error:
        check_message(error, "nothing was written|annotate it|cannot be copied")
        assert list(store.consume_space(space)) == []
        return REFUSED
    assert [name for name, _ in repository.events("1")] == ["hold"]
    return outcome(case.value, lambda: Repository(store, space, holder(case.hint), codec=codec).load("1").value)


def as_a_snapshot(store: Store, case: Case, codec: Any) -> str:
    """The state is written, and read without the event, which was trimmed."""

    class Held(holder(case.hint)):  # type: ignore[misc]
        @event("wait")
        def wait(self) -> None:
            self.value = case.value

    Held.__annotations__ = {} if case.hint is NONE else {"value": case.hint}
    space = f"states-{uuid4().hex}"
    repository: Repository[Any] = Repository(store, space, Held, codec=codec)
    repository.execute("1", lambda held: held.wait())
    try:
        repository.snapshot("1")
    except TypeError as error:
        check_message(error, "annotate the attributes")
        return REFUSED
    store.trim(space, "1", before=2)
    return outcome(case.value, lambda: Repository(store, space, Held, codec=codec).load("1").value)


def as_a_reduced_state(store: Store, case: Case, folder: Path) -> str:
    """Another process reads the view's database."""
    space, path = f"reduced-{uuid4().hex}", folder / f"{uuid4().hex}.db"
    store.produce(space, "s", [Record(b"1")])

    def make() -> Reduce[Any]:
        return Reduce(lambda state, entry: case.value, case.value, type=None if case.hint is NONE else case.hint)

    try:
        reduced = make()
        view = store.view("reduced", reduced, spaces=[space], path=path)
        status = view.catch_up()
    except TypeError as error:
        check_message(error, "Reduce cannot keep its state")
        return REFUSED
    view.close()
    if status.state == "paused":
        return REFUSED
    again = make()
    view = store.view("reduced", again, spaces=[space], path=path)
    try:
        return outcome(case.value, again.get)
    finally:
        view.close()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("case", CASES, ids=[case.shown for case in CASES])
def test_an_event_and_a_snapshot_come_back_as_they_were_or_are_refused(store: Store, case: Case, codec: str) -> None:
    assert as_an_event(store, case, CODECS[codec]()) in (EXACT, REFUSED)
    assert as_a_snapshot(store, case, CODECS[codec]()) in (EXACT, REFUSED)


def table(store: Store, folder: Path) -> str:
    heads = ["type", *(f"{what}, {name}" for what in ("event", "snapshot") for name in CODECS), "`Reduce`", "instead"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for case in CASES:
        cells = [as_an_event(store, case, make()) for make in CODECS.values()]
        cells += [as_a_snapshot(store, case, make()) for make in CODECS.values()]
        cells.append(as_a_reduced_state(store, case, folder))
        shown = case.shown.replace("|", "\\|")
        lines.append(f"| {' | '.join([shown, *cells, case.note])} |")
    return "\n".join(lines)


def test_the_table_of_the_page_is_what_was_found(store: Store, tmp_path: Path) -> None:
    pytest.importorskip("pydantic")
    assert len(CASES) >= 60
    found = f"{BEGIN}\n{table(store, tmp_path)}\n{END}"
    page = PAGE.read_text()
    assert CHANGED not in found
    begin, end = page.index(BEGIN), page.index(END) + len(END)
    if os.environ.get("STREAMKIT_WRITE_TABLE") == "1":
        PAGE.write_text(page[:begin] + found + page[end:])
    assert page[begin:end] == found, "run this test with STREAMKIT_WRITE_TABLE=1, and look at what has changed"
