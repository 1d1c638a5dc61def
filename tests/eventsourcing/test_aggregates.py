"""Aggregates and their repository: records, loads and refusals; versions, snapshots, retries, keys."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from fix_stores import Subject

from streamkit import CorruptData, Record, SequenceMismatch, UnsupportedVersion
from streamkit.eventsourcing import Aggregate, JsonCodec, MsgpackCodec, PydanticCodec, Repository, event
from streamkit.names import internal_name
from streamkit.testing import ManualClock


@dataclass
class Line:
    item: str
    price: Decimal


class Card(msgspec.Struct, tag=True):
    digits: str


class Cash(msgspec.Struct, tag=True):
    pass


class Order(Aggregate):
    lines: list[Line]
    paid: Card | Cash | None
    due: date | None

    def __init__(self) -> None:
        super().__init__()
        self.lines = []
        self.paid = self.due = None

    @event
    def add(self, line: Line, count: int = 1) -> int:
        if self.paid is not None:
            raise ValueError("it is paid")
        self.lines += [line] * count
        return len(self.lines)

    @event("was paid")
    def pay(self, by: Card | Cash, *, due: date | None = None) -> None:
        if not self.lines:
            raise ValueError("there is nothing to pay")
        self.paid, self.due = by, due

    @event
    def add_two(self, line: Line) -> None:
        self.add(line)
        self.add(line)

    @property
    def total(self) -> Decimal:
        return sum((line.price for line in self.lines), Decimal())


TEA = Line("tea", Decimal("2.50"))


@pytest.mark.parametrize("codec", [JsonCodec(), MsgpackCodec(), None])
def test_what_was_done_is_there_when_it_is_loaded_again(subject: Subject, codec: Any) -> None:
    repository = Repository(subject.store, "orders", Order, codec=codec)
    order = repository.load("42")
    assert (order.id, order.version, order.lines) == ("42", 0, [])
    assert order.add(TEA, count=2) == 2
    order.pay(Card("1234"), due=date(2026, 5, 1))
    assert (order.version, len(order.pending)) == (2, 2)
    status = repository.save(order)
    assert (status.last_sequence, order.pending) == (2, ())
    again = Repository(subject.stranger(), "orders", Order, codec=codec).load("42")
    assert (again.lines, again.paid, again.due) == ([TEA, TEA], Card("1234"), date(2026, 5, 1))
    assert (again.total, again.version) == (Decimal("5.00"), 2)
    assert [name for name, _ in repository.events("42")] == ["add", "was paid"]
    assert list(repository.ids()) == ["42"]
    assert "42" in repository
    assert "43" not in repository


def test_what_raises_is_not_recorded(subject: Subject) -> None:
    repository = Repository(subject.store, "orders", Order)
    order = repository.load("42")
    with pytest.raises(ValueError, match="nothing to pay"):
        order.pay(Cash())
    with pytest.raises(TypeError):
        order.add()  # type: ignore[call-arg]
    assert (order.pending, order.version) == ((), 0)
    repository.save(order)
    assert list(subject.store.consume_space("orders")) == []


def test_an_event_that_calls_another_is_one(subject: Subject) -> None:
    repository = Repository(subject.store, "orders", Order)
    repository.execute("42", lambda order: order.add_two(TEA))
    assert [name for name, _ in repository.events("42")] == ["add_two"]
    assert len(Repository(subject.store, "orders", Order).load("42").lines) == 2


def test_who_was_slower_is_refused_and_execute_tries_again(subject: Subject) -> None:
    one = Repository(subject.store, "orders", Order)
    two = Repository(subject.stranger(), "orders", Order)
    first, second = one.load("42"), two.load("42")
    first.add(TEA)
    second.add(TEA)
    one.save(first)
    with pytest.raises(SequenceMismatch):
        two.save(second)
    calls = []

    def command(order: Order) -> int:
        calls.append(order.version)
        if len(calls) == 1:
            one.execute("42", lambda other: other.add(TEA))
        return order.add(TEA)

    assert two.execute("42", command) == 3
    assert calls == [1, 2]
    with pytest.raises(SequenceMismatch):
        two.execute("42", lambda order: (one.execute("42", lambda o: o.add(TEA)), order.add(TEA)), retries=2)


def test_who_is_slower_again_and_again_waits_longer_and_longer(subject: Subject) -> None:
    clock = ManualClock()
    slow = Repository(subject.stranger(clock=clock), "orders", Order)
    other = Repository(subject.store, "orders", Order)
    slept: list[float] = []
    clock.sleep = slept.append  # type: ignore[method-assign]
    with pytest.raises(SequenceMismatch):
        slow.execute("42", lambda order: (other.execute("42", lambda o: o.add(TEA)), order.add(TEA)), retries=7)
    assert len(slept) == 7
    assert 0 < slept[0] < slept[6]
    assert sum(slept) < 3


def test_a_command_is_judged_by_what_is_so_now_not_by_what_is_remembered(subject: Subject) -> None:
    one = Repository(subject.store, "orders", Order)
    two = Repository(subject.stranger(), "orders", Order)
    one.execute("42", lambda order: order.add(TEA))
    two.execute("43", lambda order: order.add(TEA))
    assert one.execute("43", lambda order: order.total) == Decimal("2.50")
    two.execute("42", lambda order: order.pay(Cash()))
    with pytest.raises(ValueError, match="it is paid"):
        one.execute("42", lambda order: order.add(TEA))
    assert one.execute("42", lambda order: order.paid) == Cash()


def test_many_threads_lose_nothing(subject: Subject) -> None:
    repositories = [Repository(subject.store, "orders", Order), Repository(subject.stranger(), "orders", Order)]

    def work(at: int) -> None:
        for _ in range(5):
            repositories[at % 2].execute("42", lambda order: order.add(TEA), retries=1000)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(repositories[0].load("42").lines) == 20


def test_a_command_with_a_key_is_executed_once(subject: Subject) -> None:
    repository = Repository(subject.store, "orders", Order)
    assert repository.execute("42", lambda order: order.add(TEA), idempotency_key="k") == 1
    assert repository.execute("42", lambda order: order.add(TEA), idempotency_key="k") is None
    other = Repository(subject.stranger(), "orders", Order)
    assert other.execute("42", lambda order: order.add(TEA, 5), idempotency_key="k") is None
    assert len(other.load("42").lines) == 1


def test_a_key_is_of_one_aggregate(subject: Subject) -> None:
    repository = Repository(subject.store, "orders", Order)
    for id in ("42", "43"):
        assert repository.execute(id, lambda order: order.add(TEA), idempotency_key="k") == 1
        assert repository.execute(id, lambda order: order.add(TEA), idempotency_key="k") is None
    order = repository.load("44")
    order.add(TEA)
    repository.save(order, idempotency_key="k")
    assert [repository.load(id).version for id in ("42", "43", "44")] == [1, 1, 1]


def test_what_is_saved_again_with_its_key_is_in_the_aggregate_once(subject: Subject) -> None:
    """An event is also not applied twice in the cached aggregate and in the snapshot."""
    repository = Repository(subject.store, "orders", Order, snapshot_every=2)
    for _ in range(2):
        order = repository.load("42")
        order.add(TEA)
        assert repository.save(order, idempotency_key="k").last_sequence == 1
        assert (order.version, len(order.lines), order.pending) == (1, 1, ())
    for other in (repository, Repository(subject.stranger(), "orders", Order, snapshot_every=2)):
        order = other.load("42")
        assert (order.version, len(order.lines)) == (1, 1)
    order.add(TEA)
    assert repository.save(order).last_sequence == 2


def test_snapshots_are_used_and_are_not_needed(subject: Subject) -> None:
    repository = Repository(subject.store, "orders", Order, snapshot_every=10)
    for at in range(25):
        repository.execute("42", lambda order, at=at: order.add(Line(str(at), Decimal(at))))
    repository.execute("42", lambda order: order.pay(Card("1")))
    replayed: list[int] = []

    class Watched(Repository[Order]):
        def _begin(self, id: str, most: int | None = None) -> Order:
            found = super()._begin(id, most)
            replayed.append(found.version)
            return found

    plain = Repository(subject.stranger(), "orders", Order).load("42")
    for at, begin in ((None, 20), (19, 10), (9, 0)):
        fast = Watched(subject.stranger(), "orders", Order, snapshot_every=10).load("42", at=at)
        assert replayed.pop() == begin
        wanted = plain if at is None else Repository(subject.store, "orders", Order).load("42", at=at)
        assert (fast.lines, fast.paid, fast.version) == (wanted.lines, wanted.paid, wanted.version)
    other = Watched(subject.stranger(), "orders", Order, snapshot_every=10, schema=2).load("42")
    assert (replayed.pop(), other.lines) == (0, plain.lines)
    subject.store.produce(
        internal_name("snapshots", "orders"), "42",
        [Record(b"damaged", {"streamkit-snapshot": "Order/1", "version": "25", "mark": "x"})],
    )  # fmt: skip
    assert Watched(subject.stranger(), "orders", Order, snapshot_every=10).load("42").lines == plain.lines
    assert list(subject.store.get_spaces()) == ["orders"]


def test_a_state_that_would_come_back_as_something_else_is_not_snapshotted(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    class Loose(Aggregate):
        def __init__(self) -> None:
            super().__init__()
            self.lines: list[Line] = []

        @event
        def add(self, line: Line) -> None:
            self.lines.append(line)

    repository = Repository(subject.store, "orders", Loose, snapshot_every=2)
    for _ in range(5):
        repository.execute("42", lambda order: order.add(TEA))
    assert len([note for note in caplog.messages if "lines would not be the same again" in note]) == 1
    with pytest.raises(TypeError, match="annotate"):
        repository.snapshot("42")
    assert Repository(subject.stranger(), "orders", Loose, snapshot_every=2).load("42").lines == [TEA] * 5


def test_it_is_loaded_as_it_was(subject: Subject) -> None:
    repository = Repository(subject.store, "orders", Order)
    for _ in range(3):
        repository.execute("42", lambda order: order.add(TEA))
    assert [len(repository.load("42", at=at).lines) for at in range(5)] == [0, 1, 2, 3, 3]
    first = next(subject.store.consume_space("orders")).timestamp
    assert len(repository.load("42", at=datetime.fromtimestamp(first / 1000 - 1, UTC)).lines) == 0
    assert len(repository.load("42", at=datetime.now(UTC)).lines) == 3
    with pytest.raises(ValueError, match="time zone"):
        repository.load("42", at=datetime(2026, 1, 1))


class Old(Aggregate):
    @event
    def priced(self, amount: int) -> None: ...


class New(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.cents = 0
        self.currency = ""

    @event(
        version=3,
        upcast={
            1: lambda old: {"cents": old["amount"] * 100},
            2: lambda old: {**old, "currency": "EUR"},
        },
    )
    def priced(self, cents: int, currency: str) -> None:
        self.cents, self.currency = cents, currency


def test_earlier_versions_of_events_are_upcast(subject: Subject) -> None:
    Repository(subject.store, "x", Old).execute("1", lambda old: old.priced(5))
    repository = Repository(subject.store, "x", New)
    new = repository.load("1")
    assert (new.cents, new.currency) == (500, "EUR")
    repository.execute("1", lambda new: new.priced(7, "USD"))
    assert Repository(subject.store, "x", New).load("1").currency == "USD"
    with pytest.raises(UnsupportedVersion, match="version 3"):
        Repository(subject.store, "x", Old).load("1")


def test_what_cannot_be_replayed_names_the_entry(subject: Subject) -> None:
    subject.store.produce("orders", "42", [Record(b"{}", {"event": "unheard"})])
    subject.store.produce("orders", "43", [Record(b'{"line": 5}', {"event": "add"})])
    subject.store.produce("orders", "44", [Record(b"{}")])
    repository = Repository(subject.store, "orders", Order)
    with pytest.raises(CorruptData, match=r"sequence 1 of '42'.*'unheard'"):
        repository.load("42")
    with pytest.raises(CorruptData, match=r"sequence 1 of '44'.* names no event in its metadata: no aggregate"):
        repository.load("44")
    with pytest.raises(CorruptData, match=r"sequence 1 of '43'.*'line'"):
        repository.load("43")


def test_an_argument_that_would_be_replayed_as_something_else_is_refused(subject: Subject) -> None:
    class Loose(Aggregate):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        @event
        def see(self, what, said: tuple[int, ...] = (), **more: Any):  # type: ignore[no-untyped-def]
            self.seen += [what, said, more]

    repository = Repository(subject.store, "x", Loose)
    for wrong in ((1, 2), datetime.now(UTC), [{"a": b"x"}], {1: 2}, {1}):
        with pytest.raises(TypeError, match=r"'what'.*annotate"):
            repository.execute("1", lambda loose, wrong=wrong: loose.see(wrong))
        with pytest.raises(TypeError, match=r"'other'.*annotate"):
            repository.execute("1", lambda loose, wrong=wrong: loose.see(1, other=wrong))
    repository.execute("1", lambda loose: loose.see([{"a": None}, 1.5, "x", True], (1, 2), more=[1]))
    wanted = [[{"a": None}, 1.5, "x", True], (1, 2), {"more": [1]}]
    assert repository.load("1").seen == Repository(subject.store, "x", Loose).load("1").seen == wanted


def test_an_argument_that_is_not_what_it_is_annotated_with_is_not_written(subject: Subject) -> None:
    orders = Repository(subject.store, "orders", Order)
    with pytest.raises(TypeError, match=r"Order.add: the argument 'line' .* nothing was written"):
        orders.execute("42", lambda order: order.add("tea"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the argument 'count' does not match its annotation"):
        orders.execute("42", lambda order: order.add(TEA, True))
    assert orders.load("42").version == 0
    assert Repository(subject.stranger(), "orders", Order).load("42").version == 0


def test_mistakes_are_told(subject: Subject) -> None:
    class Forgot(Aggregate):
        def __init__(self) -> None:
            pass

    with pytest.raises(TypeError, match="super"):
        Repository(subject.store, "x", Forgot).load("1")
    with pytest.raises(TypeError, match="subclass of Aggregate"):
        Repository(subject.store, "x", dict)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="upcast"):
        event("x", version=2)
    with pytest.raises(ValueError, match="has the id that it was loaded with"):
        Repository(subject.store, "x", Order).save(Order())


def test_codecs_are_usable_by_themselves() -> None:
    for make in (JsonCodec, MsgpackCodec):
        codec = make(Card | Cash)
        assert codec.decode(codec.encode(Card("1"))) == Card("1")
        assert codec.decode(codec.encode(Cash())) == Cash()
        with pytest.raises(CorruptData):
            codec.decode(b"\xc1 nonsense")


def test_pydantic_is_used_if_it_is_installed() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Point(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        x: int

    codec = PydanticCodec(Point)
    assert codec.decode(codec.encode(Point(x=1))) == Point(x=1)
    with pytest.raises(CorruptData):
        codec.decode(b'{"x": "no"}')


def test_a_class_that_cannot_begin_empty_is_refused(in_memory: Subject) -> None:
    class Named(Aggregate):
        def __init__(self, name: str, *rest: str, colour: str = "red") -> None:
            super().__init__()

    with pytest.raises(TypeError, match=r"Named.__init__ needs name, and a repository calls it without arguments"):
        Repository(in_memory.store, "named", Named)
