"""Handles of a store: each caller has its own, all share what is behind them."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

import streamkit
from streamkit import Record, Store, StoreClosed


def test_threads_use_a_store_each_in_its_own_with_block(subject: Subject) -> None:
    """Five threads have handles. The first one to finish closed the four others, in an earlier release."""
    barrier = threading.Barrier(5)

    def work(at: int) -> None:
        for number in range(20):
            barrier.wait(30)
            with subject.client.store(subject.id) as store:
                store.produce("space", f"s{at}", [Record(b"x")], expected_sequence=number)

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(work, range(5)))
    assert {at: subject.store.segment_status("space", f"s{at}").last_sequence for at in range(5)} == dict.fromkeys(
        range(5), 20
    )


def test_closing_a_handle_leaves_the_others_open(subject: Subject) -> None:
    one, two = subject.client.store(subject.id), subject.client.store(str(subject.id))
    one.produce("space", "s", [Record(b"1")])
    one.close()
    one.close()
    with pytest.raises(StoreClosed):
        one.peek("space", "s")
    with pytest.raises(StoreClosed):
        one.produce("space", "s", [Record(b"2")])
    assert two.peek("space", "s").payload == b"1"
    two.close()
    subject.store.close()
    assert subject.client.store(subject.id).peek("space", "s").payload == b"1"


def test_a_transaction_of_a_closed_handle_writes_nothing(subject: Subject) -> None:
    store = subject.client.store(subject.id)
    trx = store.transaction("space").__enter__()
    trx.produce("s", [Record(b"1")])
    store.close()
    with pytest.raises(StoreClosed):
        trx.__exit__(None, None, None)
    assert list(subject.store.get_spaces()) == []


def test_statistics_pass_to_another_process(subject: Subject) -> None:
    subject.store.produce("space", "s", [Record(b"1")])
    found = subject.store.statistics()
    copied = pickle.loads(pickle.dumps(found))
    assert (copied, type(copied.requests)) == (found, type(found.requests))


def test_handles_share_what_was_learned_and_close_the_storage_once(make_url: Callable[[str], str]) -> None:
    with streamkit.connect(make_url("remote")) as client:
        id = uuid4()
        with ThreadPoolExecutor(8) as threads:
            stores = list(threads.map(client.store, [id] * 64))
        stores[0].produce("space", "s", [Record(b"1")])
        before = stores[0].statistics().requests["get"]
        stores[1].peek("space", "s")
        assert stores[1].statistics().requests["get"] <= before + 2, "the second handle opened the space again"
        for store in stores[1:]:
            store.close()
        assert stores[0].peek("space", "s").payload == b"1"
        backend = stores[0]._backend
        stores[0].close()
    with pytest.raises(StoreClosed):
        backend.get(b"p", [b"k"])


def _asked(store: Store) -> int:
    return sum(store.statistics().requests.get(kind, 0) for kind in ("get", "read", "scan"))


def test_a_store_without_a_handle_is_not_opened_anew_where_that_takes_requests(make_url: Callable[[str], str]) -> None:
    url, id = make_url("remote"), uuid4()
    with streamkit.connect(url) as client, streamkit.connect(url) as others:
        for number in range(50):
            others.store(id).produce("space", f"s{number % 7}", [Record(b"theirs")])
        before = 0
        for number in range(5):
            with client.store(id) as store:
                assert store.produce("space", "s", [Record(b"ours")]).last_sequence == number + 1
                asked = _asked(store)
                assert number == 0 or asked - before <= 1, "it was opened again"
                before = asked
            others.store(id).produce("space", "s0", [Record(b"theirs")])
            with client.store(id) as store:
                assert store.peek("space", "s0").payload == b"theirs"
                before = _asked(store)


def test_a_store_that_was_deleted_and_made_again_while_it_had_no_handle_is_opened_anew(
    make_url: Callable[[str], str],
) -> None:
    url, id = make_url("remote"), uuid4()
    with streamkit.connect(url) as client, streamkit.connect(url) as others:
        for again in range(4):
            with client.store(id) as store:
                assert list(store.consume_space("space")) == []
                assert store.produce("space", "s", [Record(b"%d" % again)], expected_sequence=0).last_sequence == 1
            others.delete_store(id)
            with client.store(id) as store:
                assert list(store.get_spaces()) == []
                assert store.peek("space", "s").sequence == 0
            if again % 2:
                others.store(id).produce("space", "s", [Record(b"theirs")])
                with client.store(id) as store:
                    assert store.peek("space", "s").payload == b"theirs"
                client.delete_store(id)


def test_a_client_keeps_few_stores_that_nobody_has_a_handle_of(make_url: Callable[[str], str]) -> None:
    with streamkit.connect(make_url("remote")) as client:
        backends = []
        for _ in range(40):
            with client.store(uuid4()) as store:
                store.produce("space", "s", [Record(b"1")])
                backends.append(store._backend)
        closed = 0
        for backend in backends:
            try:
                backend.get(b"p", [b"k"])
            except StoreClosed:
                closed += 1
        assert closed == 24


def test_commits_of_several_handles_go_together(make_url: Callable[[str], str]) -> None:
    """Commits of all handles gather while one is on its way, and become one transaction."""
    with streamkit.connect(make_url("memory")) as client:
        id = uuid4()
        stores = [client.store(id) for _ in range(9)]
        stores[0].produce("space", "s0", [Record(b"first")])
        backend = stores[0]._backend
        put, begun, go = backend.put, threading.Event(), threading.Event()

        def slow(*args: Any, **options: Any) -> Any:
            begun.set()
            assert go.wait(30)
            return put(*args, **options)

        backend.put = slow  # type: ignore[method-assign]
        with ThreadPoolExecutor(9) as threads:
            leader = threads.submit(stores[0].produce, "space", "s0", [Record(b"x")])
            assert begun.wait(30)
            others = [
                threads.submit(store.produce, "space", f"s{at}", [Record(b"x")]) for at, store in enumerate(stores)
            ]
            committer = stores[0]._known("space").committers[0]  # type: ignore[union-attr]
            while len(committer._queue) < len(others) - 1:
                pass
            go.set()
            assert leader.result(30).last_sequence == 2
            assert len({status.result(30).trx.number for status in others}) < len(others)  # type: ignore[union-attr]


FOLLOWERS: dict[str, Callable[[Store], Iterator[Any]]] = {
    "follow_segment": lambda store: store.follow_segment("space", "s", after=1),
    "follow_space": lambda store: store.follow_space("space", offset=store.end_offset("space")),
    "subscribe_to_segment": lambda store: islice(store.subscribe_to_segment("space", "s"), 1, None),
    "subscribe_to_space": lambda store: islice(store.subscribe_to_space("space"), 1, None),
    "of an unknown space": lambda store: store.follow_space("unknown"),
}


@pytest.mark.parametrize("what", ["handle", "client"])
@pytest.mark.parametrize("follower", FOLLOWERS)
def test_closing_wakes_a_follower(make_url: Callable[[str], str], follower: str, what: str) -> None:
    """A follower that waits for an hour ends at once with an error. A follower of another handle goes on."""
    url = make_url("remote")
    with streamkit.connect(url, poll=(3600.0, 3600.0)) as client, ThreadPoolExecutor(2) as threads:
        id = uuid4()
        other, store = client.store(id), client.store(id)
        store.produce("space", "s", [Record(b"1")])
        followed = threads.submit(next, FOLLOWERS[follower](store))
        left = threads.submit(next, FOLLOWERS[follower](other))
        notifier = store._shared.notifier
        while notifier.waiting < 2:
            pass
        (store if what == "handle" else client).close()
        with pytest.raises(StoreClosed):
            followed.result(30)
        if what == "handle":
            assert not left.done()
            client.close()
        with pytest.raises(StoreClosed):
            left.result(30)


def test_a_reader_of_a_closed_handle_ends(subject: Subject) -> None:
    """Begun or not, though the storage is still open for others."""
    for number in range(4):
        subject.store.produce("space", "s", [Record(b"%d" % number)])
    store = subject.client.store(subject.id)
    readers = [
        store.consume_space("space"),
        store.consume_segment("space", "s"),
        store.follow_space("space", timeout=0),
    ]
    readers += [store.consume({"space": None}, limit=3), store.follow_segment("space", "s", timeout=0)]
    for reader in readers[::2]:
        next(reader)
    store.close()
    for reader in readers:
        with pytest.raises(StoreClosed):
            list(reader)


@pytest.mark.parametrize("limit", [0, 15_000])
@pytest.mark.parametrize("reader", ["consume_space", "consume_segment", "consume", "follow_space"])
def test_threads_that_share_an_iterator_get_each_entry_once(subject: Subject, reader: str, limit: int) -> None:
    """The second thread gets a ValueError, as with any running generator. It crashed the process before."""
    for _ in range(200):
        subject.store.produce("space", "s", [Record(b"x")] * 100)
    options: dict[str, Any] = {"limit": limit} if limit else {}
    entries: Iterator[Any] = {
        "consume_space": lambda: subject.store.consume_space("space", **options),
        "consume_segment": lambda: subject.store.consume_segment("space", "s", **options),
        "consume": lambda: subject.store.consume({"space": None}, **options),
        "follow_space": lambda: subject.store.follow_space("space", timeout=0),
    }[reader]()

    def work(_: int) -> list[int]:
        found = []
        while True:
            try:
                found.append(next(entries).sequence)
            except StopIteration:
                return found
            except ValueError:
                continue  # another thread is in it

    with ThreadPoolExecutor(4) as threads:
        found = [sequence for part in threads.map(work, range(4)) for sequence in part]
    assert sorted(found) == list(range(1, (limit if limit and reader != "follow_space" else 20_000) + 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_handles_still_work_after_a_fork_in_the_middle_of_anything(subject: Subject) -> None:
    """The child inherits a client whose lock another thread holds."""
    subject.store.produce("space", "s", [Record(b"1")])
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with subject.client._lock:
            held.set()
            go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with subject.client.store(subject.id) as store:
                code = 0 if store.id == subject.id else 2
            if subject.url.startswith("file"):
                with subject.client.store(subject.id) as store:
                    code = 0 if store.peek("space", "s").payload == b"1" else 3
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
