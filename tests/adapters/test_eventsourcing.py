"""The persistence module for `eventsourcing`, judged by that library's own suite."""

from __future__ import annotations

import os
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_places import url_in

pytest.importorskip("eventsourcing")

from eventsourcing.dcb import tests as dcb
from eventsourcing.persistence import Tracking
from eventsourcing.tests import application, persistence, projection
from eventsourcing.utils import Environment

from streamkit.adapters.eventsourcing import (
    StreamkitAggregateRecorder,
    StreamkitApplicationRecorder,
    StreamkitFactory,
    StreamkitProcessRecorder,
    StreamkitTrackingRecorder,
)


def renamed(module: Any, *names: str) -> Any:
    """Version 10 of the library has other names."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


PLACES = ("memory", "local", *(("s3", "azure") if EXHAUSTIVE else ()))


def everywhere(case: type) -> None:
    """One class for each place, since a unittest.TestCase takes no parameters."""
    for place in PLACES:
        name = f"{case.__name__}_{place}"
        globals()[name] = type(name, (case,), {"place": place, "__module__": __name__})


@pytest.fixture(autouse=True)
def environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that names the persistence module and a new store."""
    url = url_in(request.cls.place, request)
    monkeypatch.setenv("PERSISTENCE_MODULE", "streamkit.adapters.eventsourcing")
    monkeypatch.setenv("STREAMKIT_URL", url)
    monkeypatch.setenv("STREAMKIT_STORE", str(uuid4()))


class _Judged:
    made: StreamkitFactory | None = None

    @property
    def factory(self) -> StreamkitFactory:
        self.made = self.made or StreamkitFactory(Environment(env=dict(os.environ)))
        return self.made

    def tearDown(self) -> None:
        if self.made is not None:
            self.made.close()


@everywhere
class TestAggregateRecorder(_Judged, persistence.AggregateRecorderTestCase):
    def create_recorder(self) -> Any:
        return self.factory.aggregate_recorder()


@everywhere
class TestApplicationRecorder(_Judged, persistence.ApplicationRecorderTestCase[Any]):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


@everywhere
class TestTrackingRecorder(_Judged, persistence.TrackingRecorderTestCase):
    def create_recorder(self) -> Any:
        return self.factory.tracking_recorder()


@everywhere
class TestProcessRecorder(_Judged, persistence.ProcessRecorderTestCase):
    def create_recorder(self) -> Any:
        return self.factory.process_recorder()


@everywhere
class TestNonInterleavingNotificationIDs(_Judged, persistence.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()


class Counters(StreamkitTrackingRecorder):
    """A view that counts in segments, in the transaction that tracks its position."""

    def _counter(self, name: str) -> int:
        return self._store.segment_status(self._space, name).last_sequence

    def get_created_event_counter(self) -> int:
        return self._counter("created")

    def get_subsequent_event_counter(self) -> int:
        return self._counter("subsequent")

    get_student_registered_counter = get_created_event_counter
    get_student_name_changed_counter = get_subsequent_event_counter

    def incr_created_event_counter(self, tracking: Tracking) -> None:
        self.insert_tracking(tracking, {"created": [b""]})

    def incr_subsequent_event_counter(self, tracking: Tracking) -> None:
        self.insert_tracking(tracking, {"subsequent": [b""]})

    incr_student_registered_counter = incr_created_event_counter
    incr_student_name_changed_counter = incr_subsequent_event_counter


@everywhere
class TestFactory(persistence.InfrastructureFactoryTestCase[StreamkitFactory]):
    def setUp(self) -> None:
        self.env = Environment(env=dict(os.environ))
        super().setUp()

    def expected_factory_class(self) -> type[StreamkitFactory]:
        return StreamkitFactory

    def expected_aggregate_recorder_class(self) -> Any:
        return StreamkitAggregateRecorder

    def expected_application_recorder_class(self) -> Any:
        return StreamkitApplicationRecorder

    def expected_tracking_recorder_class(self) -> Any:
        return StreamkitTrackingRecorder

    def tracking_recorder_subclass(self) -> Any:
        return Counters

    def expected_process_recorder_class(self) -> Any:
        return StreamkitProcessRecorder


@everywhere
class TestExampleApplication(application.ExampleApplicationTestCase):
    expected_factory_topic = "streamkit.adapters.eventsourcing.factory:StreamkitFactory"


@everywhere
class TestApplication(application.ApplicationTestCase):
    pass


@everywhere
class TestCounters(_Judged, projection.EventCountersViewTestCase):
    def construct_event_counters_view(self) -> Any:
        return self.factory.tracking_recorder(Counters)


@everywhere
class TestProjection(projection.AggregateEventCountersProjectionTestCase):
    view_class = Counters  # type: ignore[assignment]


@everywhere
class TestEventSourcedProjection(projection.EventSourcedProjectionTestCase):
    pass


@everywhere
class TestDCBRecorder(_Judged, renamed(dcb, "DCBRecorderTestCase", "DcbRecorderTestCase")):
    def test_append_read(self) -> None:
        self._test_append_read(self.factory.dcb_recorder())

    def test_append_subscribe(self) -> None:
        self._test_append_subscribe(self.factory.dcb_recorder())


@everywhere
class TestTaggedDecisions(
    renamed(projection, "TaggedDecisionCountersProjectionTestCase", "DecisionCountersProjectionTestCase")
):
    view_class = Counters  # type: ignore[assignment]
    env: ClassVar[dict[str, str]] = {"MAPPER_TOPIC": "eventsourcing.dcb.msgpack:MessagePackMapper"}
