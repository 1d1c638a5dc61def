"""Groups and queues over HTTP: any process receives, any process settles, and a delivery that a client drops comes
back."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fix_serve import Limits, Served

from streamkit import Record

GROUP = "spaces/orders/groups/billing"
QUEUE = "queues/jobs"


def put(served: Served, count: int) -> None:
    served.store.produce("orders", "a", [Record(b'{"n":%d}' % number) for number in range(1, count + 1)])


def sequences(answer: Any) -> list[int]:
    return [each["entry"]["sequence"] for each in answer["deliveries"]]


def acks(answer: Any, action: str = "ack") -> list[dict[str, Any]]:
    return [{"receipt": each["receipt"], "action": action} for each in answer["deliveries"]]


@pytest.fixture
def two(make_url: Callable[[str], str]) -> Iterator[tuple[Served, Served]]:
    """Two servers of the same store, as two processes would be."""
    one, other = Served(make_url("local")), Served(make_url("local"))
    other.application.service.own_store = one.id
    yield one, other
    one.close()
    other.close()


def test_a_group_is_made_read_changed_listed_and_deleted(served: Served) -> None:
    put(served, 3)
    made = served.ask("PUT", GROUP, {"ack_timeout": 60, "lanes": 2})
    assert (made.status, made.json["settings"]["lanes"], made.json["lag"]) == (201, 2, 3)
    assert served.ask("PUT", GROUP, {"ack_timeout": 60}).status == 200
    assert served.ask("PUT", GROUP).status == 200
    refused = served.ask("PUT", GROUP, {"ack_timeout": 61})
    assert (refused.status, refused.json["type"]) == (409, "urn:streamkit:group-exists")
    assert served.ask("PATCH", GROUP, {"ack_timeout": 5}).json["settings"]["ack_timeout"] == 5
    listed = served.ask("GET", "spaces/orders/groups").json
    assert [group["name"] for group in listed["groups"]] == ["billing"]
    assert served.ask("GET", listed["groups"][0]["href"]).json["unread"] == 3
    assert served.ask("DELETE", GROUP).status == 204
    assert served.ask("GET", GROUP).status == 404
    for method, path, body in (("POST", "receive", {}), ("POST", "settle", {"settle": []}), ("GET", "dead", None)):
        assert served.ask(method, f"{GROUP}/{path}", body).status == 404


def test_deliveries_are_settled_in_every_way_at_another_process(two: tuple[Served, Served]) -> None:
    here, there = two
    put(here, 6)
    here.ask("PUT", GROUP)
    got = here.ask("POST", f"{GROUP}/receive", {"consumer": "worker-1"}).json
    assert sequences(got) == [1, 2, 3, 4, 5, 6]
    first = got["deliveries"][0]
    assert (first["attempt"], first["consumer"], first["entry"]["json"]) == (1, "worker-1", {"n": 1})
    receipts = [each["receipt"] for each in got["deliveries"]]
    answer = there.ask(
        "POST",
        f"{GROUP}/settle",
        {
            "settle": [
                {"receipt": receipts[0]},
                {"receipt": receipts[1], "action": "nack", "delay": 3600, "error": "no"},
                {"receipt": receipts[2], "action": "extend", "seconds": 3600},
                {"receipt": receipts[3], "action": "reject", "reason": "unreadable"},
                {"receipt": receipts[4], "action": "release"},
                {"receipt": receipts[3]},
            ]
        },
    )
    assert answer.status == 200
    settled = answer.json["settled"]
    assert [each["lost"] for each in settled] == [False] * 5 + [True]
    assert settled[2]["deadline"] > first["deadline"]
    status = there.ask("GET", GROUP).json
    assert [status[name] for name in ("acked", "pending", "ready", "delayed", "dead")] == [1, 2, 1, 1, 1]
    pending = there.ask("GET", f"{GROUP}/pending?consumer=worker-1").json["pending"]
    assert [each["entry"]["sequence"] for each in pending] == [3, 6]
    (dead,) = there.ask("GET", f"{GROUP}/dead").json["dead"]
    assert (dead["reason"], dead["entry"]["sequence"]) == ("unreadable", 4)
    assert there.ask("POST", f"{GROUP}/redrive", {"ids": [dead["id"]]}).json == {"redriven": 1}
    assert here.ask("POST", f"{GROUP}/redrive").json == {"redriven": 0}
    assert sorted(sequences(there.ask("POST", f"{GROUP}/receive", {}).json)) == [4, 5]


def test_one_request_settles_and_receives(served: Served) -> None:
    put(served, 25)
    served.ask("PUT", GROUP)
    done: list[int] = []
    settle: list[dict[str, Any]] = []
    for _ in range(4):
        answer = served.ask("POST", f"{GROUP}/receive", {"limit": 10, "settle": settle}).json
        assert not any(each["lost"] for each in answer["settled"])
        settle = acks(answer)
        done += sequences(answer)
    assert sorted(done) == list(range(1, 26))
    assert served.ask("GET", GROUP).json["lag"] == 0


def test_a_receive_waits_for_what_comes_and_ends_when_the_process_drains(serve: Callable[..., Served]) -> None:
    served = serve()
    served.ask("PUT", GROUP)
    connection = served.connection()
    connection.request("POST", f"/v1/stores/_/{GROUP}/receive", b'{"wait":30}', {"Content-Type": "application/json"})
    put(served, 1)
    assert b'"sequence":1' in connection.getresponse().read()
    connection.request("POST", f"/v1/stores/_/{GROUP}/receive", b'{"wait":30}', {"Content-Type": "application/json"})
    while not served.application.service.waiters:
        served.ask("GET", "/healthz")
    loop = served.application.service._loop
    assert loop is not None
    loop.call_soon_threadsafe(served.application.service.drain)
    response = connection.getresponse()
    assert (response.status, response.read()) == (200, b'{"deliveries":[],"settled":[]}')
    connection.close()


def test_a_receive_whose_client_leaves_takes_nothing(served: Served) -> None:
    served.ask("PUT", GROUP)
    leaving = socket.create_connection(("127.0.0.1", served.port))
    body = b'{"wait":30}'
    leaving.sendall(
        b"POST /v1/stores/_/%b/receive HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (GROUP.encode(), len(body), body)
    )
    waiters = served.application.service.waiters
    while not waiters:
        served.ask("GET", "/healthz")
    leaving.close()
    while waiters:
        served.ask("GET", "/healthz")
    put(served, 1)
    got = served.ask("POST", f"{GROUP}/receive", {"wait": 30}).json
    assert (sequences(got), got["deliveries"][0]["attempt"]) == ([1], 1)


def test_pushed_deliveries_come_as_room_is_made_and_go_back_when_the_client_leaves(two: tuple[Served, Served]) -> None:
    here, there = two
    put(here, 5)
    here.ask("PUT", GROUP, {"lanes": 1})
    events = here.events(f"{GROUP}/deliveries?limit=2&consumer=watcher")
    first = events.until("deliveries")[-1].data
    assert [each["entry"]["sequence"] for each in first] == [1, 2]
    there.ask("POST", f"{GROUP}/settle", {"settle": [{"receipt": first[0]["receipt"]}]})
    second = events.until("deliveries")[-1].data
    assert [each["entry"]["sequence"] for each in second] == [3]
    events.close()
    got: list[int] = []
    while len(got) < 4:
        answer = there.ask("POST", f"{GROUP}/receive", {"wait": 30}).json
        got += sequences(answer)
        assert {each["attempt"] for each in answer["deliveries"]} == {1}, "what was handed back does not count"
    assert sorted(got) == [2, 3, 4, 5]


def test_a_push_says_bye_and_hands_back_when_the_process_drains(two: tuple[Served, Served]) -> None:
    here, there = two
    put(here, 2)
    here.ask("PUT", GROUP)
    events = here.events(f"{GROUP}/deliveries")
    events.until("deliveries")
    loop = here.application.service._loop
    assert loop is not None
    loop.call_soon_threadsafe(here.application.service.drain)
    assert events.until("bye")[-1].data == {"reason": "drain"}
    got: list[int] = []
    while len(got) < 2:
        got += sequences(there.ask("POST", f"{GROUP}/receive", {"wait": 30}).json)
    assert got == [1, 2]


def test_a_queue_takes_jobs_of_all_kinds_and_gives_the_urgent_ones_first(served: Served) -> None:
    assert served.ask("POST", f"{QUEUE}/jobs", {"text": "x"}).status == 404
    made = served.ask("PUT", QUEUE, {"max_deliveries": 2})
    assert (made.status, made.json["settings"]["max_deliveries"]) == (201, 2)
    assert served.ask("POST", f"{QUEUE}/jobs", {"json": {"n": 1}, "metadata": {"by": "web"}}).status == 201
    several = served.ask("POST", f"{QUEUE}/jobs", {"jobs": [{"text": "a"}, {"base64": "/w=="}], "key": "k"})
    assert (several.status, several.json["count"]) == (201, 2)
    assert served.ask("POST", f"{QUEUE}/jobs", {"text": "urgent", "priority": 5}).status == 201
    assert served.ask("POST", f"{QUEUE}/jobs", {"text": "later", "delay": 3600}).status == 201
    assert served.ask("POST", f"{QUEUE}/jobs", {"jobs": []}).status == 200
    answer = served.ask("POST", f"{QUEUE}/receive", {"limit": 10}).json
    payloads = [
        next(each["entry"][kind] for kind in ("json", "text", "base64") if kind in each["entry"])
        for each in answer["deliveries"]
    ]
    assert payloads[0] == "urgent"
    assert sorted(map(str, payloads[1:])) == sorted(["{'n': 1}", "a", "/w=="])
    served.ask("POST", f"{QUEUE}/settle", {"settle": acks(answer)})
    status = served.ask("GET", QUEUE).json
    assert (status["acked"], status["unread"] + status["delayed"]) == (4, 1)
    assert [queue["name"] for queue in served.ask("GET", "queues").json["groups"]] == ["jobs"]
    assert served.ask("DELETE", QUEUE).status == 204
    assert served.ask("GET", QUEUE).status == 404
    assert "jobs" not in [space["name"] for space in served.ask("GET", "spaces").json["spaces"]]


def test_a_job_with_an_idempotency_key_is_added_once(served: Served) -> None:
    served.ask("PUT", QUEUE)
    headers = {"Idempotency-Key": "order-7"}
    first = served.ask("POST", f"{QUEUE}/jobs", {"text": "x"}, headers)
    again = served.ask("POST", f"{QUEUE}/jobs", {"text": "x"}, headers)
    assert (first.status, again.status, again.headers["idempotent-replayed"]) == (201, 201, "true")
    assert served.ask("POST", f"{QUEUE}/jobs", {"text": "y"}, headers).status == 422
    assert served.ask("GET", QUEUE).json["unread"] == 1


def test_a_group_goes_on_elsewhere_after_a_seek(served: Served) -> None:
    put(served, 3)
    served.ask("PUT", GROUP, {"start": "end"})
    assert served.ask("POST", f"{GROUP}/receive", {}).json["deliveries"] == []
    offset = served.ask("GET", "spaces/orders/entries").json["entries"][0]["offset"]
    assert served.ask("POST", f"{GROUP}/seek", {"to": offset}).json["lag"] == 2
    old = served.ask("POST", f"{GROUP}/receive", {}).json
    assert sequences(old) == [2, 3]
    assert served.ask("POST", f"{GROUP}/seek", {"to": "beginning"}).json["lag"] == 3
    assert [each["lost"] for each in served.ask("POST", f"{GROUP}/settle", {"settle": acks(old)}).json["settled"]] == [
        True,
        True,
    ]
    served.ask("PUT", QUEUE)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", GROUP, {"mode": "no"}),
        ("PUT", GROUP, {"lanes": 0}),
        ("PUT", GROUP, {"start": "zz"}),
        ("PUT", GROUP, {"key": "k"}),
        ("PUT", GROUP, {"unknown": 1}),
        ("PUT", "queues/other", {"mode": "exclusive"}),
        ("PATCH", f"{GROUP}there", {"lanes": 3}),
        ("PATCH", f"{GROUP}there", {"ack_timeout": 0}),
        ("POST", f"{GROUP}there/receive", {"limit": 0}),
        ("POST", f"{GROUP}there/receive", {"limit": 1001}),
        ("POST", f"{GROUP}there/receive", {"wait": 31}),
        ("POST", f"{GROUP}there/receive", {"consumer": ""}),
        ("POST", f"{GROUP}there/settle", {"settle": [{"receipt": "x"}]}),
        ("POST", f"{GROUP}there/settle", {"settle": [{"receipt": "1.0.0.1", "action": "no"}]}),
        ("POST", f"{GROUP}there/settle", {"settle": [{"receipt": "1.0.0.1", "action": "extend"}]}),
        ("POST", f"{GROUP}there/settle", {}),
        ("POST", f"{GROUP}there/seek", {"to": "nowhere"}),
        ("GET", f"{GROUP}there/deliveries?limit=0", None),
        ("POST", "queues/there/jobs", {"text": "x", "priority": 101}),
        ("POST", "queues/there/jobs", {"text": "x", "delay": -1}),
        ("POST", "queues/there/jobs", {"text": "x", "jobs": []}),
        ("POST", "queues/there/jobs", {"jobs": [{"text": "x", "sequence": 1}]}),
        ("POST", "queues/there/jobs", {"json": 1, "text": "x"}),
        ("POST", "queues/there/seek", {"to": "end"}),
    ],
)
def test_a_wrong_request_is_refused(serve: Callable[..., Served], method: str, path: str, body: Any) -> None:
    served = serve()
    served.store.group("orders", "billingthere")
    served.store.queue("there")
    answer = served.ask(method, path, body)
    assert answer.status in (400, 404), answer
    assert answer.json["type"].startswith("urn:streamkit:")
    assert answer.json["detail"]


def test_an_exclusive_group_asks_for_the_name_of_its_receiver(served: Served) -> None:
    put(served, 2)
    served.ask("PUT", GROUP, {"mode": "exclusive"})
    assert served.ask("POST", f"{GROUP}/receive", {}).status == 400
    assert served.ask("GET", f"{GROUP}/deliveries", headers={"Accept": "text/event-stream"}).status == 400
    assert sequences(served.ask("POST", f"{GROUP}/receive", {"consumer": "a"}).json) == [1, 2]


def test_settlements_of_one_request_are_limited(serve: Callable[..., Served]) -> None:
    served = serve(limits=Limits(records=2))
    served.ask("PUT", GROUP)
    assert served.ask("POST", f"{GROUP}/settle", {"settle": [{"receipt": "1.0.0.1"}] * 3}).status == 400
