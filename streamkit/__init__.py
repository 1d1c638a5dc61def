"""streamkit: an event-stream store without servers. `connect` is where to begin."""

from typing import TYPE_CHECKING, Any

from .client import Client, connect
from .errors import (
    AccessDenied,
    CorruptData,
    CrossPartition,
    DeliveryLost,
    EntriesRemoved,
    Fenced,
    GroupExists,
    InvalidName,
    InvalidOffset,
    InvalidRecord,
    LeaseLost,
    LeaseNotAcquired,
    MissingDependency,
    OutcomeUnknown,
    PermanentError,
    RecordTooLarge,
    SequenceMismatch,
    SpaceExists,
    SpaceFull,
    StoreClosed,
    StreamkitError,
    Throttled,
    TransactionIdMismatch,
    TransactionTooLarge,
    TransientError,
    Unavailable,
    UnsupportedVersion,
)
from .gaps import Gap
from .leases import Lease, LeaseGrant
from .lexkey import LexKey, Unsigned
from .model import TRX, Entry, Record, SegmentStatus
from .retention import Retention
from .space import SpaceSettings
from .statistics import Statistics
from .store import Store
from .transaction import Transaction

if TYPE_CHECKING:
    from .views.view import View

__version__ = "0.1.0"

__all__ = [
    "TRX",
    "AccessDenied",
    "Client",
    "CorruptData",
    "CrossPartition",
    "DeliveryLost",
    "EntriesRemoved",
    "Entry",
    "Fenced",
    "Gap",
    "GroupExists",
    "InvalidName",
    "InvalidOffset",
    "InvalidRecord",
    "Lease",
    "LeaseGrant",
    "LeaseLost",
    "LeaseNotAcquired",
    "LexKey",
    "MissingDependency",
    "OutcomeUnknown",
    "PermanentError",
    "Record",
    "RecordTooLarge",
    "Retention",
    "SegmentStatus",
    "SequenceMismatch",
    "SpaceExists",
    "SpaceFull",
    "SpaceSettings",
    "Statistics",
    "Store",
    "StoreClosed",
    "StreamkitError",
    "Throttled",
    "Transaction",
    "TransactionIdMismatch",
    "TransactionTooLarge",
    "TransientError",
    "Unavailable",
    "Unsigned",
    "UnsupportedVersion",
    "View",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> Any:
    """Import a public name on its first use."""
    if name == "View":
        from .views.view import View

        return View
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
