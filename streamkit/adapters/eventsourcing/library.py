"""The parts of the library that the adapter uses. Version 10 has other names for some of them."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from eventsourcing.persistence import StoredEvent

__all__ = [
    "HAS_METADATA",
    "DCBAppendCondition",
    "DCBEvent",
    "DCBInfrastructureFactory",
    "DCBListenNotifySubscription",
    "DCBQuery",
    "DCBReadResponse",
    "DCBRecorder",
    "DCBSequencedEvent",
    "DataError",
    "DatabaseError",
    "IntegrityError",
    "InterfaceError",
    "OperationalError",
    "ProgrammingError",
]

HAS_METADATA = "metadata" in {field.name for field in fields(StoredEvent)}
"""Version 10 gives each event an id and metadata, and its aggregates' ids are text only."""

if TYPE_CHECKING or not HAS_METADATA:
    from eventsourcing.dcb.api import (
        DCBAppendCondition,
        DCBEvent,
        DCBQuery,
        DCBReadResponse,
        DCBRecorder,
        DCBSequencedEvent,
    )
    from eventsourcing.dcb.persistence import DCBInfrastructureFactory, DCBListenNotifySubscription
    from eventsourcing.persistence import (
        DatabaseError,
        DataError,
        IntegrityError,
        InterfaceError,
        OperationalError,
        ProgrammingError,
    )
else:
    from eventsourcing.dcb.api import DcbAppendCondition as DCBAppendCondition
    from eventsourcing.dcb.api import DcbEvent as DCBEvent
    from eventsourcing.dcb.api import DcbQuery as DCBQuery
    from eventsourcing.dcb.api import DcbReadResponse as DCBReadResponse
    from eventsourcing.dcb.api import DcbRecorder as DCBRecorder
    from eventsourcing.dcb.api import DcbSequencedEvent as DCBSequencedEvent
    from eventsourcing.dcb.persistence import (
        DcbInfrastructureFactory as DCBInfrastructureFactory,
    )
    from eventsourcing.dcb.persistence import (
        DcbListenNotifySubscription as DCBListenNotifySubscription,
    )
    from eventsourcing.errors import (
        DatabaseError,
        DataError,
        InterfaceError,
        OperationalError,
        ProgrammingError,
    )
    from eventsourcing.persistence import IntegrityError
