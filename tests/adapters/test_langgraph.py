"""The checkpointer for LangGraph, judged by LangGraph's conformance suite."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, TypedDict
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_places import url_in

pytest.importorskip("langgraph.checkpoint.conformance")

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import streamkit
from streamkit.adapters.langgraph import StreamkitSaver
from streamkit.leases import Lease

PLACES = ("memory", "local", *(("s3", "azure") if EXHAUSTIVE else ()))


@pytest.fixture(params=PLACES)
def url(request: pytest.FixtureRequest) -> str:
    return url_in(request.param, request)


def test_the_conformance_suite_passes(url: str, covered: Callable[[str, int], None]) -> None:
    @checkpointer_test(name="StreamkitSaver")
    async def saver() -> AsyncIterator[StreamkitSaver]:
        async with StreamkitSaver.from_url(url, uuid4()) as made:
            yield made

    report = asyncio.run(validate(saver))
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failures == {}
    assert all(result.passed for result in report.results.values())
    passed = sum(result.tests_passed for result in report.results.values())
    assert passed == 81
    covered("tests of LangGraph's conformance suite", passed)


class State(TypedDict):
    said: Annotated[list[str], lambda before, more: before + more]


def graph(saver: StreamkitSaver) -> Any:
    builder = StateGraph(State)
    builder.add_node("answer", lambda state: {"said": [f"answer {len(state['said'])}"]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def test_a_graph_goes_on_in_another_process(subject: Any) -> None:
    thread: Any = {"configurable": {"thread_id": "thread-1"}}
    for count in range(1, 41):
        store = subject.stranger()
        said = graph(StreamkitSaver(store)).invoke({"said": [f"question {count}"]}, thread)["said"]
        assert len(said) == 2 * count
        store.close()
    history = list(graph(StreamkitSaver(subject.store)).get_state_history(thread))
    assert [len(state.values.get("said", [])) for state in history][:4] == [80, 79, 78, 78]


class SlowSaver(StreamkitSaver):
    """Stores checkpoints after the writes of their tasks, as it happens on a slow store."""

    def put(self, *arguments: Any) -> Any:
        time.sleep(0.1)
        return super().put(*arguments)


def test_writes_that_are_stored_before_their_checkpoint_count() -> None:
    done = []

    def charge(state: State) -> Any:
        done.append("charged")
        return {"said": ["charged"]}

    builder = StateGraph(State)
    builder.add_node("charge", charge)
    builder.add_node("ask", lambda state: {"said": [interrupt("really?")]})
    for node in ("charge", "ask"):
        builder.add_edge(START, node)
        builder.add_edge(node, END)
    with streamkit.connect(f"memory://{uuid4()}") as client, client.store(uuid4()) as store:
        graph, config = builder.compile(checkpointer=SlowSaver(store)), {"configurable": {"thread_id": "t"}}
        graph.invoke({"said": []}, config)
        assert [each.value for task in graph.get_state(config).tasks for each in task.interrupts] == ["really?"]
        assert sorted(graph.invoke(Command(resume="yes"), config)["said"]) == ["charged", "yes"]
        assert done == ["charged"]


@pytest.mark.parametrize("ahead", [-5, 0, 5])
def test_early_writes_count_if_the_clock_of_the_ids_is_wrong(subject: Any, ahead: int) -> None:
    """The clock was set back, or another process commits what this one wrote."""
    saver = StreamkitSaver(subject.store)
    thread: Any = {"thread_id": "t", "checkpoint_ns": ""}
    id = str(UUID(int=uuid6().int + (int(ahead * 1e7 / 4096) << 80)))
    config: Any = {"configurable": {**thread, "checkpoint_id": id}}
    saver.put_writes(config, [("said", "early")], "task")
    saver.put({"configurable": thread}, {**empty_checkpoint(), "id": id}, {}, {})
    assert saver.get_tuple(config).pending_writes == [("task", "said", "early")]


def test_early_writes_outlast_a_prune(subject: Any) -> None:
    saver = StreamkitSaver(subject.store)
    thread = {"thread_id": "t", "checkpoint_ns": ""}
    for id in ("1", "2"):
        saver.put({"configurable": thread}, {**empty_checkpoint(), "id": id}, {}, {})
    config = {"configurable": {**thread, "checkpoint_id": "3"}}
    saver.put_writes(config, [("said", "early")], "task")
    saver.prune(["t"])
    saver.put({"configurable": thread}, {**empty_checkpoint(), "id": "3"}, {}, {})
    assert [each.checkpoint["id"] for each in saver.list({"configurable": thread})] == ["3", "2"]
    assert saver.get_tuple(config).pending_writes == [("task", "said", "early")]


def test_a_thread_is_pruned_after_its_last_checkpoint_was_erased(subject: Any) -> None:
    saver = StreamkitSaver(subject.store)
    thread = {"thread_id": "t", "checkpoint_ns": ""}
    for id in ("1", "2", "3"):
        saver.put({"configurable": thread}, {**empty_checkpoint(), "id": id}, {}, {})
    subject.store.erase("langgraph", "t", first=3, last=3)
    saver.prune(["t"])
    assert [each.checkpoint["id"] for each in saver.list({"configurable": thread})] == ["2"]


def test_early_writes_of_a_subgraph_outlast_a_prune(subject: Any) -> None:
    """Another namespace has a later checkpoint, so the writes are early in their own namespace only."""
    saver = StreamkitSaver(subject.store)

    def put(namespace: str, id: str) -> None:
        saver.put(
            {"configurable": {"thread_id": "t", "checkpoint_ns": namespace}}, {**empty_checkpoint(), "id": id}, {}, {}
        )

    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "sub:1", "checkpoint_id": "2"}}
    put("sub:1", "0")
    put("sub:1", "1")
    saver.put_writes(config, [("said", "early")], "task")
    put("sub:2", "3")
    saver.prune(["t"])
    put("sub:1", "2")
    assert saver.get_tuple(config).pending_writes == [("task", "said", "early")]


def test_several_writes_of_one_call_count_as_in_langgraph(subject: Any) -> None:
    def pending(saver: Any) -> Any:
        config = saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
        saver.put_writes(config, [("__resume__", ["yes"]), ("said", 1), ("__resume__", ["yes", "no"])], "task")
        saver.put_writes(config, [("__error__", "one"), ("said", 2), ("__error__", "two")], "task")
        return saver.get_tuple(config).pending_writes

    wanted = [("task", "__resume__", ["yes", "no"]), ("task", "said", 1), ("task", "__error__", "two")]
    found = pending(StreamkitSaver(subject.store))
    assert sorted(found, key=str) == sorted(wanted, key=str)
    assert sorted(pending(InMemorySaver()), key=str) == sorted(wanted, key=str)


@pytest.mark.parametrize("thread_id", [7, UUID(int=7)], ids=["int", "uuid"])
def test_a_thread_id_is_an_int_or_a_uuid(subject: Any, thread_id: Any) -> None:
    saver = StreamkitSaver(subject.store)
    compiled, thread = graph(saver), {"configurable": {"thread_id": thread_id}}
    with saver.session(thread_id), pytest.raises(streamkit.LeaseNotAcquired), saver.session(str(thread_id)):
        pass
    for said in ("a", "b"):
        compiled.invoke({"said": [said]}, thread)
    as_text: Any = {"configurable": {"thread_id": str(thread_id)}}
    assert compiled.get_state(thread).values == compiled.get_state(as_text).values
    assert len(list(saver.list(thread))) == len(list(saver.list(as_text))) == 6
    saver.copy_thread(thread_id, thread_id.__class__(int=8) if isinstance(thread_id, UUID) else 8)
    saver.prune([thread_id])
    assert compiled.get_state(thread).values["said"] == ["a", "answer 1", "b", "answer 3"]
    saver.delete_thread(thread_id)
    assert saver.get_tuple(thread) is None
    assert len({each.config["configurable"]["thread_id"] for each in saver.list(None)}) == 1


def test_a_thread_without_a_name_is_refused(subject: Any) -> None:
    for thread_id, error in ((None, TypeError), ("", streamkit.InvalidName), ("*", streamkit.InvalidName)):
        with pytest.raises(error, match=r"thread_id is None|segment name .* is not legal"):
            graph(StreamkitSaver(subject.store)).invoke({"said": ["a"]}, {"configurable": {"thread_id": thread_id}})


def test_an_empty_checkpoint_id_is_none(subject: Any) -> None:
    found = []
    for saver in (StreamkitSaver(subject.store), InMemorySaver()):
        thread: Any = {"configurable": {"thread_id": "t"}}
        empty: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": ""}}
        said = graph(saver).invoke({"said": ["a"]}, empty)["said"]
        latest = saver.get_tuple(thread)
        assert latest is not None
        assert saver.get_tuple(empty).checkpoint == latest.checkpoint
        found.append((said, len(list(saver.list(empty))), len(list(saver.list(thread, before=empty)))))
    assert found == [(["a", "answer 1"], 3, 3)] * 2


def test_a_limit_below_0_is_refused(subject: Any) -> None:
    """InMemorySaver finds nothing, and SqliteSaver finds all."""
    saver, thread = StreamkitSaver(subject.store), {"configurable": {"thread_id": "t"}}
    graph(saver).invoke({"said": ["a"]}, thread)
    assert len(list(saver.list(thread, limit=0))) == 0
    assert len(list(saver.list(thread, limit=2))) == 2
    with pytest.raises(ValueError, match=r"0 or more checkpoints, or None for all of them, not -1"):
        saver.list(thread, limit=-1)


class Log(TypedDict):
    log: Annotated[list[str], DeltaChannel(lambda before, more: before + [each for one in more for each in one])]
    count: int


def test_a_snapshot_outlasts_the_steps_that_store_all_values(subject: Any) -> None:
    def history(saver: Any) -> Any:
        builder = StateGraph(Log)
        builder.add_node("count", lambda state: {"count": state["count"] + 1})
        builder.add_edge(START, "count")
        builder.add_conditional_edges("count", lambda state: END if state["count"] % 20 == 0 else "count")
        compiled, thread = builder.compile(checkpointer=saver), {"configurable": {"thread_id": "t"}}
        compiled.update_state(thread, {"log": ["kept"], "count": 0}, as_node=START)
        for _ in range(3):
            assert compiled.invoke({"count": 1}, thread)["log"] == ["kept"]
        return [(state.values, state.next, state.metadata) for state in compiled.get_state_history(thread)]

    assert history(StreamkitSaver(subject.store)) == history(InMemorySaver())


def test_a_fork_has_values_of_its_own(subject: Any) -> None:
    compiled = graph(StreamkitSaver(subject.store))
    thread: Any = {"configurable": {"thread_id": "thread-1"}}
    compiled.invoke({"said": ["a"]}, thread)
    fork = compiled.get_state(thread).config
    compiled.invoke({"said": ["b"]}, fork)
    one = compiled.get_state(thread).config
    compiled.invoke({"said": ["c"]}, fork)
    assert compiled.get_state(one).values["said"] == ["a", "answer 1", "b", "answer 3"]
    assert compiled.get_state(thread).values["said"] == ["a", "answer 1", "c", "answer 3"]


def test_forks_that_begin_with_the_same_random_seed_have_values_of_their_own(subject: Any) -> None:
    compiled = graph(StreamkitSaver(subject.store))
    thread: Any = {"configurable": {"thread_id": "thread-1"}}
    compiled.invoke({"said": ["a"]}, thread)
    fork = compiled.get_state(thread).config
    for said in ("b", "c"):
        random.seed(0)
        compiled.invoke({"said": [said]}, fork)
    ends = [state for state in compiled.get_state_history(thread) if not state.next]
    assert [state.values["said"][-2:] for state in ends] == [["c", "answer 3"], ["b", "answer 3"], ["a", "answer 1"]]


def test_pruning_keeps_what_the_newest_checkpoint_needs_and_frees_the_rest(subject: Any) -> None:
    saver = StreamkitSaver(subject.store)
    compiled, thread = graph(saver), {"configurable": {"thread_id": "thread-1"}}
    for count in range(5):
        compiled.invoke({"said": [f"question {count}"]}, thread)
    before = compiled.get_state(thread)
    saver.prune(["thread-1"])
    assert compiled.get_state(thread) == before
    # The last turn: two channels of the newest one are empty, and the saver cannot know that nobody needs them.
    assert len(list(saver.list(thread))) == 3
    assert subject.store.segment_status("langgraph", "thread-1").first_sequence > 20
    compiled.invoke({"said": ["more"]}, thread)
    assert len(compiled.get_state(thread).values["said"]) == 12


def test_pruning_keeps_ancestors_whose_writes_make_a_value(subject: Any) -> None:
    """A channel whose checkpoints hold no value of it, but the writes that lead to it."""
    saver = StreamkitSaver(subject.store)
    config: Any = {"configurable": {"thread_id": "thread-1", "checkpoint_ns": ""}}
    for step in range(4):
        made = empty_checkpoint()
        made["channel_versions"] = {"log": step + 1}
        if step == 1:
            made["channel_values"] = {"log": "snapshot"}
        config = saver.put(config, made, {"source": "loop", "step": step + 1}, {"log": step + 1})
        saver.put_writes(config, [("log", step)], f"task-{step}")
    before = saver.get_delta_channel_history(config=config, channels=["log"])
    assert before["log"]["seed"] == "snapshot"
    saver.prune(["thread-1"])
    assert len(list(saver.list({"configurable": {"thread_id": "thread-1"}}))) == 3
    assert saver.get_delta_channel_history(config=config, channels=["log"]) == before


def test_deleting_a_run_keeps_what_was_written_meanwhile(subject: Any) -> None:
    class Late(StreamkitSaver):
        """Another process writes when this one has read the thread."""

        def _known(self, thread: str) -> Any:
            found = super()._known(thread)
            put(StreamkitSaver(subject.store), "new")
            return found

    def put(saver: StreamkitSaver, run: str) -> None:
        config: Any = {"configurable": {"thread_id": "thread-1", "checkpoint_ns": ""}}
        saver.put(config, empty_checkpoint(), {"source": "loop", "step": 1, "run_id": run}, {})

    put(StreamkitSaver(subject.store), "old")
    Late(subject.store).delete_for_runs(["old"])
    found = list(StreamkitSaver(subject.store).list({"configurable": {"thread_id": "thread-1"}}))
    assert [each.metadata["run_id"] for each in found] == ["new"]


@pytest.fixture
def cramped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A store whose commits hold at most 100 KB, and a saver that knows it."""
    monkeypatch.setattr("streamkit.adapters.langgraph._MOST", 50_000)
    with streamkit.connect(f"memory://{uuid4()}", max_transaction_bytes=100_000) as client:
        yield client.store(uuid4())


def large(saver: StreamkitSaver, steps: int = 12, thread: str = "thread-1") -> Any:
    """A thread of many channels, which together do not fit into one commit. Returns its last config."""
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    made = empty_checkpoint()
    for step in range(steps):
        channel = f"channel-{step}"
        made = {
            **empty_checkpoint(),
            "channel_versions": {**made["channel_versions"], channel: 1},
            "channel_values": {**made["channel_values"], channel: os.urandom(20_000)},
        }
        # Its steps are those at which a checkpoint is stored with all its values.
        config = saver.put(config, made, {"source": "loop", "step": 50 * step}, {channel: 1})
        saver.put_writes(config, [("writes", os.urandom(20_000))], f"task-{step}")
    return config


def test_a_thread_that_does_not_fit_into_one_commit_is_pruned_and_copied(cramped: Any) -> None:
    saver = StreamkitSaver(cramped)
    config = large(saver)
    thread: Any = {"configurable": {"thread_id": "thread-1"}}
    before = list(saver.list(thread))
    saver.copy_thread("thread-1", "thread-2")
    copied = list(saver.list({"configurable": {"thread_id": "thread-2"}}))
    assert [each.checkpoint for each in copied] == [each.checkpoint for each in before]
    assert [each.pending_writes for each in copied] == [each.pending_writes for each in before]
    saver.prune(["thread-1"])
    assert [(each.checkpoint, each.pending_writes) for each in saver.list(thread)] == [
        (before[0].checkpoint, before[0].pending_writes)
    ]
    assert saver.get_tuple(config) == saver.get_tuple(thread)
    assert cramped.segment_status("langgraph", "thread-1").first_sequence > 24


class Killed(StreamkitSaver):
    """Is killed at one of its commits."""

    def __init__(self, store: Any, stop: int) -> None:
        super().__init__(store)
        self._left = stop

    def _append(self, *arguments: Any, **options: Any) -> int:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return super()._append(*arguments, **options)


@pytest.mark.parametrize("stop", range(1, 8))
def test_a_prune_or_copy_that_is_killed_changes_nothing_and_can_be_repeated(cramped: Any, stop: int) -> None:
    saver = StreamkitSaver(cramped)
    config = large(saver)
    threads: list[Any] = [{"configurable": {"thread_id": f"thread-{number}"}} for number in (1, 2)]
    before = list(saver.list(threads[0]))
    for action in (
        lambda: Killed(cramped, stop).prune(["thread-1"]),
        lambda: Killed(cramped, stop).copy_thread("thread-1", "thread-2"),
    ):
        with pytest.raises(KeyboardInterrupt):
            action()
    assert list(saver.list(threads[0])) == before
    assert saver.get_tuple(threads[0]) == before[0]
    assert list(saver.list(threads[1])) == []
    saver.put_writes(config, [("late", 1)], "task-late")
    before = list(saver.list(threads[0]))
    saver.copy_thread("thread-1", "thread-2")
    saver.prune(["thread-1"])
    assert list(saver.list(threads[0])) == before[:1]
    assert [each.checkpoint for each in saver.list(threads[1])] == [each.checkpoint for each in before]


@pytest.mark.parametrize("stop", range(2, 8))
def test_a_copy_has_no_part_of_an_earlier_copy_that_was_killed(cramped: Any, stop: int) -> None:
    saver = StreamkitSaver(cramped)
    large(saver, thread="thread-1")
    large(saver, thread="thread-2")
    with pytest.raises(KeyboardInterrupt):
        Killed(cramped, stop).copy_thread("thread-1", "thread-3")
    saver.copy_thread("thread-2", "thread-3")
    source, target = (
        [each.checkpoint["id"] for each in saver.list({"configurable": {"thread_id": thread}})]
        for thread in ("thread-2", "thread-3")
    )
    assert target == source


def test_a_session_keeps_others_out(subject: Any) -> None:
    saver, other = StreamkitSaver(subject.store), StreamkitSaver(subject.stranger())
    thread: Any = {"configurable": {"thread_id": "thread-1"}}
    with saver.session("thread-1"):
        graph(saver).invoke({"said": ["a"]}, thread)
        with pytest.raises(streamkit.LeaseNotAcquired), other.session("thread-1"):
            pass
        with other.session("thread-2"):
            pass
    with other.session("thread-1"):
        assert len(graph(other).invoke({"said": ["b"]}, thread)["said"]) == 4


async def _waiting(saver: StreamkitSaver, thread_id: str) -> int:
    async with saver.session(thread_id, wait=60):
        thread: Any = {"configurable": {"thread_id": thread_id}}
        return len((await graph(saver).ainvoke({"said": ["a"]}, thread))["said"])


def test_waiting_for_a_session_blocks_neither_the_event_loop_nor_its_threads(subject: Any) -> None:
    savers = [StreamkitSaver(subject.stranger()) for _ in range(40)]

    async def run() -> list[int]:
        async with StreamkitSaver(subject.store).session("thread-1") as lease:
            waiting = [asyncio.ensure_future(_waiting(saver, "thread-1")) for saver in savers]
            await asyncio.sleep(0.2)
            assert not any(task.done() for task in waiting)
            for task in waiting[4:]:
                task.cancel()
            assert await asyncio.to_thread(lambda: lease.token) > 0
        await asyncio.wait(waiting[4:])
        return await asyncio.gather(*waiting[:4])

    assert sorted(asyncio.run(run())) == [2, 4, 6, 8]
    with StreamkitSaver(subject.store).session("thread-1", wait=60):
        pass


def test_a_session_that_is_cancelled_while_it_is_granted_is_given_back(
    subject: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted, go_on, enter = threading.Event(), threading.Event(), Lease.__enter__

    def slow(lease: Lease) -> Lease:
        found = enter(lease)
        granted.set()
        go_on.wait(60)
        return found

    async def run() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Lease, "__enter__", slow)
            task = asyncio.ensure_future(_waiting(StreamkitSaver(subject.store), "thread-1"))
            assert await asyncio.to_thread(granted.wait, 60)
            task.cancel()
            await asyncio.wait([task])
            go_on.set()
        async with StreamkitSaver(subject.store).session("thread-1", wait=60):
            pass

    asyncio.run(run())


def test_a_run_that_was_cancelled_twice_hides_no_later_session(subject: Any) -> None:
    """A web framework cancels a coroutine again and again. LangGraph then leaves the tasks that store checkpoints."""
    waiting, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    class Late(StreamkitSaver):
        def put(self, *arguments: Any) -> Any:
            waits = arguments[2]["step"] == 1
            if waits:
                waiting.set()
                go_on.wait(60)
            try:
                return super().put(*arguments)
            finally:
                if waits:
                    ended.set()

    late, other, thread = Late(subject.store), StreamkitSaver(subject.stranger()), {"configurable": {"thread_id": "t"}}

    async def answer() -> None:
        async with late.session("t"):
            await graph(late).ainvoke({"said": ["cancelled"]}, thread)

    async def run() -> None:
        task = asyncio.ensure_future(answer())
        assert await asyncio.to_thread(waiting.wait, 60)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0.01)
        async with other.session("t", wait=60):
            await graph(other).ainvoke({"said": ["later"]}, thread)
        go_on.set()
        assert await asyncio.to_thread(ended.wait, 60)

    asyncio.run(run())
    assert graph(other).get_state(thread).values["said"] == ["cancelled", "later", "answer 2"]


def test_a_run_outside_a_session_is_not_held_up_by_an_ended_one(subject: Any) -> None:
    saver, other, thread = (
        StreamkitSaver(subject.store),
        StreamkitSaver(subject.stranger()),
        {"configurable": {"thread_id": "t"}},
    )
    for each in (saver, other):
        with each.session("t"):
            graph(each).invoke({"said": ["a"]}, thread)
    assert len(graph(saver).invoke({"said": ["b"]}, thread)["said"]) == 6


def test_a_conversation_of_100_messages_takes_few_requests() -> None:
    with streamkit.connect(f"memory://{uuid4()}?remote=1") as client:
        store = client.store(uuid4())
        thread: Any = {"configurable": {"thread_id": "thread-1"}}
        for count in range(50):
            graph(StreamkitSaver(store)).invoke({"said": [f"question {count}"]}, thread)
        writes = store.statistics().requests["put"]
        assert writes <= 50 * 6, "three checkpoints a turn, and the writes of its two tasks"
        fresh = client.store(store.id)
        before = dict(fresh.statistics().requests)
        assert len(graph(StreamkitSaver(fresh)).get_state(thread).values["said"]) == 100
        after = fresh.statistics().requests
        reads = sum(after[kind] - before[kind] for kind in ("get", "read", "scan") if kind in after)
        assert reads <= 5


def test_a_saver_of_something_else_than_a_store_is_refused() -> None:
    wrong: Any = "memory://agents"
    with pytest.raises(TypeError, match=r"takes a Store, .*; StreamkitSaver\.from_url takes a URL, not str"):
        StreamkitSaver(wrong)
