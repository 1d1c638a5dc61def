"""The interface of topics: streams of events, keys, two processes, and a restart."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fix_serve import PATIENCE, Events, Reply, Served

import streamkit
from harness.deep_search import files_below, found_in
from streamkit.errors import LeaseNotAcquired, Unavailable
from streamkit.serve.access import SCOPES
from streamkit.serve.keys import KeyFile
from streamkit.serve.topics.topics import Topics


@pytest.fixture
def two(make_url: Callable[[str], str]) -> Iterator[tuple[Served, Served]]:
    """Two servers of the same store, as two processes would be."""
    one, other = Served(make_url("local"), topics=True), Served(make_url("local"), topics=True)
    other.application.service.own_store = one.id
    yield one, other
    one.close()
    other.close()


def add(served: Served, topic: str, *data: Any, **more: Any) -> Reply:
    return served.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": one} for one in data], **more})


def watch(served: Served, topics: Any, **more: Any) -> str:
    made = served.ask("POST", "/v0/watch", {"topics": topics, **more})
    assert made.status == 200, made.body
    url: str = made.json["stream_url"]
    return url


def seqs(events: Events, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        event = next(events)
        if event.name == "record":
            found += [record["$seq"] for record in event.data["records"]]
    return found


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_deleted_records_and_topics_leave_no_bytes_in_the_storage(two: tuple[Served, Served], kind: str) -> None:
    served, tags = two[0], [os.urandom(12).hex() for _ in range(3)]
    assert served.ask("PUT", "/v0/topics/a", {"type": kind}).status == 201
    add(served, "a", *tags[:2])
    add(served, "other", tags[2])
    assert served.ask("POST", "/v0/topics/a/delete", {"before_seq": 2}).json["deleted"] == 1

    def stored() -> list[bool]:
        files = list(files_below(Path(served.url.removeprefix("file://"))))
        return [bool(found_in(files, tag.encode())) for tag in tags]

    assert stored() == [False, True, True]
    assert served.ask("DELETE", "/v0/topics/a").json["deleted"]
    assert stored() == [False, False, True]


def _stored(served: Served, tag: str) -> bool:
    return bool(found_in(files_below(Path(served.url.removeprefix("file://"))), tag.encode()))


def _until_gone(served: Served, tag: str) -> None:
    end = time.monotonic() + PATIENCE
    while _stored(served, tag):
        assert time.monotonic() < end, "the bytes are still stored"
        time.sleep(0.01)


def test_a_deletion_beside_an_archiver_is_completed_by_the_server(
    two: tuple[Served, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the one that began it; and by the first one that is asked, if the one that began it has ended."""
    monkeypatch.setattr("streamkit.removing.erase._WAIT", 0.0)
    monkeypatch.setattr("streamkit.serve.topics.routes._ERASING_PAUSE", 0.01)
    here, there = two
    tags = [os.urandom(12).hex() for _ in range(3)]
    for topic, tag in zip("abc", tags, strict=True):
        add(here, topic, tag)

    def archiver() -> streamkit.Lease:
        return here.store.lease("archive/topics/0", ttl=300.0, wait=PATIENCE)

    with archiver():
        assert here.ask("DELETE", "/v0/topics/a").json["deleted"]
        assert here.ask("POST", "/v0/topics/b/delete", {"before_seq": 9}).json["deleted"] == 1
        assert [_stored(here, tag) for tag in tags] == [True, True, True]
    for tag in tags[:2]:
        _until_gone(here, tag)
    with archiver(), pytest.raises(LeaseNotAcquired):
        here.store.erase("topics", "c")
    assert _stored(here, tags[2])
    there.ask("GET", "/v0/topics")
    _until_gone(here, tags[2])


@pytest.mark.parametrize("kind", ["log", "queue"])
@pytest.mark.parametrize("way", ["deleted", "made"])
def test_a_deletion_that_was_stopped_is_completed_when_the_topic_is_deleted_or_made_again(
    two: tuple[Served, Served], monkeypatch: pytest.MonkeyPatch, kind: str, way: str
) -> None:
    here, tag = two[0], os.urandom(12).hex()
    here.ask("PUT", "/v0/topics/a", {"type": kind})
    add(here, "a", tag)
    with monkeypatch.context() as patch:
        patch.setattr(Topics, "_clear", lambda *_: None)
        assert here.ask("DELETE", "/v0/topics/a").json["deleted"]
    assert _stored(here, tag)
    if way == "deleted":
        assert here.ask("DELETE", "/v0/topics/a").json["deleted"] is False
    else:
        assert here.ask("PUT", "/v0/topics/a", {"type": kind}).status == 201
    assert not _stored(here, tag)


def test_what_a_stopped_deletion_has_left_is_removed_although_the_first_try_to_make_the_topic_again_fails(
    two: tuple[Served, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, tag = two[0], os.urandom(12).hex()
    add(here, "a", tag)

    def fail(*_: object) -> None:
        raise Unavailable("the storage does not answer")

    for method, request in (("_clear", "DELETE"), ("_erase", "PUT")):
        with monkeypatch.context() as patch:
            patch.setattr(Topics, method, fail)
            assert here.ask(request, "/v0/topics/a", {}).status == 503
    assert _stored(here, tag)
    assert here.ask("PUT", "/v0/topics/a", {}).status == 201
    assert not _stored(here, tag)


def test_a_watch_pushes_history_and_what_comes_and_says_when_it_has_caught_up(two: tuple[Served, Served]) -> None:
    here, there = two
    add(here, "a", 1, 2)
    add(here, "b", 3)
    events = there.events(watch(here, {"a": {}, "b": {"tail": True}}))
    assert seqs(events, 2) == [1, 2]
    add(here, "b", 4)
    found = events.until("record")[-1]
    assert (found.data["topic"], found.data["from_seq"], found.data["to_seq"]) == ("b", 1, 2)
    assert found.data["records"][0]["data"] == 4
    assert events.until("caught-up")[-1].data == {"topic": "b", "head_seq": 2}


def test_a_watch_goes_on_at_another_process_after_the_last_event(two: tuple[Served, Served]) -> None:
    here, there = two
    add(here, "a", *range(6))
    add(here, "b", 1)
    url = watch(here, {"a": {}, "b": {}}, limit=4)
    events = here.events(url)
    last = events.until("record")[-1].id
    events.close()
    assert last is not None
    add(here, "b", 2)
    resumed = there.events(url, {"Last-Event-ID": last})
    found = [event.data for event in (resumed.until("record")[-1], resumed.until("record")[-1])]
    assert sorted((one["topic"], [record["$seq"] for record in one["records"]]) for one in found) == [
        ("a", [5, 6]),
        ("b", [1, 2]),
    ]
    assert there.events(f"{url}?cursor={last}").until("record")
    assert there.ask("GET", f"{url}?cursor=!", headers={"Accept": "text/event-stream"}).status == 400


def test_a_watch_tells_what_a_cap_took_and_that_a_topic_was_deleted(two: tuple[Served, Served]) -> None:
    here, there = two
    here.ask("PUT", "/v0/topics/a", {"cap_records": 2})
    add(here, "a", *range(5))
    events = there.events(watch(here, {"a": {"from_seq": 1}}))
    lost = events.until("tombstone")[-1]
    assert (lost.data["gap_from"], lost.data["gap_to"], lost.data["reason"]) == (2, 3, "cap")
    assert seqs(events, 2) == [4, 5]
    here.ask("DELETE", "/v0/topics/a")
    assert events.until("topic-deleted")[-1].data["topic"] == "a"
    assert list(events) == [], "nothing is left to watch"


def test_a_watch_leaves_out_what_its_node_wrote_and_forwards_through_routers(two: tuple[Served, Served]) -> None:
    here, there = two
    here.ask("PUT", "/v0/topics/a", {})
    here.ask("PUT", "/v0/routers/a-b", {"source": "a", "dest": "b"})
    events = there.events(watch(here, {"b": {}}, node="me", include_data=False))
    add(here, "a", 1, node="me")
    add(here, "a", 2, node="other")
    found = events.until("record")[-1].data["records"]
    assert [(record["$seq"], record["$node"], record.get("data")) for record in found] == [(2, "other", None)]


def test_a_long_poll_ends_with_what_comes_through_a_router_of_another_process(two: tuple[Served, Served]) -> None:
    here, there = two
    here.ask("PUT", "/v0/topics/a", {})
    here.ask("PUT", "/v0/routers/a-b", {"source": "a", "dest": "b"})
    found: list[Reply] = []
    waiting = threading.Thread(target=lambda: found.append(there.ask("POST", "/v0/topics/b/diff", {"wait_ms": 30_000})))
    waiting.start()
    add(here, "a", 7)
    waiting.join()
    assert [record["data"] for record in found[0].json["records"]] == [7]


def test_work_keeps_so_many_jobs_and_gives_back_when_the_worker_leaves(two: tuple[Served, Served]) -> None:
    here, there = two
    here.ask("PUT", "/v0/topics/q", {"type": "queue"})
    add(here, "q", *range(3))
    events = here.events("/v0/topics/q/work?node=w&max=2&lease_ms=60000")
    first, second = events.until("job")[-1], events.until("job")[-1]
    assert (first.id, first.data["$seq"], second.data["$seq"], first.data["topic"]) == ("1", 1, 2, "q")
    assert there.ask("POST", "/v0/topics/q/ack", {"node": "w", "seqs": [1]}).json["acked"] == 1
    assert events.until("job")[-1].data["$seq"] == 3
    events.close()
    claimed: list[int] = []
    while len(claimed) < 2:
        answer = there.ask("POST", "/v0/topics/q/claim", {"node": "v", "max": 5}).json
        claimed += [job["$seq"] for job in answer["claimed"]]
        assert {job["deliveries"] for job in answer["claimed"]} <= {1}
    assert sorted(claimed) == [2, 3]


def test_copies_of_a_router_are_made_once_by_processes_that_forward_at_once(two: tuple[Served, Served]) -> None:
    here, there = two
    here.ask("PUT", "/v0/topics/a", {})
    here.ask("PUT", "/v0/routers/a-b", {"source": "a", "dest": "b"})
    errors: list[BaseException] = []

    def write(served: Served) -> None:
        try:
            for number in range(20):
                assert add(served, "a", number).status == 200
                assert served.ask("POST", "/v0/topics/b/diff", {"limit": 1}).status == 200
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=[served]) for served in (here, there, here, there)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    source = [record["data"] for record in here.ask("POST", "/v0/topics/a/diff", {}).json["records"]]
    copies = [record["data"] for record in there.ask("POST", "/v0/topics/b/diff", {}).json["records"]]
    assert len(source) == 80
    assert copies == source


def test_many_dead_letters_are_copied_once_whatever_process_finds_them(two: tuple[Served, Served]) -> None:
    here, there = two
    here.ask("PUT", "/v0/topics/q", {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"})
    for at in range(3):
        add(here, "q", *range(at * 400, at * 400 + 400))
    found = 0
    while found < 1200:
        claimed = here.ask("POST", "/v0/topics/q/claim", {"node": "w", "max": 1000}).json["claimed"]
        found += len(claimed)
        there.ask("POST", "/v0/topics/q/nack", {"node": "w", "seqs": [job["$seq"] for job in claimed]})
    for served in (here, there):
        assert served.ask("POST", "/v0/topics/q/claim", {"node": "w"}).json["claimed"] == []
    assert here.ask("GET", "/v0/topics/dead").json["count"] == 1200
    last = there.ask("POST", "/v0/topics/dead/diff", {"from_seq": 1199}).json["records"]
    assert [record["meta"]["$dead_letter_from"] for record in last] == ["q"]


ROUTES: list[tuple[str, str, Any, set[str]]] = [
    ("GET", "topics", None, {"read"}),
    ("PUT", "topics/t", {}, {"admin"}),
    ("GET", "topics/t", None, {"read"}),
    ("DELETE", "topics/gone", None, {"delete"}),
    ("POST", "topics/t", {"records": [{"data": 1}]}, {"write"}),
    ("POST", "topics/t/diff", {}, {"read"}),
    ("POST", "topics/t/delete", {"before_seq": 1}, {"delete"}),
    ("POST", "topics/tq/claim", {"node": "n"}, {"read", "write"}),
    ("POST", "topics/tq/ack", {"node": "n", "seqs": [9]}, {"write"}),
    ("POST", "topics/tq/nack", {"node": "n", "seqs": [9]}, {"write"}),
    ("POST", "topics/tq/extend", {"node": "n", "seqs": [9], "lease_ms": 1}, {"write"}),
    ("GET", "topics/tq/work?node=n", None, {"read", "write"}),
    ("GET", "routers", None, {"read"}),
    ("PUT", "routers/tr", {"source": "t", "dest": "td"}, {"admin"}),
    ("GET", "routers/tr", None, {"read"}),
    ("DELETE", "routers/tgone", None, {"delete"}),
    ("POST", "watch", {"topics": {"t": {}}}, {"read"}),
    ("GET", "watch/wid_x.y", None, {"read"}),
    ("GET", "metrics", None, {"read"}),
    ("GET", "ws", None, {"read"}),
]
OPEN = ("health", "ready")


class Guarded:
    """A server with keys."""

    def __init__(self, folder: Path) -> None:
        self.keys = KeyFile(folder / "keys.json")
        self.admin = self.keys.create(["admin"])
        self.served = Served("memory://topics-and-keys", topics=True, keys=self.keys.path)
        for path, body in (
            ("topics/t", {}),
            ("topics/td", {}),
            ("topics/tq", {"type": "queue"}),
            ("topics/other", {}),
            ("routers/tr", {"source": "t", "dest": "td"}),
        ):
            assert self.ask(self.admin, "PUT", path, body).status == 201

    def ask(self, key: str | None, method: str, path: str, body: Any = None) -> Reply:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return self.served.ask(method, f"/v0/{path}", body, headers)

    def fresh(self, *scopes: str, **bounds: Any) -> str:
        key = self.keys.create(scopes, **bounds)
        self.served.application.service.keys._looked = 0.0  # type: ignore[union-attr]
        return key


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    found = Guarded(tmp_path_factory.mktemp("topics-keys"))
    yield found
    found.served.close()


@pytest.mark.parametrize(("method", "path", "body", "needed"), ROUTES, ids=[f"{one[0]} {one[1]}" for one in ROUTES])
def test_each_route_needs_its_scopes_and_prefix(
    guarded: Guarded, method: str, path: str, body: Any, needed: set[str]
) -> None:
    none = guarded.ask(None, method, path, body)
    assert (none.status, none.json["error"]["code"]) == (401, "unauthorized")
    for scope in SCOPES:
        answer = guarded.ask(guarded.fresh(scope), method, path, body)
        if needed <= {scope} or scope == "admin":
            assert answer.status in (200, 201, 404, 406, 426), scope
        else:
            assert (answer.status, answer.json["error"]["code"]) == (403, "forbidden"), scope
    assert guarded.ask(guarded.fresh(*needed), method, path, body).status in (200, 201, 404, 406, 426)
    other = guarded.ask(guarded.fresh("admin", segments=["z"]), method, path, body)
    if path in ("topics", "routers"):
        assert other.json[path] == []
    elif path not in ("metrics", "watch/wid_x.y", "ws"):
        assert other.status == 403


def test_every_route_is_in_the_table(guarded: Guarded) -> None:
    router = guarded.served.application.router
    known = {(method, router.find(method, f"/v0/{path.partition('?')[0]}".encode())[0].pattern)
             for method, path, *_ in ROUTES}  # fmt: skip
    known |= {("GET", f"/v0/{path}") for path in OPEN}
    assert known == {(one.method, one.pattern) for one in router.routes if one.pattern.startswith("/v0/")}
    for path in OPEN:
        assert guarded.ask(None, "GET", path).status == 200


def test_names_in_bodies_are_those_that_the_key_is_for(guarded: Guarded) -> None:
    key = guarded.fresh("admin", segments=["t"])
    assert guarded.ask(key, "POST", "watch", {"topics": {"t": {}, "other": {}}}).status == 403
    assert guarded.ask(key, "PUT", "routers/tx", {"source": "other", "dest": "ty"}).status == 403
    assert guarded.ask(key, "PUT", "routers/tx", {"source": "t", "dest": "other"}).status == 403
    assert guarded.ask(key, "PUT", "topics/tz", {"type": "queue", "dead_letter": "other"}).status == 403
    listed = guarded.ask(key, "GET", "topics").json["topics"]
    assert {topic["topic"] for topic in listed} >= {"t", "td", "tq"}
    assert "other" not in {topic["topic"] for topic in listed}


def test_a_router_needs_a_key_for_its_topics_too(guarded: Guarded) -> None:
    guarded.ask(guarded.admin, "PUT", "routers/tsecret", {"source": "t", "dest": "other"})
    key = guarded.fresh("admin", segments=["t"])
    assert guarded.ask(key, "GET", "routers/tsecret").status == 403
    assert guarded.ask(key, "DELETE", "routers/tsecret").status == 403
    assert guarded.ask(key, "PUT", "routers/tsecret", {"source": "t", "dest": "ty"}).status == 403
    assert guarded.ask(guarded.admin, "GET", "routers/tsecret").json["dest"] == "other"
    assert guarded.ask(guarded.admin, "DELETE", "routers/tsecret").json["deleted"] is True


def test_a_write_that_makes_a_queue_needs_a_key_for_its_dead_letters(guarded: Guarded) -> None:
    key = guarded.fresh("write", segments=["t"])
    body = {"records": [{"data": 1}], "create": True, "config": {"type": "queue", "dead_letter": "other"}}
    assert guarded.ask(key, "POST", "topics/tdead", body).status == 403
    assert guarded.ask(guarded.admin, "GET", "topics/tdead").status == 404
    body["config"] = {"type": "queue", "dead_letter": "td"}
    assert guarded.ask(key, "POST", "topics/tdead", body).status == 201


def test_routers_of_other_topics_are_not_named_and_not_counted(guarded: Guarded) -> None:
    for name, source, target in (("r1", "hidden", "u1"), ("u2", "u1", "hidden2"), ("u3", "hidden2", "u4")):
        guarded.ask(guarded.admin, "PUT", f"topics/{source}", {})
        assert guarded.ask(guarded.admin, "PUT", f"routers/{name}", {"source": source, "dest": target}).status == 201
    guarded.ask(guarded.admin, "PUT", "topics/u0", {})
    key = guarded.fresh("admin", segments=["u"])
    fan_in = guarded.ask(key, "PUT", "routers/u", {"source": "u0", "dest": "u1"})
    assert (fan_in.status, fan_in.json["error"]["detail"]) == (409, {"reason": "router_dest_fan_in"})
    guarded.ask(guarded.admin, "DELETE", "routers/r1")
    cycle = guarded.ask(key, "PUT", "routers/u", {"source": "u4", "dest": "u1"})
    assert cycle.json["error"]["detail"] == {"cycle": ["u4", "u1", "…", "u4"]}
    assert b"topics_routers 0" in guarded.ask(key, "GET", "metrics").body
    removed = guarded.ask(key, "DELETE", "topics/u1")
    assert (removed.json["deleted"], removed.json["routers_removed"]) == (True, [])
    assert all(b"hidden" not in answer.body for answer in (fan_in, cycle, removed))
    assert guarded.ask(guarded.admin, "GET", "routers/u2").status == 404, "it was removed all the same"


def test_a_watch_ends_that_nobody_follows(two: tuple[Served, Served], monkeypatch: pytest.MonkeyPatch) -> None:
    served, _ = two
    add(served, "a", 1)
    url = watch(served, {"a": {}})
    accept = {"Accept": "text/event-stream"}
    now = int(time.time() * 1000)
    monkeypatch.setattr("streamkit.serve.topics.watch._now", lambda: now + 290_000)
    followed = served.events(url).until("caught-up")[-1].id
    assert followed is not None
    monkeypatch.setattr("streamkit.serve.topics.watch._now", lambda: now + 310_000)
    ended = served.ask("GET", url, headers=accept)
    assert (ended.status, ended.json["error"]["code"]) == (404, "not_found")
    add(served, "a", 2)
    assert served.events(url, {"Last-Event-ID": followed}).until("record"), "its last event is 20 seconds old"
    monkeypatch.setattr("streamkit.serve.topics.watch._now", lambda: now + 600_000)
    assert served.ask("GET", url, headers={**accept, "Last-Event-ID": followed}).status == 404


def test_the_stream_of_a_watch_is_opened_by_its_own_key_only(guarded: Guarded) -> None:
    mine, other = guarded.fresh("read"), guarded.fresh("read")
    url = guarded.ask(mine, "POST", "watch", {"topics": {"t": {}}}).json["stream_url"]
    assert guarded.ask(other, "GET", url.removeprefix("/v0/")).status == 401
    assert guarded.ask(None, "GET", url.removeprefix("/v0/")).status == 401
    assert guarded.served.events(url, {"Authorization": f"Bearer {mine}"}).until("caught-up")


def test_the_stream_of_a_watch_has_no_topics_that_its_key_has_lost(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of one subject have one id, also if they are for different topics."""
    key = guarded.fresh("read", segments=["t", "other"])
    url = guarded.ask(key, "POST", "watch", {"topics": {"t": {}, "other": {}}}).json["stream_url"]
    assert guarded.served.events(url, {"Authorization": f"Bearer {key}"}).until("caught-up")
    keys = guarded.served.application.service.keys
    assert keys is not None
    lessened = msgspec.structs.replace(keys.access(key), segments=("t",))  # type: ignore[type-var]
    monkeypatch.setattr(keys, "access", lambda _: lessened)
    assert guarded.ask(key, "GET", url.removeprefix("/v0/")).status == 403


def test_a_server_without_the_option_has_no_topics(serve: Callable[..., Served]) -> None:
    assert serve().ask("PUT", "/v0/topics/a", {}).status == 404


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example"}])
def test_a_rebound_host_is_refused(serve: Callable[..., Served], headers: dict[str, str]) -> None:
    served = serve(topics=True, hosts=["127.0.0.1"])
    answer = served.ask("PUT", "/v0/topics/a", {}, headers)
    assert (answer.status, answer.json["error"]["code"]) == (421, "forbidden")
    assert served.ask("GET", "/v0/topics/a").status == 404


def test_a_page_of_another_site_can_neither_write_nor_read(serve: Callable[..., Served]) -> None:
    served = serve(topics=True, origins=["https://app.example"])
    asked = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type"}
    preflight = served.ask("OPTIONS", "/v0/topics/a", headers={"Origin": "https://evil.example", **asked})
    assert "access-control-allow-origin" not in preflight.headers
    # A form of a page needs no preflight, and has none of these types.
    form = served.ask("POST", "/v0/topics/a", b'{"records":[{"data":1}]}', {"Content-Type": "text/plain"})
    assert form.status == 415
    read = served.ask("GET", "/v0/topics", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in read.headers
