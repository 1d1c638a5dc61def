"""The factory that the library asks for recorders: one for each application."""

from __future__ import annotations

import os
from typing import ClassVar, cast

from eventsourcing.persistence import AggregateRecorder, ApplicationRecorder, InfrastructureFactory, ProcessRecorder
from eventsourcing.utils import Environment, EnvType, resolve_topic

from ...client import connect
from ...errors import StreamkitError
from .library import DCBInfrastructureFactory
from .recorders import (
    StreamkitAggregateRecorder,
    StreamkitApplicationRecorder,
    StreamkitProcessRecorder,
    StreamkitTrackingRecorder,
)
from .tags import StreamkitDCBRecorder

__all__ = ["StreamkitFactory"]


class StreamkitFactory(
    DCBInfrastructureFactory[StreamkitTrackingRecorder], InfrastructureFactory[StreamkitTrackingRecorder]
):
    """Makes the recorders of an application. `close` closes its store."""

    ORIGINATOR_ID_TYPE = "ORIGINATOR_ID_TYPE"
    aggregate_recorder_class: ClassVar[type[StreamkitAggregateRecorder]] = StreamkitAggregateRecorder
    application_recorder_class: ClassVar[type[StreamkitApplicationRecorder]] = StreamkitApplicationRecorder
    tracking_recorder_class: ClassVar[type[StreamkitTrackingRecorder]] = StreamkitTrackingRecorder
    process_recorder_class: ClassVar[type[StreamkitProcessRecorder]] = StreamkitProcessRecorder

    def __init__(self, env: Environment | EnvType | None) -> None:
        super().__init__(env)
        self._id_type = (self.env.get(self.ORIGINATOR_ID_TYPE) or "uuid").lower()
        if self._id_type not in ("uuid", "text"):
            raise OSError(f"{self.ORIGINATOR_ID_TYPE} is 'uuid' or 'text', not {self._id_type!r}")
        name = self.env.get("STREAMKIT_STORE") or os.environ.get("STREAMKIT_STORE")
        if not name:
            keys = " or ".join(self.env.create_keys("STREAMKIT_STORE"))
            raise OSError(f"the environment names no store: set {keys} to its UUID")
        self._space = self.env.get("STREAMKIT_SPACE") or self.env.name or "events"
        try:
            self._client = connect(self.env.get("STREAMKIT_URL"), archive=self.env.get("STREAMKIT_ARCHIVE"))
            self._store = self._client.store(name)
        except (StreamkitError, ValueError) as error:
            raise OSError(str(error)) from error

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        """Return a recorder of aggregates. Another `purpose` than "events" has its own space, `<space>.<purpose>`."""
        space = self._space if purpose == "events" else f"{self._space}.{purpose}"
        return self.aggregate_recorder_class(self._store, space, self._id_type)

    def application_recorder(self) -> ApplicationRecorder:
        """Return a recorder of an application. `APPLICATION_RECORDER_TOPIC` may name its class."""
        topic = self.env.get(self.APPLICATION_RECORDER_TOPIC)
        made = resolve_topic(topic) if topic else self.application_recorder_class
        return cast(ApplicationRecorder, made(self._store, self._space, self._id_type))

    def tracking_recorder(
        self, tracking_recorder_class: type[StreamkitTrackingRecorder] | None = None
    ) -> StreamkitTrackingRecorder:
        """Return a recorder of positions in upstream applications. `TRACKING_RECORDER_TOPIC` may name its class."""
        topic = self.env.get(self.TRACKING_RECORDER_TOPIC)
        made = tracking_recorder_class or (resolve_topic(topic) if topic else self.tracking_recorder_class)
        return cast(StreamkitTrackingRecorder, made(self._store, self._space, self._id_type))

    def process_recorder(self) -> ProcessRecorder:
        """Return a recorder of a process application. `PROCESS_RECORDER_TOPIC` may name its class."""
        topic = self.env.get(self.PROCESS_RECORDER_TOPIC)
        made = resolve_topic(topic) if topic else self.process_recorder_class
        return cast(ProcessRecorder, made(self._store, self._space, self._id_type))

    def dcb_recorder(self) -> StreamkitDCBRecorder:
        """Return a recorder of events with tags, for dynamic consistency boundaries."""
        return StreamkitDCBRecorder(self._store, self._space)

    def close(self) -> None:
        """Close the store and its client."""
        self._store.close()
        self._client.close()
