"""The interface of topics, by a table of requests and answers. The steps of a case alternate between two processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest
from fix_serve import Reply, Served

_RESTART = 25
"""Cases after which one of the processes is started again."""


class Pair:
    """Two processes on one store; `ask` takes them in turn."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._id: UUID = uuid4()
        self._servers = [self._start(), self._start()]
        self._turn = 0
        self._cases = 0

    def _start(self) -> Served:
        served = Served(self._url, topics=True)
        served.application.service.own_store = self._id
        return served

    def begin(self) -> None:
        """The next case begins."""
        self._cases += 1
        if self._cases % _RESTART == 0:
            at = self._cases // _RESTART % 2
            self._servers[at].close()
            self._servers[at] = self._start()

    def ask(self, method: str, path: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        self._turn += 1
        return self._servers[self._turn % 2].ask(method, f"/v0/{path}", body, headers)

    def close(self) -> None:
        for served in self._servers:
            served.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    found = Pair(f"file://{Path(tmp_path_factory.mktemp('topics'))}/stores")
    yield found
    found.close()


class Step(NamedTuple):
    """A request; "$" in it is the topic of the case. `expected` is a part of the answer."""

    method: str
    path: str
    body: Any
    status: int
    expected: Any = None
    headers: dict[str, str] | None = None


def put(given: Any = None, status: int = 201, /, *, name: str = "$", **expected: Any) -> Step:
    return Step("PUT", f"topics/{name}", given or {}, status, expected)


def add(*data: Any, status: int = 200, name: str = "$", record: Any = None, more: Any = None, **expected: Any) -> Step:
    records = [{"data": one, **(record or {})} for one in data]
    return Step("POST", f"topics/{name}", {"records": records, **(more or {})}, status, expected)


def diff(status: int = 200, name: str = "$", seqs: list[int] | None = None, more: Any = None, **expected: Any) -> Step:
    if seqs is not None:
        expected["records"] = [{"$seq": seq} for seq in seqs]
    return Step("POST", f"topics/{name}/diff", more or {}, status, expected)


def state(status: int = 200, /, *, name: str = "$", **expected: Any) -> Step:
    return Step("GET", f"topics/{name}", None, status, expected)


def remove(body: Any, status: int = 200, **expected: Any) -> Step:
    return Step("POST", "topics/$/delete", body, status, expected)


def code(text: str) -> dict[str, Any]:
    return {"error": {"code": text}}


def refused(method: str, path: str, body: Any, status: int, text: str, **detail: Any) -> Step:
    return Step(method, path, body, status, {"error": {"code": text, **({"detail": detail} if detail else {})}})


def bad(path: str, body: Any, method: str = "POST") -> Step:
    return refused(method, path, body, 400, "invalid_request")


def claim(body: Any, seqs: list[int], **expected: Any) -> Step:
    expected["claimed"] = [{"$seq": seq} for seq in seqs]
    return Step("POST", "topics/$/claim", body, 200, {"count": len(seqs), **expected})


def settle(verb: str, seqs: list[int], expected: Any = None, node: str = "w", **more: Any) -> Step:
    return Step("POST", f"topics/$/{verb}", {"node": node, "seqs": seqs, **more}, 200, expected)


def route(name: str = "$r", status: int = 201, more: Any = None, **expected: Any) -> Step:
    return Step("PUT", f"routers/{name}", {"source": "$", "dest": "$d", **(more or {})}, status, expected)


QUEUE = {"type": "queue"}
DEFAULTS = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old", "durable": False,
    "durability": "disk", "priority": None, "auto_priority": True, "auto_create": True,
    "idempotency_window_ms": 120000, "dedupe_node": True, "lease_ms": 30000, "claim_jitter_ms": 0,
    "max_deliveries": 0, "dead_letter": None, "leases_durable": False,
}  # fmt: skip
TEN = add(*range(1, 11), status=201)
TAGGED = Step(
    "POST", "topics/$",
    {"records": [{"data": n, "tag": tag} for n, tag in enumerate(["a", "b", "ab", "a", "c:1", "c:2"])]}, 201,
)  # fmt: skip
CASES: dict[str, list[Step]] = {
    # -- configuration
    "a topic is made with defaults": [put(topic="$", created=True, config=DEFAULTS)],
    "the same again is no change": [put({"ttl_ms": 5}), put({"ttl_ms": 5}, 200, created=False)],
    "a put replaces": [put({"ttl_ms": 5000, "priority": 3}), put({}, 200, created=False, config=DEFAULTS)],
    "all settings are kept": [
        put({"ttl_ms": 60000, "cap_records": 10, "discard": "reject", "priority": -7, "auto_create": False}),
        state(config={"ttl_ms": 60000, "cap_records": 10, "discard": "reject", "priority": -7, "auto_create": False}),
    ],
    "durable is fsync": [put({"durable": True}, config={"durable": True, "durability": "fsync"})],
    "durability wins": [
        put({"durable": True, "durability": "memory"}, config={"durable": False, "durability": "memory"})
    ],
    "fsync is durable": [put({"durability": "fsync"}, config={"durable": True})],
    "ephemeral is a class": [put({"durability": "ephemeral"}, config={"durability": "ephemeral"})],
    "a priority is clamped": [put({"priority": 5000}, config={"priority": 1000})],
    "a low priority is clamped": [put({"priority": -5000}, config={"priority": -1000})],
    "a lease is clamped": [put({"type": "queue", "lease_ms": 1}, config={"lease_ms": 100})],
    "jitter is clamped": [put({"claim_jitter_ms": 9999}, config={"claim_jitter_ms": 5000})],
    "the type cannot be changed": [put(), refused("PUT", "topics/$", QUEUE, 409, "topic_exists_incompatible")],
    "nor back": [put(QUEUE), refused("PUT", "topics/$", {}, 409, "topic_exists_incompatible")],
    "a queue's settings can be": [put(QUEUE), put({"type": "queue", "lease_ms": 500}, 200, config={"lease_ms": 500})],
    "a name with all characters": [put(name="$.a_b:c-d", topic="$.a_b:c-d"), state(name="$.a_b:c-d", head_seq=0)],
    "a long name": [put(name="$" + "x" * 200)],
    "a name that is too long": [bad("topics/$" + "x" * 255, {}, "PUT")],
    "a name that begins with a dot": [bad("topics/.x", {}, "PUT")],
    "a name with a slash": [bad("topics/a%2Fb", {}, "PUT")],
    "a name with a space": [bad("topics/a%20b", {}, "PUT")],
    "a name that is not ASCII": [bad("topics/%C3%A4", {}, "PUT")],
    "a body that is a list": [bad("topics/$", [], "PUT")],
    "an unknown setting": [bad("topics/$", {"colour": 1}, "PUT")],
    "a setting of a wrong type": [bad("topics/$", {"ttl_ms": "5"}, "PUT")],
    "a negative ttl": [bad("topics/$", {"ttl_ms": -1}, "PUT")],
    "a negative cap": [bad("topics/$", {"cap_records": -1}, "PUT")],
    "an unknown type": [bad("topics/$", {"type": "stack"}, "PUT")],
    "an unknown discard": [bad("topics/$", {"discard": "new"}, "PUT")],
    "an unknown durability": [bad("topics/$", {"durability": "tape"}, "PUT")],
    "a queue that is its own dead letter": [bad("topics/$", {"type": "queue", "dead_letter": "$"}, "PUT")],
    "a dead letter that is no name": [bad("topics/$", {"dead_letter": "a b"}, "PUT")],
    "a body without a type": [
        Step("PUT", "topics/$", b"{}", 415, code("unsupported_media_type"), {"Content-Type": "text/plain"})
    ],
    "a body that is no JSON": [
        Step("PUT", "topics/$", b"{", 400, code("invalid_request"), {"Content-Type": "application/json"})
    ],
    "a body with a charset": [
        Step("PUT", "topics/$", b"{}", 201, None, {"Content-Type": "application/json; charset=utf-8"})
    ],
    # -- state
    "the state of a new topic": [
        put(),
        state(topic="$", type="log", head_seq=0, earliest_seq=1, next_seq=1, count=0, bytes=0, last_write_ts=None),
    ],
    "the state after an append": [TEN, state(head_seq=10, earliest_seq=1, next_seq=11, count=10, bytes=11)],
    "a topic that is not there": [refused("GET", "topics/$", None, 404, "topic_not_found", topic="$")],
    "a read gives a topic priority": [put(), state(effective_priority=int)],
    "a look does not": [
        put(),
        Step("GET", "topics/$?touch=false", None, 200, {"effective_priority": 0, "last_read_ts": None}),
    ],
    "a manual priority": [put({"priority": 7}), state(effective_priority=7)],
    "no priority by itself": [put({"auto_priority": False}), state(effective_priority=0)],
    "a touch that is no flag": [put(), refused("GET", "topics/$?touch=maybe", None, 400, "invalid_request")],
    "an unknown parameter": [put(), refused("GET", "topics/$?colour=1", None, 400, "invalid_request")],
    "a wrong method": [refused("PATCH", "topics/$", None, 405, "method_not_allowed")],
    "an unknown path": [refused("GET", "nothing", None, 404, "not_found")],
    # -- lists
    "topics are listed": [
        put(name="$1"),
        put(name="$2"),
        Step(
            "GET",
            "topics?prefix=$",
            None,
            200,
            {"topics": [{"topic": "$1", "head_seq": 0, "count": 0, "durable": False}, {"topic": "$2"}]},
        ),
    ],
    "a list has pages": [
        put(name="$1"),
        put(name="$2"),
        Step("GET", "topics?prefix=$&page_size=1", None, 200, {"topics": [{"topic": "$1"}], "next_cursor": str}),
    ],
    "a list that is empty": [Step("GET", "topics?prefix=$", None, 200, {"topics": [], "next_cursor": None})],
    "a deleted topic is not listed": [
        put(name="$1"),
        Step("DELETE", "topics/$1", None, 200),
        Step("GET", "topics?prefix=$", None, 200, {"topics": []}),
    ],
    "a cursor that is none": [refused("GET", "topics?cursor=!", None, 400, "invalid_request")],
    "a page of no size": [refused("GET", "topics?page_size=0", None, 400, "invalid_request")],
    "a page size above the most": [Step("GET", "topics?prefix=$&page_size=5000", None, 200, {"topics": []})],
    # -- deletion of topics
    "a topic is deleted": [
        put(),
        Step("DELETE", "topics/$", None, 200, {"topic": "$", "deleted": True, "routers_removed": []}),
        state(404),
    ],
    "a topic that is not there is not deleted": [
        Step("DELETE", "topics/$", None, 200, {"deleted": False, "routers_removed": []})
    ],
    "only an empty one": [
        TEN,
        refused("DELETE", "topics/$?if_empty=true", None, 409, "topic_not_empty"),
        state(count=10),
    ],
    "an empty one": [put(), Step("DELETE", "topics/$?if_empty=true", None, 200, {"deleted": True})],
    "a topic begins anew": [
        TEN,
        Step("DELETE", "topics/$", None, 200),
        add("x", status=201, first_seq=1, head_seq=1, created=True),
        diff(seqs=[1], next_from_seq=1, tombstone=None),
    ],
    "an old cursor is told": [
        TEN,
        Step("DELETE", "topics/$", None, 200),
        add("x", status=201),
        diff(more={"from_seq": 10}, seqs=[1], next_from_seq=1, tombstone={"reason": "recreated"}),
    ],
    "a new one may be a queue": [TEN, Step("DELETE", "topics/$", None, 200), put(QUEUE, config={"type": "queue"})],
    # -- appends
    "an append makes a topic": [
        add("x", status=201, first_seq=1, last_seq=1, seqs=[1], head_seq=1, count=1, created=True, deduped=False)
    ],
    "the next does not": [
        add("x", status=201),
        add("y", "z", first_seq=2, last_seq=3, seqs=[2, 3], head_seq=3, count=2, created=False),
    ],
    "an append may refuse to make it": [
        refused("POST", "topics/$", {"records": [{"data": 1}], "create": False}, 404, "topic_not_found")
    ],
    "a configuration for the new topic": [
        add("x", status=201, more={"config": {"cap_records": 5}}),
        state(config={"cap_records": 5}),
    ],
    "is ignored by one that exists": [
        put(),
        add("x", more={"config": {"cap_records": 5}}),
        state(config={"cap_records": 0}),
    ],
    "a configuration without creation": [
        refused(
            "POST", "topics/$", {"records": [{"data": 1}], "config": {"auto_create": False}}, 404, "topic_not_found"
        )
    ],
    "create wins": [add("x", status=201, more={"create": True, "config": {"auto_create": False}})],
    "sequences can be left out": [
        Step("POST", "topics/$?return_seqs=false", {"records": [{"data": 1}]}, 201, {"first_seq": 1, "seqs": None})
    ],
    "no records": [bad("topics/$", {"records": []})],
    "no body": [refused("POST", "topics/$", None, 415, "unsupported_media_type")],
    "a record without data": [bad("topics/$", {"records": [{"tag": "x"}]})],
    "records that are no list": [bad("topics/$", {"records": {"data": 1}})],
    "too many records": [refused("POST", "topics/$", {"records": [{"data": 1}] * 10001}, 400, "batch_too_large")],
    "a record that is too large": [
        refused("POST", "topics/$", {"records": [{"data": "x" * (1 << 20)}]}, 400, "record_too_large")
    ],
    "an empty tag": [bad("topics/$", {"records": [{"data": 1, "tag": ""}]})],
    "a tag that is too long": [bad("topics/$", {"records": [{"data": 1, "tag": "x" * 257}]})],
    "a node that is too long": [bad("topics/$", {"records": [{"data": 1}], "node": "x" * 129})],
    "a node with a line end": [bad("topics/$", {"records": [{"data": 1, "node": "a\nb"}]})],
    "a meta that is no object": [bad("topics/$", {"records": [{"data": 1, "meta": []}]})],
    "a meta with too many keys": [bad("topics/$", {"records": [{"data": 1, "meta": {str(n): n for n in range(65)}}]})],
    "a meta that is too large": [bad("topics/$", {"records": [{"data": 1, "meta": {"x": "y" * (16 << 10)}}]})],
    "a wrong configuration": [bad("topics/$", {"records": [{"data": 1}], "config": {"colour": 1}})],
    "an append to a wrong name": [bad("topics/a%20b", {"records": [{"data": 1}]})],
    "an unknown field is ignored": [add("x", status=201, more={"later": 1})],
    # -- idempotency
    "a key makes it once": [
        add("x", "y", status=201, more={"idempotency_key": "k"}),
        add("x", "y", more={"idempotency_key": "k"}, first_seq=1, last_seq=2, seqs=[1, 2], deduped=True),
        state(head_seq=2),
    ],
    "a key in the header": [
        Step("POST", "topics/$", {"records": [{"data": 1}]}, 201, {"deduped": False}, {"Idempotency-Key": "k"}),
        Step("POST", "topics/$", {"records": [{"data": 1}]}, 200, {"deduped": True}, {"Idempotency-Key": "k"}),
    ],
    "the field wins": [
        Step(
            "POST", "topics/$", {"records": [{"data": 1}], "idempotency_key": "a"}, 201, None, {"Idempotency-Key": "b"}
        ),
        add(1, more={"idempotency_key": "a"}, deduped=True),
        add(1, more={"idempotency_key": "b"}, deduped=False),
    ],
    "other content under a key": [
        add("x", status=201, more={"idempotency_key": "k"}),
        refused(
            "POST", "topics/$", {"records": [{"data": "y"}], "idempotency_key": "k"}, 422, "idempotency_key_reused"
        ),
    ],
    "keys are of a topic": [
        add("x", status=201, name="$1", more={"idempotency_key": "k"}),
        add("x", status=201, name="$2", more={"idempotency_key": "k"}, deduped=False),
    ],
    "keys of a topic that was deleted": [
        add("x", status=201, more={"idempotency_key": "k"}),
        Step("DELETE", "topics/$", None, 200),
        add("x", status=201, more={"idempotency_key": "k"}, deduped=False, first_seq=1),
    ],
    "no window, no keys": [
        put({"idempotency_window_ms": 0}),
        add("x", more={"idempotency_key": "k"}),
        add("x", more={"idempotency_key": "k"}, deduped=False, first_seq=2),
    ],
    "a key that is too long": [bad("topics/$", {"records": [{"data": 1}], "idempotency_key": "k" * 257})],
    # -- reads
    "a read from the beginning": [
        TEN,
        diff(
            topic="$",
            seqs=list(range(1, 11)),
            next_from_seq=10,
            head_seq=10,
            earliest_seq=1,
            caught_up=True,
            tombstone=None,
            lag=0,
        ),
    ],
    "a read after a sequence": [TEN, diff(more={"from_seq": 8}, seqs=[9, 10], next_from_seq=10)],
    "a read at the end": [TEN, diff(more={"from_seq": 10}, seqs=[], next_from_seq=10, caught_up=True)],
    "a read beyond the end": [
        TEN,
        diff(more={"from_seq": 99}, seqs=[], next_from_seq=10, caught_up=True, tombstone=None),
    ],
    "a part of it": [TEN, diff(more={"limit": 3}, seqs=[1, 2, 3], next_from_seq=3, caught_up=False, lag=7)],
    "a limit of nothing is the default": [TEN, diff(more={"limit": 0}, seqs=list(range(1, 11)))],
    "a limit above the most": [TEN, diff(more={"limit": 99999}, seqs=list(range(1, 11)))],
    "a part by bytes": [
        add("x" * 50, "y" * 50, "z" * 50, status=201),
        diff(more={"max_batch_bytes": 110}, seqs=[1, 2]),
    ],
    "one record in any case": [add("x" * 50, "y", status=201), diff(more={"max_batch_bytes": 1}, seqs=[1])],
    "an empty topic": [put(), diff(seqs=[], next_from_seq=0, head_seq=0, earliest_seq=1, caught_up=True)],
    "all kinds of data": [
        add({"a": [1, None]}, [], "text", 1.5, True, None, status=201),
        diff(
            records=[
                {"data": {"a": [1, None]}},
                {"data": []},
                {"data": "text"},
                {"data": 1.5},
                {"data": True},
                {"data": None},
            ]
        ),
    ],
    "large numbers stay": [
        Step(
            "POST",
            "topics/$",
            b'{"records":[{"data":12345678901234567890123456789}]}',
            201,
            None,
            {"Content-Type": "application/json"},
        ),
        diff(records=[{"data": 12345678901234567890123456789}]),
    ],
    "meta by default": [
        add("x", status=201, record={"meta": {"trace": "z"}}),
        diff(records=[{"meta": {"trace": "z"}}]),
    ],
    "no meta": [
        add("x", status=201, record={"meta": {"trace": "z"}}),
        diff(more={"include_meta": False}, records=[{"meta": None}]),
    ],
    "no tags by default": [add("x", status=201, record={"tag": "t"}), diff(records=[{"$tag": None}])],
    "tags": [add("x", status=201, record={"tag": "t"}), diff(more={"include_tags": True}, records=[{"$tag": "t"}])],
    "a time of each": [add("x", status=201), diff(records=[{"$ts": int}])],
    "a read of nothing": [refused("POST", "topics/$/diff", {}, 404, "topic_not_found")],
    "a negative sequence": [put(), bad("topics/$/diff", {"from_seq": -1})],
    "a sequence of a wrong type": [put(), bad("topics/$/diff", {"from_seq": "1"})],
    "a wait that ends": [put(), diff(more={"wait_ms": 1}, seqs=[], caught_up=True)],
    "a wait that need not": [TEN, diff(more={"wait_ms": 30000}, seqs=list(range(1, 11)))],
    # -- nodes
    "a node does not get its own": [
        add(1, status=201, more={"node": "a"}),
        add(2, more={"node": "b"}),
        add(3),
        diff(more={"node": "a"}, seqs=[2, 3], next_from_seq=3),
        diff(records=[{"$node": "a"}, {"$node": "b"}, {"$node": None}]),
    ],
    "several nodes": [
        add(1, status=201, more={"node": "a"}),
        add(2, more={"node": "b"}),
        diff(more={"node": ["a", "b"]}, seqs=[], next_from_seq=2, caught_up=True),
    ],
    "a record's own node": [
        add(1, status=201, record={"node": "r"}, more={"node": "batch"}),
        diff(records=[{"$node": "r"}]),
    ],
    "a topic with echoes": [
        put({"dedupe_node": False}),
        add(1, more={"node": "a"}),
        diff(more={"node": "a"}, seqs=[1]),
    ],
    "a node is exact": [add(1, status=201, more={"node": "ab"}), diff(more={"node": "a"}, seqs=[1])],
    # -- caps
    "a cap evicts the oldest": [
        put({"cap_records": 3}),
        add(*range(5)),
        diff(
            seqs=[3, 4, 5],
            tombstone={
                "gap_from": 1,
                "gap_to": 2,
                "reason": "cap",
                "missed_estimate": 2,
                "earliest_seq": 3,
                "head_seq": 5,
            },
        ),
        state(count=3, earliest_seq=3, head_seq=5),
    ],
    "a reader that is further is not told": [
        put({"cap_records": 3}),
        add(*range(5)),
        diff(more={"from_seq": 2}, seqs=[3, 4, 5], tombstone=None),
    ],
    "a reader in the gap is told the rest": [
        put({"cap_records": 3}),
        add(*range(5)),
        diff(more={"from_seq": 1}, seqs=[3, 4, 5], tombstone={"gap_from": 2, "gap_to": 2}),
    ],
    "a cap by bytes": [
        put({"cap_bytes": 12}),
        add("xxxx", "yyyy", "zzzz"),
        diff(seqs=[2, 3], tombstone={"gap_from": 1, "gap_to": 1, "reason": "cap"}),
    ],
    "a full topic that rejects": [
        put({"cap_records": 2, "discard": "reject"}),
        add(1, 2),
        refused("POST", "topics/$", {"records": [{"data": 3}]}, 422, "topic_full"),
        state(head_seq=2),
    ],
    "all or nothing": [
        put({"cap_records": 2, "discard": "reject"}),
        refused("POST", "topics/$", {"records": [{"data": 1}] * 3}, 422, "topic_full"),
        state(head_seq=0),
    ],
    "a full topic by bytes": [
        put({"cap_bytes": 5, "discard": "reject"}),
        add("xxx"),
        refused("POST", "topics/$", {"records": [{"data": 3}]}, 422, "topic_full"),
    ],
    "room after a delete": [
        put({"cap_records": 2, "discard": "reject"}),
        add(1, 2),
        remove({"before_seq": 2}, deleted=1),
        add(3, head_seq=3),
    ],
    "a repeated write to a full topic": [
        put({"cap_records": 1, "discard": "reject"}),
        add(1, more={"idempotency_key": "k"}),
        add(1, more={"idempotency_key": "k"}, deduped=True),
    ],
    "a ttl": [
        put({"ttl_ms": 1}),
        add(1, 2),
        Step("WAIT", "0.01", None, 0),
        diff(seqs=[], next_from_seq=2, tombstone={"reason": "ttl", "gap_to": 2}),
    ],
    "a tighter cap": [TEN, put({"cap_records": 2}, 200), diff(seqs=[9, 10], tombstone={"gap_from": 1, "gap_to": 8})],
    # -- deletion of records
    "deletion before a sequence": [
        TEN,
        remove({"before_seq": 4}, topic="$", deleted=3, earliest_seq=4, head_seq=10, count=7),
        diff(seqs=list(range(4, 11)), tombstone=None),
    ],
    "deletion of everything": [
        TEN,
        remove({"before_seq": 99}, deleted=10, earliest_seq=11, count=0, bytes=0),
        diff(seqs=[], next_from_seq=10, caught_up=True, tombstone=None),
    ],
    "deletion by tag": [
        TAGGED,
        remove({"match": ["tag", "Eq", "a"]}, deleted=2),
        diff(seqs=[2, 3, 5, 6], tombstone=None),
    ],
    "deletion by a text": [TAGGED, remove({"match": "b"}, deleted=1), diff(seqs=[1, 3, 4, 5, 6])],
    "deletion by prefix": [
        TAGGED,
        remove({"match": ["tag", "Glob", "c:*"]}, deleted=2),
        diff(seqs=[1, 2, 3, 4], next_from_seq=6, caught_up=True),
    ],
    "deletion of all tags": [
        TAGGED,
        add("untagged"),
        remove({"match": ["tag", "Glob", "*"]}, deleted=6),
        diff(seqs=[7]),
    ],
    "deletion by both": [TAGGED, remove({"match": "a", "before_seq": 4}, deleted=1), diff(seqs=[2, 3, 4, 5, 6])],
    "later records stay": [
        TAGGED,
        remove({"match": "a"}, deleted=2),
        add("x", record={"tag": "a"}),
        diff(seqs=[2, 3, 5, 6, 7]),
    ],
    "deleted twice": [TEN, remove({"before_seq": 4}, deleted=3), remove({"before_seq": 4}, deleted=0)],
    "untagged records are not matched": [TEN, remove({"match": ["tag", "Glob", "*"]}, deleted=0)],
    "deletion and a cap": [
        put({"cap_records": 3}),
        add(*range(5)),
        remove({"before_seq": 4}, deleted=1),
        diff(seqs=[4, 5], tombstone={"gap_from": 1, "gap_to": 2}),
    ],
    "deletion of nothing named": [TEN, bad("topics/$/delete", {})],
    "a match that is none": [TEN, bad("topics/$/delete", {"match": ["tag", "Eq"]})],
    "a match of another field": [TEN, bad("topics/$/delete", {"match": ["node", "Eq", "x"]})],
    "a match of another kind": [TEN, bad("topics/$/delete", {"match": ["tag", "Like", "x"]})],
    "a glob without a star": [TEN, bad("topics/$/delete", {"match": ["tag", "Glob", "x"]})],
    "a glob with a star within": [TEN, bad("topics/$/delete", {"match": ["tag", "Glob", "a*b*"]})],
    "a sequence that is a text": [TEN, bad("topics/$/delete", {"before_seq": "4"})],
    "deletion in nothing": [refused("POST", "topics/$/delete", {"before_seq": 4}, 404, "topic_not_found")],
    # -- routers
    "a router forwards": [
        put(),
        route(
            router="$r",
            created=True,
            source="$",
            dest="$d",
            preserve_node=True,
            preserve_tag=True,
            filter=None,
            allow_cycle=False,
        ),
        add(1, 2, record={"tag": "t", "node": "n", "meta": {"m": 1}}),
        diff(
            name="$d",
            more={"include_tags": True},
            records=[{"data": 1, "$tag": "t", "$node": "n", "meta": {"m": 1}}, {"data": 2}],
        ),
    ],
    "only what comes later": [TEN, route(), add("x"), diff(name="$d", records=[{"data": "x"}])],
    "the same router again": [put(), route(), route(status=200, created=False)],
    "a changed router": [put(), route(), route(status=200, more={"filter": "t"}, filter="t", created=False)],
    "without tags and nodes": [
        put(),
        route(more={"preserve_tag": False, "preserve_node": False}),
        add(1, record={"tag": "t", "node": "n"}),
        diff(name="$d", more={"include_tags": True}, records=[{"$tag": None, "$node": None}]),
    ],
    "a filter": [
        put(),
        route(more={"filter": ["tag", "Glob", "a*"]}),
        TAGGED._replace(status=200),
        diff(name="$d", records=[{"data": 0}, {"data": 2}, {"data": 3}]),
    ],
    "a chain": [
        put(),
        route(),
        Step("PUT", "routers/$r2", {"source": "$d", "dest": "$e"}, 201),
        add(1),
        diff(name="$e", records=[{"data": 1}]),
    ],
    "a fan-out": [
        put(),
        route(),
        Step("PUT", "routers/$r2", {"source": "$", "dest": "$e"}, 201),
        add(1),
        diff(name="$e", seqs=[1]),
        diff(name="$d", seqs=[1]),
    ],
    "a fan-in is refused": [
        put(),
        put(name="$2"),
        route(),
        refused(
            "PUT",
            "routers/$r2",
            {"source": "$2", "dest": "$d"},
            409,
            "topic_exists_incompatible",
            reason="router_dest_fan_in",
        ),
    ],
    "a cycle is refused": [
        put(),
        route(),
        refused("PUT", "routers/$b", {"source": "$d", "dest": "$"}, 409, "router_cycle", cycle=["$d", "$", "$d"]),
    ],
    "a long cycle is refused": [
        put(),
        route(),
        Step("PUT", "routers/$r2", {"source": "$d", "dest": "$e"}, 201),
        refused("PUT", "routers/$b", {"source": "$e", "dest": "$"}, 409, "router_cycle", cycle=["$e", "$", "$d", "$e"]),
    ],
    "a mirror makes two of one": [
        put(),
        route(),
        Step("PUT", "routers/$b", {"source": "$d", "dest": "$", "allow_cycle": True}, 201),
        add(1),
        add(2, name="$d"),
        diff(records=[{"data": 1}, {"data": 2}]),
        diff(name="$d", seqs=[1, 2]),
        state(count=2),
    ],
    "a router is looked at": [
        put(),
        route(),
        add(1, 2),
        Step("GET", "routers/$r", None, 200, {"router": "$r", "source": "$", "dest": "$d", "forwarded_total": 2}),
    ],
    "a router that is not there": [refused("GET", "routers/$", None, 404, "router_not_found")],
    "routers are listed": [
        put(),
        route(),
        Step(
            "GET",
            "routers?prefix=$",
            None,
            200,
            {"routers": [{"router": "$r", "source": "$", "dest": "$d"}], "next_cursor": None},
        ),
    ],
    "routers of a source": [
        put(),
        route(),
        Step("GET", "routers?source=$", None, 200, {"routers": [{"router": "$r"}]}),
        Step("GET", "routers?source=$d", None, 200, {"routers": []}),
    ],
    "a router is deleted": [
        put(),
        route(),
        add(1),
        diff(name="$d", seqs=[1]),
        Step("DELETE", "routers/$r", None, 200, {"router": "$r", "deleted": True}),
        add(2),
        diff(name="$d", seqs=[1]),
        Step("DELETE", "routers/$r", None, 200, {"deleted": False}),
    ],
    "a topic takes its routers with it": [
        put(),
        route(),
        Step("DELETE", "topics/$", None, 200, {"routers_removed": ["$r"]}),
        Step("GET", "routers?prefix=$", None, 200, {"routers": []}),
    ],
    "a router with an arrow": [
        put(),
        Step("PUT", "routers/$-%3E$d", {"source": "$", "dest": "$d"}, 201, {"router": "$->$d"}),
    ],
    "a router without a dest": [put(), bad("routers/$r", {"source": "$"}, "PUT")],
    "a router to its source": [put(), bad("routers/$r", {"source": "$", "dest": "$"}, "PUT")],
    "a router with a wrong filter": [put(), bad("routers/$r", {"source": "$", "dest": "$d", "filter": ["x"]}, "PUT")],
    "a router with an unknown field": [put(), bad("routers/$r", {"source": "$", "dest": "$d", "colour": 1}, "PUT")],
    "a router of nothing": [refused("PUT", "routers/$r", {"source": "$", "dest": "$d"}, 404, "topic_not_found")],
    "a router to nothing": [
        put(),
        refused("PUT", "routers/$r", {"source": "$", "dest": "$d", "create_dest": False}, 404, "topic_not_found"),
    ],
    "a target that rejects": [
        put(),
        put({"cap_records": 1, "discard": "reject"}, name="$d"),
        route(),
        add(1),
        diff(name="$d", seqs=[1]),
        add(2),
        diff(name="$d", seqs=[1]),
        Step("POST", "topics/$d/delete", {"before_seq": 2}, 200),
        diff(name="$d", seqs=[2], more={"from_seq": 1}),
    ],
    # -- queues
    "a queue hands out": [
        put(QUEUE),
        add("a", "b", "c", record={"tag": "t"}),
        claim({"node": "w", "max": 2}, [1, 2], ready=1),
        state(queue={"ready": 1, "in_flight": 2, "dead_lettered": 0}, type="queue", count=3),
    ],
    "a job has all it needs": [
        put(QUEUE),
        add({"x": 1}, record={"tag": "t", "meta": {"m": 1}}),
        Step(
            "POST",
            "topics/$/claim",
            {"node": "w"},
            200,
            {
                "claimed": [
                    {
                        "$seq": 1,
                        "$tag": "t",
                        "data": {"x": 1},
                        "meta": {"m": 1},
                        "deliveries": 1,
                        "lease_id": str,
                        "deadline": int,
                        "$ts": int,
                    }
                ]
            },
        ),
    ],
    "one by default": [
        put(QUEUE),
        add(1, 2),
        claim({"node": "w"}, [1]),
        claim({"node": "v"}, [2]),
        claim({"node": "v"}, []),
    ],
    "an ack removes": [
        put(QUEUE),
        add(1, 2, 3),
        claim({"node": "w", "max": 3}, [1, 2, 3]),
        settle("ack", [1, 3], {"acked": 2, "skipped": [], "ready": 0, "in_flight": 1}),
        state(count=1, earliest_seq=2),
        diff(seqs=[2], tombstone=None),
    ],
    "an ack by another": [
        put(QUEUE),
        add(1),
        claim({"node": "w"}, [1]),
        settle("ack", [1], {"acked": 0, "skipped": [1]}, node="v"),
    ],
    "an ack again": [
        put(QUEUE),
        add(1),
        claim({"node": "w"}, [1]),
        settle("ack", [1], {"acked": 1}),
        settle("ack", [1], {"acked": 0, "skipped": [1]}),
    ],
    "an ack with a stale lease": [
        put(QUEUE),
        add(1),
        claim({"node": "w"}, [1]),
        settle("ack", [1], {"acked": 0, "skipped": [1]}, lease_ids=["lease_1.0.0.99"]),
    ],
    "a nack gives back": [
        put(QUEUE),
        add(1),
        claim({"node": "w"}, [1]),
        settle("nack", [1], {"nacked": 1, "skipped": [], "ready": 1, "in_flight": 0}),
        Step("POST", "topics/$/claim", {"node": "v"}, 200, {"claimed": [{"$seq": 1, "deliveries": 2}]}),
    ],
    "a nack with a delay": [
        put(QUEUE),
        add(1),
        claim({"node": "w"}, [1]),
        settle("nack", [1], {"nacked": 1, "ready": 0, "in_flight": 0}, delay_ms=60000),
        claim({"node": "v"}, []),
    ],
    "a nack by another": [
        put(QUEUE),
        add(1),
        claim({"node": "w"}, [1]),
        settle("nack", [1], {"nacked": 0, "skipped": [1]}, node="v"),
    ],
    "an extend": [
        put(QUEUE),
        add(1),
        claim({"node": "w"}, [1]),
        settle("extend", [1], {"extended": 1, "skipped": [], "deadlines": {"1": int}}, lease_ms=60000),
    ],
    "an extend by another": [
        put(QUEUE),
        add(1),
        claim({"node": "w"}, [1]),
        settle("extend", [1], {"extended": 0, "skipped": [1], "deadlines": {}}, node="v", lease_ms=60000),
    ],
    "an extend without a time": [put(QUEUE), bad("topics/$/extend", {"node": "w", "seqs": [1]})],
    "a lease ends": [
        put({"type": "queue", "lease_ms": 100}),
        add(1),
        claim({"node": "w"}, [1]),
        Step("WAIT", "0.15", None, 0),
        Step("POST", "topics/$/claim", {"node": "v"}, 200, {"claimed": [{"$seq": 1, "deliveries": 2}]}),
        settle("ack", [1], {"acked": 0, "skipped": [1]}),
    ],
    "a lease of one's own": [
        put(QUEUE),
        add(1),
        claim({"node": "w", "lease_ms": 100}, [1]),
        Step("WAIT", "0.15", None, 0),
        claim({"node": "v"}, [1]),
    ],
    "a dead letter": [
        put({"type": "queue", "max_deliveries": 1, "dead_letter": "$dlq"}),
        add("x", record={"tag": "t"}),
        claim({"node": "w"}, [1]),
        settle("nack", [1], {"nacked": 1}),
        claim({"node": "w"}, []),
        diff(
            name="$dlq",
            more={"include_tags": True},
            records=[
                {
                    "data": "x",
                    "$tag": "t",
                    "meta": {"$dead_letter_from": "$", "$dead_letter_deliveries": 1, "$dead_letter_src_seq": 1},
                }
            ],
        ),
        state(queue={"ready": 0, "in_flight": 0, "dead_lettered": 1}, count=0),
        claim({"node": "v"}, []),
        diff(name="$dlq", seqs=[1]),
    ],
    "no dead letters without a topic": [
        put({"type": "queue", "max_deliveries": 1}),
        add("x"),
        claim({"node": "w"}, [1]),
        settle("nack", [1]),
        claim({"node": "w"}, [1]),
    ],
    "a log is no queue": [put(), refused("POST", "topics/$/claim", {"node": "w"}, 409, "not_a_queue")],
    "nor for an ack": [put(), refused("POST", "topics/$/ack", {"node": "w", "seqs": [1]}, 409, "not_a_queue")],
    "nor for a nack": [put(), refused("POST", "topics/$/nack", {"node": "w", "seqs": [1]}, 409, "not_a_queue")],
    "nor for an extend": [
        put(),
        refused("POST", "topics/$/extend", {"node": "w", "seqs": [1], "lease_ms": 1}, 409, "not_a_queue"),
    ],
    "nor for work": [put(), refused("GET", "topics/$/work?node=w", None, 409, "not_a_queue")],
    "a claim of nothing": [refused("POST", "topics/$/claim", {"node": "w"}, 404, "topic_not_found")],
    "a claim without a node": [put(QUEUE), bad("topics/$/claim", {})],
    "a claim of no jobs": [put(QUEUE), bad("topics/$/claim", {"node": "w", "max": 0})],
    "an ack of no jobs": [put(QUEUE), bad("topics/$/ack", {"node": "w", "seqs": []})],
    "an ack of too many": [
        put(QUEUE),
        refused("POST", "topics/$/ack", {"node": "w", "seqs": [1] * 1001}, 400, "batch_too_large"),
    ],
    "leases for other sequences": [put(QUEUE), bad("topics/$/ack", {"node": "w", "seqs": [1], "lease_ids": []})],
    "work without a node": [put(QUEUE), refused("GET", "topics/$/work", None, 400, "invalid_request")],
    "work as JSON": [put(QUEUE), refused("GET", "topics/$/work?node=w", None, 406, "not_acceptable")],
    "a deleted queue": [
        put(QUEUE),
        add(1),
        Step("DELETE", "topics/$", None, 200, {"deleted": True}),
        put(QUEUE),
        claim({"node": "w"}, []),
    ],
    "a deleted job": [put(QUEUE), add(1, 2), remove({"before_seq": 2}, deleted=1), claim({"node": "w", "max": 5}, [2])],
    "a router into a queue": [
        put(),
        put(QUEUE, name="$d"),
        route(),
        add(7),
        Step("POST", "topics/$d/claim", {"node": "w"}, 200, {"claimed": [{"data": 7}]}),
    ],
    # -- watch, health
    "a watch": [
        TEN,
        Step(
            "POST",
            "watch",
            {"topics": {"$": {"from_seq": 4}}},
            200,
            {
                "wid": str,
                "stream_url": str,
                "session_ttl_ms": 300000,
                "topics": {"$": {"from_seq": 4, "head_seq": 10, "earliest_seq": 1}},
            },
        ),
    ],
    "a watch from the end": [
        TEN,
        Step("POST", "watch", {"topics": {"$": {"tail": True}}}, 200, {"topics": {"$": {"from_seq": 10}}}),
    ],
    "a watch of nothing": [bad("watch", {"topics": {}})],
    "a watch of a topic that is not there": [refused("POST", "watch", {"topics": {"$": {}}}, 404, "topic_not_found")],
    "unless it does not matter": [
        TEN,
        Step(
            "POST",
            "watch?lenient=true",
            {"topics": {"$": {}, "$x": {}}},
            200,
            {"topics": {"$": {"head_seq": 10}, "$x": None}},
        ),
    ],
    "a watch of too many": [bad("watch", {"topics": {f"t{n}": {} for n in range(257)}})],
    "a watch of a wrong name": [bad("watch", {"topics": {"a b": {}}})],
    "a wid that is none": [refused("GET", "watch/wid_x.y", None, 404, "not_found")],
    "a wid that was forged": [refused("GET", "watch/wid_e30.AAAA", None, 404, "not_found")],
    "health": [Step("GET", "health", None, 200, {"status": "ok", "version": str, "uptime_ms": int})],
    "ready": [Step("GET", "ready", None, 200, {"status": "ready"})],
    "metrics as JSON": [put(), Step("GET", "metrics", None, 200, {"topics_ready": 1}, {"Accept": "application/json"})],
}


def test_the_table_is_large_enough() -> None:
    assert len(CASES) >= 150


def filled(value: Any, name: str) -> Any:
    """`value` with the topic of the case in it."""
    if isinstance(value, str):
        # Names of settings of topics begin with "$" too, and letters follow.
        is_own = value.startswith(("$seq", "$ts", "$node", "$tag", "$dead_letter_"))
        return value if is_own else value.replace("$", name)
    if isinstance(value, dict):
        return {filled(key, name): filled(one, name) for key, one in value.items()}
    return [filled(one, name) for one in value] if isinstance(value, list) else value


def check(found: Any, expected: Any, where: str) -> None:
    """`expected` is a part of `found`: an object has more members, None is a member that is absent or null."""
    if isinstance(expected, type):
        assert type(found) is expected, where
    elif isinstance(expected, dict):
        assert isinstance(found, dict), where
        for key, value in expected.items():
            check(found.get(key), value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), where
        assert len(found) == len(expected), f"{where}: {found}"
        for at, (one, other) in enumerate(zip(found, expected, strict=True)):
            check(one, other, f"{where}[{at}]")
    else:
        assert found == expected, f"{where}: {found!r}, and not {expected!r}"


_numbers = itertools.count()


@pytest.mark.parametrize("case", CASES, ids=[name.replace(" ", "-") for name in CASES])
def test_a_case_of_the_table(pair: Pair, case: str) -> None:
    from threading import Event

    name = f"t{next(_numbers)}-"
    pair.begin()
    for number, step in enumerate(CASES[case]):
        if step.method == "WAIT":
            Event().wait(float(step.path))  # a lease ends by the wall clock of another process
            continue
        body = step.body if isinstance(step.body, bytes) else filled(step.body, name)
        answer = pair.ask(step.method, filled(step.path, name), body, step.headers)
        where = f"step {number} ({step.method} {step.path})"
        assert answer.status == step.status, f"{where}: {answer.body!r}"
        check(answer.json, filled(step.expected, name) if step.expected else {}, where)
        assert answer.json["performance"]["server_total_ms"] >= 0
        assert ("error" in answer.json) == (answer.status >= 400)
        if answer.status >= 400:
            assert answer.json["error"]["message"]
