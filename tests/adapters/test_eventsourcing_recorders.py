"""The persistence module for `eventsourcing` compared with the library's own one in memory, and the cases that its
suite leaves out."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from streamkit import InvalidName
from streamkit.dcb import ConditionFailed, Event, EventStore, QueryItem

pytest.importorskip("eventsourcing")

from eventsourcing.application import Application
from eventsourcing.dcb.api import DCBAppendCondition, DCBEvent, DCBQuery, DCBQueryItem
from eventsourcing.dcb.popo import InMemoryDCBRecorder
from eventsourcing.domain import Aggregate
from eventsourcing.persistence import DataError, IntegrityError, InterfaceError, StoredEvent, Tracking
from eventsourcing.popo import POPOProcessRecorder
from eventsourcing.utils import Environment

from streamkit.adapters.eventsourcing import (
    StreamkitApplicationRecorder,
    StreamkitDCBRecorder,
    StreamkitFactory,
    StreamkitProcessRecorder,
)


def stored(id: UUID | str, version: int, topic: str = "topic", state: bytes = b"state") -> StoredEvent:
    return StoredEvent(originator_id=id, originator_version=version, topic=topic, state=state)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except IntegrityError:
        return IntegrityError


@pytest.mark.parametrize("seed", range(100 if EXHAUSTIVE else 5))
def test_a_recorder_gives_what_the_one_in_memory_gives(subject: Any, seed: int) -> None:
    """Two recorders of one space, as two processes have them, beside the library's own recorder."""
    chance = random.Random(seed)
    ours = [StreamkitProcessRecorder(store, "app") for store in (subject.store, subject.stranger())]
    theirs = POPOProcessRecorder()
    ids = [uuid4() for _ in range(3)]
    bases = [chance.choice((0, 1, 1, 7)) for _ in ids]
    counts = [0, 0, 0]
    tracked = 0
    for _ in range(25):
        events = []
        for at in chance.sample(range(3), chance.randint(1, 3)):
            # Now and then a version that is taken already.
            first = bases[at] + counts[at] - (1 if counts[at] and chance.random() < 0.1 else 0)
            events += [
                stored(ids[at], first + n, chance.choice("ab"), chance.randbytes(3))
                for n in range(chance.randint(1, 3))
            ]
        chance.random() < 0.5 and events.sort(key=lambda event: event.originator_version)
        tracking = {}
        if chance.random() < 0.3:
            tracked += chance.randint(-1, 2)
            tracking = {"tracking": Tracking("upstream", max(tracked, 1))}
        expected = outcome(lambda: theirs.insert_events(events, **tracking))  # noqa: B023
        assert outcome(lambda: chance.choice(ours).insert_events(events, **tracking)) == expected  # noqa: B023
        if expected is not IntegrityError:
            for at, id in enumerate(ids):
                counts[at] += sum(event.originator_id == id for event in events)
    for recorder in ours:
        assert recorder.max_notification_id() == theirs.max_notification_id()
        assert recorder.max_tracking_id("upstream") == theirs.max_tracking_id("upstream")
        for _ in range(60):
            wanted: dict[str, Any] = {
                "gt": chance.choice((None, chance.randint(-1, 12))),
                "lte": chance.choice((None, chance.randint(-1, 12))),
                "desc": chance.random() < 0.5,
                "limit": chance.choice((None, 1, 3)),
            }
            id = chance.choice(ids)
            assert recorder.select_events(id, **wanted) == theirs.select_events(id, **wanted), wanted
            page: dict[str, Any] = {
                "start": chance.choice((None, chance.randint(0, 80))),
                "limit": chance.randint(1, 10),
                "stop": chance.choice((None, chance.randint(0, 80))),
                "topics": chance.choice(((), ("a",))),
                "inclusive_of_start": chance.random() < 0.7,
            }
            assert recorder.select_notifications(**page) == theirs.select_notifications(**page), page


def test_pages_of_notifications_follow_each_other(subject: Any) -> None:
    recorder = StreamkitApplicationRecorder(subject.store, "app")
    for count in (1, 3, 1, 2, 5, 1):
        id = uuid4()
        recorder.insert_events([stored(id, n + 1) for n in range(count)])
    for limit in (1, 2, 3, 20):
        found: list[int] = []
        while page := recorder.select_notifications(start=len(found) + 1, limit=limit):
            found += [notification.id for notification in page]
        assert found == list(range(1, 14))


def test_saves_of_many_threads_each_have_their_notifications(subject: Any) -> None:
    """Saves that threads make at once share a commit. A tracking record that shares it has no notification."""
    recorder = StreamkitProcessRecorder(subject.store, "app")
    saved: dict[int, tuple[UUID, int]] = {}

    def save(thread: int) -> None:
        for number in range(1, 16):
            one, other = uuid4(), uuid4()
            events = [stored(one, 1), stored(other, 1), stored(one, 2)]
            ids = recorder.insert_events(events)
            assert ids is not None
            saved.update(zip(ids, [(event.originator_id, event.originator_version) for event in events], strict=True))
            recorder.insert_tracking(Tracking(f"upstream-{thread}", number), {f"view-{thread}": [b"counted"]})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(save, range(8)))
    for limit in (7, 500):
        found: dict[int, tuple[Any, int]] = {}
        while page := recorder.select_notifications(start=len(found) + 1, limit=limit):
            found.update({each.id: (each.originator_id, each.originator_version) for each in page})
            assert max(found) == len(found)
        assert found == saved
    for start in range(1, 361, 29):
        [one] = recorder.select_notifications(start=start, limit=1)
        assert (one.originator_id, one.originator_version) == saved[start]


def test_a_recorder_goes_on_in_a_space_that_was_deleted_and_made_again(subject: Any) -> None:
    recorder, id = StreamkitProcessRecorder(subject.store, "app"), uuid4()
    for version in (1, 2, 3):
        recorder.insert_events([stored(id, version)], tracking=Tracking("upstream", version))
    assert len(recorder.select_notifications(1, 10)) == 3
    subject.store.delete_space("app")
    recorder.insert_events([stored(id, version) for version in (1, 2, 3, 4, 5)], tracking=Tracking("upstream", 1))
    assert [each.id for each in recorder.select_notifications(4, 10)] == [4, 5]
    assert recorder.max_tracking_id("upstream") == 1
    assert [event.originator_version for event in recorder.select_events(id)] == [1, 2, 3, 4, 5]


def test_a_save_of_an_application_is_one_put_on_s3(s3_bucket: Any) -> None:
    class Named(Aggregate):
        pass

    environment = {
        "PERSISTENCE_MODULE": "streamkit.adapters.eventsourcing",
        "STREAMKIT_URL": s3_bucket.url(),
        "STREAMKIT_STORE": str(uuid4()),
    }
    application = Application[Any](environment)
    application.save(Named())
    before = len(s3_bucket.requests())
    application.save(Named(), Named())
    sent = [method for method, _ in s3_bucket.requests()[before:]]
    application.close()
    assert sent == ["PUT"]


def test_a_save_is_one_write() -> None:
    with streamkit.connect(f"memory://{uuid4()}?remote=1") as client:
        store = client.store(uuid4())
        recorder = StreamkitApplicationRecorder(store, "app")
        recorder.insert_events([stored(uuid4(), 1)])
        id = uuid4()
        before = dict(store.statistics().requests)
        for version in range(1, 11):
            recorder.insert_events([stored(id, version)])
        after = store.statistics().requests
        assert {kind: after[kind] - before[kind] for kind in ("put", "get", "read")} == {"put": 10, "get": 0, "read": 0}


def test_notifications_of_an_erased_aggregate_are_passed_over(subject: Any) -> None:
    recorder = StreamkitApplicationRecorder(subject.store, "app")
    kept, erased = uuid4(), uuid4()
    recorder.insert_events([stored(kept, 1), stored(erased, 1), stored(kept, 2)])
    recorder.insert_events([stored(erased, 2)])
    recorder.insert_events([stored(kept, 3)])
    subject.store.erase("app", str(erased))
    assert recorder.select_events(erased) == []
    assert [(n.id, n.originator_version) for n in recorder.select_notifications(1, 10)] == [(1, 1), (3, 2), (5, 3)]
    assert [n.id for n in StreamkitApplicationRecorder(subject.store, "app").select_notifications(2, 10)] == [3, 5]
    # Its id may not begin again: versions of an aggregate only grow.
    with pytest.raises(IntegrityError):
        recorder.insert_events([stored(erased, 1)])


@pytest.mark.parametrize("first", [1, 7])
def test_versions_of_erased_last_events_are_not_given_again(subject: Any, first: int) -> None:
    id = uuid4()
    recorder = StreamkitApplicationRecorder(subject.store, "app")
    recorder.insert_events([stored(id, first + n) for n in range(4)])
    subject.store.erase("app", str(id), first=3, last=4)
    for asked in (recorder, StreamkitApplicationRecorder(subject.stranger(), "app")):
        assert [event.originator_version for event in asked.select_events(id)] == [first, first + 1]
        for version in (first + 1, first + 2, first + 3):
            with pytest.raises(IntegrityError, match="its last events were erased"):
                asked.insert_events([stored(id, version)])
    recorder.insert_events([stored(id, first + 4)])
    assert [event.originator_version for event in recorder.select_events(id)] == [first, first + 1, first + 4]


_SAVE = """
import sys
from uuid import UUID
import streamkit
from eventsourcing.persistence import IntegrityError, StoredEvent
from streamkit.adapters.eventsourcing import StreamkitApplicationRecorder
url, store, id = sys.argv[1], UUID(sys.argv[2]), UUID(sys.argv[3])
recorder = StreamkitApplicationRecorder(streamkit.connect(url).store(store), "app")
won = 0
version = 1
while version <= 40:
    try:
        ids = recorder.insert_events([StoredEvent(id, version, "topic", b"state")])
        won += 1
    except IntegrityError:
        pass
    version = len(recorder.select_events(id)) + 1
print(won)
"""


def test_one_of_several_processes_records_a_version(tmp_path: Path) -> None:
    url, store, id = tmp_path.as_uri(), uuid4(), uuid4()
    command = [sys.executable, "-c", _SAVE, url, str(store), str(id)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    won = [int(process.communicate(timeout=120)[0]) for process in processes]
    with streamkit.connect(url) as client:
        recorder = StreamkitApplicationRecorder(client.store(store), "app")
        notifications = recorder.select_notifications(1, 1000)
        assert [event.originator_version for event in recorder.select_events(id)] == list(range(1, sum(won) + 1))
        assert (
            [n.id for n in notifications]
            == [n.originator_version for n in notifications]
            == list(range(1, sum(won) + 1))
        )


def test_what_cannot_be_stored_is_an_error_of_the_library(subject: Any) -> None:
    recorder = StreamkitApplicationRecorder(subject.store, "app")
    with pytest.raises(DataError, match="'::notifications' must not begin with '::'"):
        recorder.insert_events([stored("::notifications", 1)])
    with pytest.raises(DataError):
        recorder.insert_events([stored("a\0b", 1)])
    assert subject.seen()[1] == {}
    closed = subject.stranger()
    closed.close()
    with pytest.raises(InterfaceError):
        StreamkitApplicationRecorder(closed, "app").insert_events([stored("a", 1)])


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"STREAMKIT_URL": "memory://x"}, "set APP_STREAMKIT_STORE or STREAMKIT_STORE to its UUID"),
        ({"STREAMKIT_URL": "nothing://x", "STREAMKIT_STORE": str(uuid4())}, "no backend for nothing"),
        ({"STREAMKIT_URL": "memory://x", "STREAMKIT_STORE": "seven"}, "UUID"),
        ({"STREAMKIT_URL": "memory://x", "STREAMKIT_STORE": str(uuid4()), "STREAMKIT_ARCHIVE": "x"}, "archive"),
        ({"STREAMKIT_URL": "memory://x", "ORIGINATOR_ID_TYPE": "int"}, "ORIGINATOR_ID_TYPE is 'uuid' or 'text'"),
    ],
)
def test_a_wrong_environment_is_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(OSError, match=message):
        StreamkitFactory(Environment("App", environment))


def test_each_application_has_a_space_of_its_own() -> None:
    shared = {"STREAMKIT_URL": f"memory://{uuid4()}", "STREAMKIT_STORE": str(uuid4())}
    for name in ("Orders", "Mails"):
        factory = StreamkitFactory(Environment(name, shared))
        assert factory.application_recorder().insert_events([stored(uuid4(), 1)]) == [1]
        factory.aggregate_recorder("snapshots").insert_events([stored(uuid4(), 4)])
    with streamkit.connect(shared["STREAMKIT_URL"]) as client:
        spaces = list(client.store(shared["STREAMKIT_STORE"]).get_spaces())
    assert spaces == ["Mails", "Mails.snapshots", "Orders", "Orders.snapshots"]


@pytest.mark.parametrize("seed", range(100 if EXHAUSTIVE else 5))
def test_tagged_events_are_what_the_recorder_in_memory_gives(subject: Any, seed: int) -> None:
    chance = random.Random(seed)
    ours = [StreamkitDCBRecorder(store, "app") for store in (subject.store, subject.stranger())]
    theirs = InMemoryDCBRecorder()

    def query() -> DCBQuery:
        tags = lambda most: chance.sample("xyz", chance.randint(0, most))  # noqa: E731
        return DCBQuery(
            [DCBQueryItem(chance.sample("ab", chance.randint(0, 1)), tags(2)) for _ in range(chance.randint(0, 2))]
        )

    for _ in range(40):
        events = [
            DCBEvent(chance.choice("ab"), chance.randbytes(3), chance.sample("xyz", chance.randint(0, 3)))
            for _ in range(chance.randint(1, 3))
        ]
        condition = DCBAppendCondition(query(), chance.choice((None, chance.randint(0, 60))))
        given = chance.choice((None, condition, condition))
        expected = outcome(lambda: theirs.append(events, given))  # noqa: B023
        assert outcome(lambda: chance.choice(ours).append(events, given)) == expected  # noqa: B023
        page: dict[str, Any] = {
            "after": chance.choice((None, chance.randint(0, 60))),
            "limit": chance.choice((None, 1, 4)),
        }
        asked = query()
        mine, reference = chance.choice(ours).read(asked, **page), theirs.read(asked, **page)
        assert list(mine) == list(reference)
        assert mine.head == reference.head


_ENROL = """
import sys, random
from uuid import UUID
import streamkit
from streamkit.dcb import ConditionFailed, Event, EventStore, QueryItem
events = EventStore(streamkit.connect(sys.argv[1]).store(UUID(sys.argv[2])), "school")
student = f"student-{sys.argv[3]}"
chance = random.Random(int(sys.argv[3]))
failed, waits = 0, True
for course in chance.sample(range(6), 6):
    asked = [QueryItem(tags=(f"course-{course}",)), QueryItem(tags=(student,))]
    while True:
        head = events.head()
        seen = list(events.read_to(head, asked))
        of_course = sum(f"course-{course}" in each.event.tags for each in seen)
        of_student = sum(student in each.event.tags for each in seen)
        if of_course >= 5 or of_student >= 3:
            break
        if waits:
            print("read", flush=True)
            waits = bool(sys.stdin.read())
        try:
            events.append([Event("Enrolled", b"", (f"course-{course}", student))], fail_if=asked, after=head)
            break
        except ConditionFailed:
            failed += 1
print(failed)
"""


STUDENTS = 16 if EXHAUSTIVE else 11


def test_processes_keep_the_limits_of_courses_and_students(tmp_path: Path) -> None:
    """A course has five places, and a student may take three: a condition over two tags holds in a race."""
    url, store = tmp_path.as_uri(), uuid4()
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen([sys.executable, "-c", _ENROL, url, str(store), str(n)], stdin=pipe, stdout=pipe, text=True)
        for n in range(STUDENTS)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "read\n"
    # All have read the empty log. Of two students who want the same course first, one fails.
    failed = sum(int(process.communicate(timeout=240)[0]) for process in processes)
    with streamkit.connect(url) as client:
        events = [read.event for read in EventStore(client.store(store), "school").read()]
    enrolled = [event.tags for event in events]
    assert len(enrolled) == len(set(enrolled)) == 30, "thirty places are wanted more than thirty times"
    for course in range(6):
        assert sum(f"course-{course}" in tags for tags in enrolled) == 5
    for student in range(STUDENTS):
        assert sum(f"student-{student}" in tags for tags in enrolled) <= 3
    assert failed, "nobody was in anybody's way"


def test_an_event_of_a_person_is_erased_everywhere(subject: Any) -> None:
    events = EventStore(subject.store, "school")
    events.append([Event("Enrolled", b"secret", ("course-1", "student-7")), Event("Enrolled", b"other", ("course-1",))])
    subject.store.erase("school", metadata={"dcb:tag:student-7": ""})
    for query in ((), [QueryItem(tags=("course-1",))], [QueryItem(types=("Enrolled",))]):
        assert [read.event.payload for read in events.read(query)] == [b"other"]
    assert list(events.read([QueryItem(tags=("student-7",))])) == []
    assert events.append([Event("Left", b"", ("course-1",))]) == 3


def test_a_condition_without_items_excludes_every_event(subject: Any) -> None:
    events = EventStore(subject.store, "school")
    assert events.append([Event("a", b"")], fail_if=[]) == 1
    with pytest.raises(ConditionFailed, match="position 1") as failed:
        events.append([Event("b", b"")], fail_if=[])
    assert failed.value.position == 1
    assert events.append([], fail_if=[], after=1) == 1
    with pytest.raises(ValueError, match="reserved"):
        events.append([Event("b", b"", metadata={"dcb:type": "x"})])
    assert events.head() == 1
    with pytest.raises(InvalidName, match="has 252 bytes of UTF-8; a tag has at most 251"):
        events.append([Event("b", b"", ("ä" * 126,))])
    assert events.append([Event("b", b"", ("ä" * 125 + "x",))]) == 2


@pytest.mark.parametrize("wrong", [QueryItem(tags=("x",)), "x", "", [("x",)], iter([]), 5])
def test_a_query_of_another_type_is_refused_also_before_the_first_event(wrong: Any) -> None:
    with streamkit.connect("memory://") as client:
        events = EventStore(client.store(uuid4()), "events")
        calls = {
            "append": lambda: events.append([Event("a", b"", ("x",))], fail_if=wrong),
            "read": lambda: events.read(wrong),
            "follow": lambda: events.follow(wrong, timeout=0),
        }
        for call in calls.values():
            with pytest.raises(TypeError, match="a query is several QueryItem"):
                call()
        with pytest.raises(ValueError, match="after is 0 or more"):
            events.append([Event("a", b"")], fail_if=[], after=-1)
        assert events.head() == 0


@pytest.mark.parametrize("wrong", [b"x", (1,), (None,), None, iter(["x"]), 5])
def test_tags_and_types_of_another_type_are_refused(wrong: Any) -> None:
    for make in (lambda: Event("a", b"", wrong), lambda: QueryItem(wrong), lambda: QueryItem(tags=wrong)):
        with pytest.raises(TypeError, match="is a tuple of str, not"):
            make()
    with streamkit.connect("memory://") as client, pytest.raises(TypeError, match="the type of an event is a str"):
        EventStore(client.store(uuid4()), "events").append([Event(wrong, b"")])


@pytest.mark.parametrize("make", [lambda: Event("a", b"", "x"), lambda: QueryItem("ab"), lambda: QueryItem(tags="xy")])
def test_a_text_in_the_place_of_several_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"is a tuple of str, not the str '\w+': a tuple of one has a comma"):
        make()


def test_following_gives_what_matches(subject: Any) -> None:
    events = EventStore(subject.store, "school")
    events.append([Event("a", b"1", ("x",)), Event("b", b"2", ("x",)), Event("a", b"3", ("y",))])
    found = [
        read.event.payload for read in events.follow([QueryItem(("a",), ("x",)), QueryItem(tags=("y",))], timeout=0.05)
    ]
    assert found == [b"1", b"3"]
