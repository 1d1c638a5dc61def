"""Priorities: in a busy process requests of a lower one wait longer, in order, and nothing is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fix_serve import Limits, Served

from streamkit import Record
from streamkit.serve import gate as gate_module
from streamkit.serve.access import Access
from streamkit.serve.gate import Gate
from streamkit.serve.keys import KeyFile
from streamkit.serve.priorities import Rule, Rules

PATIENCE = 60.0


@contextmanager
def burning(served: Served) -> Iterator[None]:
    """The process has no time left: its event loop is late all the time."""
    loop = served.application.service._loop
    assert loop is not None
    end = threading.Event()

    def burn() -> None:
        until = time.perf_counter() + 0.05
        while time.perf_counter() < until:
            pass
        if not end.is_set():
            loop.call_later(0.001, burn)

    loop.call_soon_threadsafe(burn)
    try:
        yield
    finally:
        end.set()


class Crowd:
    """Threads that send requests of two kinds one after the other, until each of the later ones has sent its part."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.statuses: list[int] = []

    def _thread(self, kind: str, ask: Callable[[], Any], goes_on: Callable[[int], bool]) -> threading.Thread:
        taken = self.seconds.setdefault(kind, [])

        def run() -> None:
            count = 0
            while goes_on(count):
                begun = time.monotonic()
                self.statuses.append(ask().status)
                taken.append(time.monotonic() - begun)
                count += 1

        return threading.Thread(target=run)

    def run(self, urgent: Callable[[], Any], later: Callable[[], Any], is_busy: Callable[[], bool]) -> None:
        end = threading.Event()
        waiting = [self._thread("later", later, lambda count: count < 2) for _ in range(4)]
        others = [self._thread("urgent", urgent, lambda _: not end.is_set()) for _ in range(4)]
        for thread in others:
            thread.start()
        while not is_busy():
            time.sleep(0.001)
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join(PATIENCE)
        end.set()
        for thread in others:
            thread.join(PATIENCE)

    def mean(self, kind: str) -> float:
        return sum(self.seconds[kind]) / len(self.seconds[kind])


def test_requests_that_wait_go_on_by_priority_and_then_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_LONGEST", 3600.0)
    monkeypatch.setattr(gate_module, "_STEP", 3600.0)

    async def main() -> None:
        gate, order = Gate(Limits()), []
        high = Access(priority=10)
        for _ in range(16):
            gate.enter(high)

        async def low(name: str, priority: int) -> None:
            access = Access(priority=priority)
            gate.enter(access)
            if gate.must_wait(priority):
                await gate.wait(priority)
            order.append(name)
            await asyncio.sleep(0)
            gate.leave(access)

        names = [("a", -5), ("b", 0), ("c", -5), ("d", 3), ("e", 0), ("f", 10), ("g", 20)]
        tasks = [asyncio.ensure_future(low(name, priority)) for name, priority in names]
        await asyncio.sleep(0.01)
        assert sorted(order) == ["f", "g"], "nobody of their priority or above is before them"
        assert gate.waiting == 5
        tasks[4].cancel()
        await asyncio.sleep(0)
        assert gate.waiting == 4
        for _ in range(16):
            assert len(order) == 2 or gate.requests < 22
            gate.leave(high)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order[2:] == ["d", "b", "a", "c"]
        gate.leave(Access(priority=0))  # of the one that was cancelled
        assert (gate.requests, gate.waiting, gate._present) == (0, 0, {})

    asyncio.run(main())


def test_a_request_waits_no_longer_than_its_priority_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_STEP", 0.0001)

    async def main() -> None:
        gate = Gate(Limits())
        for _ in range(16):
            gate.enter(Access(priority=10))
        for priority in (9, -100):
            gate.enter(Access(priority=priority))
            assert gate.must_wait(priority)
            await asyncio.wait_for(gate.wait(priority), PATIENCE)
        assert gate.requests == 18

    asyncio.run(main())


def under_load(served: Served, urgent: Callable[[], Any], later: Callable[[], Any]) -> Crowd:
    """Have both kinds of requests come to a process without time: the later ones wait longer, and all are handled."""
    crowd = Crowd()
    with burning(served):
        crowd.run(urgent, later, lambda: served.application.service.gate.is_busy)
    assert set(crowd.statuses) == {201}
    assert len(crowd.seconds["later"]) == 8
    assert crowd.mean("urgent") < crowd.mean("later")
    gate = served.application.service.gate
    while gate.requests:
        time.sleep(0.001)
    assert gate.waiting == 0
    return crowd


def test_under_load_keys_of_a_lower_priority_wait_longer_and_nothing_is_lost(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    made = {name: keys.create(["read", "write"], priority=number) for name, number in (("urgent", 30), ("later", -30))}
    served = Served("memory://priorities", keys=keys.path)

    def asking(name: str) -> Callable[[], Any]:
        headers = {"Authorization": f"Bearer {made[name]}"}
        return lambda: served.ask("POST", f"spaces/s/segments/{name}/entries", {"text": "x"}, headers)

    try:
        crowd = under_load(served, asking("urgent"), asking("later"))
        for kind, taken in crowd.seconds.items():
            assert served.store.segment_status("s", kind).last_sequence == len(taken)
    finally:
        served.close()


def test_under_load_spaces_of_a_lower_priority_wait_longer(serve: Callable[..., Served]) -> None:
    served = serve()
    rules = {"spaces": {"urgent": {"priority": 30}, "later": {"priority": -30}}}
    assert served.ask("PUT", "priorities", rules).status == 200

    def asking(space: str) -> Callable[[], Any]:
        return lambda: served.ask("POST", f"spaces/{space}/segments/a/entries", {"text": "x"})

    under_load(served, asking("urgent"), asking("later"))


def priority_of(served: Served, method: str, path: str, access: Access | None = None) -> int:
    """The priority that a request would have."""
    from streamkit.serve.request import Request

    application = served.application
    scope: Any = {"method": method, "headers": [], "query_string": b""}
    request = Request(application.service, scope, None, None)  # type: ignore[arg-type]
    route, request.parts = application.router.find(method, path.encode())
    request.access = access or Access()
    return application.service.priorities.of(request, route)


def test_priorities_are_by_number_and_by_recency_of_spaces_groups_and_keys(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    now = [1_000.0]
    monkeypatch.setattr("streamkit.serve.priorities.time.monotonic", lambda: now[0])
    recent = Rule(by_recency=True)
    rules = Rules(
        spaces={"s": Rule(priority=5), "r": recent},
        groups={"s": {"g": Rule(priority=-7), "h": recent}},
        keys={"known": Rule(priority=2)},
    )
    served.application.service.priorities.know(served.id, rules)
    base = "/v1/stores/_/spaces"
    assert priority_of(served, "GET", f"{base}/other/entries") == 0
    assert priority_of(served, "GET", f"{base}/s/entries") == 5
    assert priority_of(served, "POST", f"{base}/s/groups/g/receive") == -2
    assert priority_of(served, "GET", f"{base}/s/entries", Access(id="known", priority=10)) == 17
    assert priority_of(served, "POST", "/v1/stores/_/queues/s/receive") == 5
    assert priority_of(served, "GET", "/healthz", Access(priority=3)) == 3
    read = f"{base}/r/entries"
    assert [priority_of(served, "POST", read) for _ in range(2)] == [0, 0], "only a read is a use of a space"
    assert [priority_of(served, "GET", read) for _ in range(2)] == [0, 100]
    now[0] += 40
    assert priority_of(served, "POST", read) == 60
    now[0] += 1_000
    assert priority_of(served, "POST", read) == 0
    assert [priority_of(served, "POST", f"{base}/s/groups/h/receive") for _ in range(2)] == [5, 105]


def test_another_process_follows_the_priorities_once_it_is_busy(make_url: Callable[[str], str]) -> None:
    here, there = Served(make_url("local")), Served(make_url("local"))
    there.application.service.own_store = here.id
    try:
        rules = {"spaces": {"s": {"priority": 5}}, "groups": {}, "keys": {}}
        assert here.ask("GET", "priorities").json == {"spaces": {}, "groups": {}, "keys": {}}
        put = here.ask("PUT", "priorities", rules)
        assert put.json["spaces"] == {"s": {"priority": 5, "by_recency": False}}
        assert there.ask("GET", "priorities").json == put.json
        assert priority_of(here, "GET", "/v1/stores/_/spaces/s/entries") == 5
        there.store.produce("s", "a", [Record(b"1")])
        there.application.service.gate._lag = 1.0
        there.ask("GET", "spaces/s/entries")
        while priority_of(there, "GET", "/v1/stores/_/spaces/s/size") != 5:
            time.sleep(0.01)
        for wrong in ({"spaces": {"s": {"priority": 1001}}}, {"spaces": {"s": 5}}, {"space": {}}):
            assert here.ask("PUT", "priorities", wrong).status == 400
        assert here.ask("GET", "priorities").json == put.json
    finally:
        here.close()
        there.close()


def test_topics_have_the_priorities_of_their_configuration(serve: Callable[..., Served]) -> None:
    served = serve(topics=True)
    served.ask("PUT", "/v0/topics/low", {"priority": -50})
    served.ask("PUT", "/v0/topics/auto", {})
    assert priority_of(served, "POST", "/v0/topics/low/diff") == -50
    assert priority_of(served, "POST", "/v0/topics/auto/diff") == 0
    served.ask("POST", "/v0/topics/auto/diff", {})
    assert priority_of(served, "POST", "/v0/topics/auto/diff") > 900
    served.ask("PUT", "/v0/topics/auto", {"auto_priority": False})
    assert priority_of(served, "POST", "/v0/topics/auto/diff") == 0
