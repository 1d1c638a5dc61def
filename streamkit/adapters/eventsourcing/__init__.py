"""A persistence module for the library `eventsourcing`: `PERSISTENCE_MODULE=streamkit.adapters.eventsourcing`.

An application is one space, and an aggregate is one segment of it. The transaction that records events also extends the
segment of notifications, by one entry for each event: the sequence of that entry is the notification's id. So ids are
1, 2, 3, … in the order of the commits, without gaps, and a save is one commit. A process application tracks its
position in one more segment of the same transaction. Snapshots are kept in a space of their own.

Environment: STREAMKIT_URL and STREAMKIT_STORE, as everywhere; STREAMKIT_SPACE (else the application's name); and
ORIGINATOR_ID_TYPE ("uuid" or "text"), as with the library's own modules.
"""

from importlib import import_module

from ...errors import MissingDependency

try:
    import_module("eventsourcing")
except ImportError as error:
    raise MissingDependency(f"{__name__} needs eventsourcing: pip install 'streamkit-store[eventsourcing]'") from error

from .factory import StreamkitFactory
from .recorders import (
    StreamkitAggregateRecorder,
    StreamkitApplicationRecorder,
    StreamkitProcessRecorder,
    StreamkitTrackingRecorder,
)
from .tags import StreamkitDCBRecorder

__all__ = [
    "Factory",
    "StreamkitAggregateRecorder",
    "StreamkitApplicationRecorder",
    "StreamkitDCBRecorder",
    "StreamkitFactory",
    "StreamkitProcessRecorder",
    "StreamkitTrackingRecorder",
]

Factory = StreamkitFactory
