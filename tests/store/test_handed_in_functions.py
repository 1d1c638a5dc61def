"""Functions that callers hand in: a coroutine function is refused, and nothing is acknowledged for it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import GeneratorType
from typing import Any
from uuid import uuid4

import pytest

import streamkit
import streamkit.aio
from streamkit import Entry, Record, Store
from streamkit.eventsourcing import Aggregate, DomainEvent, ProcessManager, Repository, event
from streamkit.run import Program, Worker
from streamkit.views import Index, Latest, Links, Reduce, Search, Vectors, View


async def coroutine(*arguments: Any, **named: Any) -> None: ...


async def async_generator(*arguments: Any, **named: Any) -> Any:
    yield


def generator(*arguments: Any, **named: Any) -> Any:
    yield


REFUSED = r"is an? (async|generator) function"


class Callables:
    async def __call__(self, *arguments: Any, **named: Any) -> None: ...

    async def method(self, *arguments: Any, **named: Any) -> None: ...


SHAPES: dict[str, Any] = {
    "coroutine function": coroutine,
    "partial": partial(partial(coroutine, 1), 2),
    "callable object": Callables(),
    "partial of a callable object": partial(Callables()),
    "bound method": Callables().method,
    "partial of a bound method": partial(Callables().method, 1),
    "async generator function": async_generator,
}


class Tally(Aggregate):
    @event
    def add(self, number: int) -> None: ...


class Silent(View):
    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None: ...


def view_with(store: Store, method: str, function: Any) -> Any:
    view = Silent()
    setattr(view, method, function)
    return store.view("silent", view, spaces=["log"], path=":memory:")


def part_with(function: Any) -> Any:
    part: Any = type("Part", (), {"name": "part"})()
    part.run = function
    return part


def tallies(store: Store) -> Repository[Tally]:
    return Repository(store, "tallies", Tally)


DOORS: dict[str, Callable[[Store, Any], Any]] = {
    "queue.run": lambda store, function: store.queue("jobs").run(function, drain=True),
    "group.run": lambda store, function: store.group("log", "g").run(function, drain=True),
    "Worker of a group": lambda store, function: Worker(store.group("log", "g"), function),
    "Worker of a queue": lambda store, function: Worker(store.queue("jobs"), function),
    "a reaction": lambda store, function: ProcessManager("p", tallies(store), {"add": function}),
    "the only reaction": lambda store, function: ProcessManager("p", tallies(store), function),
    "execute": lambda store, function: tallies(store).execute("1", function),
    "with_lease": lambda store, function: store.with_lease("leader", function),
    "a route's where": lambda store, function: store.route("r", "log", "copy", where=function),
    "a route's transform": lambda store, function: store.route("r", "log", "copy", transform=function),
    "a route's segment": lambda store, function: store.route("r", "log", "copy", segment=function),
    "an upcast": lambda store, function: event("x", version=2, upcast={1: function}),
    "Reduce": lambda store, function: Reduce(function, 0),
    "Latest": lambda store, function: Latest(function),
    "Search": lambda store, function: Search(function),
    "Index": lambda store, function: Index(function),
    "Links": lambda store, function: Links(function),
    "Vectors": lambda store, function: Vectors(function, 3),
    "a view's setup": lambda store, function: view_with(store, "setup", function),
    "a view's load": lambda store, function: view_with(store, "load", function),
    "a view's apply": lambda store, function: view_with(store, "apply", function),
    "a view's erase": lambda store, function: view_with(store, "erase", function),
    "a part of a program": lambda store, function: Program(store, [part_with(function)]),
    "a part that is led": lambda store, function: Program(store, [], led=[part_with(function)]),
}
ITERATED = {"Index", "Links", "Vectors"}
"""Views that iterate the result of their function."""


@pytest.fixture
def store() -> Store:
    store = streamkit.connect(f"memory://{uuid4().hex}").store(uuid4())
    store.produce("log", "s", [Record(b"1"), Record(b"2")])
    store.queue("jobs").put(b"job")
    return store


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("door", DOORS)
def test_a_function_that_nobody_would_await_is_refused_when_it_is_handed_in(
    store: Store, door: str, shape: str
) -> None:
    with pytest.raises(TypeError, match=REFUSED):
        DOORS[door](store, SHAPES[shape])
    assert store.queue("jobs").run(lambda delivery: None, drain=True).acked == 1
    assert store.group("log", "g").run(lambda delivery: None, drain=True).acked == 2


@pytest.mark.parametrize("door", DOORS)
def test_a_generator_function_is_refused_where_nobody_would_iterate_it(store: Store, door: str) -> None:
    if door in ITERATED:
        DOORS[door](store, generator)
        return
    with pytest.raises(TypeError, match="generator function"):
        DOORS[door](store, generator)


@pytest.mark.parametrize("door", DOORS)
def test_what_cannot_be_called_is_refused(store: Store, door: str) -> None:
    with pytest.raises(TypeError, match=r"is a function of|has a name and a method|Aggregate"):
        DOORS[door](store, 5)


@pytest.mark.parametrize("kind", ["a coroutine function", "an async generator function", "a generator function"])
def test_a_method_that_nobody_would_await_is_no_event(kind: str) -> None:
    functions = (coroutine, async_generator, generator)
    function = next(one for one in functions if one.__name__ in kind.replace(" ", "_"))
    for decorate in (event, event("other name")):
        with pytest.raises(TypeError, match=REFUSED):
            decorate(function)  # type: ignore[operator]


async def later() -> str:
    return "done"


class Awaited:
    def __await__(self) -> Any:
        return later().__await__()


LATE: dict[str, Callable[[], Any]] = {
    "a coroutine": later,
    "an object to await": Awaited,
    "an async generator": async_generator,
    "a generator": generator,
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_handler_that_returns_an_awaitable_has_failed(store: Store, late: str, concurrency: int) -> None:
    group = store.group("log", "g", max_deliveries=1)
    done = group.run(lambda delivery: LATE[late](), concurrency=concurrency, drain=True)
    assert (done.acked, done.failed) == (0, 2)
    assert len(group.dead_letters()) == 2
    assert store.queue("jobs").run(lambda delivery: LATE[late](), concurrency=concurrency, drain=True).acked == 0


@pytest.mark.parametrize("late", LATE)
def test_a_reaction_that_returns_an_awaitable_has_failed(store: Store, late: str) -> None:
    tallies(store).execute("1", lambda tally: tally.add(1))
    manager = ProcessManager("p", tallies(store), lambda happened: LATE[late](), max_deliveries=1)
    assert (manager.catch_up().acked, len(manager.group.dead_letters())) == (0, 1)


def test_an_async_command_of_a_reaction_is_refused_before_anything_is_looked_up(store: Store) -> None:
    tallies(store).execute("1", lambda tally: tally.add(1))
    refused: list[str] = []

    def react(happened: DomainEvent) -> None:
        with pytest.raises(TypeError, match=REFUSED):
            happened.execute(tallies(store), "2", coroutine)
        refused.append(happened.name)

    ProcessManager("p", tallies(store), react).catch_up()
    assert refused == ["add"]


@pytest.mark.parametrize("late", LATE)
def test_a_command_that_returns_an_awaitable_writes_nothing(store: Store, late: str) -> None:
    def command(tally: Tally) -> Any:
        tally.add(1)
        return LATE[late]()

    with pytest.raises(TypeError, match="its work was not done"):
        tallies(store).execute("1", command)
    assert "1" not in tallies(store)


@pytest.mark.parametrize("late", LATE)
def test_an_event_whose_method_returns_an_awaitable_is_not_recorded(late: str) -> None:
    class Late(Aggregate):
        @event
        def happen(self) -> Any:
            return LATE[late]()

    aggregate = Late()
    with pytest.raises(TypeError, match="its work was not done"):
        aggregate.happen()
    assert (aggregate.pending, aggregate.version) == ((), 0)


@pytest.mark.parametrize("late", LATE)
def test_no_awaitable_leaves_a_lease(store: Store, late: str) -> None:
    with pytest.raises(TypeError, match="its work was not done"):
        store.with_lease("leader", lambda lease: LATE[late]())
    assert store.with_lease("leader", lambda lease: 7) == 7


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("what", ["where", "transform", "segment"])
def test_a_route_whose_function_returns_an_awaitable_is_paused(store: Store, what: str, late: str) -> None:
    functions: dict[str, Any] = {what: lambda entry: LATE[late]()}
    status = store.route("r", "log", "copy", **functions).catch_up()
    assert (status.state, status.copied) == ("paused", 0)
    assert status.error is not None
    assert "its work was not done" in status.error.error
    assert list(store.consume_space("copy")) == []


@pytest.mark.parametrize("late", LATE)
def test_a_view_whose_apply_returns_an_awaitable_is_paused(store: Store, late: str, tmp_path: Path) -> None:
    view = Silent()
    view.apply = lambda db, entries: LATE[late]()  # type: ignore[method-assign]
    status = store.view("silent", view, spaces=["log"], path=tmp_path / "silent.db").catch_up()
    assert (status.state, status.entries) == ("paused", 0)
    assert status.error is not None
    assert "its work was not done" in status.error.error


@pytest.mark.parametrize("late", LATE)
def test_a_part_whose_run_returns_an_awaitable_has_failed(store: Store, late: str) -> None:
    program = Program(store, [part_with(lambda stop=None, *, seconds=None: LATE[late]())])
    program.run(seconds=0.01)
    (part,) = program.status()
    assert "its work was not done" in (part.error or "")


def test_streamkit_aio_awaits_an_async_function_and_refuses_what_it_would_not_iterate() -> None:
    seen: list[str] = []

    async def handle(*arguments: Any) -> None:
        seen.append("handled")

    async def forgets_to_await(*arguments: Any) -> Any:
        return later()

    async def work() -> None:
        async with streamkit.aio.connect(f"memory://{uuid4().hex}") as client:
            store = client.store(uuid4())
            await store.produce("log", "s", [Record(b"1")])
            queue = await store.queue("jobs")
            group = await store.group("log", "g", max_deliveries=1)
            doors: list[Callable[[Any], Awaitable[Any]]] = [
                lambda function: queue.run(function, drain=True),
                lambda function: group.run(function, drain=True),
                lambda function: store.with_lease("leader", function),
            ]
            for door in doors:
                for wrong in (async_generator, generator):
                    with pytest.raises(TypeError, match="generator function"):
                        await door(wrong)
            assert (await group.run(forgets_to_await, drain=True)).acked == 0
            with pytest.raises(TypeError, match="its work was not done"):
                await store.with_lease("leader", forgets_to_await)
            for handler in (handle, partial(handle, 1)):
                await queue.put(b"job")
                assert (await queue.run(handler, drain=True)).acked == 1
            await store.with_lease("leader", handle)

    asyncio.run(work())
    assert seen == ["handled"] * 3


def test_an_async_query_of_a_view_is_refused() -> None:
    async def work() -> None:
        async with streamkit.aio.connect(f"memory://{uuid4().hex}") as client:
            store = client.store(uuid4())
            await store.produce("log", "s", [Record(b"1")])
            view: Any = await store.view("latest", Latest(lambda entry: entry.segment), spaces=["log"])
            await view.catch_up()
            with pytest.raises(TypeError, match="async function"):
                await view.ask(coroutine)
            with pytest.raises(TypeError, match="its work was not done"):
                await view.ask(lambda db: later())
            assert await view.ask(lambda db: db.execute("select count(*) from latest").fetchone()) == (1,)

    asyncio.run(work())


def test_a_generator_that_is_iterated_in_the_call_is_a_result_like_any_other(store: Store) -> None:
    """Index, Links and Vectors read what their functions yield."""
    index = Index(lambda entry: (key for key in ("a", "b")))
    store.view("index", index, spaces=["log"]).catch_up()
    assert len(index.get("b")) == 2
    assert isinstance(generator(), GeneratorType)


@pytest.mark.parametrize("method", ["setup", "load", "erase"])
def test_no_method_of_a_view_returns_an_awaitable(
    store: Store, method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of `setup` is raised, one of `load` pauses the view, and after one of `erase` it is built anew."""
    view: Any = Silent()
    setattr(view, method, lambda *arguments: later())
    opened = store.view("silent", view, spaces=["log"], path=tmp_path / "silent.db")
    error = ""
    try:
        opened.catch_up()
        store.erase("log", "s", first=1, last=1)
        opened.catch_up()
    except TypeError as raised:
        error = str(raised)
    failure = opened.status().error
    assert "its work was not done" in "".join([error, *([failure.error] if failure else caplog.messages)])


def test_the_advice_fits_the_call() -> None:
    """Only handlers may be coroutines of streamkit.aio."""
    store = streamkit.connect("memory://advice").store(uuid4())
    with pytest.raises(TypeError, match=r"or use streamkit\.aio, which awaits handlers"):
        store.queue("jobs").run(coroutine, seconds=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Use a plain function$"):
        event(coroutine)


def test_a_view_that_is_a_class_is_refused_with_the_fix() -> None:
    with pytest.raises(TypeError, match=r"a view is an instance, not the class View: write View\(\)"):
        streamkit.connect("memory://class").store(uuid4()).view("v", View, ["a"])  # type: ignore[arg-type]


def test_a_program_of_a_client_is_refused() -> None:
    client = streamkit.connect("memory://program")
    view = client.store(uuid4()).view("v", Reduce(lambda state, entry: state, 0), ["a"])
    with pytest.raises(TypeError, match="Program takes a Store, or the `sync` of an AsyncStore, not Client"):
        Program(client, [view])  # type: ignore[arg-type]
